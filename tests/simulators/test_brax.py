"""The newest Brax, in its own environment: `make test-brax`."""

import os

import pytest
from tests.simulators.brax_checks import BraxChecks

from vecrl.vector.factory import make_brax_env
from vecrl.vector.registry import available

os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo reads it when it is imported, which is when Brax is
pytestmark = [
    pytest.mark.brax,
    pytest.mark.timeout(400),  # compiling takes its time on a busy machine
    pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning"),  # Brax imports it
    # Brax reads MJX's data by names that MJX has moved.
    pytest.mark.filterwarnings("ignore:Accessing `.*` directly from `Data` is deprecated:DeprecationWarning"),
    # Brax says of itself, whenever it reads a model, that MuJoCo's MJX is its successor.
    pytest.mark.filterwarnings("ignore:Brax System, piplines and environments are not actively:UserWarning"),
]


class TestBrax(BraxChecks):
    old = False
    prefix = "brax::"
    pendulum = {"backend": "generalized"}

    def test_backend_and_bounds(self, cart):
        """make_brax_env: `backend` reaches Brax; action bounds are the actuators'."""
        assert cart._env.unwrapped.backend == "generalized"
        assert cart.action_space.low.tolist() == [-3]
        assert cart.action_space.high.tolist() == [3]


def test_the_old_namespace_is_missing_here():
    """make_brax_env: brax.v1 missing is an ImportError that names the extra, beside a Brax that is there."""
    with pytest.raises(ImportError, match=r"vecrl\[brax-v1\]"):
        make_brax_env("old::ant", num_envs=2)
    assert available("brax::old").install == 'pip install "vecrl[brax-v1]"'
