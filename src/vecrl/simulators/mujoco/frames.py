"""Frames of rows by gymnasium's renderer. This module must not know tasks.

Each row that is drawn has a renderer of its own, because gymnasium's camera depends on what it has drawn before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .libraries import mujoco_library


class Frames:
    """Draws rows.

    Args:
        camera: attributes of the camera, as gymnasium's `default_camera_config`.
        options: further arguments of gymnasium's `MujocoRenderer` (`width`, `height`, `camera_id`, `camera_name`,
            `max_geom`, `visual_options`).
    """

    def __init__(self, camera: Mapping[str, Any] | None, options: Mapping[str, Any]):
        self._camera, self._options = None if camera is None else dict(camera), dict(options)
        self._renderers: dict[int, tuple[Any, Any]] = {}  # by the row: the renderer, and what it draws

    def draw(self, row: int, model: Any, data: Any) -> np.ndarray:
        """Returns a frame `[height, width, 3]` uint8 of a row, which has this model and these data."""
        mujoco = mujoco_library()
        if row not in self._renderers:
            self._renderers[row] = self._make(mujoco, model)
        renderer, copy = self._renderers[row]
        mujoco.mj_copyData(copy, model, data)
        return renderer.render("rgb_array")

    def _make(self, mujoco: Any, model: Any) -> tuple[Any, Any]:
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        copy, size = mujoco.MjData(model), self._options
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, size["width"])
        model.vis.global_.offheight = max(model.vis.global_.offheight, size["height"])
        return MujocoRenderer(model, copy, self._camera, **self._options), copy

    def close(self) -> None:
        """Closes the renderers. Further calls have no effect."""
        while self._renderers:
            self._renderers.popitem()[1][0].close()
