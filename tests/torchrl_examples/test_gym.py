"""Examples: selecting the gym library, and functions in several versions."""

import importlib.util
import sys
from types import ModuleType

import gymnasium
import pytest

from vecrl._utils import implement_for
from vecrl.envs import GymEnv, check_env_specs
from vecrl.envs.libs.gym import GymEnv as SameGymEnv
from vecrl.envs.libs.gym import gym_backend, set_gym_backend


def test_set_gym_backend() -> None:
    with set_gym_backend(gymnasium):
        assert gym_backend() is gymnasium
        env1 = GymEnv("Pendulum-v1")
    assert type(env1._env.env.env) is gymnasium.envs.classic_control.PendulumEnv
    assert SameGymEnv is GymEnv


@pytest.mark.skipif(importlib.util.find_spec("gym") is None, reason="the old gym is not installed")
def test_set_gym_backend_of_the_old_gym() -> None:
    import gym

    with set_gym_backend(gym):
        assert gym_backend() is gym
        env2 = GymEnv("Pendulum-v1")
    assert type(env2._env.env.env) is gym.envs.classic_control.PendulumEnv
    check_env_specs(env2)
    with set_gym_backend("gym"):
        assert gym_backend("wrappers").__name__ == "gym.wrappers"


def test_gym_backend() -> None:
    with set_gym_backend("gymnasium"):
        wrappers = gym_backend("wrappers")
    assert wrappers.__name__ == "gymnasium.wrappers"


def test_implement_for(monkeypatch: pytest.MonkeyPatch) -> None:
    @implement_for("gym", None, "0.26.0")
    def fun() -> int:
        return 0

    @implement_for("gym", "0.26.0", None)
    def fun() -> int:
        return 1

    existing = ModuleType("gym")  # the example assumes that it is installed
    existing.__version__ = "0.26.2"  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "gym", existing)
    assert fun() == 1


def test_pixels() -> None:
    env = GymEnv("Pendulum-v1", from_pixels=True, g=9.81, device="cpu")
    check_env_specs(env)
    assert env.g == 9.81
    assert env.rollout(2)["pixels"].shape == (2, 500, 500, 3)


def test_render_mode() -> None:
    env = GymEnv("CartPole-v1", render_mode="rgb_array")
    env.reset()
    assert env.render().shape == (400, 600, 3)
    assert env.metadata["render_fps"] == 50
