"""Workers on another interpreter: the conformance suite of simulators, spaces, infos, calls and the protocol."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.foreign import PYTHONS, foreign_pool, old_env, python_path

from vecrl.engine.backends import protocol
from vecrl.engine.backends.foreign_worker import environment, plain_data, worker
from vecrl.engine.backends.interpreters import find_python
from vecrl.engine.backends.protocol import parse_plain_reply
from vecrl.engine.pool import Pool
from vecrl.engine.simulator import ResetKeywords
from vecrl.engine.worker import Op
from vecrl.errors import OutOfSpecError, SerializationError, SpaceError, StateError, VersionError, WorkerError
from vecrl.simulators.foreign import ForeignEnv, foreign_env
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.testing import SimulatorConformance
from vecrl.vector import VectorEnv


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return python_path(request.param)


class TestForeignWorker(SimulatorConformance):
    @pytest.fixture(autouse=True)
    def _python(self, python: str) -> None:
        self.python = python

    def make(self, num_envs: int) -> GymnasiumSimulator:
        env = old_env(python=self.python, turns=False)
        return GymnasiumSimulator([env] * num_envs)

    def pool(self, num_envs: int, num_workers: int = 1) -> closing[Pool]:
        numbers = [i % 2 for i in range(num_envs * num_workers)]
        return closing(foreign_pool([old_env(number, turns=False) for number in numbers], self.python, num_workers))

    def test_states_restore_the_same_future(self) -> None:
        """States are not available, and the error says so."""
        with self.pool(1) as pool:
            pool.reset()
            with pytest.raises(StateError, match=r"got one of another\. Its state cannot be saved") as caught:
                pool.get_state()
        assert isinstance(caught.value, WorkerError)


def test_the_protocol_is_that_of_other_workers() -> None:
    assert worker.COMMAND.format == protocol.COMMAND.format
    assert worker.REPLY.format == protocol.REPLY.format
    assert worker.ALL_ROWS == protocol.ALL_ROWS
    assert (worker.RESET_DONE, worker.MASKED) == (protocol._RESET_DONE, protocol._MASKED)
    assert worker.PLAIN == protocol.PLAIN
    assert {op.name: int(op) for op in Op} == {op.name: getattr(worker, op.name) for op in Op}
    assert [op.name.lower() for op in Op] == list(worker.OP_NAMES)


def test_the_foreign_code_imports_no_other_module_of_vecrl() -> None:
    folder = Path(worker.__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import foreign_worker.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()} - {*sys.stdlib_module_names}
    assert not {name for name in loaded if not name.startswith("_")} - {"numpy", "foreign_worker"}


def test_nested_spaces_and_their_values(python: str) -> None:
    with closing(foreign_pool([old_env(4), old_env(5)], python, 2)) as pool:
        observation = spaces.Dict(
            x=spaces.Box(-100, 100, (3,)),
            parts=spaces.Tuple([spaces.Discrete(7), spaces.MultiBinary(2)]),
            choices=spaces.MultiDiscrete([3, 4]),
        )
        assert pool.obs_layout.space == observation
        assert pool.action_layout.space == spaces.Dict(turn=spaces.Discrete(3, start=1), force=spaces.Box(-1, 1, (2,)))
        first = pool.reset([3, 4]).obs
        assert first["x"][:, 0].tolist() == [4, 5]
        assert first["x"][0, 1] == np.float32(np.random.RandomState(3).uniform())
        actions = {"turn": np.array([1, 3]), "force": np.array([[0.5, 0.25], [0, 0]], np.float32)}
        t = pool.step(actions)
        assert np.floor(t.reward).tolist() == [1, 3]
        assert t.obs["parts"][0].tolist() == [1, 1]
        assert t.obs["parts"][1].tolist() == [[1, 1], [1, 1]]
        assert t.obs["choices"].tolist() == [[1, 1], [1, 1]]


def test_ends_of_episodes_infos_and_final_values(python: str) -> None:
    with closing(foreign_pool([old_env(0, length=2), old_env(1, length=3)], python)) as pool:
        pool.reset([0, 1])
        actions = {"turn": np.array([2, 2]), "force": np.zeros((2, 2), np.float32)}
        first = pool.step(actions)
        t = pool.step(actions, reset_done=True)
        assert (t.terminated.tolist(), t.truncated.tolist()) == ([True, False], [False, False])
        assert t.next_obs["parts"][0].tolist() == [2, 2]
        assert t.obs["parts"][0].tolist() == [0, 2]
        infos = dict(t.infos.items()) | {f"final {i}": info for i, info in t.final_infos.items()}
        assert [*infos] == [1, "final 0"]
        assert (infos["final 0"]["count"], infos[1]["name"], infos[1]["version"]) == (2, "n1", "version 1")
        assert infos[1]["array"].tolist() == [0, 1]
        assert t.episodes.ids.tolist() == [0]
        assert t.episodes.lengths.tolist() == [2]
        assert t.episodes.returns[0] == pytest.approx(first.reward[0] + t.reward[0])
        t = pool.step(actions, reset_done=False)
        assert (t.terminated.tolist(), t.truncated.tolist()) == ([False, False], [False, True])
        t = pool.step(actions, reset_mask=np.array([False, True]))
        assert t.obs["parts"][0].tolist() == [2, 0]


def test_attributes_methods_and_frames(python: str) -> None:
    with VectorEnv([old_env(i) for i in range(3)], backend="processes", num_workers=2, python=python) as envs:
        envs.reset(seed=0)
        assert envs.call("double", 10, plus=1) == (21, 22, 23)
        version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
        assert envs.call("python")[0] == [int(part) for part in version.split(".")[:2]]
        mask = np.array([True, False, True])
        assert envs.reset(options={"reset_mask": mask})[0]["x"][:, 0].tolist() == [0, 1, 2]
        with pytest.raises(TypeError, match="unexpected keyword argument 'options'"):
            envs.reset(options={"level": 1})
        envs.reset()
        envs.set_attr("scale", [1.0, 2.0, 3.0])
        assert envs.get_attr("scale") == (1.0, 2.0, 3.0)
        assert envs.get_attr("action_space")[2] == envs.single_action_space
        assert repr(envs.get_attr("reset")[0]) == "<method reset of an environment on another interpreter>"
        assert [frame[0, 0, 0] for frame in envs._pool.invoke("render")] == [0, 1, 2]
        with pytest.raises(AttributeError, match="no attribute 'missing'"):
            envs.get_attr("missing")
        with pytest.raises(TypeError, match="Only these can be sent to and from another interpreter"):
            envs.get_attr("random")
        with pytest.raises(SerializationError, match="'invoke' cannot be pickled"):
            envs.call("double", object())


def test_gymnasiums_interface_with_options_costs_and_render_modes(python: str) -> None:
    make = old_env(name="NewEnv", cost=True, render_mode="rgb_array")
    with VectorEnv([make] * 2, backend="processes", num_workers=1, python=python) as envs:
        assert (envs.render_mode, envs.metadata["render_fps"]) == ("rgb_array", 7)
        info = envs.reset(seed=3, options={"level": 2})[1]
        assert info["options"]["level"].tolist() == [2, 2]
        assert envs.step(np.array([1, 0]))[4]["cost"].tolist() == [0.5, 0.5]
        assert [frame.shape for frame in envs.render() or ()] == [(2, 2, 3)] * 2
        envs._pool.reset(options=ResetKeywords(options={"level": 3}))


@pytest.fixture
def one(python: str) -> Iterator[ForeignEnv]:
    env = ForeignEnv(old_env(7, python=python))
    yield env
    env.close()


def test_a_single_environment(one: ForeignEnv) -> None:
    obs, info = one.reset(seed=5)
    assert one.observation_space.contains(obs)
    assert info == {}
    obs, reward, terminated, truncated, info = one.step({"turn": 3, "force": np.zeros(2, np.float32)})
    assert one.observation_space.contains(obs)
    assert (terminated, truncated, info["count"], type(reward)) == (False, False, 1, float)
    assert one.double(4) == one.get_wrapper_attr("double")(4) == 15
    one.set_wrapper_attr("scale", 2.0)
    assert one.scale == 2.0
    assert one.render().shape == (2, 3, 3)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = one.missing
    with pytest.raises(StateError, match="Its state cannot be saved"):
        one.get_state()


def test_failures_name_the_environment_and_have_the_traceback(python: str) -> None:
    with closing(foreign_pool([old_env(0), old_env(1, fault="raise"), old_env(2)], python)) as pool:
        pool.reset()
        actions = {"turn": np.full(3, 2), "force": np.zeros((3, 2), np.float32)}
        pool.step(actions)
        with pytest.raises(ArithmeticError, match=r"environment 1 .*in 'step' number 2: ArithmeticError") as caught:
            pool.step(actions)
        error: Any = caught.value
        assert "old_envs.py" in error.failures[0].traceback
        assert error.transition.reward[[0, 2]].tolist() == pytest.approx([4, 4], abs=0.3)
        pool.reset(ids=[1])
        assert not pool.step(actions).done.any()


@pytest.mark.parametrize(
    ("fault", "text"), [("interrupt", "KeyboardInterrupt: of the environment"), ("deep", "Recurs")]
)
def test_no_exception_ends_the_process(fault: str, text: str, python: str) -> None:
    """A BaseException, and an info that no pickle can hold, are failures with a traceback."""
    with closing(foreign_pool([old_env(0, fault=fault)], python)) as pool:
        pool.reset()
        actions = {"turn": np.full(1, 2), "force": np.zeros((1, 2), np.float32)}
        pool.step(actions)
        with pytest.raises(WorkerError, match=f"in 'step' number 2: {text}"):
            pool.step(actions)
        pool.reset()
        assert not pool.step(actions).done.any()


@pytest.mark.parametrize(
    ("env", "options", "text"),
    [
        ({"fault": "nan"}, {"check_nan": True}, "the observation is NaN"),
        ({"fault": "shape"}, {}, r"expected an observation of shape \(3,\)"),
    ],
)
def test_wrong_values_are_failures(env: dict[str, Any], options: dict[str, Any], text: str) -> None:
    with closing(foreign_pool([old_env(**env)], sys.executable, **options)) as pool:
        pool.reset()
        actions = {"turn": np.array([1]), "force": np.zeros((1, 2), np.float32)}
        pool.step(actions)
        with pytest.raises(WorkerError, match=text):
            pool.step(actions)


@pytest.mark.parametrize(
    ("env_fns", "error", "text"),
    [
        ([old_env(fault="construct")], ArithmeticError, "environment 0 .*in 'construct'.*cannot be made"),
        ([foreign_env("missing_module:make")], WorkerError, "Expected missing_module in the interpreter .* Install it"),
        ([old_env(name="make_unsupported")], TypeError, "got Text. Only these can be sent"),
        ([old_env(), old_env(high=5.0)], SpaceError, "environment 1.*expected the same spaces"),
        ([old_env(), lambda: None], SerializationError, "Expected functions that describe their environments"),
    ],
)
def test_what_cannot_be_made(env_fns: list[Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        foreign_pool(env_fns, sys.executable)


def test_workers_must_agree_on_spaces() -> None:
    with pytest.raises(OutOfSpecError, match="environment 1: expected the observation_space"):
        foreign_pool([old_env(), old_env(high=5.0)], sys.executable, 2)


def test_the_interpreter_of_the_environments_is_used_without_an_option() -> None:
    make = foreign_env("os:getpid", python=sys.executable)
    assert "interpreter" not in repr(make)
    with VectorEnv([old_env(python=sys.executable)] * 2, backend="processes", num_workers=1) as envs:
        assert repr(envs.get_attr("reset")[0]).startswith("<method reset")
    with pytest.raises(VersionError, match="Expected the path of an interpreter"):
        old_env()()


def test_interpreters_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    assert find_python(os.path.basename(sys.executable)).endswith(os.path.basename(sys.executable))
    with pytest.raises(ValueError, match="got '/no/python', which is none"):
        find_python("/no/python")
    with pytest.raises(ValueError, match="which is none"):
        find_python("/bin/true")
    with pytest.raises(VersionError, match="an interpreter with NumPy"):
        find_python(_script(tmp_path / "bare", "echo 3 9 False"))
    with pytest.raises(VersionError, match=r"3.7 or newer for workers, got 3\.6"):
        find_python(_script(tmp_path / "old", "echo 3 6 True"))
    with pytest.raises(ValueError, match="Expected backend='processes' together with python, got backend='serial'"):
        VectorEnv([old_env()], python=sys.executable)


def _script(path: Path, command: str) -> str:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return str(path)


def test_plain_data_hold_no_classes_of_one_interpreter() -> None:
    import collections
    import enum

    level = enum.IntEnum("level", {"low": 1})
    pair = collections.namedtuple("pair", "a b")
    arrays = {"f": np.arange(6.0).reshape(2, 3), "b": np.array(True), "empty": np.zeros((0, 2)), "u": np.array(["a"])}
    value = {**arrays, "level": level.low, "pair": pair(1, 2), "n": np.float32(1.5), "o": np.array([None, 1])}
    found = plain_data.loads(plain_data.dumps(value))
    for name, array in arrays.items():
        assert (found[name].tolist(), found[name].dtype) == (array.tolist(), array.dtype)
    assert (found["level"], type(found["level"]), found["pair"], found["o"]) == (1, int, (1, 2), [None, 1])
    assert type(found["n"]) is np.float32
    found["f"][0] = 7
    with pytest.raises(Exception, match=r"Expected plain data, got an object of builtins\.eval"):
        plain_data.loads(b"cbuiltins\neval\n.")
    reply = plain_data.dumps({"infos": [(0, {"x": object()})]}, plain_data.as_text)
    assert dict(parse_plain_reply(reply).infos.items())[0]["x"].startswith("<object object")


def test_wrappers_are_found_by_the_name_of_their_class() -> None:
    """In this process, where a wrapper of gymnasium can be made."""
    description = {"target": "gymnasium:make", "args": ("CartPole-v1",), "kwargs": {}, "modules": ()}
    env = environment.Environment(description)
    names = {name: env.access("is_wrapped", name, None) for name in (TIME_LIMIT, "gymnasium.core.Wrapper", "Wrapper")}
    assert names == {TIME_LIMIT: True, "gymnasium.core.Wrapper": True, "Wrapper": False}
    assert not env.access("is_wrapped", "gymnasium.envs.classic_control.cartpole.CartPoleEnv", None)


TIME_LIMIT = "gymnasium.wrappers.common.TimeLimit"
