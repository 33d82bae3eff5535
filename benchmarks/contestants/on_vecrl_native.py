"""vecrl's native tasks: batched torch simulators."""

from __future__ import annotations

import torch

from benchmarks.actions import discrete, play
from benchmarks.contestant import Contest
from vecrl.simulators.native import make_native
from vecrl.vector.batched import BatchedVectorEnv

torch.set_num_threads(1)


def batch_cartpole(num_envs: int, compiled: bool) -> Contest:
    """A step at a time, same-step auto-reset, actions as tensors."""
    simulator = make_native("CartPole-v1", num_envs, compile=compiled)
    env = BatchedVectorEnv(simulator, autoreset_mode="same_step")
    env.reset(seed=0)
    yield play(env.step, torch.from_numpy(discrete(num_envs)))
    env.close()
