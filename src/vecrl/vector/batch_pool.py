"""`BatchPool`: a batched simulator with the calls of a `Pool` that a worker of `RolloutWorkers` needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..engine.simulator import BatchSimulator
from ..engine.space_layout import Layout, Tree
from ..engine.transition import AutoresetMode, Transition
from ..engine.trees import map_tree
from .batched_vector_env import BatchedVectorEnv, to_numpy


class BatchPool:
    """The environments of one worker in a batched simulator.

    Args:
        make: makes the simulator.

    Attributes:
        num_envs: the number of environments.
        obs_layout, action_layout: the layouts of the spaces of one environment.
    """

    def __init__(self, make: Callable[[], BatchSimulator]):
        simulator = make()
        try:
            self._env = BatchedVectorEnv(simulator, autoreset_mode=AutoresetMode.SAME_STEP)
        except BaseException:
            simulator.close()
            raise
        self.num_envs = simulator.num_envs
        self.obs_layout, self.action_layout = Layout(simulator.observation_space), Layout(simulator.action_space)
        self._ids = np.arange(self.num_envs)
        self._start_episodes()

    def _start_episodes(self) -> None:
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)

    def reset(self, seeds: Sequence[int | None] | None = None) -> Transition:
        """Resets all environments, see `Pool.reset`."""
        obs, _ = self._env.reset(seed=seeds)
        self._start_episodes()
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        reward, was_reset = np.zeros(self.num_envs), np.ones(self.num_envs, bool)
        return Transition(self._ids, self.obs_layout, obs, reward, terminated, truncated, was_reset)

    def step(self, actions: Tree, *, reset_done: bool) -> Transition:
        """Steps all environments, see `Pool.step`. Rows in which the episode ends are reset in the same step."""
        assert reset_done
        obs, rewards, terminated, truncated, info = self._env.batch_step(actions)
        done = to_numpy(info["_final_obs"])
        reward = to_numpy(rewards).astype(np.float64, copy=False)
        returns, lengths = self._returns + reward, self._lengths + 1
        flags = to_numpy(terminated), to_numpy(truncated)
        transition = Transition(self._ids, self.obs_layout, to_numpy(obs), reward, *flags, done)
        if done.any():
            rows = np.flatnonzero(done)
            transition.final_rows = transition.done_rows = rows
            transition.final_obs = map_tree(lambda leaf: leaf[rows], to_numpy(info["final_obs"]))
            transition.episode_stats = returns, lengths
            returns, lengths = np.where(done, 0, returns), np.where(done, 0, lengths)
        self._returns, self._lengths = returns, lengths
        return transition

    def close(self) -> None:
        """Closes the simulator."""
        self._env.close()
