"""Native tasks: gymnasium's classic control as batches of tensors, with equal results, on any device; and own tasks.

They run on the device of the policy, so nothing is copied, and thousands of rows take little more time than one.
"""

from __future__ import annotations

from inspect import getattr_static, isfunction, signature

from ...imports import require_extra

require_extra("torch", __name__)

from functools import partial
from typing import Any, TypeVar

import torch

from ..array_library import namespace_of, stack
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
    "namespace_of",
    "register_native",
    "stack",
]

NATIVE: dict[str, type[NativeSimulator]] = {
    task.id: task for task in (Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum)
}
"""The native tasks by their ids: gymnasium's, and those that `register_native` has added."""

TaskClass = TypeVar("TaskClass", bound=type[NativeSimulator])


def register_native(task: TaskClass) -> TaskClass:
    """Makes a task of your own available as `native::ID`, everywhere; a decorator of its class.

    Args:
        task: a subclass of `NativeSimulator` with the attributes and functions of `RowTask`.

    Returns:
        The class.

    Raises:
        TypeError: it is no such class, or an attribute is missing.
        ValueError: another class has its id.

    >>> from gymnasium.spaces import Box
    >>> @register_native
    ... class Decay(NativeSimulator):
    ...     id, episode_steps, fps, num_draws = "Decay-v0", 10, None, 1
    ...     observation_space = action_space = Box(-1, 1, (1,))
    ...
    ...     @staticmethod
    ...     def initial(uniforms, options):
    ...         return uniforms
    ...
    ...     @staticmethod
    ...     def advance(state, action):
    ...         state = 0.5 * state + 0.1 * action
    ...         return state, state[0], state[0] < 0
    ...
    ...     @staticmethod
    ...     def observe(state):
    ...         return state
    >>> simulator = make_native("Decay-v0", 2)
    >>> simulator.reset([1, 2]).shape
    torch.Size([2, 1])
    """
    if not (isinstance(task, type) and issubclass(task, NativeSimulator)):
        raise TypeError(
            f"Expected a subclass of NativeSimulator, got {task!r:.80}. Derive the class of the task from it."
        )
    for name in ("id", "observation_space", "action_space", "episode_steps", "fps", "num_draws"):
        if not hasattr(task, name):
            raise TypeError(
                f"Expected {task.__name__} to have the attribute {name!r}, got none. Define it as "
                "vecrl.simulators.row_task.RowTask describes."
            )
    for name, count in (("initial", 2), ("advance", 2), ("observe", 1)):
        function = getattr_static(task, name)
        if function is getattr_static(NativeSimulator, name):
            raise TypeError(f"Expected {task.__name__} to define {name}, got none. Define it as RowTask describes.")
        if isfunction(function) and len(signature(function).parameters) == count:  # without `self`
            raise TypeError(
                f"Expected {task.__name__}.{name} to be a static method or to take self, got a function of {count} "
                "arguments. Write @staticmethod above it."
            )
    other = NATIVE.get(task.id)
    if other is not None and (other.__module__, other.__qualname__) != (task.__module__, task.__qualname__):
        raise ValueError(f"Expected a new id, got {task.id!r}, which {other.__qualname__} has. Choose another one.")
    NATIVE[task.id] = task
    return task


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
        raise ValueError(
            f"Expected one of {', '.join(NATIVE)}, got {name!r}. Register a task of your own, in worker "
            'processes by preload=["its module"].'
        )
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
