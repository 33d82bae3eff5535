"""Environments that raise, at every place and on every backend: the error names them, and the others continue."""

import copyreg
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import (
    PLACES,
    RAISING,
    Fault,
    FaultyEnv,
    UnprintableError,
    env_fns_with_fault,
    raises,
    raises_unpicklable,
    raises_unprintable,
)
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.engine.pickling import dump_with_files
from vecrl.engine.pool import Pool
from vecrl.errors import PendingError, StepTimeout, WorkerCrash, WorkerError

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(3, int)


def _use(pool: Pool, place: str) -> Any:
    """Calls the methods that lead to `place`."""
    if place == "peek":
        return pool.invoke("call", "peek", [((), {})] * 3)
    uses: dict[str, Callable[[], Any]] = {
        "reset": pool.reset,
        "step": lambda: pool.step(ACTIONS),
        "render": lambda: pool.invoke("render"),
        "close": pool.close,
    }
    return uses[place]()


def _failure(backend: str, place: str, fault: Fault) -> tuple[WorkerError, Pool | None]:
    """Returns the exception that the fault leads to (within a second), and its pool."""
    pool = None
    begin = time.monotonic()
    with pytest.raises(WorkerError) as exc_info:  # noqa: PT012
        pool = make_pool(env_fns_with_fault(place, fault), backend)
        if place != "reset":
            pool.reset()
        begin = time.monotonic()
        _use(pool, place)
    assert time.monotonic() - begin < 1.0
    return exc_info.value, pool


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", RAISING, ids=lambda f: f.__name__)
def test_exceptions_have_their_traceback(fault: Fault, place: str, backend: str) -> None:
    error, pool = _failure(backend, place, fault)
    assert not isinstance(error, WorkerCrash | StepTimeout)
    cause_class = type(error.__cause__)
    assert isinstance(error, cause_class) == issubclass(cause_class, Exception), "`except MyError` catches it"
    assert cause_class.__name__ == RAISING[fault].split(":")[0].split(" ")[0], "which is known on every backend"
    assert error.env_ids == (1,)
    (failure,) = error.failures
    assert failure.command == place
    assert failure.kind == "raised"
    text = str(error)
    assert f"environment 1 (worker {failure.worker}, pid {failure.pid}) in '{place}'" in text
    assert RAISING[fault] in text
    assert "Traceback (most recent call last)" in failure.traceback
    assert f"in {fault.__name__}" in text, "the frame that raised is shown"
    if pool is not None:
        pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", ["reset", "step", "render", "peek"])
def test_exceptions_leave_the_pool_usable(place: str, backend: str) -> None:
    error, pool = _failure(backend, place, raises)
    assert pool is not None
    if place in ("reset", "step"):
        count = int(place == "step")
        healthy = error.transition.obs[[0, 2]]
        np.testing.assert_array_equal(healthy, [[0, 0, count], [2, 0, count]])
        with pytest.raises(PendingError, match=r"\[1\] failed before; reset them"):
            pool.step(ACTIONS)
        np.testing.assert_array_equal(pool.reset(ids=[1]).obs, [[1, 1, 0]])
    after = pool.step(ACTIONS)
    np.testing.assert_array_equal(after.obs[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(after.reward, after.obs[:, 2])
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_simultaneous_failures_raise_together(backend: str) -> None:
    makers = [*env_fns_with_fault("step", raises, bad=0), *env_fns_with_fault("step", raises_unprintable)]
    pool = make_pool(makers, backend, 3)
    pool.reset()
    with pytest.raises(WorkerError) as exc_info:
        pool.step(np.zeros(6, int))
    assert exc_info.value.env_ids == (0, 4)
    assert RAISING[raises] in str(exc_info.value)
    assert RAISING[raises_unprintable] in str(exc_info.value)
    np.testing.assert_array_equal(exc_info.value.transition.reward[[1, 2, 3, 5]], 1.0)
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_exceptions_are_attached(backend: str) -> None:
    error, pool = _failure(backend, "step", raises)
    assert isinstance(error.__cause__, ArithmeticError)
    assert pool is not None
    pool.close()
    for fault in (raises_unprintable, raises_unpicklable):
        error, pool = _failure(backend, "step", fault)
        assert str(error.__cause__) == RAISING[fault].split(": ", 1)[1]
        assert pool is not None
        pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_failing_autoresets_fail_their_row_only(backend: str) -> None:
    class Once(FaultyEnv):
        def reset(self, **keywords: Any) -> Any:
            if self.episode == 0 and self.env_id == 1:
                self.episode = 1
                raise UnprintableError(1, "in the second episode")
            return super().reset(**keywords)

    pool = make_pool([lambda i=i: Once(i, length=2) for i in range(3)], backend)
    pool.reset()
    pool.step(ACTIONS, reset_done=True)
    with pytest.raises(WorkerError, match=r"environment 1 .* in 'step' number 2: UnprintableError") as exc_info:
        pool.step(ACTIONS, reset_done=True)
    transition = exc_info.value.transition
    np.testing.assert_array_equal(transition.final_rows, [0, 2])
    np.testing.assert_array_equal(transition.final_obs, [[0, 0, 2], [2, 0, 2]])
    np.testing.assert_array_equal(transition.obs[[0, 2]], [[0, 1, 0], [2, 1, 0]])
    pool.reset(ids=[1])
    np.testing.assert_array_equal(pool.step(ACTIONS, reset_done=True).obs, [[0, 1, 1], [1, 2, 1], [2, 1, 1]])
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_failures_do_not_stop_other_closes(backend: str, tmp_path: Any) -> None:
    class Noting(FaultyEnv):
        def close(self) -> None:
            (tmp_path / str(self.env_id)).touch()
            super().close()

    makers = [lambda i=i: Noting(i, "close", raises if i == 1 else None) for i in range(3)]
    pool = make_pool(makers, backend)
    with pytest.raises(WorkerError, match=r"environment 1 .* in 'close'"):
        pool.close()
    pool.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1", "2"]


class Handle:
    """Can only be pickled by a reducer that is registered with `copyreg`."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("It needs a reducer.")


def test_reducers_that_are_registered_later_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, Handle, lambda handle: (dict, ()))
    assert pickle.loads(dump_with_files([Handle()])) == [{}]


SCRIPT = """
import gymnasium
from vecrl.vector import RolloutWorkers, VectorEnv

class Broken(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        raise KeyError("moisture")  # the line

def act(obs):
    return obs.missing  # another line

for make in (
    lambda: VectorEnv([Broken] * 2, backend="processes", num_workers=2).reset(),
    lambda: RolloutWorkers([lambda: gymnasium.make("CartPole-v1")], act, num_workers=1).rollout(2),
):
    try:
        make()
    except Exception as error:
        print(error)
"""


def test_tracebacks_show_the_lines_of_a_script(tmp_path: Any) -> None:
    """Its classes and functions are pickled by value, in which newer versions of cloudpickle leave out the file."""
    (tmp_path / "program.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "program.py"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    for line, text in ((9, 'raise KeyError("moisture")  # the line'), (12, "return obs.missing  # another line")):
        assert f'program.py", line {line}, in ' in printed
        assert text in printed
