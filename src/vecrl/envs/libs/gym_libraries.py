"""TorchRL's classes for libraries of single environments: Habitat, RoboHive, mo-gymnasium, Safety-Gymnasium, Procgen.

A library is imported when an environment is made.
"""

from __future__ import annotations

import warnings
from contextlib import closing
from typing import Any, ClassVar

import gymnasium
import torch

from ...simulators.gymnasium.libraries import PLUGINS
from ...simulators.procgen import ProcgenVectorEnv
from ...simulators.registry import SEPARATOR, find_own_entry
from ...simulators.safety import CostInInfo
from ...specs import TensorSpec, Unbounded
from ...specs.dtypes import torch_dtype
from ..gym_like import default_info_dict_reader
from .gym import GymEnv, GymWrapper
from .gym_backends import AvailableEnvs


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
