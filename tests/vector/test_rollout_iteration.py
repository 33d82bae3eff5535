"""`RolloutWorkers.rollouts`: rollouts of single workers as they come, with the parameters set in between."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv, Once, is_killed, raises, sleeps_forever

from vecrl.errors import ClosedError, PendingError, StepTimeout, WorkerCrash, WorkerError
from vecrl.vector import Rollout, RolloutWorkers

BACKENDS = ["serial", "threads", "processes", pytest.param("ray", marks=pytest.mark.ray)]


def _cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def lean(obs: np.ndarray) -> np.ndarray:
    return (obs[:, 3] > 0.2).astype(np.int64)


class Pushing:
    """Acts by the number that it was last given; odd numbers raise after a partial change."""

    def __init__(self) -> None:
        self.number = 0

    def set_parameters(self, number: int) -> None:
        self.number = number
        if number % 2:
            raise ArithmeticError("odd")

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.full(len(obs), self.number % 3)


class Slow(FaultyEnv):
    """Sleeps in each step, longer with a higher number."""

    def step(self, action: Any) -> Any:
        time.sleep(0.02 * self.env_id)
        return super().step(action)


def _pushing(count: int = 4, workers: int = 2, backend: Any = "serial", **options: Any) -> RolloutWorkers:
    makers = [partial(FaultyEnv, i) for i in range(count)]
    return RolloutWorkers(makers, Pushing(), backend=backend, num_workers=workers, **options)


def _for_each(workers: RolloutWorkers, steps: int, body: Callable[[Rollout], Any]) -> None:
    for rollout in workers.rollouts(steps):
        body(rollout)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_worker_goes_on_as_in_rollouts_of_all(backend: Any) -> None:
    with RolloutWorkers([_cartpole] * 5, lean, backend="serial", seed=3) as together:
        expected = [together.rollout(20) for _ in range(4)]
    found: dict[int, list[Rollout]] = {0: [], 2: []}
    with RolloutWorkers([_cartpole] * 5, lean, backend=backend, num_workers=2, seed=3) as workers:
        iterator = workers.rollouts(20)
        while any(len(rollouts) < 3 for rollouts in found.values()):
            rollout = next(iterator)
            found[rollout.env_ids[0]].append(rollout)
        iterator.close()
        behind = workers.rollout(1)
    assert [rollouts[0].env_ids.tolist() for rollouts in found.values()] == [[0, 1], [2, 3, 4]]
    for rollouts in found.values():
        for rollout, whole in zip(rollouts, expected, strict=False):
            rows = rollout.env_ids
            assert np.array_equal(rollout.obs, whole.obs[:, rows])
            assert np.array_equal(rollout.terminated, whole.terminated[:, rows])
            ends = [(step, rows[env]) for step, env in rollout.ends.tolist()]
            assert ends == [(step, env) for step, env in whole.ends.tolist() if env in rows]
    assert behind.env_ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_count_begins_no_further_rollouts(backend: Any) -> None:
    with _pushing(backend=backend) as workers:
        rollouts = list(workers.rollouts(3, count=2))
        assert sorted(rollout.env_ids.tolist() for rollout in rollouts) == [[0, 1], [2, 3]]
        assert [rollout.obs[:, 0, 2].tolist() for rollout in rollouts] == [[0, 1, 2]] * 2
        assert workers.rollout(2).obs[:, :, 2].tolist() == [[3] * 4, [4] * 4], "nothing was dropped"
        assert len(list(workers.rollouts(1, count=1))) == 1
        assert len(list(workers.rollouts(1, count=5))) == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_reach_a_worker_before_its_next_rollout(backend: Any) -> None:
    with _pushing(backend=backend) as workers:
        workers.set_parameters(2)
        assert workers.version == workers.rollout(1).version == 1
        expected: dict[int, int] = {}
        for number, rollout in enumerate(workers.rollouts(2, count=12)):
            assert (rollout.action == 2 * rollout.version % 3).all()
            assert rollout.version == expected.get(rollout.env_ids[0], 1)
            expected[rollout.env_ids[0]] = workers.version  # the next one has started with these
            workers.set_parameters(2 * (number + 2))
        assert workers.version == 13
        rollout = workers.rollout(1)
    assert rollout.version == 13
    assert (rollout.action == 26 % 3).all(), "all workers have the latest parameters"


def test_workers_do_not_wait_for_each_other() -> None:
    with RolloutWorkers([partial(Slow, i) for i in (0, 5)], Pushing(), num_workers=2) as workers:
        order = [int(rollout.env_ids[0]) for rollout in workers.rollouts(5, count=12)]
    assert order.count(0) > order.count(1), "the fast worker made more rollouts"
    assert order[:3] == [0, 0, 0]


def test_only_parameters_may_be_set_in_the_loop() -> None:
    with _pushing() as workers:
        iterator = workers.rollouts(2)
        next(iterator)
        calls = [workers.reset, partial(workers.rollout, 1), partial(workers.rollouts, 1)]
        for call in calls:
            with pytest.raises(PendingError, match=r"Expected no iteration over rollouts.*End the loop, or call close"):
                call()
        iterator.close()
        for call in calls:
            call()
        for wrong in ((0,), (2, 0), (2.5,)):
            with pytest.raises(ValueError, match="Expected"):
                workers.rollouts(*wrong)
        first, second = workers.rollouts(1), workers.rollouts(1)
        next(first)
        with pytest.raises(PendingError, match="Expected no iteration"):
            next(second)
        workers.close()
        with pytest.raises(ClosedError):
            next(first)
        with pytest.raises(ClosedError):
            next(workers.rollouts(1))


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_a_broken_loop_leaves_nothing_pending(backend: Any) -> None:
    with _pushing(backend=backend) as workers:
        for rollout in workers.rollouts(3):
            if rollout.env_ids[0] == 2:
                break
        counts = workers.rollout(1).obs[0, :, 2].tolist()
        assert all(count % 3 == 0 and count >= 3 for count in counts), "rollouts were completed"
        with pytest.raises(ZeroDivisionError):
            _for_each(workers, 3, lambda rollout: 1 / 0)
        assert workers.rollout(1).obs.shape[:2] == (1, 4)


@pytest.mark.parametrize("backend", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (is_killed, WorkerCrash, "killed by SIGKILL|is lost"),
        (sleeps_forever, StepTimeout, r"no reply within 0\.4 s"),
        (raises, WorkerError, "."),
    ],
)
def test_failed_workers_are_reported_and_replaced(
    fault: Any, error: Any, text: str, backend: Any, tmp_path: Path
) -> None:
    makers = [partial(Once, tmp_path / "done", i, fault if i == 3 else None, 4) for i in range(4)]
    with RolloutWorkers(makers, Pushing(), backend=backend, num_workers=2, step_timeout=0.4) as workers:
        with pytest.raises(error, match=text) as exc_info:
            _for_each(workers, 2, lambda rollout: workers.version or workers.set_parameters(4))
        assert set(exc_info.value.env_ids) <= {2, 3}
        assert 3 in exc_info.value.env_ids
        with pytest.raises(PendingError, match=r"Call reset\(\)"):
            workers.rollout(1)
        workers.reset()
        rollouts = list(workers.rollouts(2, count=6))
    assert all((rollout.action == 4 % 3).all() for rollout in rollouts), "new workers have the parameters"
    assert {tuple(rollout.env_ids) for rollout in rollouts} == {(0, 1), (2, 3)}


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_rejected_parameters_are_reported_and_undone(backend: Any) -> None:
    with _pushing(backend=backend) as workers:
        workers.set_parameters(2)
        with pytest.raises(WorkerError, match="odd"):
            _for_each(workers, 2, lambda rollout: workers.set_parameters(3))
        with pytest.raises(WorkerError, match="odd"):
            workers.reset()
        workers.reset()
        rollout = workers.rollout(2)
        assert rollout.version == workers.version == 1
        assert (rollout.action == 2).all()


def test_the_latest_parameters_outlive_an_error(tmp_path: Path) -> None:
    makers = [partial(Once, tmp_path / "done", i, raises if i == 1 else None, 4) for i in range(2)]
    with RolloutWorkers(makers, Pushing(), backend="serial") as workers:
        with pytest.raises(WorkerError, match="went wrong on purpose"):
            _for_each(workers, 3, lambda rollout: workers.set_parameters(8))
        workers.reset()
        assert (workers.rollout(1).action == 8 % 3).all()


def test_errors_of_dropped_rollouts_are_causes_of_the_next_error(tmp_path: Path) -> None:
    makers = [partial(Once, tmp_path / "done", i, raises if i == 1 else None, 4) for i in range(2)]
    with RolloutWorkers(makers, Pushing(), backend="serial", num_workers=2) as workers:
        for rollout in workers.rollouts(3):
            if rollout.env_ids[0] == 1:
                break  # its second rollout, which has started, is dropped, and raises
        with pytest.raises(PendingError, match=r"Call reset\(\)") as exc_info:
            workers.rollout(3)
        assert isinstance(exc_info.value.__cause__, WorkerError)
        assert "went wrong on purpose" in str(exc_info.value.__cause__)
        workers.reset()
        assert workers.rollout(3).obs[0, :, 2].tolist() == [0, 0]


def test_interrupts_end_the_loop_and_reset_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    with _pushing(backend="processes") as workers:
        iterator = workers.rollouts(2)
        next(iterator)
        receive = workers._workers.receive
        monkeypatch.setattr(workers._workers, "receive", lambda: os.kill(os.getpid(), signal.SIGINT) or receive())
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        monkeypatch.undo()
        with pytest.raises(PendingError, match=r"Call reset\(\)"):
            workers.rollout(1)
        workers.reset()
        assert workers.rollout(1).obs[0, :, 2].tolist() == [0] * 4
