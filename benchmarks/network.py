"""The policy of the workloads with a policy in the loop: the same network and weights for every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.population import parameters, split


class Greedy(nn.Module):
    """The better of two actions for CartPole's observations `[..., 4]`, as indices `[...]`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        weights = [torch.from_numpy(np.array(part)) for part in split(parameters(8)[5])]
        with torch.no_grad():
            for own, inputs in zip(self.net.parameters(), weights, strict=True):
                own.copy_(inputs)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation).argmax(-1)


class OnArrays:
    """`Greedy` for NumPy arrays, without gradients."""

    def __init__(self) -> None:
        self.module = Greedy()

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.module(torch.from_numpy(obs)).numpy()


def play_greedily(env: Any, steps: int) -> Callable[[int], None]:
    """Resets a vector environment, and returns a function of units that steps it `steps` times a unit by the policy."""
    act, obs = OnArrays(), env.reset(seed=0)[0]

    def run(units: int) -> None:
        nonlocal obs
        for _ in range(units * steps):
            obs = env.step(act(obs))[0]

    return run
