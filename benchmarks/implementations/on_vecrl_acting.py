"""vecrl's vector environments and rollout workers with a policy."""

from __future__ import annotations

from functools import partial

import gymnasium
import torch

from benchmarks.implementation import RunFactory
from benchmarks.network import OnArrays, play_greedily
from vecrl.vector import RolloutWorkers, VectorEnv

torch.set_num_threads(1)


def vector_env(num_envs: int, steps: int, num_workers: int = 0) -> RunFactory:
    """Steps in this process, or in `num_workers` workers that this process steps."""
    options = {"backend": "processes", "num_workers": num_workers} if num_workers else {"backend": "serial"}
    env = VectorEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs, autoreset_mode="same_step", **options)
    yield play_greedily(env, steps)
    env.close()


def rollout_workers(num_envs: int, steps: int, num_workers: int = 2) -> RunFactory:
    """A rollout in worker processes that have the policy."""
    makers = [partial(gymnasium.make, "CartPole-v1")] * num_envs
    with RolloutWorkers(makers, OnArrays(), num_workers=num_workers) as workers:
        workers.reset(seed=0)

        def run(units: int) -> None:
            for _ in range(units):
                workers.rollout(steps)

        yield run
