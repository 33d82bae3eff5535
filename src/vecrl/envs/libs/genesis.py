"""Scenes of Genesis over TensorDicts, under TorchRL's names. `vecrl.simulators.genesis` has tasks for all dialects."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...imports import import_library
from ...simulators.genesis import INSTALL_HINT, genesis_library
from ...specs import Categorical, Composite, Unbounded
from ...specs.shape_ops import concrete_size
from ...validation import parse_count, parse_device
from ..check_specs import wrong_action
from ..entries.keys import FLAGS
from ..env_specs import Device
from ..library_env import LibraryEnv
from .gym.backends import AvailableEnvs


class GenesisWrapper(LibraryEnv):
    """A built scene of Genesis as an `EnvBase`, with the batch size () or `(scene.n_envs,)`.

    A subclass overrides the methods `_make_obs`, `_apply_action`, `_compute_reward` and `_compute_done` for a task. It
    may set attributes for them before it calls `__init__`. Without them, observations are positions and velocities of
    all joints, actions are target positions of the first entity with joints, and rewards are 0. Episodes are truncated,
    never terminated. A reset may select rows.

    Args:
        scene: the scene.
        max_steps: steps until an episode is truncated.
        frame_skip: steps of the scene per step; rewards are summed.
        from_pixels: add frames `[*batch, H, W, 3]` uint8 of the scene's first camera.
        pixels_key: the key of the frames.
        device: the device of Genesis and of all tensors; None for the one that Genesis uses.
        batch_size: None for that of the scene.
        allow_done_after_reset: whether rows may be done after a reset.

    Raises:
        VersionError: Genesis is not installed.
        ValueError: Genesis was initialized for another device.
        TypeError: this is no scene.
        SpaceError: (a `ValueError`) the scene is not built, has another number of rows than `batch_size`, has no joints
            and no `_apply_action`, or has no camera that returns a frame for each row.

    >>> import genesis as gs  # doctest: +SKIP
    >>> gs.init(backend=gs.cpu)  # doctest: +SKIP
    >>> scene = gs.Scene(show_viewer=False)  # doctest: +SKIP
    >>> robot = scene.add_entity(gs.morphs.MJCF(file="xml/franka_emika_panda/panda.xml"))  # doctest: +SKIP
    >>> scene.build(n_envs=2)  # doctest: +SKIP
    >>> GenesisWrapper(scene).rollout(3).shape  # doctest: +SKIP
    torch.Size([2, 3])
    """

    libname = "genesis"
    git_url = "https://github.com/Genesis-Embodied-AI/Genesis"
    available_envs: Any = AvailableEnvs(lambda: dict.fromkeys(_BOXES))
    _obs_keys: Collection[str] | None = None  # after the first observations

    def __init__(
        self,
        scene: Any = None,
        max_steps: int = 1000,
        frame_skip: int = 1,
        from_pixels: bool = False,
        pixels_key: str = "pixels",
        device: Device = None,
        batch_size: Sequence[int] | int | None = None,
        allow_done_after_reset: bool = False,
    ):
        if not (hasattr(scene, "is_built") and hasattr(scene, "entities")):
            raise TypeError(f"Expected a genesis.Scene, got {scene!r:.80}.")
        if not scene.is_built:
            raise SpaceError("Expected a scene that is built, got another one. Call scene.build().")
        shape = torch.Size([scene.n_envs] if scene.n_envs else [])
        if batch_size is not None and (size := concrete_size("batch_size", batch_size)) != shape:
            raise SpaceError(f"Expected the batch size {tuple(shape)} of the scene, got {tuple(size)}.")
        used_device = import_library("genesis", INSTALL_HINT).device if device is None else parse_device(device)
        self._lib = genesis_library(used_device)
        super().__init__(device=used_device, batch_size=shape, allow_done_after_reset=allow_done_after_reset)
        self._env = self._scene = scene
        self._max_steps = parse_count("max_steps", max_steps)
        self.frame_skip = parse_count("frame_skip", frame_skip)
        self.from_pixels, self.pixels_key = from_pixels, pixels_key
        self._current_step = torch.zeros(shape, dtype=torch.int64, device=used_device)
        self._make_specs()

    def _make_specs(self) -> None:
        shape, device = self.batch_size, self.device
        self._scene.reset()
        entries = self._read_obs()
        if taken := sorted(_RESERVED & entries.keys()):
            raise SpaceError(f"Expected other keys of observations than {taken}, which are those of other entries.")
        self._obs_keys = entries.keys()
        self.observation_spec = Composite(
            {key: Unbounded(value.shape, device, value.dtype) for key, value in entries.items()}, shape=shape
        )
        actuated = self._actuated
        if not actuated and type(self)._apply_action is GenesisWrapper._apply_action:
            raise SpaceError("Expected a scene with joints, got none. Override _apply_action, and set action_spec.")
        self.action_spec = Unbounded((*shape, actuated[0].n_dofs if actuated else 0), device)
        self.reward_spec = Unbounded((*shape, 1), device)
        flag = Categorical(2, (*shape, 1), dtype=torch.bool, device=device)
        self.full_done_spec = Composite({name: flag.clone() for name in FLAGS}, shape=shape)

    @property
    def _actuated(self) -> list[Any]:
        """The entities with joints."""
        return [entity for entity in self._scene.entities if getattr(entity, "n_dofs", 0)]

    # -- methods that a subclass may override

    def _make_obs(self) -> Mapping[str, Tensor] | Tensor:
        """Returns tensors `[*batch, ...]` by key, or one tensor, which is stored under "observation"."""
        obs: dict[str, Tensor] = {}
        for entity in self._actuated:
            obs[f"{entity.name}_qpos"] = entity.get_dofs_position()
            obs[f"{entity.name}_qvel"] = entity.get_dofs_velocity()
        return obs

    def _apply_action(self, action: Tensor) -> None:
        """Gives an action `[*batch, ...]` to the scene, before it is stepped."""
        self._actuated[0].control_dofs_position(action)

    def _compute_reward(self, action: Tensor) -> Tensor | float | None:
        """Returns the reward `[*batch]` of a step of the scene, or a number for all rows; None is 0."""
        return None

    def _compute_done(self) -> Tensor | bool:
        """Returns whether episodes are truncated, `[*batch]` or a bool for all rows.

        `_current_step` `[*batch]` has the number of steps of each episode, `_max_steps` the limit.
        """
        return self._current_step >= self._max_steps

    # -- steps

    def _read_obs(self) -> dict[str, Tensor]:
        obs = self._make_obs()
        entries = dict(obs) if isinstance(obs, Mapping) else {"observation": obs}
        if self.from_pixels:
            entries[self.pixels_key] = self._render_pixels()
        keys = self._obs_keys
        if keys is not None and entries.keys() != keys:
            raise SpaceError(f"Expected the keys {[*keys]} of observations, as in the first reset, got {[*entries]}.")
        for key, value in entries.items():
            if not isinstance(value, Tensor) or value.shape[: self.batch_dims] != self.batch_size:
                got = tuple(value.shape) if isinstance(value, Tensor) else repr(value)[:80]
                rows = ", ".join([*map(str, self.batch_size), "..."])
                raise SpaceError(f"Expected _make_obs to return tensors of shape ({rows}), got {got} at {key!r}.")
        return {key: value.to(self.device, copy=True) for key, value in entries.items()}

    def _render_pixels(self) -> Tensor:
        cameras = self._scene.visualizer.cameras
        if not cameras:
            raise SpaceError("Expected a scene with a camera, got none. Call scene.add_camera before scene.build.")
        frames = np.asarray(cameras[0].render(force_render=True)[0])
        if frames.shape[:-3] != tuple(self.batch_size):
            raise SpaceError(
                f"Expected a frame of each of {tuple(self.batch_size)} rows, got the shape {frames.shape}. Use a scene "
                "of one row, or a renderer for batches."
            )
        return torch.from_numpy(frames.copy())

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDictBase:  # pyright: ignore[reportIncompatibleMethodOverride]
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or not self.batch_size or bool(mask.all()):
            self._scene.reset()
            self._current_step = torch.zeros_like(self._current_step)
        else:
            rows = mask.reshape(self.batch_size)
            self._scene.reset(envs_idx=rows.nonzero()[:, 0])
            self._current_step = self._current_step.masked_fill(rows, 0)
        return TensorDict(self._read_obs(), self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action, shape = tensordict.get("action"), (*self.batch_size, 1)
        if action.shape != self.action_spec.shape:
            raise wrong_action("action", action, self.action_spec.shape)
        reward = torch.zeros(shape, device=self.device)
        for _ in range(self.frame_skip):
            self._apply_action(action)
            self._scene.step()
            part = self._compute_reward(action)
            reward += 0.0 if part is None else self._as_rows(part, torch.float32)
        self._current_step = self._current_step + 1
        truncated = self._as_rows(self._compute_done(), torch.bool)
        flags = {"done": truncated.clone(), "terminated": torch.zeros_like(truncated), "truncated": truncated}
        return TensorDict({**self._read_obs(), "reward": reward, **flags}, self.batch_size, device=self.device)

    def _as_rows(self, value: Any, dtype: torch.dtype) -> Tensor:
        """Returns a tensor `[*batch, 1]` of a value for each row, or of one for all."""
        tensor = torch.as_tensor(value, dtype=dtype, device=self.device)
        shape = (*self.batch_size, 1)
        if tensor.numel() == 1:
            return tensor.reshape(()).expand(shape).clone()
        if tensor.shape not in (self.batch_size, torch.Size(shape)):
            raise SpaceError(f"Expected a value for each of {tuple(self.batch_size)} rows, got {tuple(tensor.shape)}.")
        return tensor.reshape(shape)

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        done = tensordict.get("done", None)
        if done is None or not bool((mask.reshape(done.shape) | done).all()):
            raise SpaceError(
                "Expected a '_step' mask that excludes only rows that are done, since a scene steps all rows. Put "
                "scenes of one row into a ParallelEnv to step some of them."
            )
        return super()._step_masked(tensordict, mask)

    def _set_seed(self, seed: int | None) -> None:
        """Does nothing: the steps of a scene have no random numbers."""

    @property
    def lib(self) -> Any:
        """The module `genesis`."""
        return self._lib

    def render(self, *args: object, **kwargs: object) -> np.ndarray:
        """Returns a frame `[*batch, H, W, 3]` uint8 of the first camera."""
        return self._render_pixels().numpy()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)}, device={self.device})"


_RESERVED = frozenset(("action", "next", "reward", "_reset", "_step", *FLAGS))
_BOXES = {"franka_reach": None, "franka_grab": (0.5, 0.0, 0.05)}
"""The environments of `GenesisEnv`, and the position of the box beside the robot, if there is one."""


class GenesisEnv(GenesisWrapper):
    """A scene with a Franka arm, made by name; see `GenesisWrapper`. A subclass makes a task of it.

    Entries are "panda_qpos" and "panda_qvel" `[*batch, 9]`, and those of "box" `[*batch, 6]`.

    Args:
        env_name: "franka_reach", or "franka_grab" with a box of 5 cm before the arm.
        task_name: accepted for scripts of TorchRL. It has no effect there either.
        num_workers: None or 1. Use `ParallelEnv` for several processes.
        max_steps, frame_skip, from_pixels, pixels_key, allow_done_after_reset: as in `GenesisWrapper`.
        pixels_res: the height and the width of frames.
        device: the device for which Genesis is initialized; None is torch's default device.
        batch_size: () or the number of rows `(n,)`.
        scene_kwargs: arguments of `genesis.Scene`.

    Attributes:
        available_envs: class attribute, the names.

    >>> GenesisEnv("franka_reach", batch_size=[4]).rollout(2)["action"].shape  # doctest: +SKIP
    torch.Size([4, 2, 9])
    """

    def __init__(
        self,
        env_name: str,
        task_name: str | None = None,
        num_workers: int | None = None,
        max_steps: int = 1000,
        frame_skip: int = 1,
        from_pixels: bool = False,
        pixels_key: str = "pixels",
        pixels_res: tuple[int, int] = (320, 320),
        device: Device = None,
        batch_size: Sequence[int] | int | None = None,
        allow_done_after_reset: bool = False,
        **scene_kwargs: Any,
    ):
        if env_name not in _BOXES:
            raise ValueError(f"Expected env_name to be one of {', '.join(map(repr, _BOXES))}, got {env_name!r:.80}.")
        if num_workers not in (None, 1):
            raise ValueError(
                f"Expected num_workers to be None or 1, got {num_workers!r:.80}. Use ParallelEnv({num_workers}, "
                f"lambda: GenesisEnv({env_name!r}))."
            )
        if "num_envs" in scene_kwargs:
            raise TypeError(f"Expected batch_size=[{scene_kwargs['num_envs']}], got num_envs.")
        shape = torch.Size([]) if batch_size is None else concrete_size("batch_size", batch_size)
        if len(shape) > 1 or 0 in shape:
            raise SpaceError(f"Expected the batch size () or (n,) with n of 1 or more, got {tuple(shape)}.")
        scene_device = torch.get_default_device() if device is None else parse_device(device)
        gs = genesis_library(scene_device)
        scene = gs.Scene(**{"show_viewer": False, **scene_kwargs})
        scene.add_entity(gs.morphs.Plane())
        scene.add_entity(gs.morphs.MJCF(file="xml/franka_emika_panda/panda.xml"), name="panda")
        if (position := _BOXES[env_name]) is not None:
            scene.add_entity(gs.morphs.Box(pos=position, size=(0.05, 0.05, 0.05)), name="box")
        if from_pixels:
            scene.add_camera(res=pixels_res[::-1], pos=(1.6, 1.2, 1.0), lookat=(0.0, 0.0, 0.3))
        scene.build(n_envs=shape.numel() if shape else 0)
        self.env_name, self.task_name = env_name, task_name
        arguments = max_steps, frame_skip, from_pixels, pixels_key, scene_device, shape, allow_done_after_reset
        super().__init__(scene, *arguments)
