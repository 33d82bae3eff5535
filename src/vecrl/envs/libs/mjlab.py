"""Tasks of mjlab over TensorDicts, under TorchRL's names. The library is imported when a task is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import SpaceError
from ...simulators.mjlab import MjlabSimulator, make_env, mjlab_module, names
from .gym.backends import AvailableEnvs
from .simulator_env import SimulatorEnv, batch_size_of


class MJLabWrapper(SimulatorEnv):
    """The rows of a task of mjlab as an `EnvBase`; see `SimulatorEnv`.

    Entries: the task's observation groups, such as "actor" and "critic" `[n, k]` float32, "action" `[n, m]`, "reward"
    `[n, 1]`, "done", "terminated" and "truncated" `[n, 1]`. "next" holds the true last observations of episodes.

    Args:
        env: a `mjlab.envs.ManagerBasedRlEnv`, which does not reset rows itself from then on.
        native_autoreset: has no effect, since rows are reset by masks.
        log_extras: add up the numbers that mjlab logs in resets and steps, for `pop_logged_extras`.
        max_episode_steps: truncates episodes of this length, unless the task's own limit is shorter.
        kwargs: arguments of `SimulatorEnv`, such as `from_pixels`.

    Raises:
        TypeError: this is no such environment.
        SpaceError: the batch size or the device is not that of the environment.
    """

    libname = "mjlab"
    git_url = "https://github.com/mujocolab/mjlab"
    available_envs: Any = AvailableEnvs(lambda: dict.fromkeys(names()))

    def __init__(
        self,
        env: Any = None,
        *,
        native_autoreset: bool = False,
        log_extras: bool = False,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ):
        self.native_autoreset = native_autoreset
        simulator = MjlabSimulator(env, max_episode_steps, log_extras)
        device = kwargs.setdefault("device", simulator.device)
        if device is not None and torch.device(device).type != torch.device(simulator.device).type:
            raise SpaceError(f"Expected the device {simulator.device!r} of the environment, got {device!r}. Omit it.")
        super().__init__(simulator, **kwargs)

    def pop_logged_extras(self) -> dict[str, float]:
        """Returns the means of the logged numbers since the last call, over the resets and steps that had them."""
        simulator: Any = self._env
        return simulator.pop_log()

    def _lookup_attribute(self, name: str) -> Any:
        simulator: Any = self._env
        return getattr(simulator.env, name)

    @property
    def lib(self) -> Any:
        """The module `mjlab`."""
        return mjlab_module("mjlab")


class MJLabEnv(MJLabWrapper):
    """A task of mjlab, made by its name; see `MJLabWrapper`.

    Args:
        task_id: one of `available_envs`.
        cfg: its configuration, a `ManagerBasedRlEnvCfg`; None for that of the task.
        play: use the task's configuration for evaluation.
        num_envs: the number of rows; the batch size is `(num_envs,)`. None for that of the configuration.
        batch_size: the batch size, with any number of dimensions, instead of `num_envs`.
        device: the device of the physics and of all tensors; None for the first GPU, without one the CPU.
        render_mode: "rgb_array" for frames; `from_pixels` needs no mode.
        kwargs: as in `MJLabWrapper`.

    Attributes:
        available_envs: class attribute, the names of all tasks. Those that track motions need a file of one.

    Raises:
        VersionError: mjlab is not installed.
        ValueError: there is no task of this name.

    >>> MJLabEnv("Mjlab-Cartpole-Balance", num_envs=2).rollout(3)["next", "actor"].shape  # doctest: +SKIP
    torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        task_id: str,
        *,
        cfg: Any = None,
        play: bool = False,
        num_envs: int | None = None,
        batch_size: Sequence[int] | int | None = None,
        device: torch.device | str | None = None,
        render_mode: str | None = None,
        **kwargs: Any,
    ):
        shape = batch_size_of(num_envs, batch_size)
        mode = "rgb_array" if kwargs.get("from_pixels") else render_mode
        self.task_id = task_id
        rows = None if shape is None else shape.numel()
        env = make_env(task_id, rows, device=device, cfg=cfg, play=play, render_mode=mode)
        super().__init__(env, batch_size=shape, **kwargs)

    def __repr__(self) -> str:
        return f"MJLabEnv({self.task_id!r}, batch_size={tuple(self.batch_size)}, device={self.device})"
