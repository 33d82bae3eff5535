"""Environments, actions and policies of the frozen trajectories."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

N = 3
STEPS = {"CartPole-v1": 40, "Pendulum-v1": 24, "HalfCheetah-v5": 12}
LIMITS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "Pendulum-v1": {"max_episode_steps": 11},
    "HalfCheetah-v5": {"max_episode_steps": 5},
}
INEXACT = ("HalfCheetah-v5",)
"""Environments with floats that differ between CPUs by more than the last bits of a float64."""
NATIVE = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")


def makers(name: str, n: int = N) -> list[Callable[[], Any]]:
    """Returns factories of gymnasium environments, with episodes that end several times."""
    return [partial(gymnasium.make, name, **LIMITS[name])] * n


def actions(name: str, steps: int | None = None, n: int = N) -> np.ndarray:
    """Returns `[steps, n, ...]` actions."""
    rng, steps = np.random.default_rng(7), steps or STEPS[name]
    if name == "Pendulum-v1":
        return rng.uniform(-2, 2, (steps, n, 1)).astype(np.float32)
    if name == "HalfCheetah-v5":
        return rng.uniform(-1, 1, (steps, n, 6)).astype(np.float32)
    if name == "MountainCarContinuous-v0":
        return rng.uniform(-1, 1, (steps, n, 1)).astype(np.float32)
    return rng.integers(0, 3 if name in ("Acrobot-v1", "MountainCar-v0") else 2, (steps, n))


def steer_cartpole(obs: Any) -> Any:
    """Returns actions for a batch of observations `[k, 4]`, each from its own row."""
    return (obs[:, 2] > 0.02).astype(np.int64)


def steer_pendulum(obs: Any) -> Any:
    """Returns actions for a batch of observations `[k, 3]`."""
    return np.clip(-obs[:, 1:2] - obs[:, 2:3], -2, 2)


def steer_cheetah(obs: Any) -> Any:
    """Returns actions for a batch of observations `[k, 17]`."""
    return np.clip(obs[:, 2:8], -1, 1).astype(np.float32)


STEERING: dict[str, Callable[[Any], Any]] = {
    "CartPole-v1": steer_cartpole,
    "Pendulum-v1": steer_pendulum,
    "HalfCheetah-v5": steer_cheetah,
}


def act(name: str) -> Callable[[Any], Any]:
    """Returns a policy over TensorDicts that depends only on observations."""
    steer = STEERING[name]

    def policy(td: Any) -> Any:
        obs = td.get("observation")
        rows = obs.reshape(-1, obs.shape[-1]).numpy()
        done = torch.from_numpy(np.asarray(steer(rows)))
        return td.set("action", done.reshape(*obs.shape[:-1], *done.shape[1:]))

    return policy
