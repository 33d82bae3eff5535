"""Wrong names and arguments, and missing libraries: short errors that say what to do, in every dialect."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from vecrl.classic import GymEnv as ClassicGymEnv
from vecrl.envs import GymEnv
from vecrl.envs.libs.make_env import make_env
from vecrl.errors import WorkerError
from vecrl.vector import VectorEnv, make_vector_env

MAKERS: dict[str, Callable[..., Any]] = {
    "single": make_vector_env,
    "serial": partial(make_vector_env, num_envs=3),
    "next step": partial(make_vector_env, num_envs=3, autoreset_mode="next_step"),
    "processes": partial(make_vector_env, num_envs=3, backend="processes", num_workers=2),
    "make_env": make_env,
    "SerialEnv": partial(make_env, num_envs=3),
    "classic": ClassicGymEnv,
}


@pytest.mark.parametrize("kind", sorted({*MAKERS} - {"classic"}))
def test_an_argument_that_a_simulator_does_not_take_is_one_line(kind: str) -> None:
    with pytest.raises(TypeError) as error:
        MAKERS[kind]("gym::CartPole-v1", gravitation=1)
    assert str(error.value) == (
        "Expected arguments of 'gym::CartPole-v1', got 'gravitation': CartPoleEnv.__init__() got an unexpected keyword "
        "argument 'gravitation'. Correct the name, or omit the argument."
    )


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("name", "message"),
    [("habitat::HabitatRenderPick-v0", "Habitat is not installed"), ("smac::3m", "smacv2 is not installed")],
)
def test_a_missing_library_is_a_short_error(kind: str, name: str, message: str, monkeypatch: Any) -> None:
    for module in ("habitat", "habitat.gym", "smacv2"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=message) as error:
        MAKERS[kind](name)
    assert "Traceback" not in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


def test_equal_failures_of_constructions_are_named_together() -> None:
    with pytest.raises(WorkerError, match=r"environments 0 to 31 in 'construct': NameNotFound: ") as error:
        GymEnv("CartPol-v1", num_envs=32, num_workers=2)
    assert len(str(error.value).splitlines()) == 2
    assert error.value.env_ids == tuple(range(32))


def test_errors_in_the_code_of_an_environment_keep_their_traceback() -> None:
    def make() -> Any:
        return gymnasium.make("CartPole-v1", gravitation=1)

    with pytest.raises(WorkerError, match=r'return gymnasium.make\("CartPole-v1", gravitation=1\)'):
        VectorEnv([make])


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("name", "module", "advice"),
    [
        ("ALE/Pong-v5", "ale_py", r'pip install "vecrl\[atari\]"\.$'),
        ("MiniGrid-Empty-5x5-v0", "minigrid", r"vecrl\[minigrid\]\"\. Write 'minigrid::MiniGrid-Empty-5x5-v0'\.$"),
        ("FetchReach-v4", "gymnasium_robotics", r"write 'gymnasium_robotics:FetchReach-v4'\.$"),
    ],
)
def test_names_of_well_known_libraries_say_what_to_install(
    kind: str, name: str, module: str, advice: str, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(gymnasium.registry, name, raising=False)
    with pytest.raises(gymnasium.error.UnregisteredEnv) as error:
        MAKERS[kind](name)
    assert_first_line(error.value, advice)


@pytest.mark.parametrize("kind", ["single", "serial", "make_env", "classic"])
def test_registered_names_say_what_is_missing(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    with pytest.raises(gymnasium.error.DependencyNotInstalled) as error:
        MAKERS[kind]("LunarLander-v3")
    assert_first_line(error.value, r'Install it: pip install "vecrl\[box2d\]"\.$')


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_old_versions_of_mujoco_tasks_name_the_new_one() -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(ImportError, match=r"gymnasium-robotics.*Write 'mujoco::HalfCheetah-v5'\."):
        make_vector_env("HalfCheetah-v2")


def assert_first_line(error: BaseException, pattern: str) -> None:
    first, *others = str(error).splitlines()
    assert re.search(pattern, first), first
    assert len(others) <= 1


@pytest.mark.parametrize("kind", MAKERS)
def test_a_module_before_the_id_is_imported_to_register_it(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    code = "import gymnasium\ngymnasium.register('MyOwn-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    (tmp_path / "my_environments.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_environments", raising=False)
    monkeypatch.delitem(gymnasium.registry, "MyOwn-v0", raising=False)
    env = MAKERS[kind]("my_environments:MyOwn-v0")
    env.reset()
    env.close()
    gymnasium.registry.pop("MyOwn-v0", None)
