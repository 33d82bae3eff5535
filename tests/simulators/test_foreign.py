"""Safety-Gymnasium and Roboschool on the interpreters that they need, in every dialect and on the command line."""

import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tests.fixtures.foreign import old_env, python_path
from typer.testing import CliRunner

from vecrl.classic import GymEnv as ClassicEnv
from vecrl.classic import RoboschoolEnv
from vecrl.cli.app import app
from vecrl.envs import (
    GymEnv,
    ParallelEnv,
    SafetyGymnasiumEnv,
    SafetyGymnasiumWrapper,
    SerialEnv,
    check_env_specs,
    make_env,
)
from vecrl.errors import SerializationError, VersionError
from vecrl.simulators import roboschool, safety
from vecrl.simulators.availability import available
from vecrl.simulators.foreign import ForeignEnv, ForeignLibrary
from vecrl.vector import SyncVectorEnv, make_vector_env
from vecrl.venv import DummyVectorEnv, SubprocVectorEnv

old_pythons = pytest.mark.old_pythons


@pytest.fixture
def safety_python() -> str:
    return python_path("VECRL_PYTHON_SAFETY")


@pytest.fixture
def roboschool_python() -> str:
    return python_path("VECRL_PYTHON_ROBOSCHOOL")


@pytest.fixture
def no_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VECRL_PYTHON_SAFETY", "VECRL_PYTHON_ROBOSCHOOL"):
        monkeypatch.delenv(name, raising=False)


# -- on this interpreter ---------------------------------------------------------------------------


def test_results_are_those_of_this_interpreter() -> None:
    with (
        make_vector_env("gym::CartPole-v1", num_envs=2, backend="processes", num_workers=1, python=sys.executable) as a,
        make_vector_env("gym::CartPole-v1", num_envs=2) as b,
    ):
        assert a.env._pool._backend._program.request["program"][0] == sys.executable
        assert (a.reset(seed=3)[0] == b.reset(seed=3)[0]).all()
        for step in range(30):
            actions = np.array([step % 2, 1])
            first, second = a.step(actions), b.step(actions)
            assert all((x == y).all() for x, y in zip(first[:4], second[:4], strict=True))


@pytest.mark.parametrize("cls", [DummyVectorEnv, SubprocVectorEnv])
def test_environments_with_ids(cls: type[DummyVectorEnv | SubprocVectorEnv]) -> None:
    with cls([old_env(i, python=sys.executable, turns=False) for i in range(2)]) as envs:
        assert envs.seed(5) == [[5], [6]]
        obs, _ = envs.reset()
        assert [o["x"][0] for o in obs] == [0, 1]
        infos = envs.step(np.zeros((1, 2), np.float32), id=[1])[4]
        assert (infos[0]["env_id"], infos[0]["count"]) == (1, 1)
        assert envs.reward_range == [(-np.inf, np.inf)] * 2
        envs.set_env_attr("scale", 3.0, id=0)
        assert envs.get_env_attr("scale") == [3.0, 1.0]


def test_environments_that_are_exchanged_as_objects_are_refused() -> None:
    with pytest.raises(SerializationError, match="Expected trust_spaces=True with environments on another interpreter"):
        SubprocVectorEnv([old_env(python=sys.executable)], trust_spaces=False)


@pytest.mark.parametrize("cls", [SerialEnv, ParallelEnv])
def test_tensordict_environments(cls: type[SerialEnv | ParallelEnv]) -> None:
    batch = cls(2, lambda: GymEnv("CartPole-v1", python=sys.executable))
    try:
        batch.set_seed(1)
        assert batch.rollout(3)["next", "reward"].tolist() == [[[1.0]] * 3] * 2
    finally:
        batch.close()


def test_classic_environments() -> None:
    with ClassicEnv("CartPole-v1", python=sys.executable, seed=2) as env, ClassicEnv("CartPole-v1", seed=2) as local:
        assert isinstance(env.env, ForeignEnv)
        np.testing.assert_array_equal(env.reset(), local.reset())


def test_the_command_line_takes_an_interpreter() -> None:
    arguments = ["rollout", "CartPole-v1", "--episodes", "2", "--envs", "2", "--python", sys.executable]
    result = CliRunner().invoke(app, [*arguments, "--backend", "processes", "--workers", "1", "--seed", "0"])
    assert result.exit_code == 0, result.output
    assert "2 episodes" in result.output
    result = CliRunner().invoke(app, ["rollout", "CartPole-v1", "--python", "/no/python"])
    assert "Expected python to be the path" in result.output


@pytest.mark.usefixtures("no_interpreters")
def test_missing_interpreters_say_how_to_make_them() -> None:
    with pytest.raises(VersionError, match=r"python3\.10 -m venv safety_gymnasium; .*set VECRL_PYTHON_SAFETY to it"):
        make_vector_env("safety::SafetyPointGoal1-v0")
    assert "VECRL_PYTHON_SAFETY" in str(available("safety").missing)
    assert SafetyGymnasiumEnv.available_envs == []
    with pytest.raises(ValueError, match="Did you mean 'RoboschoolHopper-v1'"):
        make_vector_env("roboschool::RoboschoolHoper-v1")


def test_names_are_asked_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECRL_PYTHON_TEST", sys.executable)
    library = ForeignLibrary("json", "VECRL_PYTHON_TEST", "3.7", "json", "[json.__name__]", "json")
    assert library.names() == ["json"]
    missing = ForeignLibrary("no_module", "VECRL_PYTHON_TEST", "3.7", "no-module", "[]", "no_module")
    with pytest.raises(VersionError, match=r"got none\. Install it: .* -m pip install no-module"):
        missing.names()


class Costly(gymnasium.Env[np.ndarray, np.ndarray]):
    """Returns six values, as Safety-Gymnasium does."""

    observation_space = action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        return action, 1.0, 2.5, False, False, {}


def test_the_cost_of_six_values_is_an_entry() -> None:
    env = SafetyGymnasiumWrapper(Costly())
    check_env_specs(env)
    rollout = env.rollout(2)
    assert rollout["next", "cost"].tolist() == [[2.5], [2.5]]
    assert rollout["cost"].tolist() == [[0.0], [2.5]]
    assert (env.observation_spec["cost"].shape, env.reward_spec.shape) == ((1,), (1,))


# -- with PyBullet ---------------------------------------------------------------------------------


@pytest.mark.simulators
@pytest.mark.usefixtures("no_interpreters")
def test_pybullet_runs_the_tasks_of_roboschool_and_says_so_once() -> None:
    roboschool._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="run on pybullet, since no interpreter with roboschool is named"):
        env = make_vector_env("roboschool::RoboschoolHopper-v1", num_envs=2)
    with env, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = roboschool.env_fn("RoboschoolHopper-v1")()
        assert again.spec is not None
        assert again.spec.id == "HopperBulletEnv-v0"
        again.close()
        assert env.reset(seed=1)[0].shape == (2, 15)
    assert "RoboschoolHopper-v1" in available("roboschool").names
    assert "RoboschoolPong-v1" not in available("roboschool").names


# -- on older interpreters -------------------------------------------------------------------------


@old_pythons
@pytest.mark.parametrize("options", [{}, {"backend": "processes", "num_workers": 2}])
def test_safety_gymnasium(safety_python: str, options: dict[str, object]) -> None:
    with make_vector_env("safety::SafetyPointGoal1-v0", num_envs=2, python=safety_python, **options) as env:
        obs, _ = env.reset(seed=1)
        assert obs.shape == (2, 60)
        info = env.step(np.full((2, 2), 0.5))[4]
        assert {"cost", "cost_sum"} <= set(info)
        assert info["cost"].tolist() == info["cost_sum"].tolist()


@old_pythons
def test_safety_gymnasium_renders_and_lists_its_names(safety_python: str) -> None:
    assert "SafetyPointGoal1-v0" in safety.names()
    env = safety.env_fn("SafetyPointGoal1-v0", python=safety_python, render_mode="rgb_array")()
    env.reset(seed=0)
    frame = env.render()
    assert (frame.dtype, frame.shape[2]) == (np.uint8, 3)
    assert frame.min() < frame.max()
    env.close()


@old_pythons
@pytest.mark.parametrize("options", [{}, {"num_envs": 2}, {"num_workers": 2}])
def test_safety_gymnasium_over_tensordicts(
    safety_python: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VECRL_PYTHON_SAFETY", safety_python)
    env = SafetyGymnasiumEnv("SafetyPointGoal1-v0", **options)
    env.set_seed(0)
    forward = env.action_spec.zero() + torch.tensor([1.0, 0.0], dtype=torch.float64)
    # Straight ahead from the first start lies no hazard, from the second lies one.
    for _ in range(2):
        rollout = env.rollout(100, lambda td: td.set("action", forward))
    assert rollout["next", "cost"].shape == rollout["next", "reward"].shape
    assert rollout["next", "cost"].any()
    assert not rollout["cost"][..., 0, :].any()
    assert "SafetyPointGoal1-v0" in SafetyGymnasiumEnv.available_envs
    env.close()
    assert isinstance(make_env("safety::SafetyPointGoal1-v0"), SafetyGymnasiumEnv)


@old_pythons
@pytest.mark.parametrize("options", [{}, {"backend": "processes", "num_workers": 2}])
def test_roboschool(roboschool_python: str, options: dict[str, object]) -> None:
    with SyncVectorEnv(
        [roboschool.env_fn("RoboschoolInvertedPendulum-v1", python=roboschool_python)] * 2, **options
    ) as env:
        obs, _ = env.reset(seed=1)
        assert (obs.shape, obs.dtype) == ((2, 5), np.float32)
        ends = [env.step(np.ones((2, 1), np.float32))[2].any() for _ in range(60)]
        assert any(ends)
    assert len(roboschool.names()) == 13


@old_pythons
def test_roboschool_without_the_caller_setting_more_than_a_variable(roboschool_python: str) -> None:
    with RoboschoolEnv("RoboschoolHopper-v1", seed=0) as env:
        assert (env.simulator, env.running) == ("roboschool", "RoboschoolHopper-v1")
        assert env.reset().shape == (15,)
        assert env.step([0, 0, 0])[2] is False
