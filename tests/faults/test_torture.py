"""Workers are killed, stopped, delayed and crashed at random, while a consumer checks every result.

Every command to an environment has one reply, the steps of an episode arrive in order and without a gap, and every
crash is reported.
"""

import contextlib
import os
import random
import signal
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from tests.fixtures.pools import make_pool

from vecrl.engine.transition import Transition
from vecrl.errors import StepTimeout

pytestmark = pytest.mark.usefixtures("nothing_left")
N = 6
STEP, RAISE, EXIT, SLEEP, HANG = range(5)


class RecordedEnv(gymnasium.Env):
    """Observes `[env_id, life, episode, count, pid]` and does what its action says; an episode has seven steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float64)
    action_space = spaces.Discrete(5)

    def __init__(self, env_id: int):
        self.env_id, self.life, self.episode, self.count = env_id, random.getrandbits(40), 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.count = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        if action == RAISE:
            raise ArithmeticError("requested failure")
        if action == EXIT:
            os._exit(7)
        if action in (SLEEP, HANG):
            time.sleep(0.003 if action == SLEEP else 100)
        self.count += 1
        return self._observe(), float(self.count), self.count == 7, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.env_id, self.life, self.episode, self.count, os.getpid()], np.float64)


class RowChecker:
    """Compares each row of one environment with the row before."""

    def __init__(self, env_id: int):
        self.env_id = env_id
        self.last: np.ndarray | None = None
        self.asked = ""
        self.failures = 0

    def ask(self, what: str) -> None:
        assert not self.asked, "asked twice without an answer"
        self.asked = what

    def take(
        self, obs: np.ndarray, next_obs: np.ndarray, reward: float, done: bool, was_reset: bool, failed: bool
    ) -> None:
        asked, self.asked = self.asked, ""
        assert asked, "a reply without a command"
        assert obs[0] == next_obs[0] == self.env_id
        if asked == "reset":
            assert (was_reset, done, obs[3]) == (True, False, 0)
        elif failed:
            self.failures += 1
            assert done
            assert reward == 0
            np.testing.assert_array_equal(next_obs, self.last)
        else:
            assert self.last is not None
            np.testing.assert_array_equal(next_obs, self.last + np.array([0, 0, 0, 1, 0]))
            assert reward == next_obs[3]
            assert done == (next_obs[3] == 7)
        if was_reset:
            assert obs[3] == 0
        self.last = obs


class Consumer:
    """Sends random commands and checks all replies; kills and stops workers.

    Args:
        seed: of everything that is random.
        backend: of the pool.
        stops: how many workers may be stopped or hang; each costs the timeout of a step.

    Attributes:
        count: the transitions that were checked.
    """

    def __init__(self, seed: int, backend: str, stops: int):
        self.rng, self.stops, self.count = random.Random(seed), stops, 0
        self.reset_done = seed % 2 == 0
        self.in_processes = backend in ("processes", "ray")
        self.often = 0.3 if backend == "ray" else 1.0  # since actors start slowly
        patience = 3.0 if backend == "ray" else 0.5
        self.pool = make_pool(
            [partial(RecordedEnv, i) for i in range(N)],
            backend,
            [1, 2, 3, 6][seed % 4],
            on_failure="restart",
            restarts_per_hour=10**6,
            step_timeout=patience if self.in_processes else None,
        )
        self.faults = [STEP] * 30 + [SLEEP] * 10 + [RAISE] + [EXIT] * self.in_processes
        self.begin()

    def begin(self) -> None:
        """Starts again: no environment was asked for anything, and all need a reset."""
        self.checkers = [RowChecker(i) for i in range(N)]
        self.ready, self.is_over = set(range(N)), set(range(N))

    @property
    def failures(self) -> int:
        return sum(checker.failures for checker in self.checkers)

    def turn(self) -> None:
        """Sends commands, perhaps kills a worker, and checks what has arrived."""
        self._send()
        if self.in_processes and self.rng.random() < 0.04 * self.often:
            pids = {int(checker.last[4]) for checker in self.checkers if checker.last is not None}
            delay, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # an interrupt may come in vecrl, not in psutil
            self.stops -= _kill_or_stop(self.rng, self.stops > 0, pids)
            signal.setitimer(signal.ITIMER_REAL, delay)
        if len(self.ready) == N:
            return
        rng = self.rng
        try:
            t = self.pool.recv(at_least=rng.choice([1, 2, 3, None]), timeout=rng.choice([None, 0.01]))
        except StepTimeout:  # environments of the second kind lose no transition
            return
        self._check(t)

    def _send(self) -> None:
        rng = self.rng
        resets = [i for i in sorted(self.ready) if i in self.is_over or rng.random() < 0.02]
        steps = [i for i in sorted(self.ready) if i not in resets and rng.random() < 0.8]
        rng.shuffle(steps)
        if resets:
            self._ask(resets, "reset")
            self.pool.send_reset(resets, [rng.randrange(99) for _ in resets])
        if steps:
            self._ask(steps, "step")
            actions = [rng.choice(self.faults) if rng.random() < self.often else STEP for _ in steps]
            if self.stops and rng.random() < 0.02:
                actions[0], self.stops = HANG, self.stops - 1
            self.pool.send(steps, actions, reset_done=self.reset_done)
        self.ready -= {*resets, *steps}

    def _ask(self, ids: list[int], what: str) -> None:
        for i in ids:
            self.checkers[i].ask(what)

    def _check(self, t: Transition) -> None:
        failed = {i for i, info in [*t.infos.items(), *t.final_infos.items()] if info.get("failed")}
        assert failed == {int(t.ids[row]) for row in t.failed}
        for row, i in enumerate(t.ids.tolist()):
            flags = bool(t.done[row]), bool(t.was_reset[row]), i in failed
            self.checkers[i].take(t.obs[row], t.next_obs[row], t.reward[row], *flags)
            self.ready.add(i)
            self.is_over.discard(i)
            if t.done[row] and not t.was_reset[row]:
                self.is_over.add(i)
        self.count += len(t.ids)
        assert set(self.pool.pending.tolist()) == set(range(N)) - self.ready

    def close(self) -> None:
        with contextlib.suppress(StepTimeout):  # a stopped process must be killed
            self.pool.close()


@pytest.mark.parametrize(
    ("backend", "seed"),
    [(backend, seed) for backend in ("serial", "threads", "processes") for seed in range(10)]
    + [pytest.param("ray", seed, marks=pytest.mark.ray) for seed in range(4)],  # half a minute each
)
def test_no_transition_is_lost_repeated_or_out_of_order(backend: str, seed: int) -> None:
    consumer = Consumer(seed, backend, stops={"processes": 2, "ray": 1}.get(backend, 0))
    transitions = 150 if backend == "ray" else 250
    while consumer.count < transitions or not consumer.failures:  # however slow the machine is
        consumer.turn()
    consumer.close()


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_after_an_interrupt_a_reset_begins_a_new_account(backend: str, seed: int) -> None:
    """Ctrl-C at any moment, among failures and killed workers."""
    consumer = Consumer(seed, backend, stops=0)
    consumer.turn()  # imports
    rounds = 0
    while rounds < 40 or consumer.count < 100:
        rounds += 1
        until = time.monotonic() + 2.0  # Python discards an exception that comes when an object is deleted
        try:
            signal.setitimer(signal.ITIMER_REAL, consumer.rng.uniform(1e-4, 2e-2))
            while time.monotonic() < until:
                consumer.turn()
        except KeyboardInterrupt:
            consumer.begin()
            obs = consumer.pool.reset().obs
            np.testing.assert_array_equal(obs[:, [0, 3]], [[i, 0] for i in range(N)])
            assert not consumer.pool.pending.size
    consumer.close()


def _kill_or_stop(rng: random.Random, stop: bool, pids: set[int]) -> bool:
    """Kills or stops one of these workers at any point, and returns whether it was stopped."""
    stop = stop and rng.random() < 0.3
    pid = rng.choice(sorted(pids) or [0])
    actual = {process.pid for process in psutil.Process().children(recursive=True)}  # on the nodes of Ray too
    if pid not in actual:  # it has ended already
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
    return stop
