"""Entries that are tensorclasses keep their class in every environment."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase, tensorclass

from vecrl.envs import EnvBase, ParallelEnv, SerialEnv, check_env_specs, make_composite_from_td, step_mdp
from vecrl.envs.transforms import ConditionalSkip, DoubleToFloat, StepCounter, TransformedEnv
from vecrl.specs import Composite, NonTensor, Unbounded


@tensorclass
class View:
    image: torch.Tensor


@tensorclass
class Named:
    image: torch.Tensor
    name: str


class Looks(EnvBase):
    """Observes a tensorclass."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(view=Composite(image=Unbounded((3,)), data_cls=View))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict({"view": View(image=torch.zeros(3), batch_size=[])})  # pyright: ignore[reportCallIssue]

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset().set("done", torch.zeros(1, dtype=torch.bool))

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize(
    "make", [Looks, lambda: TransformedEnv(Looks(), StepCounter()), lambda: TransformedEnv(Looks(), DoubleToFloat())]
)
def test_tensorclasses_keep_their_class(make: Any) -> None:
    env = make()
    check_env_specs(env)
    stepped, rollout = env.rand_step(env.reset()), env.rollout(3)
    sources = (stepped, stepped["next"], env.step_mdp(stepped), rollout, rollout["next"], env.fake_tensordict())
    assert [type(source["view"]) for source in sources] == [View] * 6
    assert rollout["view"].image.shape == (3, 3)


class NamesLooks(Looks):
    """Observes a tensorclass within a group, with a text, which is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        view = Composite(image=Unbounded((3,)), name=NonTensor((), example_data=""), data_cls=Named)
        self.observation_spec = Composite(group=Composite(view=view))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        view = Named(image=torch.zeros(3), name="a", batch_size=[])  # pyright: ignore[reportCallIssue]
        return TensorDict(group=TensorDict(view=view))


BATCHES: dict[str, Any] = {
    "serial": lambda make: SerialEnv(2, make),
    "parallel": lambda make: ParallelEnv(2, make),
    "with transforms": lambda make: TransformedEnv(SerialEnv(2, make), StepCounter()),
    "of transformed ones": lambda make: SerialEnv(2, lambda: TransformedEnv(make(), StepCounter())),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("make", "key", "data_cls"), [(Looks, "view", View), (NamesLooks, ("group", "view"), Named)])
def test_batches_keep_the_class(batch: str, make: Any, key: Any, data_cls: type) -> None:
    with BATCHES[batch](make) as env:
        check_env_specs(env)
        stepped, rollout = env.rand_step(env.reset()), env.rollout(3, break_when_any_done=False)
        root = env.rand_action(env.step_mdp(stepped)).set("_reset", torch.tensor([[True], [False]]))
        partly_reset = env.rand_action(env.reset(root))
        both = env.step_and_maybe_reset(partly_reset.clone())
        partly_stepped = env.step(partly_reset.set("_step", torch.tensor([True, False])))["next"]
        sources = (stepped, stepped["next"], rollout, rollout["next"], partly_reset, *both, partly_stepped)
        assert [type(source[key]) for source in sources] == [data_cls] * 8
        assert rollout[key].image.shape == (2, 3, 3)


def test_classes_with_rewards_beside_their_fields_are_tensordicts_in_batches() -> None:
    class Pays(Looks):
        def __init__(self) -> None:
            super().__init__()
            self.reward_spec = Composite(view=Composite(reward=Unbounded((1,))))

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            view = TensorDict(image=torch.zeros(3), reward=torch.ones(1))
            return TensorDict(view=view, done=torch.zeros(1, dtype=torch.bool))

    rollout = SerialEnv(2, Pays).rollout(3)
    assert isinstance(rollout["view"], TensorDict)
    assert rollout["next", "view", "reward"].shape == (2, 3, 1)


def test_step_mdp_keeps_the_class_of_whole_entries() -> None:
    view = View(image=torch.zeros(3), batch_size=[])  # pyright: ignore[reportCallIssue]
    data = TensorDict({"view": view, "next": TensorDict({"view": view})})
    assert type(step_mdp(data)["view"]) is View


def test_specs_of_tensorclasses_with_text() -> None:
    named: Any = Named(image=torch.zeros(3), name="cat", batch_size=[])  # pyright: ignore[reportCallIssue]
    spec = make_composite_from_td(TensorDict({"named": named}))
    assert spec["named"].data_cls is Named
    assert isinstance(spec["named", "name"], NonTensor)
    assert spec["named", "image"].shape == (3,)
    assert spec.is_in(TensorDict({"named": named}))
    assert type(spec.rand()["named"]) is Named


@tensorclass
class History:
    content: torch.Tensor


class Grows(EnvBase):
    """Observes a tensorclass with one element more after each step."""

    def __init__(self) -> None:
        super().__init__()
        content = Composite(content=Unbounded((-1,)), shape=(-1,), data_cls=History)
        self.observation_spec = Composite(history=content)
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(history=history(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        longer = history(len(tensordict["history"]) + 1)
        return TensorDict(history=longer, reward=torch.ones(1), done=torch.zeros(1, dtype=torch.bool))

    def _set_seed(self, seed: int | None) -> None: ...


def history(length: int) -> Any:
    return History(content=torch.arange(float(length)), batch_size=[length])  # pyright: ignore[reportCallIssue]


def test_growing_entries_can_be_skipped() -> None:
    skip = ConditionalSkip(lambda td: td["step_count"] % 3 == 2)
    env = TransformedEnv(TransformedEnv(Grows(), skip), StepCounter())
    for stop in (True, False):
        data = env.rollout(6, return_contiguous=False, break_when_any_done=stop)
        next_tds = [step["next"] for step in data.unbind(0)]
        assert [len(step["history"]) for step in next_tds] == [2, 3, 3, 4, 5, 5]
        assert {type(step["history"]) for step in next_tds} == {History}
        assert [step["reward"].item() for step in next_tds] == [1, 1, 0, 1, 1, 0]
