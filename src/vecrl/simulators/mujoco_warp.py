"""Steps MuJoCo models in batches with MuJoCo Warp: vecrl's cart-pole, and tasks of gymnasium from its model files.

The state of MuJoCo is a tensor like that of the native tasks, which is copied into MuJoCo Warp's arrays and back at
every step. So seeds, partial resets and states are those of the native tasks. The first step of a process loads the
kernels; the first on a machine compiles them, which takes about a minute, and stores them in Warp's cache. This module
knows no dialects.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ..engine.simulator import ResetOptions
from .imports import import_library
from .mujoco_frames import MujocoFrames
from .row_task import RowTaskSimulator

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
SPEED_LIMIT = 10.0  # observed speeds are clipped at this value in gymnasium's Hopper
Observe = Callable[[Tensor, Tensor], Tensor]
Judge = Callable[["Move"], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Move:
    """One step of all rows, for the rules of a task.

    Attributes:
        speed: `[n]`, the mean speed of the first joint within the step.
        positions: `[nq, n]`, the positions after the step.
        velocities: `[nv, n]`, the velocities after the step.
        action: `[n, nu]`, the clipped action.
    """

    speed: Tensor
    positions: Tensor
    velocities: Tensor
    action: Tensor


@dataclass(frozen=True, slots=True)
class Task:
    """A task over one model.

    Attributes:
        model: MJCF, or the name of one of gymnasium's model files.
        frame_skip: steps of the model per step of the task.
        episode_steps: truncates episodes of this length.
        noise: the half-width of uniform noise on start positions, and on start velocities.
        observe: computes observations `[k, n]` from positions `[nq, n]` and velocities `[nv, n]`.
        judge: computes rewards `[n]` and terminated `[n]`.
        start: start positions, to which the noise is added; None for those of the model.
        normal_velocities: whether the noise on velocities is normal, with this standard deviation.
    """

    model: str
    frame_skip: int
    episode_steps: int
    noise: float
    observe: Observe
    judge: Judge
    start: tuple[float, ...] | None = None
    normal_velocities: bool = False


def _observe_cart_pole(positions: Tensor, velocities: Tensor) -> Tensor:
    x, angle = positions
    return torch.stack([x, angle.cos(), angle.sin(), *velocities])


def _judge_balance(move: Move) -> tuple[Tensor, Tensor]:
    """Rewards 1 for each step; terminates when the pole falls."""
    return torch.ones_like(move.speed), move.positions[1].abs() > 0.5


def _judge_swing_up(move: Move) -> tuple[Tensor, Tensor]:
    """Rewards up to 1, for an upright pole in the middle of the rail; never terminates."""
    x, angle = move.positions
    reward = (1 + angle.cos()) / 2 * (1 - x.abs() / 4).clamp(min=0)
    return reward, torch.zeros_like(reward, dtype=torch.bool)


def _judge_inverted_pendulum(move: Move) -> tuple[Tensor, Tensor]:
    fallen = ~(move.positions[1].abs() <= 0.2)  # so that NaN is one
    return (~fallen).float(), fallen


def _observe_hopper(positions: Tensor, velocities: Tensor) -> Tensor:
    return torch.cat([positions[1:], velocities.clamp(-SPEED_LIMIT, SPEED_LIMIT)])


def _judge_hopper(move: Move) -> tuple[Tensor, Tensor]:
    state = torch.cat([move.positions, move.velocities])[2:]
    healthy = (state.abs() < 100).all(0) & (move.positions[1] > 0.7) & (move.positions[2].abs() < 0.2)
    return move.speed + healthy - 1e-3 * move.action.square().sum(1), ~healthy


def _judge_half_cheetah(move: Move) -> tuple[Tensor, Tensor]:
    reward = move.speed - 0.1 * move.action.square().sum(1)
    return reward, torch.zeros_like(reward, dtype=torch.bool)


def _observe_all(positions: Tensor, velocities: Tensor) -> Tensor:
    return torch.cat([positions, velocities])


def _observe_all_but_x(positions: Tensor, velocities: Tensor) -> Tensor:
    return torch.cat([positions[1:], velocities])


TASKS = {
    "cartpole-balance": Task(CART_POLE, 1, 1000, 0.05, _observe_cart_pole, _judge_balance),
    "cartpole-swingup": Task(CART_POLE, 1, 1000, 0.01, _observe_cart_pole, _judge_swing_up, (0.0, np.pi)),
    "InvertedPendulum-v5": Task("inverted_pendulum", 2, 1000, 0.01, _observe_all, _judge_inverted_pendulum),
    "Hopper-v5": Task("hopper", 4, 1000, 5e-3, _observe_hopper, _judge_hopper),
    "HalfCheetah-v5": Task(
        "half_cheetah", 5, 1000, 0.1, _observe_all_but_x, _judge_half_cheetah, normal_velocities=True
    ),
}


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
        task: the task.
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
        mujoco, warp, mujoco_warp = _libraries()
        self.id, self.task = name, TASKS[name]
        self.model: Any = _load(mujoco, self.task.model)
        model, self.episode_steps = self.model, self.task.episode_steps
        self.step_seconds = self.task.frame_skip * model.opt.timestep
        self.fps = round(1 / self.step_seconds)
        self.num_draws = model.nq + model.nv
        low, high = model.actuator_ctrlrange.T.astype(np.float32)
        self.action_space = Box(low, high, dtype=np.float32)
        self._sizes = [model.nq, model.nv, model.nv]  # of positions, velocities, and the solver's first guess
        length = len(self.task.observe(torch.zeros(model.nq, 1), torch.zeros(model.nv, 1)))
        self.observation_space = Box(-np.inf, np.inf, (length,), np.float32)
        super().__init__(num_envs, device=device, render_mode=render_mode, max_episode_steps=max_episode_steps)
        self._warp, self._step_model = warp, mujoco_warp.step
        self._frames = MujocoFrames(model, FRAME_SIZE, 0 if model.ncam else -1)
        start = model.qpos0 if self.task.start is None else self.task.start
        self._start_positions = torch.tensor(np.asarray(start), dtype=torch.float32, device=self._device)[:, None]
        self._low, self._high = (torch.from_numpy(bound).to(self._device) for bound in (low, high))
        with self._on_device():
            self._model, self._data = mujoco_warp.put_model(model), mujoco_warp.make_data(model, nworld=num_envs)
        arrays = self._data.qpos, self._data.qvel, self._data.qacc_warmstart
        self._views = [warp.to_torch(array) for array in arrays]
        self._control = warp.to_torch(self._data.ctrl)

    # The state is `[nq + 2 nv, n]`: positions, velocities, and accelerations of the last step, where the solver starts

    def initial(self, uniforms: Tensor, options: ResetOptions) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes start states `[nq + 2 nv, n]`."""
        position_draws, velocity_draws = uniforms.split(self._sizes[:2])
        positions = self._start_positions + self.task.noise * (2 * position_draws - 1)
        if self.task.normal_velocities:  # draws are multiples of 2**-24, so this is finite
            velocities = self.task.noise * torch.special.ndtri(velocity_draws + 2.0**-25)
        else:
            velocities = self.task.noise * (2 * velocity_draws - 1)
        return torch.cat([positions, velocities, torch.zeros_like(velocities)])

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
        positions, velocities, _ = next_state.split(self._sizes)
        speed = (positions[0] - state[0]) / self.step_seconds
        reward, terminated = self.task.judge(Move(speed, positions, velocities, action))
        return next_state, reward, terminated

    def observe(self, state: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the observations `[k, n]`."""
        positions, velocities, _ = state.split(self._sizes)
        return self.task.observe(positions, velocities)

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


def make_batch(
    name: str,
    num_envs: int,
    *,
    device: str | torch.device | None = None,
    infos: bool = True,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
) -> WarpSimulator:
    """Constructs a `WarpSimulator`, as `vecrl.simulators.registry` needs it. Its steps have no infos."""
    options: Any = {"render_mode": render_mode, "max_episode_steps": max_episode_steps}
    return WarpSimulator(name, num_envs, device=device or "cpu", **options)


def names() -> list[str]:
    """Returns the names of the tasks; raises ImportError if MuJoCo Warp is not installed."""
    _libraries()
    return [*TASKS]


def _libraries() -> tuple[Any, Any, Any]:
    mujoco, warp = (import_library(module, _INSTALL_HINT) for module in ("mujoco", "warp"))
    warp.config.log_level = max(warp.config.log_level, LOG_WARNING)  # else a line for each kernel that it loads
    return mujoco, warp, import_library("mujoco_warp", _INSTALL_HINT)


def _load(mujoco: Any, model: str) -> Any:
    if "<" in model:
        return mujoco.MjModel.from_xml_string(model)
    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    return mujoco.MjModel.from_xml_path(str(assets / f"{model}.xml"))
