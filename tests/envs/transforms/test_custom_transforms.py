"""The example of a custom transform in docs/transforms.md: short, and correct in every respect that the suite tests."""

import re
from pathlib import Path

from vecrl.envs import GymEnv
from vecrl.envs.transforms import Transform
from vecrl.specs import Bounded
from vecrl.testing import TransformConformance

PAGE = Path(__file__).parents[3] / "docs" / "transforms.md"


def _example() -> str:
    """Returns the source of the class in the section on custom transforms."""
    section = PAGE.read_text().split("## Custom transforms")[1]
    found = re.search(r"^class Squash.*?\n\n\n", section, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0].rstrip()


exec(_example())  # in this module, so that it can be pickled
Squash: type[Transform] = globals()["Squash"]


def test_the_example_has_fewer_than_15_lines() -> None:
    assert len(_example().splitlines()) < 15


def test_the_example_bounds_its_specs_and_supports_rollouts() -> None:
    env = GymEnv("CartPole-v1").append_transform(Squash(in_keys=["observation"]))
    assert env.transform.supports_rollout
    assert isinstance(env.observation_spec["observation"], Bounded)
    assert env.rollout(3)["next", "observation"].abs().max() <= 1


class TestSquash(TransformConformance):
    def make(self) -> Transform:
        return Squash(in_keys=["observation"])
