"""`BatchedVenv`: the rows of a batched simulator as environments with ids."""

from __future__ import annotations

from ..engine.simulator import BatchSimulator
from ..vector.simulator_pool import SimulatorPool
from .base import BaseVectorEnv


class BatchedVenv(BaseVectorEnv):
    """The rows of a `BatchSimulator` as environments with ids; see `BaseVectorEnv`. Steps are synchronous.

    >>> from vecrl.simulators.native import make_native
    >>> envs = BatchedVenv(make_native("CartPole-v1", 4))
    >>> obs, infos = envs.reset(seed=[1, 2, 3, 4])
    >>> obs, rew, terminated, truncated, infos = envs.step([0, 1], id=[2, 0])
    >>> obs.shape, rew
    ((2, 4), array([1., 1.]))
    >>> envs.close()

    Args:
        simulator: the simulator; `close` closes it too.
        stack_dicts: whether observations of Dict spaces are dicts of arrays instead of arrays of dicts.

    Raises:
        SpaceError: observations are tuples, which this dialect does not have.
    """

    def __init__(self, simulator: BatchSimulator, stack_dicts: bool = False):
        self._init_over_pool(SimulatorPool(simulator), None, None, stack_dicts, call_env_seed=False)
