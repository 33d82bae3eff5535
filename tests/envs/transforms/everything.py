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


CASES: dict[str, Case] = {
    "ClipTransform": Case(lambda: transforms.ClipTransform(in_keys=["observation"], low=-1.0, high=2.0)),
    "Compose": Case(lambda: transforms.Compose(transforms.StepCounter(), transforms.RewardSum())),
    "FunctionTransform": Case(lambda: transforms.FunctionTransform(lambda td: td.set("twice", td["observation"] * 2))),
    "InitTracker": Case(transforms.InitTracker),
    "ObservationNorm": Case(
        lambda: transforms.ObservationNorm(1.0, 2.0, in_keys=["observation"], standard_normal=True)
    ),
    "RewardSum": Case(transforms.RewardSum),
    "StepCounter": Case(lambda: transforms.StepCounter(max_steps=3)),
}
"""By the name of the class; more than one of a class as "Name: what is special"."""

BASES = {"Transform", "ObservationTransform"}
"""What others are made of, and does nothing by itself."""


def exported() -> set[str]:
    """The names of all transforms that `vecrl.envs.transforms` gives."""
    found = {name: getattr(transforms, name) for name in transforms.__all__}
    return {name for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Transform)}
