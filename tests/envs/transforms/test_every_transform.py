"""Every transform in the public conformance suite."""

from functools import partial

import pytest
from tests.fixtures.transforms import BASES, CASES, VISION, exported

from vecrl.envs import SerialEnv
from vecrl.testing import IndependentRowsEnv, TransformConformance


def test_every_transform_has_a_case() -> None:
    assert exported() - BASES - VISION == {name.partition(":")[0] for name in CASES}


# Their specs follow from values, or are moved.
READ_VALUES = {"ActionDiscretizer", "ActionScaling", "DeviceCastTransform", "Hash", "MultiAction", "Tokenizer"}


@pytest.mark.parametrize("name", sorted(name for name in CASES if name.partition(":")[0] not in READ_VALUES))
def test_specs_are_on_the_device_of_the_environment(name: str) -> None:
    """The meta device has no data, so this runs without a GPU."""
    base = SerialEnv(2, [partial(IndependentRowsEnv, i) for i in range(2)], device="meta")
    env = CASES[name].env(base, CASES[name].make()).to("meta")
    specs = [spec for spec in env.specs.values(True, True) if spec is not None]
    assert {spec.device.type for spec in specs if spec.device is not None} == {"meta"}


class TestTransforms(TransformConformance):
    num_interleavings = 10  # of twelve calls each; a hundred transforms are checked

    @pytest.fixture(autouse=True, params=sorted(CASES))
    def _case(self, request: pytest.FixtureRequest) -> None:
        self.case = CASES[request.param]
        self.independent, self.movable = not self.case.shared, not self.case.needs
        self.env_class = self.case.env

    def make(self):
        return self.case.make()
