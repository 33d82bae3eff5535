"""Error messages about invalid environments and calls: the expected value, the actual value, and what to do."""

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import RenameTransform, TransformedEnv
from vecrl.envs.utils import step_mdp
from vecrl.errors import SpaceError
from vecrl.specs import Categorical, Composite, Unbounded


class Steady(EnvBase):
    """Returns its own observation. Tests make it violate its specs."""

    size = 1

    def __init__(self, says: int = 1, **own: Any):
        super().__init__()
        self.observation_spec = Composite(pos=Unbounded((says,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        for name, value in own.items():
            self.__dict__[name] = value

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return TensorDict({"pos": torch.zeros(1)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        pos = tensordict["pos"] + tensordict["action"]
        return TensorDict({"pos": pos, "reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None: ...


class Unspecified(EnvBase):
    """Accepts an action that no spec names."""

    _reset = Steady._reset
    _step = Steady._step
    _set_seed = Steady._set_seed


def gives(**entries: Any) -> Callable[[TensorDictBase], TensorDictBase]:
    complete = {"pos": torch.zeros(1), "reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)}
    return lambda tensordict: TensorDict({**complete, **entries})


def growing(says: int) -> Steady:
    env = Steady(says)
    sizes = iter([1, 1, 2, 2, 2])
    env.__dict__["_step"] = lambda tensordict: gives(pos=torch.zeros(next(sizes)))(tensordict)
    return env


def updating(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.update({"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})


def fails_inside(tensordict: TensorDictBase) -> TensorDictBase:
    raise KeyError("a mistake of its own")


ERROR_CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "flags of another shape": (
        lambda: Steady(_step=gives(done=torch.zeros(2, dtype=torch.bool))).rollout(3),
        SpaceError,
        r"'done' of shape \(1,\), as done_spec says, got \(2,\). Return one flag per environment",
    ),
    "flags of another dtype": (
        lambda: Steady(_step=gives(done=torch.zeros(1))).rollout(3),
        SpaceError,
        r"'done' \(done_spec\): expected dtype torch.bool, found torch.float32.*Flags are bool: return done.bool\(\)",
    ),
    "a size that changes": (lambda: growing(1).rollout(5), SpaceError, r"'pos', got \(1,\) and \(2,\).*-1"),
    "a dynamic size, contiguous": (
        lambda: growing(-1).rollout(5, return_contiguous=True),
        SpaceError,
        r"return_contiguous=False if shapes vary",
    ),
    "dynamic sizes side by side, contiguous": (
        lambda: SerialEnv(1, lambda: growing(-1)).rollout(5, return_contiguous=True),
        SpaceError,
        r"return_contiguous=False if shapes vary",
    ),
    "out of another size": (
        lambda: Steady().rollout(3, out=TensorDict({}, [7])),
        SpaceError,
        r"batch size of \[3\] into out, of batch size \[7\]",
    ),
    "a reset that lacks an entry": (
        lambda: Steady(_reset=lambda tensordict: TensorDict({})).rollout(3),
        SpaceError,
        r"'pos', which Steady reads.*observation_spec.*Return it in _reset",
    ),
    "the same, checked": (
        lambda: check_env_specs(Steady(_reset=lambda tensordict: TensorDict({}))),
        SpaceError,
        r"reset: 'pos' \(observation_spec\): expected, but missing",
    ),
    "a step that returns what it was given": (
        lambda: Steady(_step=updating).rollout(3),
        SpaceError,
        r"a new TensorDict.*TensorDict\(\{...\}",
    ),
    "a step without an action": (
        lambda: Steady().step(Steady().reset()),
        SpaceError,
        "'action' in the input.*rand_action",
    ),
    "the same, of gymnasium": (
        lambda: GymEnv("CartPole-v1").step(GymEnv("CartPole-v1").reset()),
        SpaceError,
        "'action' in the input.*rand_action",
    ),
    "an error inside a step": (lambda: Steady(_step=fails_inside).rollout(3), KeyError, "a mistake of its own"),
    "half a step more": (lambda: Steady().rollout(3.0), TypeError, "max_steps to be an int, got 3.0"),  # pyright: ignore[reportArgumentType]
    "steps in words": (lambda: Steady().rollout("3"), TypeError, "max_steps to be an int, got '3'"),  # pyright: ignore[reportArgumentType]
    "no environment over TensorDicts": (
        lambda: check_env_specs(gymnasium.make("CartPole-v1")),  # pyright: ignore[reportArgumentType]
        TypeError,
        "CartPole.*GymWrapper",
    ),
    "a class": (lambda: check_env_specs(Steady), TypeError, "the class Steady. Make an instance"),  # pyright: ignore[reportArgumentType]
    "nothing": (lambda: check_env_specs(None), TypeError, "None"),  # pyright: ignore[reportArgumentType]
    "a seed in words": (lambda: Steady().set_seed("a"), TypeError, "int or None as seed.*'a'"),  # pyright: ignore[reportArgumentType]
    "a seed a row": (lambda: SerialEnv(2, Steady).set_seed([1, 2]), TypeError, r"\[1, 2\].*from one"),  # pyright: ignore[reportArgumentType]
    "no such device": (lambda: Steady().to("gpu"), SpaceError, "'cuda:0', got 'gpu'"),
    "no such device of a spec": (lambda: Unbounded((2,), device="gpu"), SpaceError, "'cuda:0', got 'gpu'"),
    "an action without a spec": (lambda: Unspecified().rollout(3), SpaceError, "Expected an action_spec"),
    "no step": (lambda: step_mdp(TensorDict({"pos": 1})), SpaceError, r"under 'next', got .*\['pos'\]"),
}


@pytest.mark.parametrize("case", ERROR_CASES)
def test_error_messages(case: str) -> None:
    call, kind, message = ERROR_CASES[case]
    with pytest.raises(kind, match=f"(?s){message}"):
        call()


def test_a_batch_size_may_be_a_number() -> None:
    class Sized(Unspecified):
        def __init__(self) -> None:
            super().__init__(batch_size=3)

    assert Sized().batch_size == (3,)


class Finishes(Steady):
    """Has no done flag with a usual name."""

    def __init__(self, **flags: str) -> None:
        super().__init__()
        self.done_spec = Composite({name: Categorical(2, (1,), dtype=torch.bool) for name in flags})


def test_done_flags_have_a_usual_name() -> None:
    message = "Expected a done flag named 'done', 'terminated', 'truncated', got only 'env_done'. Name it 'done', or"
    for make in (lambda: Finishes(env_done=""), lambda: SerialEnv(2, lambda: Finishes(env_done=""))):
        with pytest.raises(SpaceError, match=message):
            make()
    assert Finishes(terminated="").done_keys == ["done", "terminated"]
    renamed = TransformedEnv(Steady(), RenameTransform(["done"], [("nested", "other_done")], create_copy=True))
    with pytest.raises(SpaceError, match=r"got only \('nested', 'other_done'\). Name it \('nested', 'done'\)"):
        renamed.rollout(3)
