"""Environments of mo-gymnasium, with vector rewards of one number per objective."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...simulators.gymnasium.libraries import PLUGINS, names
from ...specs import TensorSpec, Unbounded
from ...specs.dtypes import torch_dtype
from .gym import GymEnv, GymWrapper
from .gym_backends import AvailableEnvs


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
        return Unbounded(
            space.shape, device, torch_dtype(space.dtype)
        )  # no bounds, since sums over skipped frames exceed them


class MOGymEnv(GymEnv, MOGymWrapper):
    """A mo-gymnasium environment, or several, made by name; see `GymEnv` and `MOGymWrapper`.

    Raises:
        VersionError: if mo-gymnasium is not installed.
    """

    available_envs: Any = AvailableEnvs(partial(names, "mo"))

    @classmethod
    def _library(cls) -> str:
        return PLUGINS["mo"].load().__name__
