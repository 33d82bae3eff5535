"""Checks functions that make environments, divides them between workers, and chooses the backend for "auto".

It chooses between this process and worker processes, by the time that a step of an environment takes. A step over
worker processes costs a round trip, which is longer than a step of many simulators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium

from ..cores import num_cores
from ..engine.backends.registry import BackendName, backend_entry
from ..engine.env_index import split_evenly
from ..engine.pool import Pool
from ..engine.simulator import SimulatorMaker
from ..errors import SerializationError, SpaceError, WorkerError
from ..simulators.gymnasium import GymnasiumSimulator
from ..validation import check_callables, parse_count, parse_optional_count


def env_fn_list(env_fns: Iterable[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Returns the functions as a list; raises a `SpaceError` for none, a name, a single function or an environment."""
    if isinstance(env_fns, str) or not isinstance(env_fns, Iterable):
        make = f"lambda: gymnasium.make({env_fns!r})" if isinstance(env_fns, str) else "function"
        raise SpaceError(
            f"Expected a list of functions that make environments, got {env_fns!r:.80}. Give [{make}] * n."
        )
    env_fns = list(env_fns)
    if not env_fns:
        raise SpaceError("Expected at least one function that makes an environment, got none.")
    check_callables(
        "functions that make environments", env_fns, "Give `lambda: gymnasium.make(...)` instead of an environment."
    )
    return env_fns


def split_env_fns(
    env_fns: Iterable[Callable[[], Any]],
    backend: str,
    num_workers: int | None,
    simulator: type[GymnasiumSimulator] = GymnasiumSimulator,
    **simulator_options: object,
) -> list[tuple[SimulatorMaker, int]]:
    """Returns, for each worker, its simulator's factory and its number of environments; each worker gets consecutive
    environments."""
    env_fns = env_fn_list(env_fns)
    if num_workers is None:
        num_workers = backend_entry(backend).default_workers
    parts = split_evenly(env_fns, min(parse_count("num_workers", num_workers, error=SpaceError), len(env_fns)))
    return [(SimulatorMaker(simulator, part, simulator_options), len(part)) for _, part in parts]


AUTO = "auto"
_ROUND_TRIP_S, _ROUND_TRIP_PER_WORKER_S = 200e-6, 20e-6  # of a step without work, measured on two shared cores
_MARGIN = 1.25  # how much faster worker processes must be expected to be
_MAX_STEPS, _MAX_SECONDS = 100, 0.2  # of the measurement


def resolve_backend(backend: BackendName, env_fns: Sequence[Callable[[], Any]], num_workers: int | None) -> BackendName:
    """Returns the name of a backend; for "auto", "serial" or "processes", whichever is expected to be faster.

    For "auto", a worker process makes one environment more, steps it with random actions for about 0.2 s, and ends. If
    this raises, "serial" is returned, and the error is raised again when the environments are made or stepped.

    Args:
        backend: the name, or "auto".
        env_fns: the functions that make the environments.
        num_workers: the number of workers; None for one per core.

    Raises:
        SpaceError: `num_workers` is no number of 1 or more.
        ValueError: no backend of this name is registered.

    >>> import gymnasium
    >>> resolve_backend("auto", [lambda: gymnasium.make("CartPole-v1")] * 2, None)
    'serial'
    """
    if backend != AUTO:
        return backend_entry(backend, AUTO).name
    num_workers = parse_optional_count("num_workers", num_workers, error=SpaceError)
    num_workers = min(num_cores(), num_workers or num_cores(), len(env_fns))
    if num_workers == 1:
        return "serial"
    try:
        step_seconds = seconds_per_step(env_fns[0])
    except (WorkerError, SerializationError):
        return "serial"
    return faster_backend(step_seconds, len(env_fns), num_workers)


def faster_backend(step_seconds: float, num_envs: int, num_workers: int) -> BackendName:
    """Returns "processes" if a step over worker processes is expected to be faster by a margin, else "serial".

    Args:
        step_seconds: the time that a step of one environment takes.
        num_envs: the number of environments.
        num_workers: the number of workers that can run at the same time.
    """
    envs_of_one_worker = -(-num_envs // num_workers)
    in_processes = envs_of_one_worker * step_seconds + _ROUND_TRIP_S + num_workers * _ROUND_TRIP_PER_WORKER_S
    return "processes" if _MARGIN * in_processes < num_envs * step_seconds else "serial"


def seconds_per_step(env_fn: Callable[[], Any]) -> float:
    """Returns the mean time of a step of an environment under random actions, with the resets of episodes that end.

    It is measured in a worker process, so that the random generators and the objects of this process do not change.

    Raises:
        WorkerError: the environment raised.
        SerializationError: the function cannot be sent to a worker process.
    """
    pool = Pool([(SimulatorMaker(GymnasiumSimulator, [lambda: _Timed(env_fn())]), 1)], "processes")
    try:
        [seconds] = pool.invoke("call", "seconds_per_step", [((), {})])
        return seconds
    finally:
        pool.close()


class _Timed(gymnasium.Wrapper[Any, Any, Any, Any]):
    def seconds_per_step(self) -> float:
        self.action_space.seed(0)
        self.reset(seed=0)
        self.step(self.action_space.sample())  # the first step may compile or load something
        started, steps = time.perf_counter(), 0
        while steps < _MAX_STEPS and time.perf_counter() - started < _MAX_SECONDS:
            *_, terminated, truncated, _ = self.step(self.action_space.sample())
            if terminated or truncated:
                self.reset()
            steps += 1
        return (time.perf_counter() - started) / steps
