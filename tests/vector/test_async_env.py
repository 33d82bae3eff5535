"""`AsyncVectorEnv`: gymnasium's names, errors and asynchronous calls."""

from __future__ import annotations

import inspect
import multiprocessing
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from tests.fixtures.gym_envs import CountingEnv, EchoEnv, counting

from vecrl.errors import PendingError, StepTimeout, VecrlError, WorkerError
from vecrl.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

STAY = [0, 0]


class Slow(CountingEnv):
    """Takes `delay` seconds for a step with an action other than 0, a reset with options, `wait`, or closing."""

    def __init__(self, *args, on_close: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.on_close = on_close

    def pause(self, on: Any) -> None:
        if on:
            time.sleep(self.delay)

    def step(self, action):
        self.pause(action)
        delay, self.delay = self.delay, 0
        result = super().step(action)
        self.delay = delay
        return result

    def reset(self, *, seed=None, options=None):
        self.pause(options)
        return super().reset(seed=seed, options=options)

    def close(self):
        self.pause(self.on_close)

    def wait(self) -> int:
        self.pause(True)
        return self.env_id


def slow(delay: float = 0.25, on_close: bool = False, **kwargs: Any) -> AsyncVectorEnv:
    """Returns a factory of two environments, of which the second may be slow."""
    makers = [partial(Slow, 0, 9), partial(Slow, 1, 9, delay=delay, on_close=on_close)]
    return AsyncVectorEnv(makers, num_workers=2, **{"backend": "threads"} | kwargs)


@pytest.fixture
def envs():
    with AsyncVectorEnv(counting(2, 9), num_workers=2, backend="threads") as envs:
        yield envs


def test_accepts_gymnasiums_positional_arguments():
    actual = list(inspect.signature(AsyncVectorEnv).parameters)
    expected = list(inspect.signature(gymnasium.vector.AsyncVectorEnv).parameters)
    assert actual[: len(expected)] == expected
    fns = counting(3)
    inputs = (fns, False, False, "fork", False, None, "different", AutoresetMode.SAME_STEP, 1)
    with AsyncVectorEnv(*inputs) as envs:
        assert envs.reset()[0].shape == (3, 3)
        assert envs.metadata["autoreset_mode"] == envs.autoreset_mode == AutoresetMode.SAME_STEP
        assert isinstance(envs, VectorEnv)
        assert isinstance(envs, gymnasium.vector.VectorEnv)
        assert "num_workers=1" in repr(envs)
    assert envs.closed


@pytest.mark.parametrize("context", [None, "fork", "forkserver", "spawn"])
def test_start_methods_are_accepted(context):
    with AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, context=context) as envs:
        assert envs.reset(seed=1)[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"worker": print}, "worker"),
        ({"context": "thread"}, "context"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": 1.5}, "max_concurrency"),
        ({"autoreset_mode": "sometimes"}, "autoreset_mode"),
        ({"observation_mode": "any"}, "observation_mode"),
    ],
)
def test_invalid_arguments_raise(arguments, text):
    with pytest.raises(ValueError, match=f"Expected {text}"):
        AsyncVectorEnv(counting(1), **arguments)


def test_async_and_wait_calls(envs):
    envs.reset_async(seed=3, options={"easy": True})
    obs, info = envs.reset_wait(timeout=5)
    assert obs.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert info["episode_index"].tolist() == [0, 0]
    envs.step_async([1, 2])
    reward = envs.step_wait(timeout=5)[1]
    assert reward.tolist() == [2, 3]
    envs.call_async("twice", 4, plus=1)
    assert envs.call_wait(timeout=5) == (9, 10)
    assert envs.call("twice", 4) == (8, 9)
    assert envs.call("label") == ("counting 0", "counting 1")
    assert envs.get_attr("options") == ([{"easy": True}],) * 2
    envs.set_attr("label", ["a", "b"])
    assert envs.get_attr("label") == ("a", "b")


def test_masked_reset_async(envs):
    envs.reset()
    envs.step(STAY)
    options = {"reset_mask": np.array([False, True])}
    envs.reset_async(seed=[None, 5], options=options)
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async(STAY)
    obs, info = envs.reset_wait()
    assert obs.tolist() == [[0, 0, 1], [1, 1, 0]]
    assert info["_episode_index"].tolist() == [False, True]
    assert list(options) == ["reset_mask"]


def asked(envs: AsyncVectorEnv, name: str) -> None:
    {"reset": envs.reset_async, "step": lambda: envs.step_async(STAY), "call": lambda: envs.call_async("label")}[name]()


@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_one_call_at_a_time(envs, name):
    """A call while another call is pending raises with the name of the pending call, which still completes."""
    envs.reset()
    asked(envs, name)
    for repeated in ("reset", "step", "call"):
        with pytest.raises(AlreadyPendingCallError, match=f"got a pending {name!r}. Call {name}_wait") as exc_info:
            asked(envs, repeated)
        assert exc_info.value.name == name
        assert isinstance(exc_info.value, PendingError)
    for use in (lambda: envs.get_attr("label"), lambda: envs.set_attr("label", 1), envs.render):
        with pytest.raises(AlreadyPendingCallError):
            use()
    for other in {"reset", "step", "call"} - {name}:
        with pytest.raises(NoAsyncCallError):
            getattr(envs, f"{other}_wait")()
    getattr(envs, f"{name}_wait")()
    assert envs.step(STAY)[1].shape == (2,)


@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_waiting_without_a_call_raises(envs, name):
    with pytest.raises(NoAsyncCallError, match=f"{name}_async") as exc_info:
        getattr(envs, f"{name}_wait")()
    assert exc_info.value.name == name
    assert isinstance(exc_info.value, PendingError)
    assert isinstance(exc_info.value, VecrlError)


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_call_rejects_reserved_names(envs, name):
    with pytest.raises(ValueError, match=name):
        envs.call(name)
    assert envs.reset()[0].shape == (2, 3)


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_timed_out_steps_are_not_mistaken_for_the_next(backend):
    """gymnasium stays one step behind after a timeout. Here the late step is received by the next wait."""
    with slow(0.5, backend=backend) as envs:
        envs.reset()
        envs.step_async([0, 3])
        with pytest.raises(multiprocessing.TimeoutError, match="environment 1 ") as exc_info:
            envs.step_wait(timeout=0.1)
        assert isinstance(exc_info.value, StepTimeout)
        assert isinstance(exc_info.value, TimeoutError)
        assert exc_info.value.env_ids == (1,)
        with pytest.raises(AlreadyPendingCallError):
            envs.step_async(STAY)
        obs, reward, *_ = envs.step_wait()
        assert (obs[:, 2].tolist(), reward.tolist()) == ([1, 1], [1, 4])
        obs, reward, *_ = envs.step(STAY)
        assert (obs[:, 2].tolist(), reward.tolist()) == ([2, 2], [2, 2])


@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_reset_after_a_timeout(name):
    """A `reset` waits for the late call and drops its result, so code that catches gymnasium's timeout continues."""
    with slow(0.15) as envs:
        envs.reset()
        if name == "reset":
            envs.reset_async(options={"slow": 1})
        elif name == "step":
            envs.step_async([0, 1])
        else:
            envs.call_async("pause", True)
        with pytest.raises(multiprocessing.TimeoutError):
            getattr(envs, f"{name}_wait")(0.01)
        obs, _ = envs.reset()
        assert obs[:, 2].tolist() == [0, 0]
        assert envs.step(STAY)[0][:, 2].tolist() == [1, 1]


def test_timed_out_calls():
    with AsyncVectorEnv([partial(Slow, i, 9, delay=0.1) for i in range(2)], num_workers=2, backend="threads") as envs:
        envs.reset()
        envs.call_async("wait")
        with pytest.raises(multiprocessing.TimeoutError, match="environment 0 "):
            envs.call_wait(0.01)
        assert envs.call_wait() == (0, 1)
        envs.call_async("wait")
        with pytest.raises(multiprocessing.TimeoutError):
            envs.call_wait(0.01)
        assert envs.reset()[0][:, 1].tolist() == [1, 1]


def test_masked_resets_keep_timed_out_steps():
    with slow(0.1) as envs:
        envs.reset()
        envs.step_async([0, 1])
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(0.01)
        with pytest.raises(AlreadyPendingCallError):
            envs.reset(options={"reset_mask": np.array([True, False])})
        assert envs.step_wait()[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_exceptions_leave_no_pending_call(backend):
    """gymnasium stays in the waiting state. Here the failed environment is named, and continues after a reset."""
    makers = [EchoEnv, partial(EchoEnv, fault_at=1)]
    with AsyncVectorEnv(makers, num_workers=2, backend=backend) as envs:
        envs.reset()
        envs.step_async(np.zeros((2, 2), np.float32))
        with pytest.raises(WorkerError, match=r"environment 1 .*ZeroDivisionError") as exc_info:
            envs.step_wait()
        assert isinstance(exc_info.value.__cause__, ZeroDivisionError)
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()
        envs.set_attr("fault_at", None)
        obs, _ = envs.reset(options={"reset_mask": np.array([False, True])})
        assert obs.tolist() == [[1, 1], [0, 0]]
        assert envs.step(np.zeros((2, 2), np.float32))[0].tolist() == [[2, 2], [1, 1]]


def test_close_waits_for_the_pending_call():
    envs = slow(0.1)
    envs.reset()
    envs.step_async([0, 1])
    envs.close()
    assert envs.closed


@pytest.mark.parametrize("arguments", [{"terminate": True}, {"timeout": 0.1}])
def test_close_by_force(arguments):
    """Workers that do not end are killed: at once, or after the timeout."""
    envs = slow(30.0, backend="processes")
    envs.reset()
    envs.step_async([0, 1])
    begin = time.monotonic()
    envs.close(**arguments)
    assert time.monotonic() - begin < 5
    assert envs.closed
    envs.close()


def test_slow_closes_time_out():
    with pytest.raises(multiprocessing.TimeoutError, match="environment 1 ") as exc_info:
        slow(30.0, backend="processes", on_close=True).close(timeout=0.2)
    assert isinstance(exc_info.value, StepTimeout)


def test_gymnasium_wrappers_work():
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(AsyncVectorEnv(counting(2, 2)))
    envs.reset()
    envs.step(STAY)
    *_, info = envs.step(STAY)
    assert info["episode"]["l"].tolist() == [2, 0]
    envs.close()


def test_reset_recovers_from_ctrl_c_at_any_point(monkeypatch: pytest.MonkeyPatch) -> None:
    with AsyncVectorEnv(counting(4), num_workers=2) as envs:
        envs.reset()
        finish, start = envs._finish_step, envs._start_step

        def interrupted(real: Any) -> Any:
            def then(*arguments: Any) -> Any:
                real(*arguments)
                raise KeyboardInterrupt

            return then

        for name, real in (("_finish_step", finish), ("_start_step", start)):
            monkeypatch.setattr(envs, name, interrupted(real))
            with pytest.raises(KeyboardInterrupt):
                envs.step([0] * 4)
            monkeypatch.undo()
            with pytest.raises(AlreadyPendingCallError, match=r"or reset\(\)"):
                envs.step([0] * 4)
            envs.reset()
            assert envs.step([0] * 4)[1].shape == (4,)


def test_replies_lost_to_ctrl_c_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with AsyncVectorEnv(counting(2)) as envs:
        envs.reset()
        _lose_a_step(envs, monkeypatch)
        with pytest.raises(NoAsyncCallError, match=r"lost because Ctrl-C .* Call reset\(\)"):
            envs.step_wait()
        envs.reset()


def test_closing_after_ctrl_c_ends_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = AsyncVectorEnv(counting(2), num_workers=2)
    envs.reset()
    pids = [link.pid for link in envs._pool._backend._connections]  # type: ignore[attr-defined]
    _lose_a_step(envs, monkeypatch)
    envs.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def _lose_a_step(envs: AsyncVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = envs._finish_step

    def heard(*arguments: Any) -> Any:
        finish(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(envs, "_finish_step", heard)
    with pytest.raises(KeyboardInterrupt):
        envs.step([0] * envs.num_envs)
    monkeypatch.undo()
