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


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("backend", ["serial", "threads", "processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_no_transition_is_lost_repeated_or_out_of_order(backend: str, seed: int) -> None:
    rng = random.Random(seed)
    reset_done = seed % 2 == 0
    in_processes = backend in ("processes", "ray")
    patience, often, transitions = (3.0, 0.3, 150) if backend == "ray" else (0.5, 1.0, 250)  # actors start slowly
    pool = make_pool(
        [partial(RecordedEnv, i) for i in range(N)],
        backend,
        [1, 2, 3, 6][seed % 4],
        on_failure="restart",
        restarts_per_hour=10**6,
        step_timeout=patience if in_processes else None,
    )
    checkers = [RowChecker(i) for i in range(N)]
    faults = [STEP] * 30 + [SLEEP] * 10 + [RAISE] + [EXIT] * in_processes
    stops = 2 if backend == "processes" else int(in_processes)
    ready, is_over = set(range(N)), set(range(N))
    count = 0
    while count < transitions or not sum(checker.failures for checker in checkers):  # however slow the machine is
        resets = [i for i in sorted(ready) if i in is_over or rng.random() < 0.02]
        steps = [i for i in sorted(ready) if i not in resets and rng.random() < 0.8]
        rng.shuffle(steps)
        if resets:
            _ask(checkers, resets, "reset")
            pool.send_reset(resets, [rng.randrange(99) for _ in resets])
        if steps:
            _ask(checkers, steps, "step")
            actions = [rng.choice(faults) if rng.random() < often else STEP for _ in steps]
            if stops and rng.random() < 0.02:
                actions[0], stops = HANG, stops - 1
            pool.send(steps, actions, reset_done=reset_done)
        ready -= {*resets, *steps}
        if in_processes and rng.random() < 0.04 * often:
            stops -= _kill_or_stop(
                rng, stops > 0, {int(checker.last[4]) for checker in checkers if checker.last is not None}
            )
        if len(ready) == N:
            continue
        try:
            t = pool.recv(at_least=rng.choice([1, 2, 3, None]), timeout=rng.choice([None, 0.01]))
        except StepTimeout:  # environments of the second kind lose no transition
            continue
        failed = {i for i, info in [*t.infos.items(), *t.final_infos.items()] if info.get("failed")}
        assert failed == {int(t.ids[row]) for row in t.failed}
        for row, i in enumerate(t.ids.tolist()):
            flags = bool(t.done[row]), bool(t.was_reset[row]), i in failed
            checkers[i].take(t.obs[row], t.next_obs[row], t.reward[row], *flags)
            ready.add(i)
            is_over.discard(i)
            if t.done[row] and not t.was_reset[row]:
                is_over.add(i)
        count += len(t.ids)
        assert set(pool.pending.tolist()) == set(range(N)) - ready
    with contextlib.suppress(StepTimeout):  # a stopped process must be killed
        pool.close()


def _ask(checkers: list[RowChecker], ids: list[int], what: str) -> None:
    for i in ids:
        checkers[i].ask(what)


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
