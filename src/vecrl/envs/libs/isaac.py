"""Isaac Gym and Isaac Lab over TensorDicts, under TorchRL's names. They are imported when a task is made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.space_layout import Tree
from ...errors import SpaceError
from ...simulators.isaac import IsaacGymSimulator, IsaacLabSimulator, make_task, names
from ...specs import Unbounded
from ..gym_like import set_nested
from .gym.backends import AvailableEnvs
from .simulator_env import SimulatorEnv


class IsaacGymWrapper(SimulatorEnv):
    """The rows of a task of Isaac Gym, which resets them itself.

    Entries: "obs" `[n, k]` float32, "states" if the task has them, "action" `[n, m]`, "reward" `[n, 1]`, "done",
    "terminated" and "truncated" `[n, 1]`. "next" observations are NaN (0 in integers, False in bools) in rows that end
    an episode, since the task does not return final observations.

    Args:
        env: a `isaacgymenvs.tasks.base.vec_task.VecTask`.
        kwargs: see `SimulatorEnv`.
    """

    libname = "isaacgymenvs"

    def __init__(self, env: Any, **kwargs: Any):
        super().__init__(IsaacGymSimulator(env), **kwargs)


class IsaacGymEnv(IsaacGymWrapper):
    """A task of Isaac Gym, made by name; see `IsaacGymWrapper`.

    Args:
        task: the name ("Ant").
        env: another name of this argument.
        num_envs: number of rows.
        device: of the physics and of all tensors.
        kwargs: arguments of `isaacgymenvs.make`.

    Attributes:
        available_envs: class attribute, the names of the tasks; empty if Isaac Gym is not installed.

    Raises:
        TypeError: not exactly one of `task` and `env` is given.
        VersionError: Isaac Gym is not installed; the message says how to install it.
    """

    available_envs: Any = AvailableEnvs(partial(names, library="isaacgym"))

    def __init__(self, task: str | None = None, *, env: str | None = None, num_envs: int, device: Any, **kwargs: Any):
        if (task is None) == (env is None):
            raise TypeError(f"Expected task or env, the name of a task, got task={task!r} and env={env!r}.")
        vec_task = make_task(str(task or env), num_envs, library="isaacgym", device=device, **kwargs)
        super().__init__(vec_task, device=device)


class IsaacLabWrapper(SimulatorEnv):
    """The rows of an environment of Isaac Lab, which resets them itself.

    Entries: the environment's observation groups, such as "policy" `[n, k]` float32, "action" `[n, m]`, "reward" `[n,
    1]`, "done", "terminated" and "truncated" `[n, 1]`. "next" observations are NaN (0 in integers, False in bools)
    in rows that end an episode, since the environment does not return final observations.

    Args:
        env: a `ManagerBasedRLEnv` or `DirectRLEnv`, also in wrappers of gymnasium.
        categorical_action_encoding: encode discrete actions as indices, not as one-hot rows.
        allow_done_after_reset, convert_actions_to_numpy, device: see `SimulatorEnv`. Actions remain tensors.
        native_autoreset: has no effect, since rows that reset themselves are always read as such.
        from_tiled_camera: add what a tiled camera of the scene sees.
        tiled_camera_name, tiled_camera_data_type: the camera's name in the scene, and which of its outputs is read.
        pixels_key, pixels_dtype, pixels_channels: the entry of the frames `[n, height, width, channels]`, its dtype
            (None for the camera's), and how many channels are kept (None for all). Colors from 0 to 1 are scaled to 0
            to 255 for uint8. In rows that end an episode, "next" has the first frame of the next one.
        kwargs: see `SimulatorEnv`.

    Raises:
        TypeError: `env` is no environment of Isaac Lab.
        SpaceError: the scene has no such camera, or uint8 cannot hold its frames.
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
            IsaacLabSimulator(env),
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
        scene = self._unwrapped.scene
        if name not in scene.keys():  # noqa: SIM118 -- a scene of Isaac Lab is no mapping
            raise SpaceError(f"Expected a camera named {name!r} in the scene, got {', '.join(scene.keys())}.")
        frames = scene[name].data.output[data_type][..., : self._pixels_channels]
        if self._pixels_dtype is not torch.uint8 or not frames.is_floating_point():
            return frames.clone() if self._pixels_dtype is None else frames.to(self._pixels_dtype, copy=True)
        if not data_type.startswith("rgb"):
            raise SpaceError(
                f"Expected pixels_dtype=None or a float dtype for {data_type!r}, got torch.uint8, which cannot hold "
                f"{frames.dtype}. Change pixels_dtype."
            )
        return (frames.clamp(0, 1) * 255).round().to(torch.uint8)

    # -- states

    def get_state(self) -> Any:
        """Returns the state of the scene of all rows, as `isaaclab.scene.InteractiveScene.get_state` does.

        It has the poses and velocities of articulations, deformable and rigid objects, and no step counts, commands or
        random numbers. So it is for `reset_to_state`, and not for `set_state` or checkpoints.
        """
        return self._unwrapped.scene.get_state()

    # A state of an object that contains this environment is refused, and does not contain the scene's
    get_state.is_generic_get_state = True  # pyright: ignore[reportFunctionMemberAccess]

    def reset_to_state(
        self,
        state: dict[str, dict[str, dict[str, Tensor]]],
        tensordict: TensorDictBase | None = None,
        *,
        is_relative: bool = False,
        seed: int | None = None,
    ) -> TensorDictBase:
        """Starts episodes in a state of the scene.

        Args:
            state: the state of all rows, see `get_state`.
            tensordict: may have the mask "_reset" `[n, 1]` of the rows; all rows by default.
            is_relative: positions are relative to the origins of the rows.
            seed: a seed of the generator of all rows.

        Returns:
            What `reset` returns.

        Raises:
            StateError: the environment has no `reset_to`, as a `DirectRLEnv`.
        """
        if tensordict is None or "_reset" not in tensordict:
            ones = torch.ones(*self.batch_size, 1, dtype=torch.bool, device=self._env.device)
            tensordict = TensorDict({"_reset": ones}, self.batch_size, device=self.device)
        simulator: Any = self._env
        simulator.reset_to(self._row_mask(tensordict.get("_reset")), state, is_relative, seed)
        self._was_reset = True
        return self.reset(tensordict)

    @property
    def _unwrapped(self) -> Any:
        simulator: Any = self._env
        return simulator.env.unwrapped

    @staticmethod
    def add_tiled_camera_config(
        env_cfg: Any,
        *,
        sensor_name: str = "tiled_camera",
        data_type: str = "rgb",
        width: int = 320,
        height: int = 240,
        pos: tuple[float, float, float] = (-7.0, 0.0, 3.0),
        rot: tuple[float, float, float, float] = (0.9945, 0.0, 0.1045, 0.0),
        convention: Literal["opengl", "ros", "world"] = "world",
        focal_length: float = 24.0,
        focus_distance: float = 400.0,
        horizontal_aperture: float = 20.955,
        clipping_range: tuple[float, float] = (0.1, 100.0),
        render_interval: int | None = None,
    ) -> Any:
        """Adds a tiled camera to the scene of a configuration, before the environment is made, and returns it.

        Args:
            env_cfg: the configuration, which is changed.
            sensor_name: the name of the camera in the scene.
            data_type: what it sees: "rgb", "depth", …
            width, height: the size of its frames, in pixels.
            pos, rot, convention: its place relative to the origin of a row (meters; quaternion w, x, y, z), and the
                convention of its axes.
            focal_length, focus_distance, horizontal_aperture, clipping_range: of its lens, as in
                `isaaclab.sim.PinholeCameraCfg`.
            render_interval: steps of the physics from frame to frame; None to keep the configuration's.
        """
        sensors, sim = (import_module(f"isaaclab.{name}") for name in ("sensors", "sim"))
        lens = sim.PinholeCameraCfg(
            focal_length=focal_length,
            focus_distance=focus_distance,
            horizontal_aperture=horizontal_aperture,
            clipping_range=clipping_range,
        )
        camera = sensors.TiledCameraCfg(
            prim_path=f"{{ENV_REGEX_NS}}/{sensor_name}",
            offset=sensors.TiledCameraCfg.OffsetCfg(pos=pos, rot=rot, convention=convention),
            data_types=[data_type],
            spawn=lens,
            width=width,
            height=height,
        )
        setattr(env_cfg.scene, sensor_name, camera)
        if render_interval is not None:
            env_cfg.sim.render_interval = render_interval
        return env_cfg

    def read_obs(self, observations: Tree) -> dict[str, Any]:
        """Converts observations of all rows to a nested dict of tensors."""
        entries = super().read_obs(observations)
        if self._camera is not None:
            set_nested(entries, self._pixels_key, self._frames())
        return entries

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        return None if self._camera is not None else super()._rollout_at_once(steps, actions, break_when_any_done)
