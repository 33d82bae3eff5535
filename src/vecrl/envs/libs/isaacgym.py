"""Isaac Gym over TensorDicts, under TorchRL's names. It is imported when a task is made."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...simulators.isaac import IsaacGymTask, SelfResettingSimulator, make_task, names
from .gym_backends import AvailableEnvs
from .simulator_env import SimulatorEnv


class IsaacGymWrapper(SimulatorEnv):
    """The rows of a task of Isaac Gym, which resets them itself.

    Entries: "obs" `[n, k]` float32, "states" if the task has them, "action" `[n, m]`, "reward" `[n, 1]`, "done",
    "terminated" and "truncated" `[n, 1]`. "next" observations are NaN (0 in integers, False in bools) in rows that end
    an episode, since the task does not return final observations.

    Args:
        env: a `isaacgymenvs.tasks.base.vec_task.VecTask`.
        kwargs: see `SimulatorEnv`.
    """

    libname = "isaacgymenvs"

    def __init__(self, env: Any, **kwargs: Any):
        super().__init__(SelfResettingSimulator(IsaacGymTask(env)), **kwargs)


class IsaacGymEnv(IsaacGymWrapper):
    """A task of Isaac Gym, made by name; see `IsaacGymWrapper`.

    Args:
        task: the name ("Ant").
        env: another name of this argument.
        num_envs: number of rows.
        device: of the physics and of all tensors.
        kwargs: arguments of `isaacgymenvs.make`.

    Attributes:
        available_envs: class attribute, the names of the tasks; empty if Isaac Gym is not installed.

    Raises:
        TypeError: not exactly one of `task` and `env` is given.
        VersionError: Isaac Gym is not installed; the message says how to install it.
    """

    available_envs: Any = AvailableEnvs(partial(names, library="isaacgym"))

    def __init__(self, task: str | None = None, *, env: str | None = None, num_envs: int, device: Any, **kwargs: Any):
        if (task is None) == (env is None):
            raise TypeError(f"Expected task or env, the name of a task, got task={task!r} and env={env!r}.")
        vec_task = make_task(str(task or env), num_envs, library="isaacgym", device=device, **kwargs)
        super().__init__(vec_task, device=device)
