"""Adapts mjlab's tasks (robots in MuJoCo Warp, on a GPU or the CPU) to a `BatchSimulator`."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from copy import copy, deepcopy
from importlib import import_module
from io import StringIO
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ..engine.simulator import BatchStep
from ..engine.space_layout import Tree
from ..engine.trees import map_tree
from ..imports import import_library
from ..registries import check_name
from ..validation import parse_count, parse_device
from .batch_adapter import BatchAdapter, Seeds, space_of_rows

INSTALL_HINT = 'mjlab is not installed: pip install "vecrl[mjlab]" in an environment without other versions of MuJoCo'


def mjlab_module(module: str) -> Any:
    """Imports and returns a module of mjlab; raises VersionError without it. Warp does not print what it compiles."""
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        import_library("mjlab", INSTALL_HINT)
        imported = import_module(module)
    import_library("warp", INSTALL_HINT).config.log_level = logging.WARNING
    return imported


def names() -> list[str]:
    """Returns the names of the tasks; raises VersionError without mjlab."""
    return list(mjlab_module("mjlab.tasks.registry").list_tasks())


def make_env(
    name: str,
    num_envs: int | None,
    *,
    device: str | torch.device | None = None,
    cfg: Any = None,
    play: bool = False,
    render_mode: str | None = None,
) -> Any:
    """Makes a task and returns the library's object, a `ManagerBasedRlEnv`.

    Args:
        name: of the task ("Mjlab-Cartpole-Balance").
        num_envs: the number of rows; None for that of the configuration.
        device: the device of the physics and of all tensors; None for the first GPU, without one the CPU.
        cfg: its configuration, which is copied; None for that of the task.
        play: use the task's configuration for evaluation.
        render_mode: None or "rgb_array".

    Raises:
        TypeError: `cfg` is no configuration.
        ValueError: there is no task of this name, or an argument is out of range.
    """
    check_name("a task of mjlab", name, names())
    config = mjlab_module("mjlab.tasks.registry").load_env_cfg(name, play=play) if cfg is None else cfg
    if not (hasattr(config, "auto_reset") and hasattr(config, "scene")):
        raise TypeError(f"Expected cfg to be a ManagerBasedRlEnvCfg of mjlab, got {cfg!r:.80}.")
    config = deepcopy(config)
    config.auto_reset = False
    if num_envs is not None:
        config.scene.num_envs = parse_count("num_envs", num_envs)
    if device is None:
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if parse_device(device).type not in ("cpu", "cuda"):
        raise ValueError(f"Expected a CPU or a CUDA device, got {device!r}.")
    with redirect_stdout(sys.stderr):  # it prints tables
        return mjlab_module("mjlab.envs").ManagerBasedRlEnv(config, device=str(device), render_mode=render_mode)


class MjlabSimulator(BatchAdapter):
    """The rows of a task of mjlab; see `BatchAdapter`.

    Observations have the task's groups, such as "actor" and "critic". The rows share the random generators of torch and
    NumPy, which the seed of row 0 seeds. Rows that ended and were not reset begin new episodes in the next step.

    Args:
        env: a `ManagerBasedRlEnv`, which is reset once, and does not reset rows itself from then on.
        max_episode_steps: truncates episodes of this length, unless the task's own limit is shorter.
        log: add up the numbers that the environment logs, for `pop_log`.

    Attributes:
        env: the argument.

    Raises:
        TypeError: this is no such environment.
    """

    label = "mjlab's tasks"
    checks_range = False  # actions have no bounds

    def __init__(self, env: Any, max_episode_steps: int | None = None, log: bool = False):
        base = getattr(env, "unwrapped", env)
        if not (hasattr(base, "episode_length_buf") and hasattr(base, "single_action_space")):
            raise TypeError(f"Expected a ManagerBasedRlEnv of mjlab, got {env!r:.80}.")
        base.cfg = copy(base.cfg)  # the caller may make other environments with it
        base.cfg.auto_reset = False
        self.env: Any = base
        self._log: dict[str, list[float]] | None = {} if log else None
        self._obs: Tree = self._reset_env()
        self._ended = torch.zeros(base.num_envs, dtype=torch.bool, device=base.device)
        super().__init__(
            int(base.num_envs),
            space_of_rows(self._obs),
            Box(-np.inf, np.inf, tuple(base.single_action_space.shape), np.float32),
            device=base.device,
            render_mode=base.render_mode,
            render_fps=1 / base.step_dt,
            max_episode_steps=max_episode_steps,
        )

    def _reset_env(self, **options: Any) -> Tree:
        with redirect_stdout(StringIO()):  # it prints seeds
            obs, extras = self.env.reset(**options)
        self._add_to_log(extras)
        return map_tree(torch.clone, dict(obs))

    def _add_to_log(self, extras: Mapping[str, Any]) -> None:
        if self._log is not None:
            for name, value in extras.get("log", {}).items():
                if isinstance(value, Tensor | int | float):
                    self._log.setdefault(name, []).append(float(value))

    def pop_log(self) -> dict[str, float]:
        """Returns the means of the logged numbers since the last call, over the resets and steps that had them."""
        log, self._log = self._log or {}, None if self._log is None else {}
        return {name: sum(values) / len(values) for name, values in log.items()}

    def start(self, rows: np.ndarray, seeds: Seeds) -> None:
        """Starts an episode in each of `rows`."""
        if len(rows) == self.num_envs:
            self._obs = self._reset_env(seed=None if seeds is None or seeds[0] is None else seeds[0] % 2**32)
            self._ended = torch.zeros_like(self._ended)
        else:
            self._restart(torch.from_numpy(rows).to(self._ended.device))

    def _restart(self, rows: Tensor) -> None:
        """Starts an episode in each of `rows` `[m]`; keeps the observations of others, which may have noise."""
        obs = self._reset_env(env_ids=rows)
        self._obs = map_tree(lambda old, new: old.index_copy(0, rows, new[rows]), self._obs, obs)
        self._ended = self._ended.index_fill(0, rows, False)

    def advance(self, actions: Tree) -> BatchStep:
        """Steps all rows."""
        if bool(self._ended.any()):
            self._steps = self._steps.masked_fill(self._ended, 0)
            self._restart(self._ended.nonzero()[:, 0])
        obs, reward, terminated, truncated, extras = self.env.step(torch.as_tensor(actions, device=self._ended.device))
        self._add_to_log(extras)
        self._obs = map_tree(torch.clone, dict(obs))
        self._ended = terminated | truncated
        return BatchStep(self.observe(), reward.float().clone(), terminated.clone(), truncated.clone())

    def observe(self) -> Tree:
        """Returns copies of the observations of all rows."""
        return map_tree(torch.clone, self._obs)

    def draw(self, row: int) -> np.ndarray:
        """Returns a frame of the scene, with a row in its middle."""
        self.env.cfg.viewer.env_idx = row
        return np.array(self.env.render())

    def free(self) -> None:
        """Closes the environment."""
        self.env.close()


def make_batch(
    name: str, num_envs: int, *, max_episode_steps: int | None = None, infos: bool = True, **kwargs: Any
) -> MjlabSimulator:
    """Makes a task as a simulator; see `make_env` for the other arguments. Its steps have no infos."""
    return MjlabSimulator(make_env(name, num_envs, **kwargs), max_episode_steps)
