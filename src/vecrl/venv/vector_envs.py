"""The four kinds of vector environment, which differ in where environments live and in nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine.backends.processes import start_method_of
from .base import BaseVectorEnv, EnvFn


class DummyVectorEnv(BaseVectorEnv):
    """Environments that step one after another in this process; see `BaseVectorEnv`.

    >>> import gymnasium
    >>> envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    >>> obs, infos = envs.reset(seed=1)
    >>> obs, rew, terminated, truncated, infos = envs.step([0, 1], id=[2, 0])
    >>> obs.shape, rew, [info["env_id"] for info in infos]
    ((2, 4), array([1., 1.]), [2, 0])
    >>> envs.close()

    Args:
        env_fns, wait_num, timeout: see `BaseVectorEnv`. An asynchronous one takes as many steps at a time as are
            waited for, and leaves the others for later.
        options: `stack_dicts`, `trust_spaces`, `num_workers` and the pool's; see `BaseVectorEnv`.
    """

    def __init__(
        self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None, **options: Any
    ):
        super().__init__(env_fns, wait_num, timeout, backend="serial", **options)


class SubprocVectorEnv(BaseVectorEnv):
    """Environments in worker processes, one each unless `num_workers` says otherwise; see `BaseVectorEnv`.

    >>> import gymnasium
    >>> with SubprocVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, num_workers=2) as envs:
    ...     envs.reset()[0].shape
    (4, 4)

    Args:
        env_fns, wait_num, timeout: see `BaseVectorEnv`.
        share_memory: taken for Tianshou's sake. What lies in arrays is in shared memory in any case.
        context: "forkserver" or "spawn". None and "fork" mean "forkserver", which starts workers as fast without
            taking this process's threads, locks and GPU contexts with them.
        options: `num_workers`, `stack_dicts`, `trust_spaces` and the pool's; see `BaseVectorEnv`.
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
            options["start_method"] = start_method_of(context)
        super().__init__(env_fns, wait_num, timeout, backend="processes", **options)


class ShmemVectorEnv(SubprocVectorEnv):
    """The same as `SubprocVectorEnv`, under the name of those that shared memory with their workers.

    Args:
        env_fns, wait_num, timeout, options: see `SubprocVectorEnv`.
    """

    def __init__(
        self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None, **options: Any
    ):
        super().__init__(env_fns, wait_num, timeout, share_memory=True, **options)


class RayVectorEnv(BaseVectorEnv):
    """Environments in Ray's actors, one each unless `num_workers` says otherwise; see `BaseVectorEnv`.

    Args:
        env_fns, wait_num, timeout: see `BaseVectorEnv`.
        options: `num_workers`, `stack_dicts`, `trust_spaces` and the pool's, with those of its Ray backend.
    """

    def __init__(
        self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None, **options: Any
    ):
        super().__init__(env_fns, wait_num, timeout, backend="ray", **options)
