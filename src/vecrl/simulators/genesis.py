"""Genesis: n rows of one scene, which Genesis steps in one call. A task is a scene and functions of all its rows.

The state of a row is its positions and velocities. They are written into the scene before each step, and the solver
starts without its last solution, so that a step depends on nothing else and simulators of equal tasks share one scene.
The first scene in a process compiles kernels, which takes a minute; Genesis keeps them in `~/.cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ..engine.simulator import ResetOptions
from ..errors import SpaceError
from ..imports import import_library
from .row_task import RowTaskSimulator

INSTALL_HINT = 'Genesis is not installed: pip install "vecrl[genesis]"'
Scene = Any  # a `genesis.Scene`, built or not
FRAME = (320, 240)  # width and height in pixels


def genesis_library(device: str | torch.device = "cpu") -> Any:
    """Imports the module `genesis`, and initializes it for a device unless this process has done so.

    Raises:
        VersionError: Genesis is not installed; the message names the extra that installs it.
        ValueError: Genesis was initialized for another device.
    """
    gs = import_library("genesis", INSTALL_HINT)
    kind = torch.device(device).type
    if not gs._initialized:
        backend = gs.cpu if kind == "cpu" else gs.gpu
        gs.init(backend=backend, precision="32", performance_mode=False, logging_level="error")
    if gs.device.type != kind:
        raise ValueError(f"Expected device {gs.device.type!r}, for which Genesis was initialized here, got {kind!r}.")
    return gs


@dataclass(frozen=True, kw_only=True, eq=False)
class GenesisTask:
    """A scene of Genesis, and the rules of a task over it. The functions get the built scene with the current state.

    Attributes:
        make_scene: returns the scene, not built yet. Frames are those of its first camera; for these, use
            `VisOptions(rendered_envs_idx=[0])`. See `new_scene`.
        action_space: the actions of one row, to which actions are clipped.
        act: `act(scene, actions)` gives actions `[n, ...]` to the controllers of the scene.
        observe: `observe(scene)` computes observations `[n, k]` from positions and velocities.
        reward: `reward(scene, actions)` computes rewards `[n]` after a step.
        terminated: `terminated(scene)` computes bool `[n]` after a step; None for a task that only the time limit ends.
        start: `start(positions, draws)` computes positions `[n, nq]` of rows that begin an episode, from those of the
            scene and uniform draws in [0, 1), both `[n, nq]`; None for those of the scene.
        frame_skip: steps of the scene per step of the task.
        max_episode_steps: truncates episodes of this length; -1 for no limit.
        name: its name, for messages.
    """

    make_scene: Callable[[], Scene]
    action_space: Box
    act: Callable[[Scene, Tensor], None]
    observe: Callable[[Scene], Tensor]
    reward: Callable[[Scene, Tensor], Tensor]
    terminated: Callable[[Scene], Tensor] | None = None
    start: Callable[[Tensor, Tensor], Tensor] | None = None
    frame_skip: int = 1
    max_episode_steps: int = 1000
    name: str = "a scene of Genesis"


def new_scene(dt: float = 0.02, collisions: bool = True) -> Scene:
    """Returns a scene with a floor and a camera, without a viewer.

    Args:
        dt: seconds of one step.
        collisions: whether bodies collide; without this, the kernels compile sooner.
    """
    gs = import_library("genesis", INSTALL_HINT)
    scene = gs.Scene(
        sim_options=gs.options.SimOptions(dt=dt),
        rigid_options=gs.options.RigidOptions(enable_collision=collisions),
        vis_options=gs.options.VisOptions(rendered_envs_idx=[0]),
        show_viewer=False,
    )
    scene.add_entity(gs.morphs.Plane())
    scene.add_camera(res=FRAME, pos=(1.6, 1.2, 1.0), lookat=(0.0, 0.0, 0.3))
    return scene


class GenesisSimulator(RowTaskSimulator):
    """n rows of a task of Genesis; a `vecrl.engine.simulator.BatchSimulator`.

    Observations and rewards are float32. A seed determines the start of an episode in a batch of any size.

    Args:
        task: the scene and its rules.
        num_envs: n, at least 1.
        device: "cpu" or "cuda"; Genesis takes one device per process.
        render_mode: "rgb_array", for a scene with a camera, or None.
        max_episode_steps: truncates episodes of this length; None for the task's limit, -1 for no limit.

    Attributes:
        task: the task.
        scene: the built scene, which other simulators of the same task and size use too.

    Raises:
        ValueError: an argument is out of range.
        VersionError: Genesis is not installed.
        SpaceError: frames are requested from a scene without a camera.
    """

    can_compile = False

    def __init__(
        self,
        task: GenesisTask,
        num_envs: int,
        *,
        device: str | torch.device = "cpu",
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
    ):
        self.id, self.task = task.name, task
        genesis_library(device)
        self._shared = _shared_scene(self.task, num_envs)
        self.scene: Scene = self._shared.scene
        if render_mode is not None and not self.scene.visualizer.cameras:
            raise SpaceError(
                "Expected a scene with a camera for frames, got none. Call scene.add_camera in make_scene."
            )
        self.fps = round(1 / (self.task.frame_skip * self.scene.dt))
        self.episode_steps, self.action_space = self.task.max_episode_steps, self.task.action_space
        home = self._shared.home
        self._home = home[:, : self._shared.num_positions]
        self.num_draws = self._home.shape[1]
        size = self.observe(home.t()).shape[0]
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float32)
        super().__init__(num_envs, device=device, render_mode=render_mode, max_episode_steps=max_episode_steps)
        bounds = self.action_space.low, self.action_space.high
        self._low, self._high = (torch.from_numpy(bound).to(self._device) for bound in bounds)

    # The state is `[nq + nv, n]`: the positions and velocities of all entities

    def initial(self, uniforms: Tensor, options: ResetOptions) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes start states `[nq + nv, n]`, with velocities of 0."""
        start = self.task.start
        positions = self._home if start is None else start(self._home.clone(), uniforms.t())
        velocities = positions.new_zeros(len(positions), self._shared.home.shape[1] - self.num_draws)
        return torch.cat([positions, velocities], 1).t().contiguous()

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Steps the scene `frame_skip` times."""
        action = action.clamp(self._low, self._high)
        self._shared.load(state)
        self.task.act(self.scene, action)
        for _ in range(self.task.frame_skip):
            self.scene.step()
        next_state = self._shared.read()
        reward = self.task.reward(self.scene, action).to(torch.float32, copy=True)
        if self.task.terminated is None:
            return next_state, reward, torch.zeros_like(reward, dtype=torch.bool)
        return next_state, reward, self.task.terminated(self.scene).clone()

    def observe(self, state: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the observations `[k, n]`."""
        if self._shared.loaded is not state:
            self._shared.load(state)
        return self.task.observe(self.scene).t().to(torch.float32, copy=True)

    def can_sync_host(self) -> bool:
        """Returns False, so that resets compute all rows: a scene has no fewer."""
        return False

    def _draw(self, row: int) -> np.ndarray:
        state = self.rows.state.clone()
        state[:, 0] = state[:, row]  # the scene renders its first row
        self._shared.load(state)
        return self.scene.visualizer.cameras[0].render(force_render=True)[0].copy()


class _SharedScene:
    """A built scene, and the state that was written into it or read from it last."""

    def __init__(self, task: GenesisTask, num_envs: int):
        self.scene = task.make_scene()
        self.scene.build(n_envs=num_envs)
        self._solver = self.scene.rigid_solver
        self.num_positions = self._solver.get_qpos().shape[1]
        self.loaded: Tensor = self.read()
        self.home = self.loaded.t().clone()

    def read(self) -> Tensor:
        """Returns the state `[nq + nv, n]`."""
        self.loaded = torch.cat([self._solver.get_qpos(), self._solver.get_dofs_velocity()], 1).t().contiguous()
        return self.loaded

    def load(self, state: Tensor) -> None:
        """Writes a state, and deletes the solution from which the solver of constraints would start."""
        self._solver.set_qpos(state[: self.num_positions].t().contiguous())
        self._solver.set_dofs_velocity(state[self.num_positions :].t().contiguous())
        self._solver.constraint_solver.reset()
        self.loaded = state


@lru_cache(maxsize=8)
def _shared_scene(task: GenesisTask, num_envs: int) -> _SharedScene:
    return _SharedScene(task, num_envs)
