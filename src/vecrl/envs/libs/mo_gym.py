"""Environments of mo-gymnasium, with vector rewards of one number per objective."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from ...simulators.gym_factory import RewardInInfo
from ...simulators.gymnasium_plugins import PLUGINS, names
from ...specs import TensorSpec, Unbounded
from ...specs.convert.dtypes import torch_dtype
from ..gym_like import StepOutput
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

    def _step_env(self, action: object) -> StepOutput:
        output = super()._step_env(action)
        if self._vector is None or RewardInInfo.KEY not in output[5]:
            return output
        return output[0], output[5][RewardInInfo.KEY], *output[2:]

    def read_reward(self, reward: object) -> torch.Tensor:
        """Converts reward vectors to a tensor of `reward_spec`."""
        return self.reward_spec.encode(np.asarray(reward))


class MOGymEnv(GymEnv, MOGymWrapper):
    """A mo-gymnasium environment, or several, made by name; see `GymEnv` and `MOGymWrapper`.

    Raises:
        VersionError: if mo-gymnasium is not installed.
    """

    available_envs: Any = AvailableEnvs(partial(names, "mo"))

    @classmethod
    def _library(cls) -> str:
        return PLUGINS["mo"].load().__name__
