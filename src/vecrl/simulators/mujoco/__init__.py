"""MuJoCo in batches: gymnasium's tasks with equal results to the bit, and tasks of one's own.

Physics runs on threads, so no worker processes are needed; see `docs/mujoco.md`.
"""

from __future__ import annotations

from ...imports import require_extra

require_extra("torch", __name__)

from typing import Any

import torch

from . import warp
from .libraries import mujoco_library, numba_library
from .physics import Rows
from .simulator import OPTIONS, MujocoSimulator
from .table import TASKS, make_task
from .task import Move, MujocoTask, Start

__all__ = ["TASKS", "Move", "MujocoSimulator", "MujocoTask", "Rows", "Start", "make_batch", "make_task", "names"]


def make_batch(
    name: str, num_envs: int, *, device: str | torch.device | None = None, infos: bool = True, **kwargs: Any
) -> Any:
    """Constructs the simulator of one of gymnasium's tasks, as `vecrl.simulators.registry` needs it.

    Args:
        name: a key of `TASKS`.
        num_envs: the number of rows.
        device: "cpu" or None; "cuda" makes the task of this name in MuJoCo Warp, if that has it. Its values are
            gymnasium's within the tolerance of the solver, its random numbers are not.
        infos: return the infos of steps.
        kwargs: arguments of `MujocoSimulator`, and those of gymnasium's environment; on a GPU those of `WarpSimulator`.

    Raises:
        ImportError: MuJoCo or Numba is not installed.
        ValueError: there is no such task, or an argument cannot be used.
        TypeError: the task has no such argument.
    """
    if torch.device(device or "cpu").type != "cpu":
        if name not in warp.TASKS:
            known = ", ".join(task for task in warp.TASKS if task in TASKS)
            raise ValueError(f"Expected device 'cpu', or one of {known} on a GPU, got {device!r} for {name!r}.")
        return warp.make_batch(name, num_envs, device=device, infos=infos, **kwargs)
    options = {option: kwargs.pop(option) for option in OPTIONS if option in kwargs}
    return MujocoSimulator(make_task(name, **kwargs), num_envs, infos=infos, **options)


def names() -> list[str]:
    """Returns the names of the tasks; raises ImportError if MuJoCo or Numba is not installed."""
    mujoco_library()
    numba_library()
    return [*TASKS]
