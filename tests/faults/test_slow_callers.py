"""A caller that is busy for longer than the timeout: replies that have arrived are read before timeouts are checked."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv, env_fns_with_fault, sleeps, sleeps_forever
from tests.fixtures.pools import arrived, make_pool
from tests.fixtures.processes import wait_until

from vecrl.engine import pending as pending_module
from vecrl.engine.pending import PendingCommands
from vecrl.engine.pool import Pool
from vecrl.engine.worker import Op
from vecrl.errors import StepTimeout
from vecrl.venv import BaseVectorEnv

pytestmark = pytest.mark.usefixtures("nothing_left")
RAY = pytest.param("ray", marks=pytest.mark.ray)
POLICIES = pytest.mark.parametrize("policy", ["raise", "restart", "mask"])
ACTIONS = np.zeros(4, int)


def _late_by(pool: Pool, seconds: float) -> None:
    """Lets time pass for the workers with pending replies."""
    since = pool._pending._busy_since
    since |= {worker: asked - seconds for worker, asked in since.items()}


@POLICIES
@pytest.mark.parametrize("backend", ["serial", "threads", "processes", RAY])
def test_no_transition_is_lost(backend: Any, policy: Any) -> None:
    options: Any = {"step_timeout": 30.0, "on_failure": policy}
    with BaseVectorEnv([partial(FaultyEnv, i) for i in range(4)], wait_num=1, backend=backend, **options) as envs:
        envs.reset()
        used = [info["env_id"] for info in envs.step(ACTIONS)[4]]
        while len(used) < 4:
            unread = len(envs.waiting_id) - len(envs._pool._pending.completed)
            assert backend == "serial" or wait_until(partial(arrived, envs._pool, unread))
            _late_by(envs._pool, 1000.0)
            obs, _, _, truncated, infos = envs.step(None)
            assert obs[:, 2].tolist() == [1.0] * len(infos)
            assert not truncated.any()
            assert not any("failed" in info for info in infos)
            used += [info["env_id"] for info in infos]
        assert sorted(used) == [0, 1, 2, 3]
        assert envs._pool.alive.all()


@POLICIES
def test_only_stuck_workers_time_out(policy: Any) -> None:
    """The others have replied, although the timeout has passed for all."""
    bad = env_fns_with_fault("step", sleeps_forever, bad=1, count=3)
    pool = make_pool(bad, "processes", 3, step_timeout=30.0, on_failure=policy)
    pool.reset()
    pool.send([0, 1, 2], ACTIONS[:3])
    assert wait_until(lambda: arrived(pool, 2))
    _late_by(pool, 1000.0)
    if policy == "raise":
        with pytest.raises(StepTimeout) as exc_info:
            pool.recv(1)
        assert exc_info.value.env_ids == (1,)
        t = pool.recv(2)
        assert sorted(t.ids.tolist()) == [0, 2]
    else:
        t = pool.recv()
        assert t.truncated.tolist() == [False, True, False]
        assert t.obs[[0, 2], 2].tolist() == [1, 1]
        assert pool.alive.tolist() == [True, policy == "restart", True]
    pool.close()


def test_late_serial_commands_time_out_once() -> None:
    pool = make_pool(env_fns_with_fault("step", sleeps, bad=1, count=2), "serial", workers=2, step_timeout=0.1)
    pool.reset()
    pool.send([0, 1], ACTIONS[:2])
    with pytest.raises(StepTimeout, match="environment 1"):
        pool.recv()
    _late_by(pool, 1000.0)
    assert pool.recv().obs[:, 2].tolist() == [1, 1]
    pool.close()


@pytest.mark.parametrize("backend", ["threads", "processes", RAY])
def test_arrived_replies_are_not_cancelled(backend: Any) -> None:
    pool = make_pool([partial(FaultyEnv, i) for i in range(2)], backend)
    pool.reset()
    pool.send([0, 1], ACTIONS[:2])
    assert wait_until(lambda: arrived(pool, 2))
    assert pool.cancel([0, 1]).tolist() == []
    assert pool.recv().obs[:, 2].tolist() == [1, 1]
    pool.close()


class Scripted:
    """A backend with replies at given times, on a simulated clock."""

    num_workers = 2

    def __init__(self, replies: list[tuple[float, int, int]]):
        self.replies = replies
        self.now = 0.0

    def receive(self, timeout: float | None, expect: Any = ()) -> list[Any]:
        at, worker, seq = self.replies[0]
        if timeout is not None and at > self.now + timeout:
            self.now += timeout
            return []
        self.now = max(self.now, at)
        del self.replies[0]
        return [(worker, seq, None)]


@pytest.mark.parametrize(
    ("replies", "late"),
    [
        pytest.param([(0.9, 0, 1), (1.7, 0, 2)], False, id="each in time"),
        pytest.param([(0.9, 0, 1), (2.0, 0, 2)], True, id="the second late"),
        pytest.param([(0.9, 1, 3), (1.7, 0, 2)], True, id="another worker's"),
    ],
)
def test_each_pending_command_has_its_own_timeout(replies: Any, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = Scripted([*replies, (100.0, 0, 9)])
    monkeypatch.setattr(pending_module, "time", SimpleNamespace(monotonic=lambda: backend.now))
    pending = PendingCommands(backend, np.array([0, 2, 3]), runs_inline=False)
    step, reset, other = [pending.register(Op.STEP, [w], np.array([i])) for w, i in ((0, 0), (0, 1), (1, 2))]
    if late:
        with pytest.raises(StepTimeout):
            pending.wait_for(reset, 1.0)
    else:
        assert pending.wait_for(reset, 1.0) == []
        assert pending.completed == [step, reset]
    assert other.waiting == ({1} if replies[0][1] == 0 else set())
