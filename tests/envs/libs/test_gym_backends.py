"""Selection of the gym library."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import pytest

from vecrl._utils import implement_for
from vecrl.envs import GymEnv, gym_backend, set_gym_backend
from vecrl.errors import VersionError


@pytest.fixture
def old_gym(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a module `gym` 0.21 with one environment in the old interface."""
    module: Any = ModuleType("gym")
    module.__version__ = "0.21.0"
    module.made = []

    class Discrete:
        n, shape, dtype = 2, (), "int64"

    class Box:
        low, high, shape, dtype = -9.0, 9.0, (2,), "float32"

    class Line:
        observation_space, action_space, metadata, spec = Box(), Discrete(), {"render.modes": ["rgb_array"]}, None
        g = 9.81

        def __init__(self) -> None:
            self.seeds: list[Any] = []
            module.made.append(self)

        def seed(self, seed: int) -> list[int]:
            self.seeds.append(seed)
            return [seed]

        def reset(self) -> Any:
            self.steps = 0
            return [0.0, 0.0]

        def step(self, action: int) -> Any:
            self.steps += 1
            late = self.steps == 4
            return [self.steps, action], 1.0, late, {"TimeLimit.truncated": True} if late else {}

        def render(self, mode: str) -> Any:
            return mode

        def close(self) -> None:
            self.closed = True

    module.make = lambda name, **kwargs: Line()
    module.envs = ModuleType("gym.envs")
    module.envs.registry = SimpleNamespace(all=lambda: [SimpleNamespace(id="Line-v0")])
    for cls in (Discrete, Box, Line):
        cls.__module__ = "gym.somewhere"
    monkeypatch.setitem(sys.modules, "gym", module)
    monkeypatch.setitem(sys.modules, "gym.envs", module.envs)
    return module


def test_gymnasium_is_the_default() -> None:
    assert gym_backend() is gymnasium
    assert gym_backend("wrappers") is gymnasium.wrappers
    assert gym_backend("envs.classic_control").__name__ == "gymnasium.envs.classic_control"


@pytest.mark.parametrize("how", ["name", "module", "function"])
def test_context_restores_the_backend(old_gym: Any, how: str) -> None:
    inputs = {"name": "gym", "module": old_gym, "function": lambda: old_gym}[how]
    with set_gym_backend(inputs):
        assert gym_backend() is old_gym
        with set_gym_backend(gymnasium):
            assert gym_backend() is gymnasium
        assert gym_backend() is old_gym
    assert gym_backend() is gymnasium


def test_decorator_and_set(old_gym: Any) -> None:
    @set_gym_backend("gym")
    def backend_name(suffix: str) -> str:
        return gym_backend().__name__ + suffix

    assert backend_name("!") == "gym!"
    assert gym_backend() is gymnasium
    set_gym_backend("gym").set()
    try:
        assert gym_backend() is old_gym
    finally:
        set_gym_backend("gymnasium").set()


def test_context_restores_the_backend_after_an_error(old_gym: Any) -> None:
    with pytest.raises(KeyError), set_gym_backend("gym"):
        raise KeyError
    assert gym_backend() is gymnasium


def test_missing_backends_raise_when_used() -> None:
    setting = set_gym_backend("a_gym_that_is_not_there")
    with pytest.raises(ImportError), setting:
        pass
    assert gym_backend() is gymnasium


def test_implement_for_follows_the_backend(old_gym: Any) -> None:
    @implement_for("gym")
    def which() -> str:
        return "gym"

    @implement_for("gymnasium")
    def which() -> str:
        return "gymnasium"

    assert which() == "gymnasium"
    with set_gym_backend("gym"):
        assert which() == "gym"

    @implement_for("gym", "0.26")
    def newer() -> str:
        return "gym"

    with set_gym_backend("gym"), pytest.raises(VersionError):
        newer()


def test_environments_of_the_old_gym(old_gym: Any) -> None:
    with set_gym_backend("gym"):
        assert GymEnv.available_envs == ["Line-v0"]
        env = GymEnv("Line-v0", categorical_action_encoding=True)
    env.set_seed(5)
    rollout = env.rollout(10)
    (made,) = old_gym.made
    assert made.seeds == [5]
    assert rollout["next", "truncated"].flatten().tolist() == [False, False, False, True]
    assert not rollout["next", "terminated"].any()
    assert rollout["next", "observation"][:, 0].tolist() == [1, 2, 3, 4]
    assert env.g == 9.81
    assert env.render() == "rgb_array"
    assert env.get_library_name() == "gym"
    assert env.lib is old_gym
    env.close()
    assert made.closed


def test_vectors_of_the_old_gym(old_gym: Any) -> None:
    with set_gym_backend("gym"):
        env = GymEnv("Line-v0", num_envs=2)
    env.set_seed(5)
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["next", "observation"][0, :, 0].tolist() == [1, 2, 3, 4, 1, 2]
    assert [len(made.seeds) for made in old_gym.made] == [1, 1]


def test_available_names_are_listed() -> None:
    assert "CartPole-v1" in GymEnv.available_envs
    assert GymEnv("CartPole-v1").lib is gymnasium


def test_missing_libraries_raise_with_install_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "gym<=0\.26\.2"'), set_gym_backend("gym"):
        pass
