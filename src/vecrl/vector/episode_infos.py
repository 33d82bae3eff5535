"""Vector environments with the return and length of each ended episode in their infos, in gymnasium's format.

The engine counts both. This module must not know how environments are stepped.
"""

from __future__ import annotations

import numpy as np

from ..engine.infos import InfoDict
from ..engine.transition import GymStep, Transition
from .sync_env import SyncVectorEnv
from .vector_env import VectorEnv


class SyncVectorEnvWithEpisodes(SyncVectorEnv):
    """A `SyncVectorEnv` with `episode` (`r`, `l`) and `_episode` in its infos, unless these are empty."""

    def _infos(self, transition: Transition) -> InfoDict:
        info = super()._infos(transition)
        return info if self._empty_info else info | _episode_info(transition, self.num_envs)


class VectorEnvWithEpisodes(VectorEnv):
    """A `VectorEnv` with `episode` (`r`, `l`) and `_episode` in its infos."""

    def _results(self, transition: Transition) -> GymStep:
        obs, reward, terminated, truncated, info = super()._results(transition)
        return obs, reward, terminated, truncated, info | _episode_info(transition, self.num_envs)


def _episode_info(transition: Transition, num_envs: int) -> InfoDict:
    """Returns the entries of the environments in which an episode ended, 0 for others; `{}` if there are none."""
    episodes = transition.episodes
    if not len(episodes.ids):
        return {}
    returns, lengths, mask = np.zeros(num_envs), np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
    returns[episodes.ids], lengths[episodes.ids], mask[episodes.ids] = episodes.returns, episodes.lengths, True
    return {"episode": {"r": returns, "l": lengths}, "_episode": mask}
