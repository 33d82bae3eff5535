"""Asynchronous stepping: which environments are waited for and may be called, and that every transition arrives once
and in order."""

from __future__ import annotations

import os
import random
import time
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.venv_envs import KINDS, GatedCountingEnv, ids_of, make

from vecrl.errors import PendingError, StepTimeout, WorkerError
from vecrl.venv import BaseVectorEnv

PLACES = [("dummy", None), ("dummy", 2), ("shmem", None), ("shmem", 2)]


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


@pytest.mark.parametrize("options", [{"wait_num": 2}, {"timeout": 5}, {"wait_num": 3, "timeout": 5}])
def test_wait_num_or_timeout_enable_asynchronous_steps(options):
    with make("dummy", 3, **options) as envs:
        assert envs.is_async
        assert (envs.wait_num, envs.timeout) == (options.get("wait_num", 3), options.get("timeout"))
        assert f"timeout={options.get('timeout')}" in repr(envs)
    with make("dummy", 3, wait_num=3) as envs:
        assert not envs.is_async


@pytest.mark.parametrize("kind", KINDS)
def test_ready_environments_are_returned_first(kind, gate):
    """As in Tianshou: the first two of four, in the order in which they became ready."""
    with make(kind, 4, wait_num=2, maker=lambda i: GatedCountingEnv(i, 9, gate)) as envs:
        envs.reset()
        obs, rew, terminated, truncated, infos = envs.step([0, 2, 0, 2] if kind != "dummy" else [0] * 4)
        ready = [0, 1] if kind == "dummy" else [0, 2]
        assert sorted(ids_of(infos)) == ready
        assert obs[:, 0].tolist() == rew.tolist() == ids_of(infos)
        assert len(terminated) == len(truncated) == 2
        late = [i for i in range(4) if i not in ready]
        assert (envs.waiting_id, envs.ready_id) == (late, ready)
        gate.touch()
        assert sorted(ids_of(envs.step(None)[4])) == late
        assert envs.waiting_id == []
        assert len(envs.step(None)[4]) == 0


@pytest.fixture(params=["dummy", "shmem"])
def pending_venv(request, gate):
    """Returns four environments, of which 2 and 3 are pending until the gate file exists."""
    with make(request.param, 4, wait_num=2, maker=lambda i: GatedCountingEnv(i, 9, gate)) as envs:
        envs.reset()
        envs.step([0, 0, 2, 2])
        assert envs.waiting_id == [2, 3]
        if request.param == "dummy":
            gate.touch()  # its steps are executed when they are waited for
        yield envs


@pytest.mark.parametrize(
    "use",
    [
        lambda envs: envs.step([0], [3]),
        lambda envs: envs.step([0, 0], [0, 3]),
        lambda envs: envs.step([0] * 4),
        lambda envs: envs.reset([3]),
        lambda envs: envs.get_env_attr("i", 3),
        lambda envs: envs.get_env_attr("i"),
        lambda envs: envs.set_env_attr("i", 1, [3]),
        lambda envs: envs.seed(1),
        lambda envs: envs.render(),
        lambda envs: envs.metadata,
    ],
)
def test_pending_environments_raise(pending_venv, use, gate):
    """They can be neither stepped nor reset nor queried, and the attempt loses no transition."""
    with pytest.raises(PendingError, match=r"\[2, 3\] are still pending"):
        use(pending_venv)
    gate.touch()
    obs, _, _, _, infos = pending_venv.step(None)
    assert sorted(ids_of(infos)) == [2, 3]
    assert obs[:, 2].tolist() == [1, 1]


def test_a_reset_of_all_waits_for_pending_steps_and_drops_them(pending_venv, gate):
    gate.touch()
    assert pending_venv.reset()[0].tolist() == [[i, 1, 0] for i in range(4)]
    assert pending_venv.waiting_id == []
    assert len(pending_venv.step(None)[4]) == 0


def test_late_resets_of_all_can_be_cancelled(tmp_path):
    never = tmp_path / "gate"
    with make("shmem", 3, wait_num=2, maker=lambda i: GatedCountingEnv(i, 9, never, 600)) as envs:
        envs.reset()
        envs._pool.step_timeout = 0.3
        envs.step([0, 0, 2])
        for _ in range(2):
            with pytest.raises(StepTimeout, match="environment 2"):
                envs.reset()
        assert envs.cancel().tolist() == [2]
        assert envs.waiting_id == []
        envs._pool.step_timeout = 30
        assert envs.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert sum(len(envs.step(action)[4]) for action in ([0, 0, 0], None)) == 3


class SlowToReset(GatedCountingEnv):
    """Its second reset lasts until the file `gate` exists."""

    def reset(self, **kwargs):
        end = time.monotonic() + self.patience
        while self.episode == 0 and not os.path.exists(self.gate) and time.monotonic() < end:
            time.sleep(0.001)
        return super().reset(**kwargs)


@pytest.fixture(params=["dummy", "shmem"])
def late(request, gate):
    """Returns three environments, of which number 2 is late in a reset of all."""
    patience = 0.3 if request.param == "dummy" else 600.0
    kinds = [GatedCountingEnv, GatedCountingEnv, SlowToReset]
    with make(request.param, 3, wait_num=2, maker=lambda i: kinds[i](i, 9, gate, patience)) as envs:
        envs.reset()
        envs._pool.step_timeout = 0.1
        with pytest.raises(StepTimeout, match="environment 2"):
            envs.reset()
        envs._pool.step_timeout = 30
        yield envs


@pytest.mark.parametrize("use", ["reset", "reset some", "step", "collect", "get"])
def test_every_call_waits_for_a_late_reset(use, late, gate):
    gate.touch()
    if use == "reset":
        assert late.reset()[0][:, 1].tolist() == [2, 2, 2]
    elif use == "reset some":
        assert late.reset([2])[0].tolist() == [[2, 2, 0]]
    elif use == "collect":
        assert len(late.step(None)[4]) == 0
    elif use == "get":
        assert late.get_env_attr("i") == [0, 1, 2]
    used = ids_of(late.step([0, 0, 0])[4])
    while late.waiting_id:
        used += ids_of(late.step(None)[4])
    assert sorted(used) == [0, 1, 2]


@pytest.mark.parametrize("again", ["all", "some"])
def test_late_resets_can_be_cancelled(again, late):
    lost = late.cancel()
    assert late.waiting_id == []
    assert late.reset(None if again == "all" else lost)[0][:, 2].tolist() == [0] * (3 if again == "all" else len(lost))
    used = ids_of(late.step([0, 0, 0])[4])
    while late.waiting_id:
        used += ids_of(late.step(None)[4])
    assert sorted(used) == [0, 1, 2]


def test_idle_environments_can_be_stepped_reset_and_queried(pending_venv, gate):
    assert pending_venv.get_env_attr("i", [1, 0]) == [1, 0]
    pending_venv.set_env_attr("brand", "new", 1)
    assert pending_venv.get_env_attr("brand", 1) == ["new"]
    assert pending_venv.reset([1])[0].tolist() == [[1, 1, 0]]
    gate.touch()
    seen = ids_of(pending_venv.step([0], [0])[4])
    while pending_venv.waiting_id:
        seen += ids_of(pending_venv.step(None)[4])
    assert sorted(seen) == [0, 2, 3]
    assert pending_venv.reset()[0][:, 1].tolist() == [1, 2, 1, 1]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_ready_environments_are_returned_after_the_timeout(num_workers, gate):
    """At least one: if none is ready in time, the first one that becomes ready."""
    with make("shmem", 3, num_workers, timeout=0.1, maker=lambda i: GatedCountingEnv(i, 9, gate, 0.3)) as envs:
        envs.reset()
        used = ids_of(envs.step([0, 0, 2])[4])
        while len(used) < 2:
            used += ids_of(envs.step(None)[4])
        assert sorted(used) == [0, 1]
        assert ids_of(envs.step(None)[4]) == [2]
        assert ids_of(envs.step([2], [2])[4]) == [2]


def test_step_timeouts_name_the_environments(gate):
    with make("shmem", 2, wait_num=1, step_timeout=30, maker=lambda i: GatedCountingEnv(i, 9, gate)) as envs:
        envs.reset()
        envs._pool.step_timeout = 0.1
        with pytest.raises(StepTimeout, match="environment 0"):
            envs.step([2, 2])
        gate.touch()
        envs._pool.step_timeout = 30
        seen: list[int] = []
        while envs.waiting_id:
            seen += ids_of(envs.step(None)[4])
        assert sorted(seen) == [0, 1]


@pytest.mark.parametrize(("kind", "num_workers"), PLACES)
def test_failures_do_not_lose_other_results(kind, num_workers):
    """The error has the results of the others; the failed one continues after its reset."""
    with make(kind, 4, num_workers, wait_num=2) as envs:
        envs.reset()
        counted = dict.fromkeys(range(4), 0)
        failed: set[int] = set()
        try:
            used = ids_of(envs.step([0, 3, 0, 0])[4])
        except WorkerError as error:
            failed = set(error.env_ids)
            used = [i for i in error.transition.ids.tolist() if i not in failed]
        while True:
            for i in used:
                counted[i] += 1
            if not envs.waiting_id:
                break
            try:
                used = ids_of(envs.step(None)[4])
            except WorkerError as error:
                failed |= set(error.env_ids)
                used = [i for i in error.transition.ids.tolist() if i not in failed]
        assert failed == {1}
        assert counted == {0: 1, 1: 0, 2: 1, 3: 1}
        with pytest.raises(PendingError, match=r"\[1\] failed before"):
            envs.step([0], [1])
        envs.reset(1)
        assert envs.step([0], [1])[0][0].tolist() == [1, 1, 1]


class RandomDelayEnv(GatedCountingEnv):
    """Takes a random time for each step, ends after random lengths, and returns the received action in its info."""

    def step(self, action):
        if self.i % 2:
            time.sleep(random.expovariate(1000))
        obs, *remaining, _ = super().step(0)
        return obs, *remaining, {"action": int(action)}


def expected_of(sent: list[int]) -> list[tuple[int, int, int]]:
    """Returns (episode, count, action) of each action, in order. Negative entries of `sent` are resets."""
    episode, count, expected = 0, 0, []
    for action in sent:
        episode, count = (episode + 1, 0) if action < 0 else (episode, count + 1)
        if action >= 0:
            expected.append((episode, count, action))
    return expected


def record(result: Any, received: dict[int, list[tuple[int, int, int]]]) -> set[int]:
    """Appends (episode, count, action) of each returned environment. Returns the ids of those that have ended."""
    obs, rew, terminated, _, infos = result
    ids = ids_of(infos)
    for row, i in enumerate(ids):
        assert (obs[row, 0], rew[row]) == (i, i)
        received[i].append((int(obs[row, 1]), int(obs[row, 2]), infos[row]["action"]))
    return {i for row, i in enumerate(ids) if terminated[row]}


def play(envs: BaseVectorEnv, draw: Any, rounds: int, steps: int = 0) -> dict[int, list[tuple[int, int, int]]]:
    """Steps, resets and collects at random. Returns the (episode, count, action) of each environment in order of
    arrival.

    Every action is unique, so that a lost, repeated or swapped transition is detected. Further rounds are played until
    every environment has returned `steps` transitions: how many rounds a slow environment needs depends on the machine.
    """
    n = len(envs)
    envs.reset()
    received: dict[int, list[tuple[int, int, int]]] = {i: [] for i in range(n)}
    sent: dict[int, list[int]] = {i: [] for i in range(n)}
    ended: set[int] = set()
    number = 0

    while rounds > 0 or min(map(len, received.values())) < steps:
        rounds -= 1
        ready = envs.ready_id
        reset_rows = [i for i in ready if i in ended or draw(5) == 0]
        if reset_rows:
            envs.reset(reset_rows)
            ended -= set(reset_rows)
            for i in reset_rows:
                sent[i].append(-1)
        asked = [i for i in ready if draw(2)]
        if asked:
            actions = [(number := number + 1) * 4 for _ in asked]
            for i, action in zip(asked, actions, strict=True):
                sent[i].append(action)
            ended |= record(envs.step(np.array(actions), asked), received)
        elif envs.waiting_id:
            ended |= record(envs.step(None), received)
    while envs.waiting_id:
        ended |= record(envs.step(None), received)
    for i in range(n):
        assert received[i] == expected_of(sent[i])
    return received


def random_delay_venv(kind: str, n: int, num_workers: int | None, **options: Any) -> BaseVectorEnv:
    return KINDS[kind]([partial(RandomDelayEnv, i, 3 + i % 3) for i in range(n)], num_workers=num_workers, **options)


@pytest.mark.parametrize(("kind", "num_workers"), PLACES)
@pytest.mark.parametrize(
    "options", [{"wait_num": 1}, {"wait_num": 4}, {"timeout": 0.001}, {"wait_num": 3, "timeout": 0.0005}]
)
def test_no_transition_is_lost_repeated_or_out_of_order(kind, num_workers, options):
    rng = random.Random(str((kind, num_workers, options)))
    with random_delay_venv(kind, 6, num_workers, **options) as envs:
        play(envs, rng.randrange, 60, steps=6)


@settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), wait_num=st.integers(1, 3), num_workers=st.integers(1, 4))
def test_any_sequence_of_calls_keeps_all_transitions(data, wait_num, num_workers):
    """Any calls in any order; serial, since each example is fast there."""
    with random_delay_venv("dummy", 4, num_workers, wait_num=wait_num) as envs:
        play(envs, lambda below: data.draw(st.integers(0, below - 1)), 8)


@pytest.mark.parametrize("options", [{}, {"wait_num": 2}], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_resets_that_time_out_keep_pending_steps(backend, options, gate):
    envs = BaseVectorEnv(
        [partial(GatedCountingEnv, i, 9, gate) for i in range(3)], backend=backend, step_timeout=0.2, **options
    )
    with envs:
        envs.reset()
        obs: list[float] = []
        with nullcontext() if options else pytest.raises(StepTimeout):
            obs += envs.step([0, 2, 0])[0][:, 2].tolist()
        for _ in range(2):
            with pytest.raises(StepTimeout):
                envs.reset()
        gate.touch()
        while len(obs) < 3:
            with suppress(StepTimeout):  # on a busy machine
                obs += envs.step(None)[0][:, 2].tolist()
        assert obs == [1, 1, 1]
