"""RoboHive's environments behind gymnasium's interface: seeds, frames of cameras, render modes.

Worker processes import this module, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from ..engine.simulator import ResetOptions
from ..engine.space_layout import Tree
from ..gym_interface import Env, EnvReset, EnvStep
from .gymnasium.make import make

_CAMERA = 7  # mujoco.mjtObj.mjOBJ_CAMERA


def make_robohive(
    name: str,
    library: str,
    *,
    from_pixels: bool = False,
    cameras: Sequence[str] | None = None,
    height: int = 224,
    width: int = 224,
    **kwargs: Any,
) -> Env:
    """Makes an environment of RoboHive.

    Args:
        name: the id with which RoboHive registers it.
        library: "gymnasium" or "gym".
        from_pixels: render frames.
        cameras: the names of the cameras of observed frames, in their order; None for all that the model has.
        height, width: the size of frames, in pixels.
        kwargs: further arguments of the environment.

    Raises:
        ValueError: the model has no camera of such a name; the message lists its cameras.
    """
    return RoboHiveAdapter(make(name, library, **kwargs), from_pixels, cameras, height, width)


class RoboHiveAdapter(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Seeds the generator of an environment of RoboHive at a reset, and renders frames without a window.

    Args:
        env: the environment.
        from_pixels, cameras, height, width: see `make_robohive`.

    Attributes:
        cameras: the names of the cameras of `read_frames`.
    """

    def __init__(self, env: Env, from_pixels: bool, cameras: Sequence[str] | None, height: int, width: int):
        super().__init__(env)
        self._base: Any = env.unwrapped
        self._size = {"height": height, "width": width}
        self._mode = "rgb_array" if from_pixels else None
        self.metadata = {**env.metadata, "render_modes": ["rgb_array"], "render_fps": round(1 / self._base.dt)}
        model = self._base.sim.model
        known = [model.id2name(number, _CAMERA) for number in range(model.ncam)]
        unknown = [camera for camera in cameras or () if camera not in known]
        if unknown:
            raise ValueError(f"Expected cameras of {known}, got {unknown}. Omit `cameras` for all.")
        self.cameras = tuple(known if cameras is None else cameras)

    @property
    def render_mode(self) -> str | None:
        """ "rgb_array" or None."""
        return self._mode

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Starts an episode. After a seed, it and all later episodes depend on that seed only."""
        if seed is not None:
            self._base.seed(seed)  # the generator of goals, which RoboHive's `reset` does not seed
            self._base.robot.np_random = self._base.np_random
        return self.env.reset(options=None if options is None else dict(options))

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment. The info has no "done", which would be the name of a flag in dialect 3."""
        result = self.env.step(action)
        result[4].pop("done", None)
        return result

    def render(self) -> Any:
        """Returns what the free camera sees, uint8 `[height, width, 3]`; None without a render mode."""
        return self._frame(-1) if self._mode else None

    def read_frames(self) -> np.ndarray:
        """Returns what the cameras see, uint8 `[cameras, height, width, 3]`; without cameras, the free camera."""
        return np.stack([self._frame(camera) for camera in self.cameras or (-1,)])

    def _frame(self, camera: str | int) -> np.ndarray:
        return self._base.sim.renderer.render_offscreen(camera_id=camera, **self._size).copy()

    def close(self) -> None:
        """Closes the environment and frees what renders, which fails if Python does so at its end."""
        for sim in {self._base.sim, self._base.sim_obsd}:
            renderer, sim.renderer._renderer = sim.renderer._renderer, None
            if renderer is not None:
                renderer.close()
        self.env.close()
