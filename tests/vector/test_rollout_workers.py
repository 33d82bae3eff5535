"""Rollouts of workers with copies of a policy equal the caller's own rollouts."""

import logging
import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.fixtures.faulty_envs import FaultyEnv, Once, is_killed, raises, sleeps_forever
from tests.fixtures.gym_envs import FailingEnv
from torch import nn

from vecrl.errors import (
    ClosedError,
    PendingError,
    SerializationError,
    SpaceError,
    StepTimeout,
    WorkerCrash,
    WorkerError,
)
from vecrl.vector import RolloutWorkers, VectorEnv

RAY = pytest.param("ray", 2, marks=pytest.mark.ray)


def _cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def lean(obs: np.ndarray) -> np.ndarray:
    """Pushes against the fall, with a delay."""
    return (obs[:, 3] > 0.2).astype(np.int64)


class Mixed(gymnasium.Env[Any, Any]):
    """Observes a count and a word; its episodes have five steps."""

    observation_space = spaces.Dict(count=spaces.Box(0, 9, (2,), np.float32), word=spaces.Text(9))
    action_space = spaces.Dict(go=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,), np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._observe(), float(action["go"]), False, self.count == 5, {}

    def _observe(self) -> Any:
        return {"count": np.full(2, self.count, np.float32), "word": "ab" * self.count}


def choose(obs: Any) -> Any:
    return {"go": np.array([len(word) % 3 for word in obs["word"]]), "push": obs["count"] / 10}


def _by_hand(env_fns: list[Any], policy: Any, steps: int) -> dict[str, Any]:
    lived: dict[str, list[Any]] = {name: [] for name in ("obs", "reward", "terminated", "truncated")}
    ends, finals = [], []
    with VectorEnv(env_fns, autoreset_mode="same_step") as envs:
        obs, _ = envs.reset(seed=3)
        for step in range(steps):
            lived["obs"].append(obs)
            obs, *remaining, info = envs.step(policy(obs))
            for name, value in zip(("reward", "terminated", "truncated"), remaining, strict=True):
                lived[name].append(value)
            for i in np.flatnonzero(remaining[1] | remaining[2]):
                ends.append((step, int(i)))
                finals.append(info["final_obs"][i])
    return {**lived, "ends": ends, "finals": finals, "last": obs}


@pytest.mark.parametrize(
    ("backend", "workers"), [("serial", 1), ("serial", 3), ("threads", 2), ("processes", 2), ("processes", 5), RAY]
)
def test_rollouts_equal_a_loop_in_the_caller(backend: Any, workers: int) -> None:
    expected = _by_hand([_cartpole] * 5, lean, 60)
    with RolloutWorkers([_cartpole] * 5, lean, backend=backend, num_workers=workers) as own:
        own.reset(seed=3)
        parts = [own.rollout(45), own.rollout(15)]
    for name in ("obs", "reward", "terminated", "truncated"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), np.stack(expected[name]))
    ends = [(step + shift, i) for part, shift in zip(parts, (0, 45), strict=True) for step, i in part.ends.tolist()]
    assert ends == expected["ends"]
    assert len(ends) > 3
    np.testing.assert_array_equal(
        np.concatenate([part.final_obs for part in parts if len(part.ends)]), np.stack(expected["finals"])
    )
    np.testing.assert_array_equal(parts[-1].last_obs, expected["last"])
    lengths = np.concatenate([part.lengths for part in parts])
    np.testing.assert_array_equal(lengths, np.concatenate([part.returns for part in parts]))
    first = {i: step for step, i in reversed(ends)}
    assert [int(lengths[ends.index((step, i))]) for i, step in first.items()] == [s + 1 for s in first.values()]


def test_rollouts_of_nested_and_opaque_spaces() -> None:
    expected = _by_hand([Mixed] * 3, choose, 7)
    with RolloutWorkers([Mixed] * 3, choose, num_workers=2) as own:
        own.reset(seed=3)
        rollout = own.rollout(7)
    np.testing.assert_array_equal(rollout.obs["count"], np.stack([obs["count"] for obs in expected["obs"]]))
    assert rollout.obs["word"] == tuple(tuple(obs["word"]) for obs in expected["obs"])
    assert rollout.ends.tolist() == [[4, 0], [4, 1], [4, 2]]
    assert rollout.final_obs["word"] == ("ababababab",) * 3
    np.testing.assert_array_equal(rollout.final_obs["count"], np.full((3, 2), 5))
    np.testing.assert_array_equal(rollout.action["push"], rollout.obs["count"] / 10)
    np.testing.assert_array_equal(rollout.reward, np.stack(expected["reward"]))


class Net(nn.Module):
    """Computes linear scores of the two actions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs: Any) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(torch.from_numpy(obs)).argmax(1)


def test_new_parameters_reach_every_copy() -> None:
    torch.manual_seed(0)
    first, second = Net(), Net()
    with RolloutWorkers([_cartpole] * 4, first, num_workers=2) as own:
        own.reset(seed=3)
        before = own.rollout(20)
        own.reset(seed=3)
        after = own.rollout(20, second.state_dict())
    for net, rollout in ((first, before), (second, after)):
        np.testing.assert_array_equal(rollout.action, net(rollout.obs.reshape(-1, 4)).reshape(20, 4))
    assert (before.action != after.action).any()


def test_a_first_rollout_needs_no_reset() -> None:
    with RolloutWorkers([_cartpole] * 2, lean, backend="serial") as own:
        assert own.rollout(3).obs.shape == (3, 2, 4)
        own.reset([1, 2])
        np.testing.assert_array_equal(own.rollout(1).obs[0], [_first(1), _first(2)])


def _first(seed: int) -> Any:
    return _cartpole().reset(seed=seed)[0]


def standstill(obs: np.ndarray) -> np.ndarray:
    return np.zeros(len(obs), int)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_errors_name_environment_ids(backend: Any) -> None:
    """Five environments over two workers; the fourth fails in its constructor, its reset or its step."""
    for place in ("construct", "reset", "step"):
        makers = [partial(FaultyEnv, i, place if i == 3 else "", raises) for i in range(5)]
        failing = pytest.raises(WorkerError, match=f"environment 3 .*in '{place}'.*ArithmeticError")
        with failing as exc_info, RolloutWorkers(makers, standstill, backend=backend, num_workers=2) as workers:
            workers.rollout(3)
        assert exc_info.value.env_ids == (3,)


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("steps", [5, 40])
def test_failed_environments_are_excluded(backend: Any, steps: int) -> None:
    """One of three fails in the third step of each episode; the others continue alone."""
    makers = [_cartpole, Fragile3, _cartpole]
    with RolloutWorkers(makers, lean3, backend=backend, num_workers=2, on_failure="mask") as workers:
        workers.reset(seed=1)
        rollout = workers.rollout(steps)
    assert rollout.truncated[:, 1].tolist() == [step == 2 for step in range(steps)]
    assert [2, 1] in rollout.ends.tolist()
    assert len(rollout.final_obs) == len(rollout.ends) == len(rollout.returns)
    place = rollout.ends.tolist().index([2, 1])
    np.testing.assert_array_equal(rollout.final_obs[place], rollout.obs[2, 1])


class Fragile3(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A CartPole that raises at its third step."""

    def __init__(self) -> None:
        super().__init__(_cartpole())
        self.count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 3:
            raise ArithmeticError("went wrong on purpose")
        return super().step(action)


def lean3(obs: np.ndarray) -> np.ndarray:
    return (obs[:, 2] > 0).astype(np.int64)


def test_invalid_calls_raise() -> None:
    with RolloutWorkers([_cartpole] * 2, lean, num_workers=2) as own:
        with pytest.raises(ValueError, match="Expected steps to be an int of 1 or more, got 0"):
            own.rollout(0)
        for wrong in (2.5, True, "3"):
            with pytest.raises(ValueError, match=f"Expected steps to be an int of 1 or more, got {wrong!r}"):
                own.rollout(wrong)  # pyright: ignore[reportArgumentType]
        for seed in (1.5, "ab"):
            with pytest.raises(TypeError, match="Expected a seed to be None, an integer or one per environment"):
                own.reset(seed)  # pyright: ignore[reportArgumentType]
        with pytest.raises(SpaceError, match="Expected one seed or 2"):
            own.reset([1])
        with pytest.raises(WorkerError, match="set_parameters or load_state_dict, got function, which has neither"):
            own.set_parameters({})
    with pytest.raises(SpaceError, match="but environment 1 has"):
        RolloutWorkers([_cartpole, Mixed], lean, num_workers=2)
    for backend in ("serial", "processes"):
        with pytest.raises(SpaceError, match=r"^environment 4: its action_space is Dict\("):
            RolloutWorkers([*[_cartpole] * 4, Mixed], lean, backend=backend, num_workers=2)
    with pytest.raises(ValueError, match="Expected on_failure to be"):
        RolloutWorkers([_cartpole], lean, on_failure="oops")  # pyright: ignore[reportArgumentType]
    own = RolloutWorkers([_cartpole], lambda obs: np.zeros(3), backend="serial")
    with pytest.raises(WorkerError, match=r"Expected actions of shape \(1,\) at the root"):
        own.rollout(1)
    own.close()


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_failures_are_handled_in_their_worker(backend: Any) -> None:
    with RolloutWorkers(
        [FailingEnv] * 2, lambda obs: np.zeros(len(obs), int), backend=backend, on_failure="restart"
    ) as own:
        rollout = own.rollout(5)
    assert rollout.truncated[:, 0].tolist() == [False, False, True, False, False]
    assert rollout.obs[:, 1, 0].tolist() == [0, 1, 2, 0, 1]
    assert rollout.final_obs.tolist() == [[2], [2]]


class Pushing:
    """Acts by the number that it was last given, and does not expose it."""

    def __init__(self) -> None:
        self.number = 0

    def set_parameters(self, number: int) -> None:
        self.number = number

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.full(len(obs), self.number)


@pytest.mark.parametrize("backend", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [(is_killed, WorkerCrash, "killed by SIGKILL|is lost"), (sleeps_forever, StepTimeout, r"no reply within 0\.4 s")],
)
def test_reset_replaces_lost_workers(fault: Any, error: Any, text: str, backend: Any, tmp_path: Path) -> None:
    makers = [partial(Once, tmp_path / "done", i, fault if i == 3 else None, 2) for i in range(5)]
    with RolloutWorkers(makers, Pushing(), backend=backend, num_workers=2, step_timeout=0.4) as workers:
        workers.set_parameters(1)
        with pytest.raises(error, match=text) as exc_info:
            workers.rollout(4)
        assert exc_info.value.env_ids == (2, 3, 4)
        assert str(exc_info.value).endswith(
            "Call reset() to continue; it replaces workers that crashed or timed out (threads excepted)."
        )
        for call in (lambda: workers.rollout(4), lambda: workers.set_parameters(0)):
            with pytest.raises(
                PendingError, match=r"Expected the last call to have completed, but it did not. Call reset\(\)"
            ):
                call()
        workers.reset(seed=1)
        rollout = workers.rollout(4)
    assert (rollout.action == 1).all(), "new workers have the parameters of the others"
    assert rollout.obs[:, :, 2].tolist() == [[step] * 5 for step in range(4)]
    with pytest.raises(ClosedError):
        workers.reset()


def test_reset_recovers_from_interrupts() -> None:
    env_fns = [partial(FaultyEnv, i, "step", sleeps_forever) for i in range(2)]
    with RolloutWorkers(env_fns, standstill, num_workers=2) as workers:
        workers.reset()
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            workers.rollout(2)
        timer.join()
        workers.reset()


def test_reset_recovers_from_interrupts_during_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers = [partial(Once, tmp_path / "done", i, is_killed, 2) for i in range(3)]
    with RolloutWorkers(makers, standstill, num_workers=2) as workers:
        with pytest.raises(WorkerCrash):
            workers.rollout(4)
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(socket, "send_fds", interrupts)
                with pytest.raises(KeyboardInterrupt):
                    workers.reset()
        workers.reset(seed=1)
        assert workers.rollout(4).obs[:, :, 2].tolist() == [[step] * 3 for step in range(4)]


def test_failed_restarts_raise_and_the_next_reset_retries(tmp_path: Path) -> None:
    class FailingRestartEnv(FaultyEnv):
        """Its first instance is killed, and it restarts only if allowed."""

        def __init__(self) -> None:
            if (tmp_path / "lived").exists() and not (tmp_path / "well").exists():
                raise ArithmeticError("not now")
            super().__init__(0, "" if (tmp_path / "lived").exists() else "step", is_killed)

    with RolloutWorkers([FailingRestartEnv], standstill, num_workers=1) as workers:
        (tmp_path / "lived").touch()
        with pytest.raises(WorkerCrash):
            workers.rollout(2)
        for _ in range(2):
            with pytest.raises(WorkerError, match=r"(?s)in 'construct': ArithmeticError: not now.*Call reset\(\)"):
                workers.reset()
        (tmp_path / "well").touch()
        workers.reset()
        assert workers.rollout(2).reward.tolist() == [[1], [2]]


def interrupts(*_: Any) -> None:
    raise KeyboardInterrupt


class Picky(Pushing):
    """Accepts even numbers; odd numbers raise after a partial change."""

    def set_parameters(self, number: int) -> None:
        self.number = number
        if number % 2:
            raise ArithmeticError("odd")


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("first", [None, 2])
def test_reset_restores_partially_loaded_parameters(backend: Any, first: int | None) -> None:
    policy = Picky()
    with RolloutWorkers([lambda: FaultyEnv(1)] * 4, policy, backend=backend, num_workers=2) as workers:
        if first is not None:
            workers.set_parameters(first)
        with pytest.raises(WorkerError, match="odd"):
            workers.set_parameters(3)
        workers.reset(seed=1)
        assert (workers.rollout(2).action == (first or 0)).all()
    assert policy.number == 0, "the caller's policy does not change"


class Remembering:
    """Acts on its previous observations too, with the number of rows of the first."""

    def __init__(self) -> None:
        self.sum: Any = 0.0

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        self.sum = self.sum + obs[:, 2]
        return (self.sum > 0).astype(np.int64)


def test_workers_have_separate_policies() -> None:
    rollout_td: list[Any] = []
    for backend in ("serial", "threads", "processes"):
        with RolloutWorkers([_cartpole] * 3, Remembering(), backend=backend, num_workers=2) as own:
            own.reset(seed=3)
            rollout_td.append(own.rollout(9).action.tolist())
    assert rollout_td[0] == rollout_td[1] == rollout_td[2]


def test_invalid_parameters_change_nothing() -> None:
    with RolloutWorkers([_cartpole] * 4, net := Net(), num_workers=2) as own:
        own.set_parameters(Net().state_dict())
        own.set_parameters(net.state_dict())
        with pytest.raises(WorkerError, match=r"size mismatch|Missing key"):
            own.set_parameters({"layer.weight": torch.zeros(1)})
        own.reset(seed=3)
        rollout = own.rollout(5)
    np.testing.assert_array_equal(rollout.action, net(rollout.obs.reshape(-1, 4)).reshape(5, 4))


def test_unpicklable_arguments_raise() -> None:
    lock = threading.Lock()

    def guarded(obs: np.ndarray) -> np.ndarray:
        with lock:
            return lean(obs)

    with pytest.raises(
        SerializationError, match="Expected the policy to be picklable, to send it to workers, got TypeError"
    ):
        RolloutWorkers([_cartpole], guarded, num_workers=1)
    with RolloutWorkers([_cartpole], lean, backend="serial") as own:
        with pytest.raises(SerializationError, match="Expected the parameters to be picklable"):
            own.set_parameters({"lock": lock})
        assert own.rollout(2).reward.sum() == 2


def test_warnings_name_environment_ids(caplog: pytest.LogCaptureFixture) -> None:
    makers = [partial(FaultyEnv, i, "step" if i == 3 else "", raises) for i in range(5)]
    with (
        caplog.at_level(logging.WARNING, "vecrl"),
        RolloutWorkers(makers, standstill, backend="threads", num_workers=2, on_failure="restart") as workers,
    ):
        workers.rollout(3)
    assert "Environments [3] failed and are restarted" in caplog.text
