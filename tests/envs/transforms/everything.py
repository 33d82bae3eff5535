"""One of every transform, as the tests of what holds for all of them make it."""

from collections.abc import Callable
from dataclasses import dataclass

import vecrl.envs.transforms as transforms
from vecrl.envs.transforms import Transform


@dataclass(frozen=True)
class Case:
    """How to make a transform, and what does not hold for it.

    Attributes:
        make: makes one, for `tests.envs.rows.Rows`.
        shared: why rows have something in common, so that a batch differs from single environments; "" where not.
        needs: why it cannot sit within a batched environment, or be appended to another than it was made for; "" where
            it can.
    """

    make: Callable[[], Transform]
    shared: str = ""
    needs: str = ""


def _stopped(timer: transforms.Timer) -> transforms.Timer:
    """One whose clock stands still, so that two of them say the same."""
    timer._now = _zero
    return timer


def _zero() -> float:
    return 0.0


CASES: dict[str, Case] = {
    "CatFrames": Case(lambda: transforms.CatFrames(3, -3, padding="constant", padding_value=7)),
    "CatFrames: vectors": Case(lambda: transforms.CatFrames(3, -1, in_keys=["observation"], out_keys=["last"])),
    "CenterCrop": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.CenterCrop(5, 10))),
    "ClipTransform": Case(lambda: transforms.ClipTransform(in_keys=["observation"], low=-1.0, high=2.0)),
    "Compose": Case(lambda: transforms.Compose(transforms.StepCounter(), transforms.RewardSum())),
    "Crop": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.Crop(3, 4, 1, 2))),
    "FunctionTransform": Case(lambda: transforms.FunctionTransform(lambda td: td.set("twice", td["observation"] * 2))),
    "GrayScale": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.GrayScale())),
    "InitTracker": Case(transforms.InitTracker),
    "ObservationNorm": Case(
        lambda: transforms.ObservationNorm(1.0, 2.0, in_keys=["observation"], standard_normal=True)
    ),
    "Resize": Case(lambda: transforms.Resize(4, 5, out_keys=["small"])),
    "Resize: bicubic": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.Resize(4, 5, "bicubic"))),
    "RewardSum": Case(transforms.RewardSum),
    "StepCounter": Case(lambda: transforms.StepCounter(max_steps=3)),
    "Timer": Case(lambda: _stopped(transforms.Timer())),
    "ToTensorImage": Case(transforms.ToTensorImage),
    "TrajCounter": Case(lambda: transforms.TrajCounter(repeats=2), shared="numbers are taken in turn"),
}
"""By the name of the class; more than one of a class as "Name: what is special"."""

BASES = {"Transform", "ObservationTransform"}
"""What others are made of, and does nothing by itself."""


def exported() -> set[str]:
    """The names of all transforms that `vecrl.envs.transforms` gives."""
    found = {name: getattr(transforms, name) for name in transforms.__all__}
    return {name for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Transform)}
