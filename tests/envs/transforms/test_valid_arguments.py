"""Arguments that users write in unusual forms: numbers of NumPy and torch, and keys in keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from vecrl import envs
from vecrl.specs import Binary, Categorical, NonTensor, OneHot, TensorSpec, Unbounded
from vecrl.venv import RunningMeanStd

number = torch.tensor
NESTED = ("a", ("b", "c"))

TRANSFORMS: dict[str, Callable[[], envs.Transform]] = {
    "target": lambda: envs.TargetReturn(number(10.0)),
    "target of NumPy": lambda: envs.TargetReturn(np.array(10.0)),
    "nested new key": lambda: envs.RenameTransform(["observation"], [NESTED]),
    "nested key": lambda: envs.CatTensors(out_key=NESTED),
    "key of one name": lambda: envs.RenameTransform(["observation"], [("obs",)]),
    "keys of a generator": lambda: envs.DoubleToFloat(in_keys=(key for key in ["observation"])),
    "nested key of times": lambda: envs.Timer(time_key=("a", "time")),
    "count": lambda: envs.StepCounter(number(5)),
    "frames": lambda: envs.CatFrames(np.int64(4), number(-1), in_keys=["observation"]),
    "steps": lambda: envs.FrameSkipTransform(number(2)),
    "no actions": lambda: envs.NoopResetEnv(number(2)),
    "horizons": lambda: envs.Compose(
        envs.StepCounter(), envs.RandomTruncationTransform(number(2), number(4), prob=np.float32(0.5))
    ),
    "scales": lambda: envs.ObservationNorm(number(0.0), np.float64(1.0), ["observation"], eps=number(1e-6)),
    "bounds": lambda: envs.ClipTransform(["observation"], low=np.float32(-1), high=number(1)),
    "decay": lambda: envs.VecNorm(["observation"], decay=np.float32(0.9)),
    "text": lambda: envs.TensorDictPrimer(text=NonTensor(()), default_value="hi"),
    "nothing": lambda: envs.TensorDictPrimer(h=Unbounded((0,)), default_value=torch.zeros(0)),
}


@pytest.mark.parametrize("make", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_take_them(make: Callable[[], envs.Transform]) -> None:
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), make())
    assert env.rollout(2, break_when_any_done=False).shape == (2,)
    env.close()


def test_transforms_of_other_data_take_them() -> None:
    assert envs.CenterCrop(number(3), number(4)).h == 4
    assert envs.Resize(np.int64(84)).h == 84
    assert envs.PermuteTransform(number([-1, -2])).dims == (-1, -2)
    assert envs.UnsqueezeTransform(dim=number(-1)).dim == -1
    assert envs.MultiStepTransform(n_steps=3, gamma=number(0.5)).gamma == 0.5
    assert envs.Reward2GoTransform(gamma=number(0.5)).gamma == 0.5
    compose = envs.Compose(envs.StepCounter())
    compose.insert(number(0), envs.RewardSum())  # pyright: ignore[reportArgumentType]
    assert isinstance(compose[0], envs.RewardSum)


@pytest.mark.parametrize("three", [number(3), np.array(3), np.int64(3), 3.0])
def test_specs_take_them(three: int) -> None:
    specs: list[tuple[TensorSpec, tuple[int, ...]]] = [
        (Categorical(three), ()),
        (OneHot(three), (3,)),
        (Binary(three), (3,)),
    ]
    assert all(spec.shape == shape and spec.is_in(spec.rand()) for spec, shape in specs)


def test_statistics_take_lists() -> None:
    np.testing.assert_allclose(RunningMeanStd([1.0, 2.0], [1.0, 2.0]).norm(np.array([1.0, 4.0])), [0.0, 1.0])
