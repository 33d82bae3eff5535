"""Error messages about transforms that do not fit their environment, and about invalid arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vecrl.envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from vecrl.envs.transforms import (
    CatFrames,
    CatTensors,
    CenterCrop,
    ClipTransform,
    Compose,
    ExcludeTransform,
    FlattenObservation,
    GrayScale,
    ObservationNorm,
    RenameTransform,
    Resize,
    StepCounter,
    ToTensorImage,
    Transform,
)
from vecrl.errors import SpaceError
from vecrl.specs import Composite, Unbounded


class Mixed(EnvBase):
    """Observes entries with different numbers of dimensions; only its specs are used."""

    def __init__(self) -> None:
        super().__init__(batch_size=[3])
        self.observation_spec = Composite(
            row=Unbounded((3, 2)), number=Unbounded((3,)), image=Unbounded((3, 4, 5, 3)), shape=[3]
        )

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any: ...

    def _step(self, tensordict: Any) -> Any: ...


def over(transform: Any) -> Callable[[], Any]:
    return lambda: TransformedEnv(Mixed(), transform()).observation_spec


def holding_itself() -> None:
    complete = Compose(StepCounter())
    complete.append(complete)


def normed(env: Any, steps: int, **options: Any) -> None:
    norm = ObservationNorm(in_keys=["observation"])
    transformed = TransformedEnv(env, norm)
    norm.init_stats(steps, **options)
    transformed.close()


ERROR_CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dimensions that differ": (
        over(lambda: CatTensors(["row", "number"], "all")),
        SpaceError,
        r"'number' of \(3,\), 'row' of \(3, 2\). unsqueeze_if_oor",
    ),
    "frames of a number": (over(lambda: CatFrames(2, -1, ["number"])), SpaceError, r"dimension -1.*\(3,\)"),
    "frames along too few": (over(lambda: CatFrames(2, -3, ["row"])), SpaceError, r"dimension -3.*\(3, 2\)"),
    "no image": (over(lambda: ToTensorImage(in_keys=["row"])), SpaceError, r"3 dimensions or more.*\(3, 2\)"),
    "no image to be grey": (over(lambda: GrayScale(["number"])), SpaceError, r"3 dimensions or more.*\(3,\)"),
    "no image to be smaller": (over(lambda: Resize(2, in_keys=["row"])), SpaceError, "2 dimensions or more"),
    "too few to be flat": (over(lambda: FlattenObservation(-3, -1, ["number"])), IndexError, "to flatten, got -3"),
    "loc of another shape": (
        over(lambda: ObservationNorm(torch.zeros(5), 1.0, ["row"])),
        SpaceError,
        r"values of shape \(3, 2\), got the shapes \(5,\) and \(\)",
    ),
    "no size": (lambda: Resize(0), ValueError, "w to be an int of 1 or more, got 0"),
    "no size either": (lambda: CenterCrop(3, -1), ValueError, "h to be an int of 1 or more, got -1"),
    "no steps": (lambda: normed(GymEnv("CartPole-v1"), 0), ValueError, "num_iter of 1 or more, got 0"),
    "rollouts of unlike length": (
        lambda: normed(SerialEnv(2, lambda: GymEnv("CartPole-v1")), 200),
        ValueError,
        "cat_dim=1, and as reduce_dim",
    ),
    "without done": (over(lambda: ExcludeTransform("done")), SpaceError, "got 'done', which ends episodes"),
    "a class": (
        lambda: TransformedEnv(Mixed()).append_transform(StepCounter),
        TypeError,
        "the class StepCounter. Create an instance",
    ),
    "below a value": (
        over(lambda: RenameTransform(["number"], [("row", "number")])),
        SpaceError,
        r"not nested in a value, got \('row', 'number'\), and \('row',\) is a value",
    ),
    "itself": (holding_itself, ValueError, "without this Compose in it"),
    "low above high": (lambda: ClipTransform(["row"], low=2, high=1), ValueError, "low=2 and high=1"),
    "no TensorDict": (
        lambda: ClipTransform(["row"], low=2)(5),
        TypeError,
        "Expected a TensorDict as input of ClipTransform, got 5",
    ),
    "half a step": (lambda: StepCounter(2.5), ValueError, "1 or more, or None, got 2.5"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("case", ERROR_CASES)
def test_error_messages(case: str) -> None:
    call, kind, message = ERROR_CASES[case]
    with pytest.raises(kind, match=f"(?s){message}"):
        call()


def test_rollouts_of_different_lengths_can_be_concatenated() -> None:
    norm = ObservationNorm(in_keys=["observation"])
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), norm)
    norm.init_stats(100, cat_dim=1, reduce_dim=(0, 1))
    assert env.rollout(2)["observation"].shape == (2, 2, 4)


class Silent(Transform):
    """Returns nothing."""

    def __init__(self) -> None:
        super().__init__(in_keys=["observation"])

    def _apply_transform(self, value: torch.Tensor) -> Any:
        value.mul_(2)


class Unfinished(Transform):
    """Does not call the constructor of its base class."""

    def __init__(self) -> None:
        self.factor = 2


def test_mistakes_of_a_new_transform_are_explained() -> None:
    with pytest.raises(SpaceError, match=r"Silent._apply_transform to return a value, got None"):
        _ = TransformedEnv(GymEnv("CartPole-v1"), Silent()).observation_spec
    with pytest.raises(TypeError, match=r"Unfinished.__init__ to call super\(\).__init__"):
        TransformedEnv(GymEnv("CartPole-v1"), Unfinished())


def test_hooks_that_return_nothing_are_named() -> None:
    class Doubled(Transform):
        def _call(self, next_tensordict: Any) -> Any:
            next_tensordict["reward"] = 2 * next_tensordict["reward"]

    env = TransformedEnv(GymEnv("CartPole-v1"), Doubled())
    with pytest.raises(TypeError, match=r"Expected Doubled\._call to return the TensorDict .* got None\. End it with"):
        env.rollout(3)
    env.close()
