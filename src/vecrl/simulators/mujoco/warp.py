"""`WarpSimulator`: tasks of MuJoCo in MuJoCo Warp, which steps one model in many rows on a CPU or GPU.

The rules of a task are those of `MujocoTask`, over tensors. The state of MuJoCo is a tensor like that of any task over
rows, which is copied into MuJoCo Warp's arrays and back at every step. The first step of a process loads the kernels;
the first on a machine compiles them, which takes about a minute, and stores them in Warp's cache.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ...engine.simulator import ResetOptions
from ...imports import import_library
from ..mujoco_frames import MujocoFrames
from ..row_task import RowTaskSimulator, make_row_batch
from .locomotion import noise
from .physics import Rows
from .table import make_task
from .task import Move, MujocoTask, Reward, Start

CART_POLE = """
<mujoco model="cart-pole">
  <option timestep="0.01"><flag contact="disable"/></option>
  <worldbody>
    <light pos="0 -2 3" dir="0 1 -1.5"/>
    <camera name="side" pos="0 -4 1" xyaxes="1 0 0 0 0 1"/>
    <geom name="rail" type="capsule" fromto="-2 0.05 0 2 0.05 0" size="0.02" rgba="0.5 0.5 0.5 1"/>
    <body name="cart">
      <joint name="slide" type="slide" axis="1 0 0" limited="true" range="-1.8 1.8" damping="0.0005"/>
      <geom type="box" size="0.2 0.15 0.1" mass="1" rgba="0.2 0.4 0.7 1"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0" damping="0.000002"/>
        <geom type="capsule" fromto="0 0 0 0 0 1" size="0.045" mass="0.1" rgba="0.8 0.5 0.2 1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slide" gear="10" ctrllimited="true" ctrlrange="-1 1"/></actuator>
</mujoco>
"""
LOG_WARNING = 30
_INSTALL_HINT = 'MuJoCo Warp is not installed: pip install "vecrl[warp]"'
FRAME_SIZE = 480, 480  # height and width of frames


def _observe_cart_pole(rows: Rows) -> Tensor:
    x, angle = rows.qpos.T
    return torch.stack([x, angle.cos(), angle.sin(), *rows.qvel.T], 1)


def _reward_balance(move: Move) -> Reward:
    return torch.ones_like(move.after.qpos[:, 0]), {}


def _reward_swing_up(move: Move) -> Reward:
    """Rewards up to 1, for an upright pole in the middle of the rail."""
    x, angle = move.after.qpos.T
    return (1 + angle.cos()) / 2 * (1 - x.abs() / 4).clamp(min=0), {}


def _start_hanging(start: Start) -> tuple[Tensor, Tensor]:
    positions, velocities = noise(0.01)(start)
    return positions + positions.new_tensor([0.0, np.pi]), velocities


TASKS = {
    "cartpole-balance": MujocoTask(
        xml=CART_POLE,
        frame_skip=1,
        start=noise(0.05),
        observe=_observe_cart_pole,
        reward=_reward_balance,
        terminated=lambda move: move.after.qpos[:, 1].abs() > 0.5,
    ),
    "cartpole-swingup": MujocoTask(
        xml=CART_POLE, frame_skip=1, start=_start_hanging, observe=_observe_cart_pole, reward=_reward_swing_up
    ),
    **{name: make_task(name) for name in ("InvertedPendulum-v5", "Hopper-v5", "HalfCheetah-v5")},
}


class _Start:
    """A `Start` of m rows with tensors: `draws` `[m, k]` are uniform numbers in [0, 1), which are used one by one."""

    def __init__(self, draws: Tensor, qpos: Tensor, qvel: Tensor):
        self._draws, self.qpos, self.qvel = draws, qpos, qvel

    def uniform(self, low: float, high: float, size: int) -> Tensor:
        return (low + high) / 2 + (high - low) / 2 * (2 * self._take(size) - 1)

    def normal(self, size: int) -> Tensor:
        return torch.special.ndtri(self._take(size) + 2.0**-25)  # draws are multiples of 2**-24, so this is finite

    def _take(self, size: int) -> Tensor:
        taken, self._draws = self._draws.split([size, self._draws.shape[1] - size], 1)
        return taken


class WarpSimulator(RowTaskSimulator):
    """n environments of one model in MuJoCo Warp; a `vecrl.engine.simulator.BatchSimulator`.

    Observations are `[n, k]` float32, actions `[n, nu]` float32, which are clipped to the ranges of the actuators.

    Args:
        name: a key of `TASKS`.
        num_envs: n, at least 1.
        device: "cpu" or a CUDA device.
        render_mode: "rgb_array" or None.
        max_episode_steps: truncates episodes of this length; None for the task's limit, -1 for no limit.

    Attributes:
        task: the task, with functions over positions and velocities alone.
        model: the model, a `mujoco.MjModel`.

    Raises:
        ValueError: the name is unknown, or an argument is out of range.
        ImportError: MuJoCo Warp is not installed; the message names the extra.
    """

    can_compile = False

    def __init__(
        self,
        name: str,
        num_envs: int,
        *,
        device: str | torch.device = "cpu",
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
    ):
        if name not in TASKS:
            raise ValueError(f"Expected one of {', '.join(TASKS)}, got {name!r}.")
        self._warp, mujoco_warp = _libraries()
        self.id, self.task = name, TASKS[name]
        self.model = model = self.task.load_model()
        self.episode_steps, self._seconds = self.task.max_episode_steps, self.task.frame_skip * model.opt.timestep
        self.fps = round(1 / self._seconds)
        self.num_draws = model.nq + model.nv
        low, high = model.actuator_ctrlrange.T.astype(np.float32)
        self.action_space = Box(low, high, dtype=np.float32)
        self._sizes = [model.nq, model.nv, model.nv]  # of positions, velocities, and the solver's first guess
        length = len(self.observe(torch.zeros(sum(self._sizes), 1)))
        self.observation_space = Box(-np.inf, np.inf, (length,), np.float32)
        super().__init__(num_envs, device=device, render_mode=render_mode, max_episode_steps=max_episode_steps)
        self._step_model, self._frames = mujoco_warp.step, MujocoFrames(model, FRAME_SIZE, 0 if model.ncam else -1)
        self._home = torch.tensor(model.qpos0, dtype=torch.float32, device=self._device)
        self._low, self._high = (torch.from_numpy(bound).to(self._device) for bound in (low, high))
        with self._on_device():
            self._model, self._data = mujoco_warp.put_model(model), mujoco_warp.make_data(model, nworld=num_envs)
        arrays = self._data.qpos, self._data.qvel, self._data.qacc_warmstart
        self._views = [self._warp.to_torch(array) for array in arrays]
        self._control = self._warp.to_torch(self._data.ctrl)

    # The state is `[nq + 2 nv, n]`: positions, velocities, and accelerations of the last step, where the solver starts

    def initial(self, uniforms: Tensor, options: ResetOptions) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes start states `[nq + 2 nv, n]`."""
        zeros = uniforms.new_zeros(uniforms.shape[1], self.model.nv)
        start: Any = _Start(uniforms.t(), self._home.expand(len(zeros), -1), zeros)
        return torch.cat([*self.task.start(start), zeros], 1).t().contiguous()

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Steps the model `frame_skip` times."""
        action = action.clamp(self._low, self._high)
        with self._on_device():
            for view, values in zip(self._views, state.split(self._sizes), strict=True):
                view.copy_(values.t())
            self._control.copy_(action)
            for _ in range(self.task.frame_skip):
                self._step_model(self._model, self._data)
        next_state = torch.cat([view.t() for view in self._views])
        flags, home = action.new_zeros(len(action), dtype=torch.bool), self._home.expand(len(action), -1)
        move = Move(self._rows_of(state), self._rows_of(next_state), action, home, flags)
        if self.task.terminated is not None:
            move.terminated = self.task.terminated(move)
        return next_state, self.task.reward(move)[0], move.terminated

    def observe(self, state: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the observations `[k, n]`."""
        return self.task.observe(self._rows_of(state)).t()

    def _rows_of(self, state: Tensor) -> Rows:
        positions, velocities, _ = state.split(self._sizes)
        seconds = state.new_full((state.shape[1],), self._seconds)
        return Rows({"model": self.model, "dt": seconds, "qpos": positions.t(), "qvel": velocities.t()})

    def _draw(self, row: int) -> np.ndarray:
        positions, velocities, _ = self.rows.state[:, row].cpu().split(self._sizes)
        return self._frames.draw(positions, velocities)

    def close(self) -> None:
        """Closes the renderer. Further calls have no effect."""
        self._frames.close()

    def can_sync_host(self) -> bool:
        """Whether reading a mask takes no time."""
        return self._device.type == "cpu"

    def _on_device(self) -> AbstractContextManager[Any]:
        """Makes Warp use the device of the tensors, and its stream, so that its kernels run in order with torch's."""
        if self._device.type == "cpu":
            return self._warp.ScopedDevice("cpu")
        return self._warp.ScopedStream(self._warp.stream_from_torch(torch.cuda.current_stream(self._device)))


make_batch = partial(make_row_batch, WarpSimulator)


def names() -> list[str]:
    """Returns the names of the tasks; raises ImportError if MuJoCo Warp is not installed."""
    _libraries()
    return [*TASKS]


def _libraries() -> tuple[Any, Any]:
    """Imports `warp` and `mujoco_warp`."""
    import_library("mujoco", _INSTALL_HINT)
    warp = import_library("warp", _INSTALL_HINT)
    warp.config.log_level = max(warp.config.log_level, LOG_WARNING)  # else a line for each kernel that it loads
    warp.init()  # it finds the GPUs, which torch's streams are converted to
    return warp, import_library("mujoco_warp", _INSTALL_HINT)
