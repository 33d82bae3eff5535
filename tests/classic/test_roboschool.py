"""`RoboschoolEnv`: which simulator runs a task, and the warnings and errors about it."""

import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.fixtures.classic_envs import EndingEnv

from vecrl.classic import Config, RoboschoolEnv
from vecrl.errors import VersionError
from vecrl.simulators.roboschool import SIMULATOR_SOURCES


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VECRL_PYTHON_ROBOSCHOOL", raising=False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes only the given simulator modules importable, with stand-ins for those that are not installed."""

    def install(*names: str) -> None:
        for name in ("roboschool", "pybullet_envs_gymnasium", "mujoco"):
            if name not in names:
                monkeypatch.setitem(sys.modules, name, None)
            elif name != "mujoco":
                monkeypatch.setitem(sys.modules, name, ModuleType(name))

    return install


def test_mujoco_is_the_fallback_with_a_warning(installed: Any) -> None:
    installed("mujoco")
    with pytest.warns(
        UserWarning, match="RoboschoolHopper-v1 runs as Hopper-v5 on mujoco, since roboschool is not available"
    ):
        env = RoboschoolEnv("RoboschoolHopper-v1", seed=0)
    bare = gymnasium.make("Hopper-v5")
    np.testing.assert_array_equal(env.reset(), bare.reset(seed=0)[0])
    state, reward, done, _ = env.step([0.1, 0.2, 0.3])
    expected = bare.step(np.array([0.1, 0.2, 0.3], np.float32))
    np.testing.assert_array_equal(state, expected[0])
    assert (reward, done) == (expected[1], False)
    assert (env.simulator, env.running, env.env_name) == ("mujoco", "Hopper-v5", "RoboschoolHopper-v1")
    assert repr(env) == "RoboschoolEnv('RoboschoolHopper-v1', simulator='mujoco', running='Hopper-v5')"
    config = Config()
    env.update_config(config)
    assert (config.env.name, config.env.simulator) == ("RoboschoolHopper-v1", "mujoco")
    env.close()


@pytest.mark.parametrize("task", SIMULATOR_SOURCES[-1].ids)
def test_every_mujoco_task_runs(task: str) -> None:
    with RoboschoolEnv(f"Roboschool{task}-v1", simulator="mujoco", seed=0) as env:
        assert env.reset().shape == env.get_state_info()["shape"]
        state, reward, _, _ = env.step(np.zeros(env.get_action_info()["shape"]))
        assert np.isfinite(state).all()
        assert np.isfinite(reward)


def test_pybullet_comes_before_mujoco(installed: Any) -> None:
    installed("pybullet_envs_gymnasium", "mujoco")
    gymnasium.register("Walker2DBulletEnv-v0", EndingEnv)
    try:
        with pytest.warns(UserWarning, match="runs as Walker2DBulletEnv-v0 on pybullet.*the same sizes"):
            env = RoboschoolEnv("RoboschoolWalker2d-v1")
        assert isinstance(env.env.unwrapped, EndingEnv)
    finally:
        del gymnasium.registry["Walker2DBulletEnv-v0"]


def test_roboschool_comes_first_and_needs_no_warning(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("roboschool", "mujoco")
    gym: Any = ModuleType("gym")
    made: list[str] = []
    gym.__version__ = "0.15.4"
    gym.make = lambda name: made.append(name) or EndingEnv()
    monkeypatch.setitem(sys.modules, "gym", gym)
    assert RoboschoolEnv("RoboschoolPong-v1").simulator == "roboschool"
    assert made == ["RoboschoolPong-v1"]


def test_missing_simulators_raise_with_install_hints(installed: Any) -> None:
    installed("mujoco")
    with pytest.raises(
        VersionError, match=r"roboschool is not installed .*pybullet-envs-gymnasium.*mujoco has no such task"
    ):
        RoboschoolEnv("RoboschoolHumanoidFlagrun-v1")
    with pytest.raises(VersionError, match=r'pybullet is not installed \(pip install "pybullet-envs-gymnasium"\)\.$'):
        RoboschoolEnv("RoboschoolAnt-v1", simulator="pybullet")


def test_import_errors_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "roboschool.py").write_text("raise ImportError('built for another system')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "roboschool", raising=False)
    with pytest.raises(VersionError, match=r"cannot be imported \(built for another system\)"):
        RoboschoolEnv("RoboschoolAnt-v1", simulator="roboschool")


def test_unknown_tasks_and_simulators_raise() -> None:
    with pytest.raises(ValueError, match="Did you mean 'RoboschoolHopper-v1'"):
        RoboschoolEnv("RoboschoolHoper-v1")
    with pytest.raises(ValueError, match=r"one of \['roboschool', 'pybullet', 'mujoco'\], got 'brax'"):
        RoboschoolEnv("RoboschoolHopper-v1", simulator="brax")
