"""Environments of dm_control, and any other `dm_env.Environment`, as environments over TensorDicts.

Environments are stepped by gymnasium's interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import torch

from ...errors import SpaceError
from ...registries import check_name
from ...simulators.dm_control import DmEnvAdapter, make, names, suite
from ...specs import TensorSpec, Unbounded
from ...specs.convert import spec_from_dm
from .gym import GymEnv, GymWrapper
from .gym_backends import AvailableEnvs
from .gym_vector import make_gym_vector, num_rows_of


class DMControlWrapper(GymWrapper):
    """An environment of dm_control, or another `dm_env.Environment`, as an `EnvBase`.

    Each entry of the observation has a key of its own, in its own dtype, which is float64 in dm_control; numbers have
    the shape (1,). An observation that is no dict is under "observation". Missing attributes, such as `physics`, are
    those of the environment.

    Args:
        env: the environment; or one or several in gymnasium's interface (`DmEnvAdapter`).
        from_pixels: add rendered frames under "pixels", uint8 `[H, W, 3]`.
        pixels_only: return the frames instead of the environment's observations, not beside them.
        render_kwargs: arguments of `physics.render`, such as `height` (240 by default) and `width` (320).
        camera_id: the number or the name of the camera, unless `render_kwargs` names one.
        frame_skip: number of steps of the environment per step; their rewards are summed.
        kwargs: see `GymLikeEnv`.

    >>> from dm_control import suite  # doctest: +SKIP
    >>> env = DMControlWrapper(suite.load("cheetah", "run"))  # doctest: +SKIP
    >>> env.rollout(3)["next", "velocity"].shape  # doctest: +SKIP
    torch.Size([3, 9])
    """

    libname = "dm_control"

    def __init__(
        self,
        env: Any = None,
        *,
        from_pixels: bool = False,
        pixels_only: bool = False,
        render_kwargs: Mapping[str, Any] | None = None,
        camera_id: int | str = 0,
        **kwargs: Any,
    ):
        if not isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
            check_dm_env(env)
            env = DmEnvAdapter(
                env,
                render_mode="rgb_array" if from_pixels else None,
                render_kwargs={"camera_id": camera_id, **(render_kwargs or {})},
                scalars_as_vectors=True,
            )
        super().__init__(env, from_pixels=from_pixels, pixels_only=pixels_only, **kwargs)

    def _reward_spec(self, device: torch.device) -> TensorSpec:
        if self._vector is not None:
            return Unbounded((1,), device, torch.float64)
        spec = spec_from_dm(self._lookup_attribute("reward_spec")(), device=device)
        return spec.unsqueeze(0) if spec.shape == () else spec

    @property
    def lib(self) -> Any:
        """The module `dm_control`."""
        import dm_control

        return dm_control

    def get_library_name(self, env: object = None) -> str:
        """Returns "dm_control"."""
        return "dm_control"


def tasks_by_domain() -> list[tuple[str, list[str]]]:
    """Returns the domains of the suite, each with the names of its tasks."""
    return [(domain, list(tasks)) for domain, tasks in suite().TASKS_BY_DOMAIN.items()]


class DMControlEnv(DMControlWrapper):
    """A task of dm_control's suite, or several, made by its names; see `DMControlWrapper`.

    Args:
        env_name: the name of the domain, such as "cheetah".
        task_name: the name of the task, such as "run".
        num_envs, num_workers: see `GymEnv`.
        kwargs: arguments of `DMControlWrapper`; `environment_kwargs`, `task_kwargs` and `visualize_reward` of
            `suite.load`. All others are added to `task_kwargs`.

    Attributes:
        available_envs: class attribute, pairs of a domain and the list of its tasks.

    Raises:
        VersionError: if dm_control is not installed.
        SpaceError: if there is no such task.

    >>> DMControlEnv("humanoid", "walk").reset()["head_height"].shape  # doctest: +SKIP
    torch.Size([1])
    """

    available_envs: Any = AvailableEnvs(tasks_by_domain)

    def __init__(
        self,
        env_name: str,
        task_name: str,
        *,
        from_pixels: bool = False,
        pixels_only: bool = False,
        render_kwargs: Mapping[str, Any] | None = None,
        camera_id: int | str = 0,
        frame_skip: int | None = None,
        num_envs: int | None = None,
        num_workers: int | None = None,
        **kwargs: Any,
    ):
        check_name("a task of dm_control", f"{env_name}-{task_name}", names(), SpaceError)
        self.env_name, self.task_name = env_name, task_name
        wrapper_kwargs = {name: kwargs.pop(name) for name in GymEnv._WRAPPER_ARGUMENTS if name in kwargs}
        pixel_options: dict[str, Any] = {
            "from_pixels": from_pixels,
            "pixels_only": pixels_only,
            "frame_skip": frame_skip,
        }
        kwargs.update(
            render_mode="rgb_array" if from_pixels else None,
            render_kwargs={"camera_id": camera_id, **(render_kwargs or {})},
            scalars_as_vectors=True,
        )
        num_rows = num_rows_of(num_envs, num_workers)
        if num_rows is None:
            env: Any = make(env_name, task_name, **kwargs)
        else:
            make_env = partial(make, env_name, task_name, **pixel_options, **kwargs)
            env, pixel_options = make_gym_vector(make_env, num_rows, None, num_workers or None), {}
        super().__init__(env, **pixel_options, **wrapper_kwargs)
        self.from_pixels, self.pixels_only = from_pixels, pixels_only

    @classmethod
    def from_name(cls, name: str, **kwargs: Any) -> DMControlEnv:
        """Makes a task by its registered name, "DOMAIN-TASK"."""
        domain, _, task = name.partition("-")
        return cls(domain, task, **kwargs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(env={self.env_name}, task={self.task_name}, batch_size={tuple(self.batch_size)}, "
            f"device={self.device})"
        )


def check_dm_env(env: object) -> None:
    """Raises a `TypeError` unless this is a `dm_env.Environment`."""
    methods = ("reset", "step", "observation_spec", "action_spec", "reward_spec")
    if isinstance(env, type) or not all(callable(getattr(env, name, None)) for name in methods):
        raise TypeError(f"Expected an environment of dm_control or dm_env, got {env!r:.80}. DMControlEnv makes one.")
