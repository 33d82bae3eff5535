"""Native tasks: gymnasium's classic control as batches of tensors, with equal results, on any device.

They run on the device of the policy, so nothing is copied, and thousands of rows take little more time than one.
"""

from __future__ import annotations

from ...imports import require_extra

require_extra("torch", __name__)

from functools import partial
from typing import Any

import torch

from ..row_task import make_row_batch
from .acrobot import Acrobot
from .base import NativeSimulator
from .cartpole import CartPole
from .mountain_car import MountainCar, MountainCarContinuous
from .pendulum import Pendulum

__all__ = [
    "NATIVE",
    "Acrobot",
    "CartPole",
    "MountainCar",
    "MountainCarContinuous",
    "NativeSimulator",
    "Pendulum",
    "make_native",
]

NATIVE: dict[str, type[NativeSimulator]] = {
    task.id: task for task in (Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum)
}
"""The native tasks by gymnasium's ids."""


def make_native(
    name: str,
    num_envs: int,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    **kwargs: Any,
) -> NativeSimulator:
    """Constructs a native task by name.

    Args:
        name: a key of `NATIVE`.
        num_envs, device, dtype, render_mode, max_episode_steps, kwargs: arguments of `NativeSimulator`.

    Raises:
        ValueError: an unknown name (the message lists the known ones), or an argument out of its range.

    >>> simulator = make_native("CartPole-v1", 3)
    >>> simulator.reset([7, 8, 9]).shape
    torch.Size([3, 4])
    >>> simulator.step(torch.tensor([0, 1, 0])).reward
    tensor([1., 1., 1.])
    """
    if not isinstance(name, str) or name not in NATIVE:
        raise ValueError(f"Expected one of {', '.join(NATIVE)}, got {name!r}.")
    return NATIVE[name](
        num_envs,
        device=device,
        dtype=dtype,
        render_mode=render_mode,
        max_episode_steps=max_episode_steps,
        **kwargs,
    )


make_batch = partial(make_row_batch, make_native)


def names() -> list[str]:
    """Returns the names of the native tasks."""
    return list(NATIVE)
