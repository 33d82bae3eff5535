"""vecrl's TensorDict environments."""

from __future__ import annotations

import torch

from benchmarks.contestant import Contest
from vecrl.envs import GymEnv

torch.set_num_threads(1)


def rollout_cartpole(steps: int) -> Contest:
    """Random actions, past ends."""
    env = GymEnv("CartPole-v1")

    def run(units: int) -> None:
        for _ in range(units):
            env.rollout(steps, break_when_any_done=False)

    yield run
    env.close()
