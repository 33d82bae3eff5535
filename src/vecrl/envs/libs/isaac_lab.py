"""Isaac Lab over TensorDicts, under TorchRL's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...engine.space_layout import Tree
from ...errors import SpaceError
from ...simulators.isaac import IsaacLabTask, SelfResettingSimulator
from ...specs import Unbounded
from ..gym_like import set_nested
from .simulator_env import SimulatorEnv


class IsaacLabWrapper(SimulatorEnv):
    """The rows of an environment of Isaac Lab, which resets them itself.

    Entries: the environment's observation groups, such as "policy" `[n, k]` float32, "action" `[n, m]`, "reward" `[n,
    1]`, "done", "terminated" and "truncated" `[n, 1]`. "next" observations are NaN in rows that end an episode, since
    the environment does not return final observations.

    Args:
        env: a `ManagerBasedRLEnv` or `DirectRLEnv`, also in wrappers of gymnasium.
        categorical_action_encoding: has no effect, since actions are continuous.
        allow_done_after_reset, convert_actions_to_numpy, device: see `SimulatorEnv`. Actions remain tensors.
        native_autoreset: has no effect, since rows that reset themselves are always read as such.
        from_tiled_camera: add what a tiled camera of the scene sees.
        tiled_camera_name, tiled_camera_data_type: the camera's name in the scene, and which of its outputs is read.
        pixels_key, pixels_dtype, pixels_channels: the entry of the frames `[n, height, width, channels]`, its dtype
            (None for the camera's), and how many channels are kept (None for all). In rows that end an episode, "next"
            has the first frame of the next one.
        kwargs: see `SimulatorEnv`.
    """

    libname = "isaaclab"

    def __init__(
        self,
        env: Any,
        *,
        categorical_action_encoding: bool = False,
        allow_done_after_reset: bool = True,
        convert_actions_to_numpy: bool = False,
        device: Any = None,
        native_autoreset: bool = False,
        from_tiled_camera: bool = False,
        tiled_camera_name: str = "tiled_camera",
        tiled_camera_data_type: str = "rgb",
        pixels_key: str | Sequence[str] = "pixels",
        pixels_dtype: torch.dtype | None = torch.uint8,
        pixels_channels: int | None = 3,
        **kwargs: Any,
    ):
        if not hasattr(getattr(env, "unwrapped", None), "single_action_space"):
            raise TypeError(f"Expected an environment of Isaac Lab, got {env!r:.80}.")
        self.native_autoreset = native_autoreset
        self._camera = (tiled_camera_name, tiled_camera_data_type) if from_tiled_camera else None
        self._pixels_key = pixels_key if isinstance(pixels_key, str) else tuple(pixels_key)
        self._pixels_dtype, self._pixels_channels = pixels_dtype, pixels_channels
        super().__init__(
            SelfResettingSimulator(IsaacLabTask(env)),
            categorical_action_encoding=categorical_action_encoding,
            allow_done_after_reset=allow_done_after_reset,
            convert_actions_to_numpy=convert_actions_to_numpy,
            device=device,
            **kwargs,
        )

    def _make_specs(self, env: Any) -> None:
        super()._make_specs(env)
        if self._camera is not None:
            frames = self._frames()
            observation_spec = self.observation_spec.clone()
            observation_spec[self._pixels_key] = Unbounded(frames.shape, dtype=frames.dtype, device=frames.device)
            self.observation_spec = observation_spec

    def _frames(self) -> Tensor:
        """Returns what the camera sees, `[n, height, width, channels]`."""
        assert self._camera is not None
        name, data_type = self._camera
        task: Any = self._env.task
        scene = task.env.unwrapped.scene
        if name not in scene.keys():  # noqa: SIM118 -- a scene of Isaac Lab is no mapping
            raise SpaceError(f"Expected a camera named {name!r} in the scene, got {', '.join(scene.keys())}.")
        frames = scene[name].data.output[data_type][..., : self._pixels_channels]
        return frames.clone() if self._pixels_dtype is None else frames.to(self._pixels_dtype, copy=True)

    def read_obs(self, observations: Tree) -> dict[str, Any]:
        """Converts observations of all rows to a nested dict of tensors."""
        entries = super().read_obs(observations)
        if self._camera is not None:
            set_nested(entries, self._pixels_key, self._frames())
        return entries

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        return None if self._camera is not None else super()._rollout_at_once(steps, actions, break_when_any_done)
