"""Frames of MuJoCo models for simulators that compute with other libraries, such as JAX."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ..engine.simulator import Array

FRAME = (240, 320)  # height and width of a frame of MuJoCo in pixels


class MujocoFrames:
    """Renders states of a MuJoCo model; without a display it needs the environment variable MUJOCO_GL=egl.

    Args:
        model: a `mujoco.MjModel`.
        size: height and width of frames in pixels.
        camera: the number of the camera; -1 for the free one.
    """

    def __init__(self, model: Any, size: tuple[int, int] = FRAME, camera: int = -1):
        self._model, self._size, self._camera = model, size, camera
        self._renderer: Any = None

    def draw(self, qpos: Array, qvel: Array, mocap_pos: Array = (), mocap_quat: Array = ()) -> np.ndarray:
        """Returns a frame `[height, width, 3]` uint8 of the state with these positions and velocities."""
        mujoco: Any = import_module("mujoco")  # its stubs do not have its functions
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._model, *self._size)
        data = mujoco.MjData(self._model)
        data.qpos[:], data.qvel[:] = np.asarray(qpos), np.asarray(qvel)
        if len(mocap_pos):
            data.mocap_pos[:], data.mocap_quat[:] = np.asarray(mocap_pos), np.asarray(mocap_quat)
        mujoco.mj_forward(self._model, data)
        self._renderer.update_scene(data, camera=self._camera)
        return self._renderer.render()

    def close(self) -> None:
        """Closes the renderer. Further calls have no effect."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
