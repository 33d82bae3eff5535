"""The newest Brax."""

import os

import pytest
from tests.simulators.brax_checks import BraxChecks

from vecrl.simulators.availability import available
from vecrl.vector.factory import make_brax_env

os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo reads it on import, and Brax imports MuJoCo
pytestmark = [
    pytest.mark.simulators,
    pytest.mark.timeout(400),  # compiling takes long on a busy machine
    pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning"),  # imported by Brax
    # Brax reads MJX's data by names that MJX has moved.
    pytest.mark.filterwarnings("ignore:Accessing `.*` directly from `Data` is deprecated:DeprecationWarning"),
    # Brax warns at each model it reads that MuJoCo's MJX is its successor.
    pytest.mark.filterwarnings("ignore:Brax System, piplines and environments are not actively:UserWarning"),
]


class TestBrax(BraxChecks):
    old = False
    prefix = "brax::"
    pendulum = {"backend": "generalized"}

    def test_backend_and_bounds(self, cart):
        """`backend` reaches Brax; action bounds are those of the actuators."""
        assert cart.task.env.unwrapped.backend == "generalized"
        assert cart.action_space.low.tolist() == [-3]
        assert cart.action_space.high.tolist() == [3]


def test_missing_old_namespace_raises():
    """A missing brax.v1 is an ImportError that names the extra, also if Brax is installed."""
    with pytest.raises(ImportError, match=r"vecrl\[brax-v1\]"):
        make_brax_env("old::ant", num_envs=2)
    assert available("brax::old").install == 'pip install "vecrl[brax-v1]"'
