"""The four vector environment classes with Tianshou's names, which differ only in their backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine.backends.worker_options import parse_start_method
from .base import BaseVectorEnv, EnvFn


class DummyVectorEnv(BaseVectorEnv):
    """Environments that are stepped one after another in this process; see `BaseVectorEnv`.

    >>> import gymnasium
    >>> envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    >>> obs, infos = envs.reset(seed=1)
    >>> obs, rew, terminated, truncated, infos = envs.step([0, 1], id=[2, 0])
    >>> obs.shape, rew, [info["env_id"] for info in infos]
    ((2, 4), array([1., 1.]), [2, 0])
    >>> envs.close()

    Args:
        env_fns, wait_num, timeout: see `BaseVectorEnv`. With asynchronous steps, a `step` runs only as many
            environments as it waits for; the others run in later calls.
        options: `stack_dicts`, `trust_spaces`, `num_workers` and options of the pool; see `BaseVectorEnv`.
    """

    def __init__(
        self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None, **options: Any
    ):
        super().__init__(env_fns, wait_num, timeout, backend="serial", **options)


class SubprocVectorEnv(BaseVectorEnv):
    """Environments in worker processes, by default one process per environment; see `BaseVectorEnv`.

    >>> import gymnasium
    >>> with SubprocVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, num_workers=2) as envs:
    ...     envs.reset()[0].shape
    (4, 4)

    Args:
        env_fns, wait_num, timeout: see `BaseVectorEnv`.
        share_memory: accepted for compatibility with Tianshou. It has no effect: arrays are always in shared memory.
        context: "forkserver" or "spawn". None and "fork" mean "forkserver", which starts workers as fast as "fork" but
            without this process's threads, locks and GPU contexts.
        options: `num_workers`, `stack_dicts`, `trust_spaces` and options of the pool; see `BaseVectorEnv`.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: str | None = None,
        **options: Any,
    ):
        self.share_memory = share_memory
        if context is not None:
            options["start_method"] = parse_start_method(context, "context", ("fork",))
        super().__init__(env_fns, wait_num, timeout, backend="processes", **options)


class ShmemVectorEnv(SubprocVectorEnv):
    """The same as `SubprocVectorEnv`, under Tianshou's name for the class with shared memory.

    Args:
        env_fns, wait_num, timeout, options: see `SubprocVectorEnv`.
    """

    def __init__(
        self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None, **options: Any
    ):
        super().__init__(env_fns, wait_num, timeout, share_memory=True, **options)


class RayVectorEnv(BaseVectorEnv):
    """Environments in Ray actors, by default one actor per environment; see `BaseVectorEnv`.

    Args:
        env_fns, wait_num, timeout: see `BaseVectorEnv`.
        options: `num_workers`, `stack_dicts`, `trust_spaces` and options of the pool, including `ray_options`.
    """

    def __init__(
        self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None, **options: Any
    ):
        super().__init__(env_fns, wait_num, timeout, backend="ray", **options)
