"""TorchRL's classes for libraries of single environments: dm_control, Habitat, RoboHive, mo-gymnasium, and others.

A library is imported when an environment is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import gymnasium
import torch

from ...errors import SpaceError
from ...registries import check_name
from ...simulators import dm_control
from ...simulators.gymnasium.libraries import PLUGINS
from ...simulators.procgen import ProcgenVectorEnv
from ...simulators.registry import SEPARATOR, find_own_entry
from ...simulators.safety import CostInInfo
from ...specs import TensorSpec, Unbounded
from ...specs.convert import spec_from_dm
from ...specs.dtypes import torch_dtype
from ..gym_like import default_info_dict_reader
from .gym.backends import AvailableEnvs
from .gym.env import GymEnv, GymWrapper
from .gym.vector import make_gym_vector, num_rows_of


class LibraryGymEnv(GymEnv):
    """Environments of a simulator in the registry, made by their names without its prefix.

    A subclass names the prefix: `class HabitatEnv(LibraryGymEnv, prefix="habitat")`.
    """

    _prefix: ClassVar[str]

    def __init_subclass__(cls, prefix: str | None = None, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if prefix is not None:
            cls._prefix, entry = prefix, find_own_entry(prefix + SEPARATOR)[0]
            cls.available_envs = AvailableEnvs(entry.names)

    def __init__(self, env_name: str, *, python: str | None = None, **kwargs: Any):
        super().__init__(self._prefix + SEPARATOR + env_name, python=python, **kwargs)
        self.env_name = env_name


class HabitatEnv(LibraryGymEnv, prefix="habitat"):
    """An environment of habitat-lab, made by the id with which `habitat.gym` registers it ("HabitatRenderPick-v0").

    Args:
        env_name: the id.
        kwargs: see `GymEnv`; all others are arguments of habitat-lab, such as `override_options`. `python` is another
            interpreter that has Habitat, and `modules` are imported there before, such as ones that register tasks.

    Attributes:
        available_envs: class attribute, the ids; empty if Habitat is not installed.

    Raises:
        VersionError: Habitat is not installed; the message says how to install it.
        ValueError: there is no such id.
    """


class RoboHiveEnv(LibraryGymEnv, prefix="robohive"):
    """An environment of RoboHive, made by the id with which it is registered ("FK1_RelaxFixed-v4").

    With `from_pixels=True`, the entry "pixels" has the frames of several cameras, uint8 `[*batch, cameras, height,
    width, 3]`.

    Args:
        env_name: the id.
        kwargs: see `GymEnv`; `cameras` (names; all of the model by default), `height` and `width` (224 by default) of
            frames; all others are arguments of the environment. `python` is another interpreter that has RoboHive.

    Attributes:
        available_envs: class attribute, the ids; empty if RoboHive is not installed.

    Raises:
        VersionError: RoboHive is not installed; the message says how to install it.
        ValueError: there is no such id, or no such camera.
    """

    @classmethod
    def get_available_cams(cls, env_name: str) -> list[str]:
        """Returns the names of the cameras of an environment."""
        with closing(cls(env_name)) as env:
            return list(env.cameras)


class MOGymWrapper(GymWrapper):
    """A mo-gymnasium environment, or a vector environment, with rewards of shape (k,), one number per objective.

    Args:
        env: an environment from `mo_gymnasium.make`, or a `mo_gymnasium.wrappers.vector.MOSyncVectorEnv`.
        categorical_action_encoding, kwargs: see `GymWrapper`.
    """

    libname = "mo-gymnasium"
    _vector_reward = True

    def _reward_spec(self, device: torch.device) -> TensorSpec:
        space = self._lookup_attribute("reward_space")
        space = space[0] if isinstance(space, list) else space
        # no bounds, since sums over skipped frames exceed them
        return Unbounded(space.shape, device, torch_dtype(space.dtype))


class MOGymEnv(GymEnv, MOGymWrapper):
    """A mo-gymnasium environment, or several, made by name; see `GymEnv` and `MOGymWrapper`.

    Raises:
        VersionError: if mo-gymnasium is not installed.
    """

    available_envs: Any = AvailableEnvs(find_own_entry("mo::")[0].names)

    @classmethod
    def _library(cls) -> str:
        return PLUGINS["mo"].load().__name__


class SafetyGymnasiumWrapper(GymWrapper):
    """An environment of Safety-Gymnasium, or a vector of them, with the entry "cost" `[*batch, 1]` float32.

    The cost of a reset is 0.

    Args:
        env: an environment that returns the cost as the third of six values or in its info, such as one of
            `vecrl.simulators.safety.env_fn`; or a vector environment with "cost" in its infos.
        categorical_action_encoding, kwargs: see `GymWrapper`.
    """

    libname = "safety_gymnasium"
    git_url = "https://github.com/PKU-Alignment/safety-gymnasium"
    available_envs: Any = AvailableEnvs(find_own_entry("safety::")[0].names)

    def __init__(self, env: Any = None, categorical_action_encoding: bool = False, **kwargs: Any):
        env = CostInInfo(env) if isinstance(env, gymnasium.Env) else env
        super().__init__(env, categorical_action_encoding, **kwargs)
        self.set_info_dict_reader(default_info_dict_reader(["cost"], [Unbounded((1,), self.device)]))


class SafetyGymnasiumEnv(LibraryGymEnv, SafetyGymnasiumWrapper, prefix="safety"):
    """An environment of Safety-Gymnasium, or several, made by name on Python 3.10; see `SafetyGymnasiumWrapper`.

    Args:
        env_name: one of `available_envs`, such as "SafetyPointGoal1-v0".
        python: the interpreter with Safety-Gymnasium; by default the one that VECRL_PYTHON_SAFETY names.
        kwargs: see `GymEnv`; all others are arguments of `safety_gymnasium.make`.

    Attributes:
        available_envs: class attribute, the names of the environments; empty if no interpreter is named.

    Raises:
        VersionError: no interpreter is named; the message says how to make one.

    >>> SafetyGymnasiumEnv("SafetyPointGoal1-v0").rollout(3)["next", "cost"].shape  # doctest: +SKIP
    torch.Size([3, 1])
    """


class ProcgenWrapper(GymWrapper):
    """The games of a `procgen.ProcgenEnv`: n rows, which Procgen steps in one call, with the batch size (n,).

    Entries: "observation" `[*batch, 3, 64, 64]` uint8, "action" `[*batch]` int64 from 0 to 14, "reward", "done",
    "terminated" and "truncated" `[*batch, 1]`. Procgen begins the next episode in the step that ends one, so "next" of
    that step has the first observation of the next episode. Only all rows can be reset at once. Procgen takes seeds
    when it makes games: `ProcgenEnv` can be seeded, this one cannot.

    Args:
        env: a `procgen.ProcgenEnv` or a `procgen.ProcgenGym3Env`.
        categorical_action_encoding: encode actions as indices, otherwise as one-hot rows.
        kwargs: see `GymWrapper`.

    Raises:
        TypeError: `env` is none of these.

    >>> from procgen import ProcgenEnv as Games  # doctest: +SKIP
    >>> ProcgenWrapper(Games(num_envs=4, env_name="coinrun")).rollout(3)["next", "observation"].shape  # doctest: +SKIP
    torch.Size([4, 3, 3, 64, 64])
    """

    libname = "procgen"
    git_url = "https://github.com/openai/procgen"
    available_envs: Any = AvailableEnvs(find_own_entry("procgen::")[0].names)

    def __init__(self, env: Any = None, categorical_action_encoding: bool = True, **kwargs: Any):
        is_gymnasium = isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv)
        env = env if is_gymnasium else ProcgenVectorEnv(env)
        super().__init__(env, categorical_action_encoding, **kwargs)
        self._resets_when_seeded = is_gymnasium  # Procgen's own environment takes no seeds

    def _set_seed(self, seed: int | None) -> None:
        if isinstance(self._env, ProcgenVectorEnv):
            text = "Procgen takes seeds only when it makes games. Use ProcgenEnv, or procgen.ProcgenEnv(rand_seed=…)."
            warnings.warn(f"The seed has no effect: {text}", stacklevel=4)
        else:
            super()._set_seed(seed)


class ProcgenEnv(LibraryGymEnv, ProcgenWrapper, prefix="procgen"):
    """Games of Procgen, made by name, each with its own seed; see `ProcgenWrapper` for the entries.

    Any rows can be reset, and `num_workers` distributes them to worker processes.

    Args:
        env_name: one of `available_envs`, such as "coinrun".
        num_envs: the number of games; None for one game without batch dimensions.
        categorical_action_encoding: encode actions as indices, otherwise as one-hot rows.
        seed: as for `set_seed`; None for random levels.
        kwargs: see `GymEnv`; all others are Procgen's (`distribution_mode`, `num_levels`, `start_level`, …).

    Attributes:
        available_envs: class attribute, the names of the games; empty if Procgen is not installed.

    Raises:
        VersionError: Procgen is not installed.
        SpaceError: there is no such game.

    >>> ProcgenEnv("coinrun", num_envs=2).rollout(3)["next", "observation"].shape  # doctest: +SKIP
    torch.Size([2, 3, 3, 64, 64])
    """

    def __init__(
        self,
        env_name: str,
        *,
        num_envs: int | None = 1,
        categorical_action_encoding: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ):
        options = {"num_envs": num_envs, "channels_first": True, **kwargs}
        super().__init__(env_name, categorical_action_encoding=categorical_action_encoding, **options)
        if seed is not None:
            self._seed_next_reset(seed)

    @classmethod
    def from_name(cls, name: str, num_envs: int | None = None, **kwargs: Any) -> ProcgenEnv:
        """Makes games by their registered name; one without batch dimensions if `num_envs` is None."""
        return cls(name, num_envs=num_envs, **kwargs)


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
            env = dm_control.DmEnvAdapter(
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
        return import_module("dm_control")

    def get_library_name(self, env: object = None) -> str:
        """Returns "dm_control"."""
        return "dm_control"


def tasks_by_domain() -> list[tuple[str, list[str]]]:
    """Returns the domains of the suite, each with the names of its tasks."""
    return [(domain, list(tasks)) for domain, tasks in dm_control.suite().TASKS_BY_DOMAIN.items()]


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
        check_name("a task of dm_control", f"{env_name}-{task_name}", dm_control.names(), SpaceError)
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
            env: Any = dm_control.make(env_name, task_name, **kwargs)
        else:
            make_env = partial(dm_control.make, env_name, task_name, **pixel_options, **kwargs)
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
