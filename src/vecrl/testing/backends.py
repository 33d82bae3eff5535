"""What every backend must do; see `vecrl.testing`. Each test drives the backend by a `Pool`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from unittest import SkipTest

import gymnasium
import numpy as np
from gymnasium import spaces

from ..engine.infos import InfoDict
from ..engine.pool import Pool
from ..engine.simulator import ResetOptions, Simulator
from ..engine.space_layout import Tree
from ..engine.transition import Transition
from ..errors import ClosedError, StepTimeout, WorkerCrash, WorkerError
from ..simulators.gymnasium import GymnasiumSimulator
from .comparisons import error_of

_REPLY_TIMEOUT_S = 30.0

Part = tuple[Callable[[], Simulator], int]
Obs = dict[str, Tree]
Values = dict[str, object]


class CountingEnv(gymnasium.Env[Obs, Tree]):
    """Observes its number, its episode and its step, and a text; ends after `length` steps.

    Args:
        number: begins every observation; an even one ends by termination, an odd one by truncation.
        length: steps of an episode.
        fault: "raise", "exit" or "sleep", which happens in step 2 of the first episode; "construct" raises at once.
    """

    observation_space = spaces.Dict(
        count=spaces.Box(-1.0, 1e9, (3,), np.float64), text=spaces.Text(20, charset="0123456789-")
    )
    action_space = spaces.Discrete(4)

    def __init__(self, number: int, length: int = 3, fault: str = ""):
        if fault == "construct":
            raise ArithmeticError("this environment cannot be made")
        self.number, self.length, self.fault = number, length, fault
        self.episode, self.count = -1, 0

    def _observe(self) -> Obs:
        count = np.array([self.number, self.episode, self.count], np.float64)
        return {"count": count, "text": f"{self.number}-{self.count}"}

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> tuple[Obs, InfoDict]:
        """Resets the environment; the info has a random number that the seed determines."""
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._observe(), {"draw": float(self.np_random.random())}

    def step(self, action: Tree) -> tuple[Obs, float, bool, bool, InfoDict]:
        """Steps the environment; the reward is the action plus the step."""
        self.count += 1
        if self.fault and self.count == 2 and self.episode == 0:
            if self.fault == "exit":
                os._exit(3)
            if self.fault == "sleep":
                time.sleep(0.8)
            else:
                raise ArithmeticError(f"step 2 of environment {self.number}")
        done, even = self.count >= self.length, self.number % 2 == 0
        return self._observe(), float(self.count + action), done and even, done and not even, {"count": self.count}

    def double(self, value: int, plus: int = 0) -> int:
        """Returns a number that depends on the environment."""
        return 2 * value + plus + self.number


class BackendConformance:
    """Tests of a backend. Derive a class with a name that begins with `Test`, and set `backend`.

    Attributes:
        backend: the name under which it is registered.
        options: further arguments of `Pool`.
        can_crash: whether each worker is a process, so that its crash must be reported and must not end the caller.

    >>> class TestSerial(BackendConformance):
    ...     backend = "serial"
    >>> TestSerial().test_trajectories_equal_those_of_the_serial_backend()
    """

    backend: str = ""
    options: dict[str, Any] = {}
    can_crash = False

    def pool(self, *faults: str, backend: str | None = None, **options: Any) -> closing[Pool]:
        """Returns a pool of two workers, to be used in a `with`; environment i has the i-th of `faults`."""
        assert self.backend, f"Expected {type(self).__name__} to define backend, the name of a registered backend."
        faults = faults or ("",) * 4
        makers = [partial(CountingEnv, i, 3 + i, fault) for i, fault in enumerate(faults)]
        halves = [makers[: len(makers) // 2], makers[len(makers) // 2 :]]
        parts: list[Part] = [(partial(GymnasiumSimulator, half), len(half)) for half in halves]
        name = self.backend if backend is None else backend
        return closing(Pool(parts, name, **(self.options if backend is None else {}), **options))

    def test_the_backend_has_every_method(self) -> None:
        """The class has all methods of `Backend`."""
        with self.pool() as pool:
            methods = "attach", "send", "broadcast", "receive", "timed_out", "kill", "respawn", "reattach", "shutdown"
            for name in methods:
                assert callable(getattr(pool._backend, name, None)), f"{name} is missing"

    def test_receive_returns_a_list(self) -> None:
        """Without pending commands, `receive` returns an empty list after the timeout."""
        with self.pool() as pool:
            pool.reset()
            replies: object = pool._backend.receive(0.0)
            assert replies == [], f"Expected receive to return [] if no reply has arrived, got {replies!r}."

    def test_workers_can_be_replaced(self) -> None:
        """`kill` returns whether it ended the worker; `respawn` then starts one that makes the environments again."""
        with self.pool() as pool:
            pool.reset()
            backend = pool._backend
            killed: object = backend.kill(1)
            assert isinstance(killed, bool), f"Expected kill to return True or False, got {killed!r}."
            assert killed or not self.can_crash, "Expected kill to end the process of a worker, got False."
            if not killed:
                return
            backend.respawn(1)
            replies: list[Any] = []
            deadline = time.monotonic() + _REPLY_TIMEOUT_S
            while not replies and time.monotonic() < deadline:
                replies += [reply for reply in backend.receive(0.1, {1}) if reply[0] == 1]
            assert [seq for _, seq, _ in replies] == [0], (
                f"Expected the reply of the new worker to Op.CONSTRUCT, number 0, got {replies}. Send it in respawn."
            )
            assert pool.invoke("get", "episode") == [0, 0, -1, -1], "Expected respawn to make the environments again."

    def test_some_environments_that_take_too_long_are_reported(self) -> None:
        """`timed_out` selects workers that were sent a command by `send` and are late."""
        with self.pool("", "", "", "sleep", step_timeout=0.3) as pool:
            pool.reset()
            pool.step(np.zeros(4, int))
            late: object = pool._backend.timed_out(set())
            assert late == set(), f"Expected timed_out to return a set of the given workers, got {late!r}."
            pool.send([3], np.zeros(1, int))
            assert "3" in str(error_of(StepTimeout, pool.recv))
            time.sleep(0.8)
            assert pool.reset().obs["count"][:, 2].tolist() == [0, 0, 0, 0]

    def test_shutdown_may_be_called_twice(self) -> None:
        """A second `shutdown` has no effect, and leaves no worker that cannot be ended."""
        with self.pool() as pool:
            pool.reset()
            backend = pool._backend
        assert list(backend.shutdown()) == []

    def test_failed_environments_are_restarted(self) -> None:
        """With `on_failure="restart"`, an environment that raises is constructed again and its episode truncated."""
        with self.pool("", "raise", "", "", on_failure="restart") as pool:
            pool.reset()
            pool.step(np.zeros(4, int))
            t = pool.step(np.zeros(4, int))
            assert t.reward[[0, 2, 3]].tolist() == [2, 2, 2]
            assert t.truncated.tolist() == [False, True, False, False]
            assert pool.invoke("get", "number") == [0, 1, 2, 3]

    def test_trajectories_equal_those_of_the_serial_backend(self) -> None:
        """Equal seeds and actions give equal transitions, with resets within the step, by masks and by ids."""
        results: list[list[Values]] = []
        for backend in (None, "serial"):
            with self.pool(backend=backend) as pool:
                result = [_values(pool.reset([1, 2, 3, 4]))]
                for step in range(8):
                    result.append(_values(pool.step(np.arange(4) % (step % 3 + 1), reset_done=True)))
                for step in range(8):
                    done = np.array(result[-1]["terminated"]) | np.array(result[-1]["truncated"])
                    result.append(_values(pool.step(np.full(4, step % 4), reset_mask=done)))
                result.append(_values(pool.reset([9, 8], ids=[3, 0])))
                results.append(result)
        assert results[0] == results[1]

    def test_some_environments_can_be_stepped(self) -> None:
        """`send` and `recv` of some ids leave the others where they are, in any order."""
        with self.pool() as pool:
            pool.reset()
            pool.send([3, 1], np.array([2, 1]))
            pool.send([0], np.array([3]))
            rewards: dict[int, float] = {}
            while len(rewards) < 3:
                t = pool.recv(at_least=1, timeout=30.0)
                rewards |= zip(t.ids.tolist(), t.reward.tolist(), strict=True)
            assert rewards == {3: 3.0, 1: 2.0, 0: 4.0}
            t = pool.step(np.zeros(4, int))
            assert [count[2] for count in t.obs["count"]] == [2, 2, 1, 2]

    def test_methods_and_attributes_can_be_reached(self) -> None:
        """`invoke` gets, sets and calls in the environments that it names."""
        with self.pool() as pool:
            assert pool.invoke("get", "length") == [3, 4, 5, 6]
            pool.invoke("set", "length", [9, 8], ids=[2, 0])
            assert pool.invoke("get", "length") == [8, 4, 9, 6]
            calls = [((5,), {"plus": 1}), ((6,), {})]
            assert pool.invoke("call", "double", calls, ids=[1, 3]) == [12, 15]

    def test_states_restore_the_same_future(self) -> None:
        """`set_state` goes back exactly, random numbers of later resets included."""
        with self.pool() as pool:
            pool.reset([1, 2, 3, 4])
            pool.step(np.zeros(4, int))
            states = pool.get_state()
            futures: list[list[Values]] = []
            for _ in range(2):
                pool.set_state(states)
                futures.append([_values(pool.step(np.ones(4, int), reset_done=True)) for _ in range(7)])
            assert futures[0] == futures[1]

    def test_an_exception_names_its_environment(self) -> None:
        """The error has the environment's number and traceback; other rows are there; a reset recovers."""
        with self.pool("", "raise", "", "") as pool:
            pool.reset()
            pool.step(np.zeros(4, int))
            message = str(error_of(WorkerError, pool.step, np.zeros(4, int)))
            assert "environment 1 " in message
            assert "ArithmeticError: step 2 of environment 1" in message
            assert "in step" in message, "the environment's own traceback is missing"
            assert pool.reset().obs["count"][:, 2].tolist() == [0, 0, 0, 0]
            assert pool.step(np.zeros(4, int)).reward.tolist() == [1, 1, 1, 1]

    def test_an_environment_that_cannot_be_made_is_reported(self) -> None:
        """The error names it, and nothing is left running."""
        message = str(error_of(WorkerError, self.pool, "", "", "construct", ""))
        assert "environment 2 " in message or "environments 2, 3 " in message
        assert "this environment cannot be made" in message

    def test_a_step_that_takes_too_long_is_reported(self) -> None:
        """A StepTimeout names the environment, and the pool can be used after it."""
        with self.pool("", "", "", "sleep", step_timeout=0.3) as pool:
            pool.reset()
            pool.step(np.zeros(4, int))
            message = str(error_of(StepTimeout, pool.step, np.zeros(4, int)))
            assert "environment" in message
            assert "3" in message
            time.sleep(0.8)
            pool.reset()
            assert pool.step(np.zeros(4, int)).reward.tolist() == [1, 1, 1, 1]

    def test_a_crash_is_reported_within_a_second(self) -> None:
        """The end of a worker's process is a WorkerCrash that names its environments."""
        if not self.can_crash:
            raise SkipTest("workers are not processes: can_crash is False")
        with self.pool("", "", "exit", "") as pool:
            pool.reset()
            pool.step(np.zeros(4, int))
            started = time.monotonic()
            assert "environments 2, 3 " in str(error_of(WorkerCrash, pool.step, np.zeros(4, int)))
            assert time.monotonic() - started < 5.0

    def test_crashed_workers_are_restarted(self) -> None:
        """With `on_failure="restart"`, other environments go on and the crashed ones are reset."""
        if not self.can_crash:
            raise SkipTest("workers are not processes: can_crash is False")
        with self.pool("", "", "exit", "", on_failure="restart") as pool:
            pool.reset()
            pool.step(np.zeros(4, int))
            t = pool.step(np.zeros(4, int))
            assert t.reward[:2].tolist() == [2, 2]
            assert t.truncated[2:].tolist() == [True, True]

    def test_close_may_be_called_twice(self) -> None:
        """After `close`, other calls raise ClosedError."""
        with self.pool() as pool:
            pool.reset()
            pool.close()
            pool.close()
            error_of(ClosedError, pool.reset)


def _values(t: Transition) -> Values:
    """The fields of a transition as plain values."""
    values: Values = {name: getattr(t, name).tolist() for name in ("ids", "reward", "terminated", "truncated")}
    for name in ("obs", "next_obs"):
        tree = getattr(t, name)
        values[name] = tree["count"].tolist(), list(tree["text"])
    values["infos"] = sorted((env_id, dict(info)) for env_id, info in t.infos.items())
    return values
