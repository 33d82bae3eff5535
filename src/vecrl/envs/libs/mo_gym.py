"""mo-gymnasium: environments whose rewards are vectors, one number an objective."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ...errors import SpaceError, VersionError
from ...specs import TensorSpec
from ...specs.conversions import spec_from_gym
from .gym import GymEnv, GymWrapper
from .gym_making import dressed
from .gym_vector import is_vector


def _library() -> Any:
    try:
        import mo_gymnasium
    except ImportError as error:
        raise VersionError('mo-gymnasium is not installed: pip install "vecrl[mo-gym]".') from error
    return mo_gymnasium


class MOGymWrapper(GymWrapper):
    """A mo-gymnasium environment, or a vector of them: the reward has the shape (k,), one number an objective.

    Args:
        env: what `mo_gymnasium.make` returns, or a `mo_gymnasium.wrappers.vector.MOSyncVectorEnv`.
        categorical_action_encoding, kwargs: see `GymWrapper`.

    >>> MOGymWrapper(_library().make("deep-sea-treasure-v0")).rollout(2)["next", "reward"].shape  # doctest: +SKIP
    torch.Size([2, 2])
    """

    libname = "mo-gymnasium"

    def _reward_spec(self, device: torch.device) -> TensorSpec:
        env = self._env if not is_vector(self._env) else self._env
        space = env.reward_space if is_vector(env) else env.get_wrapper_attr("reward_space")
        if is_vector(env) and len(space.shape) > 1:
            space = env.envs[0].get_wrapper_attr("reward_space")
        return spec_from_gym(space, device=device)

    def read_reward(self, reward: Any) -> torch.Tensor:
        """The vector of rewards as a tensor."""
        return self.reward_spec.encode(np.asarray(reward))
