"""What `check_env_specs` reports beyond shapes, and messages about specs."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, SerialEnv, TensorDictPrimer, check_env_specs
from vecrl.envs.transforms import StepCounter, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Composite, Unbounded


class Walk(EnvBase):
    """Walks on a line; `without` are the flags that `_step` does not return."""

    def __init__(self, without: tuple[str, ...] = (), in_place: bool = False, size: int = 1):
        super().__init__()
        self.without, self.in_place, self.size = without, in_place, size
        self.observation_spec = Composite(position=Unbounded((1,)))
        self.action_spec = self.reward_spec = Unbounded((1,))
        self.add_truncated_keys()

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        position = torch.zeros(self.size)
        return TensorDict({"position": position, "done": position > 3})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        position = tensordict["position"]
        position = position.add_(1) if self.in_place else position + 1
        flags = {"terminated": position > 3, "truncated": position > 9, "done": position > 3}
        result = TensorDict({"position": position, "reward": -position.abs(), **flags})
        return result.exclude(*self.without)

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize("without", [(), ("done",), ("terminated", "truncated"), ("done", "terminated")])
def test_one_done_flag_is_enough(without: tuple[str, ...]) -> None:
    check_env_specs(Walk(without))


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TransformedEnv(env, StepCounter())])
def test_a_step_without_done_flags_is_reported(wrap: Any) -> None:
    env = wrap(Walk(("done", "terminated", "truncated")))
    assert not env.rollout(2)["next", "done"].any()
    with pytest.raises(SpaceError, match=r"'done' .*_step returns no done flag"):
        check_env_specs(env)


def test_a_group_without_done_flags_is_reported() -> None:
    class Group(Walk):
        def __init__(self) -> None:
            super().__init__()
            flag = self.full_done_spec["done"].clone()
            self.full_done_spec = Composite(truncated=flag, agents=Composite(done=flag))

    with pytest.raises(SpaceError, match=r"\('agents', 'done'\) .*_step returns no done flag"):
        check_env_specs(Group())


def test_a_step_that_changes_its_input_is_reported() -> None:
    with pytest.raises(SpaceError, match="'position': _step changes its input in place"):
        check_env_specs(Walk(in_place=True))


def test_wrong_observations_are_named_beside_wrong_flags() -> None:
    with pytest.raises(SpaceError, match=r"(?s)'done' of shape \(1,\).*'position' .*expected shape \(1,\), found \(4,"):
        Walk(size=4).reset()


def test_batches_are_checked() -> None:
    check_env_specs(SerialEnv(2, Walk))


# -- specs of TorchRL


class ForeignBounded:
    """Stands for a spec of TorchRL, which need not be installed."""


ForeignBounded.__module__, ForeignBounded.__qualname__, ForeignBounded.__name__ = "torchrl.data", "Bounded", "Bounded"


@pytest.mark.parametrize(
    "use",
    [
        lambda spec: Composite(x=spec),
        lambda spec: Composite(spec),
        lambda spec: TensorDictPrimer(x=spec),
        lambda spec: setattr(Walk(), "action_spec", spec),
        lambda spec: setattr(Walk(), "full_observation_spec", spec),
    ],
)
def test_specs_of_torchrl_are_refused_with_the_import_to_use(use: Any) -> None:
    with pytest.raises(TypeError, match=r"got Bounded of torchrl\.data\. Import Bounded from vecrl\.specs\."):
        use(ForeignBounded())


class Returns(Walk):
    """Returns `result` from `_step`."""

    def __init__(self, result: Any):
        super().__init__()
        self.result = result

    def _step(self, tensordict: TensorDictBase) -> Any:
        return self.result


@pytest.mark.parametrize(
    "result", [None, (TensorDict({"position": torch.zeros(1)}), 1.0), {"position": torch.zeros(1)}]
)
def test_a_step_must_return_a_tensordict(result: Any) -> None:
    for call in (check_env_specs, lambda env: env.rollout(2)):
        with pytest.raises(TypeError, match=r"Expected Returns\._step to return a TensorDict, got"):
            call(Returns(result))


def test_a_reward_without_a_spec_is_named() -> None:
    class Unpaid(EnvBase):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Composite(position=Unbounded((1,)))
            self.action_spec = Unbounded((1,))

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return self.observation_spec.zero()

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            done = torch.zeros(1, dtype=torch.bool)
            return self.observation_spec.zero().update({"reward": torch.ones(1), "done": done})

        def _set_seed(self, seed: int | None) -> None: ...

    with pytest.raises(
        SpaceError, match=r"step: 'reward': returned, but there is no spec of this reward\. Set reward_spec"
    ):
        check_env_specs(Unpaid())
