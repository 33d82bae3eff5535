"""`backend="auto"` chooses worker processes only if they are expected to be faster."""

import time
from typing import Any

import gymnasium
import numpy as np
import pytest

from vecrl.engine.backends.registry import register_backend, unregister_backend
from vecrl.engine.backends.serial import SerialBackend
from vecrl.errors import SpaceError, WorkerError
from vecrl.vector import SyncVectorEnv, VectorEnv, make_vector_env
from vecrl.vector.env_fns import faster_backend, seconds_per_step


class _Slow(gymnasium.Env[Any, Any]):
    """Takes 2 ms for a step; an episode has three steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self._steps < 3, "an episode that has ended is stepped"
        self._steps += 1
        time.sleep(0.002)
        return np.zeros(1, np.float32), 0.0, self._steps == 3, False, {}

    def close(self) -> None:
        self.closed = True


def test_the_time_of_a_step_is_measured_over_ends_of_episodes_in_another_process() -> None:
    env = _Slow()
    assert 0.002 <= seconds_per_step(lambda: env) < 0.1
    assert not hasattr(env, "_steps")
    assert not env.closed


@pytest.mark.parametrize(
    ("microseconds", "num_envs", "num_workers", "expected"),
    [
        (5, 8, 2, "serial"),  # a step of all takes less than the round trip
        (40, 8, 2, "serial"),
        (200, 8, 2, "processes"),
        (200, 8, 1, "serial"),  # one worker cannot be faster than this process
        (5, 4096, 2, "processes"),
        (5000, 1, 1, "serial"),
    ],
)
def test_processes_are_chosen_for_long_steps(microseconds: int, num_envs: int, num_workers: int, expected: str) -> None:
    assert faster_backend(microseconds * 1e-6, num_envs, num_workers) == expected


def test_auto_is_a_backend_of_vector_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2), raising=False)
    for kind in (VectorEnv, SyncVectorEnv):
        with kind([_Slow] * 8, backend="auto") as env:
            assert env._pool.backend_name == "processes"
    with make_vector_env("CartPole-v1", num_envs=4, backend="auto") as env:
        assert env.env._pool.backend_name == "serial"
        assert env.reset(seed=0)[0].shape == (4, 4)
    with pytest.raises(SpaceError, match="num_workers"):
        VectorEnv([_Slow] * 2, backend="auto", num_workers="a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SpaceError, match=r"Give `lambda: gymnasium\.make"):
        VectorEnv([gymnasium.make("CartPole-v1")], backend="auto")  # pyright: ignore[reportArgumentType]


def test_errors_are_those_of_the_chosen_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2), raising=False)
    with pytest.raises(WorkerError, match=r"environment 0 .*ZeroDivisionError"):
        VectorEnv([lambda: 1 / 0] * 2, backend="auto")  # pyright: ignore[reportArgumentType]


def test_unknown_backends_name_all_values() -> None:
    env_fns = [lambda: gymnasium.make("CartPole-v1")]
    register_backend("mine", lambda: SerialBackend, in_process=True)
    try:
        for make in (lambda: VectorEnv(env_fns, backend="procs"), lambda: SyncVectorEnv(env_fns, backend="procs")):
            with pytest.raises(ValueError, match=r"'serial', 'threads', 'processes', 'ray', 'mine' or 'auto', got"):
                make()
    finally:
        unregister_backend("mine")
