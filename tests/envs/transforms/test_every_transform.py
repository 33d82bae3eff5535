"""Every transform in the public conformance suite."""

import pytest
from tests.fixtures.transforms import BASES, CASES, VISION, exported

from vecrl.testing import TransformConformance


def test_every_transform_has_a_case() -> None:
    assert exported() - BASES - VISION == {name.partition(":")[0] for name in CASES}


class TestTransforms(TransformConformance):
    num_interleavings = 10  # of twelve calls each; a hundred transforms are checked

    @pytest.fixture(autouse=True, params=sorted(CASES))
    def _case(self, request: pytest.FixtureRequest) -> None:
        self.case = CASES[request.param]
        self.independent, self.movable = not self.case.shared, not self.case.needs
        self.env_class = self.case.env

    def make(self):
        return self.case.make()
