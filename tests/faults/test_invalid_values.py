"""Environments that return invalid values: the error names them, the expected value and the actual value."""

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.faulty_envs import FaultyEnv, Unpicklable, Unrebuildable, env_fns_with_fault, raises, returns_value
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.errors import SerializationError, SpaceError, WorkerError

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(3, int)
GOOD = np.ones(3)


def _step(obs: Any = GOOD, reward: Any = 1.0, terminated: Any = False, info: Any = None) -> Any:
    return returns_value((obs, reward, terminated, False, {} if info is None else info))


class Strange:
    """An observation that raises its own exception."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("no array for you")

    def __len__(self) -> int:
        return 3


MISFITS = {
    "shape": (_step(np.ones(4)), "shape (3,) at the root, as its space declares, got (4,)"),
    "dimensions": (
        _step(np.ones((1, 3))),
        "shape (3,) at the root, as its space declares, got (1, 3)",
    ),
    "scalar": (_step(1.0), "shape (3,) at the root, as its space declares, got ()"),
    "kind": (
        _step(np.ones(3, complex)),
        "dtype float64 at the root, as its space declares, got complex128",
    ),
    "nothing": (_step(None), "expected an observation of shape (3,)"),
    "text": (_step(np.array(["a", "b", "c"])), "expected an observation of dtype float64"),
    "strange": (_step(Strange()), "RuntimeError: no array for you"),
    "reward None": (_step(reward=None), "expected a number as the reward, got None"),
    "reward text": (_step(reward="1.0"), "expected a number as the reward, got '1.0'"),
    "reward complex": (_step(reward=1j), "expected a number as the reward, got 1j"),
    "rewards": (_step(reward=np.ones(2)), "expected a number as the reward, got array([1., 1.])"),
    "flag": (_step(terminated=np.array([True, False])), "truth value"),
    "info list": (_step(info=[1]), "expected a dict as the info, got list"),
    "info array": (_step(info=np.ones(2)), "truth value"),
    "four values": (returns_value((GOOD, 1.0, False, {})), "terminated, truncated, info), got 4 values"),
    "no tuple": (returns_value(7), "terminated, truncated, info), got a value of type int"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("misfit", MISFITS)
def test_invalid_step_results_raise(misfit: str, backend: str) -> None:
    fault, text = MISFITS[misfit]
    for at in (1, 3):  # at the first step, which is checked more closely, and at a later one
        pool = make_pool(env_fns_with_fault("step", fault, at), backend)
        pool.reset()
        for _ in range(at - 1):
            pool.step(ACTIONS)
        with pytest.raises(WorkerError, match=re.escape(text)) as exc_info:
            pool.step(ACTIONS)
        assert exc_info.value.env_ids == (1,)
        np.testing.assert_array_equal(exc_info.value.transition.obs[[0, 2]], [[0, 0, at], [2, 0, at]])
        np.testing.assert_array_equal(exc_info.value.transition.reward[[0, 2]], at)
        pool.reset(ids=[1])
        np.testing.assert_array_equal(pool.step(ACTIONS).obs[:, 2], [at + 1, 1, at + 1])
        pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("obs", "text"), [(np.ones(4), "(4,)"), ((GOOD,), "(1, 3)"), (None, "()")], ids=str)
def test_invalid_reset_results_raise(obs: Any, text: str, backend: str) -> None:
    pool = make_pool(env_fns_with_fault("reset", returns_value((obs, {}))), backend)
    with pytest.raises(
        WorkerError,
        match=re.escape(f"shape (3,) at the root, as its space declares, got {text}"),
    ):
        pool.reset()
    np.testing.assert_array_equal(pool.reset().obs, [[0, 1, 0], [1, 1, 0], [2, 1, 0]])
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_compensating_wrong_lengths_are_detected(backend: str) -> None:
    makers = [lambda n=n: FaultyEnv(0, "step", _step(np.ones(n))) for n in (2, 4)]
    pool = make_pool(makers, backend, 1)
    pool.reset()
    with pytest.raises(WorkerError, match="got \\(2,\\)") as exc_info:
        pool.step(np.zeros(2, int))
    assert exc_info.value.env_ids == (0, 1)
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["observation", "reward", "final observation"])
def test_check_nan(what: str, backend: str) -> None:
    bad = np.array([1.0, np.nan, 1.0])
    fault = {
        "observation": _step(bad),
        "reward": _step(reward=float("nan")),
        "final observation": _step(bad, terminated=True),
    }[what]
    for check in (True, False):
        pool = make_pool(env_fns_with_fault("step", fault), backend, check_nan=check)
        pool.reset()
        if check:
            with pytest.raises(WorkerError, match=rf"environment 1 .*the {what.split()[-1]} is NaN") as exc_info:
                pool.step(ACTIONS, reset_done=True)
            assert exc_info.value.env_ids == (1,)
        else:
            step = pool.step(ACTIONS, reset_done=True)
            assert np.isnan(step.reward[1] if what == "reward" else step.next_obs[1]).any()
        pool.close()


@pytest.mark.parametrize("thing", [Unpicklable, Unrebuildable, threading.Lock], ids=lambda t: t.__name__)
def test_unpicklable_results_raise_with_their_environment(thing: Any) -> None:
    def tells(env: FaultyEnv) -> Any:
        return GOOD, 1.0, False, False, {"thing": thing()}

    pool = make_pool(env_fns_with_fault("step", tells, count=4), "processes")
    pool.reset()
    with pytest.raises(WorkerError, match=r"cannot be (un)?pickled") as exc_info:
        pool.step(np.zeros(4, int))
    assert exc_info.value.env_ids == ((0, 1) if thing is Unrebuildable else (1,))
    np.testing.assert_array_equal(exc_info.value.transition.obs[2:], [[2, 0, 1], [3, 0, 1]])
    pool.reset()
    np.testing.assert_array_equal(pool.step(np.zeros(4, int)).reward, 1.0)
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_unpicklable_attributes_raise(backend: str) -> None:
    pool = make_pool(
        env_fns_with_fault("peek", returns_value(threading.Lock()) if backend != "processes" else _locks), backend
    )
    if backend == "processes":
        with pytest.raises(
            WorkerError, match=r"environment 1 .* in 'invoke': SerializationError: .*cannot be pickled"
        ) as exc_info:
            pool.invoke("call", "peek", [((), {})] * 3)
        assert exc_info.value.env_ids == (1,)
    else:
        assert pool.invoke("call", "peek", [((), {})] * 3)[::2] == [0, 2]
    assert pool.invoke("get", "env_id") == [0, 1, 2]
    pool.close()


def _locks(env: FaultyEnv) -> Any:
    return threading.Lock()


def test_unpicklable_observations_raise() -> None:
    class Opaque(FaultyEnv):
        observation_space = spaces.Sequence(spaces.Discrete(2))

        def _observe(self) -> Any:
            return (threading.Lock(),) if self.env_id == 1 and self.count == 1 and self.episode == 0 else (self.count,)

    pool = make_pool([lambda i=i: Opaque(i) for i in range(3)], "processes")
    pool.reset()
    with pytest.raises(WorkerError, match=r"environment 1 .*cannot be pickled|TypeError: cannot pickle") as exc_info:
        pool.step(ACTIONS)
    assert exc_info.value.env_ids == (1,)
    assert exc_info.value.transition.obs[::2] == ((1,), (1,))
    pool.reset()
    assert pool.step(ACTIONS).obs == ((1,),) * 3
    pool.close()


@pytest.mark.parametrize("give", ["values", "options", "some options"])
def test_unpicklable_commands_leave_no_pending_commands(give: str) -> None:
    pool = make_pool([FaultyEnv] * 2, "processes", step_timeout=5.0)
    pool.reset()
    lock = threading.Lock()
    uses: dict[str, Callable[[], Any]] = {
        "values": lambda: pool.invoke("set", "anything", [1, lock]),
        "options": lambda: pool.reset(options={"lock": lock}),
        "some options": lambda: pool.reset(options={"lock": lock}, ids=[1, 0]),
    }
    with pytest.raises(SerializationError, match=r"cannot be pickled and sent to a worker process"):
        uses[give]()
    assert pool.pending.tolist() == []
    np.testing.assert_array_equal(pool.step(np.zeros(2, int)).reward, 1.0)
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_factories_of_different_environments_raise(backend: str) -> None:
    class Other(FaultyEnv):
        observation_space = spaces.Box(0, 1, (2,))

    for workers in (1, 2):
        with pytest.raises(SpaceError, match=r"environment 1.*Box\(0\.0, 1\.0, \(2,\)"):
            make_pool([FaultyEnv, Other], backend, workers)


@pytest.mark.parametrize("holder", ["lock", "instance", "thread"])
def test_unpicklable_factories_raise(holder: str) -> None:
    stored = {"lock": threading.Lock(), "instance": Unpicklable(), "thread": threading.current_thread()}[holder]
    with pytest.raises(
        SerializationError, match=r"Expected a factory of environment 1 that can be pickled.*inside the factory"
    ):
        make_pool([FaultyEnv, lambda: FaultyEnv(stored is None)], "processes")


def test_factories_that_fail_to_unpickle_raise() -> None:
    thing = Unrebuildable()
    with pytest.raises(WorkerError, match=r"environment 1 .* in 'construct': ImportError: never to be rebuilt"):
        make_pool([FaultyEnv, lambda: FaultyEnv(thing is None)], "processes")


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_modules_that_raise_on_import(start_method: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_in_parent.py").write_text(
        "import os\n"
        f"if os.getpid() != {__import__('os').getpid()}:\n"
        "    raise RuntimeError('no worker may import me')\n"
        "from tests.fixtures.faulty_envs import FaultyEnv\n"
        "def make():\n    return FaultyEnv()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from only_in_parent import make  # pyright: ignore[reportMissingImports]

    with pytest.raises(WorkerError, match=r"in 'construct': RuntimeError: no worker may import me") as exc_info:
        make_pool([make], "processes", 1, start_method=start_method)
    assert "only_in_parent.py" in str(exc_info.value)


def test_serial_and_threads_accept_unpicklable_values() -> None:
    for backend in ("serial", "threads"):
        thing = Unpicklable()
        pool = make_pool(env_fns_with_fault("step", _step(info={"thing": thing})), backend)
        pool.reset()
        assert pool.step(ACTIONS).infos.merge(3)["thing"][1] is thing
        pool.close()


def test_failures_do_not_shift_other_rows() -> None:
    for backend in BACKENDS:
        pool = make_pool(env_fns_with_fault("step", raises, count=7, bad=3), backend, 1)
        pool.reset()
        with pytest.raises(WorkerError) as exc_info:
            pool.step(np.zeros(7, int))
        rows = [0, 1, 2, 4, 5, 6]
        np.testing.assert_array_equal(exc_info.value.transition.obs[rows, 0], rows)
        assert dict(exc_info.value.transition.infos.items()) == {i: {"count": 1} for i in rows}
        pool.close()
