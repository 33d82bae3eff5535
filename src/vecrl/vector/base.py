"""The one place where the spaces of a single environment become those of a batch of them.

Every vector environment of this dialect derives from `BaseVectorEnv`, so that all agree on what `num_envs`
and the four spaces say. It knows nothing of how the environments are run, nor of torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import VectorEnv

from ..errors import SpaceError
from ..snapshot import Stateful


class BaseVectorEnv(Stateful, VectorEnv):
    """A gymnasium vector environment that derives its batched spaces from the single ones.

    Subclasses bring `reset`, `step` and, where there is something to free, `close_extras`.

    Args:
        num_envs: how many environments there are, at least 1.
        observation_space: the observation space of one environment, a `Box` or a `Discrete`.
        action_space: the action space of one environment, a `Box` or a `Discrete`.

    Attributes:
        num_envs: as given.
        single_observation_space, single_action_space: the spaces as given.
        observation_space, action_space: those of the batch, as `batch_space` makes them.

    Raises:
        SpaceError: a space of another kind (it is a `TypeError` and a `ValueError`).
        ValueError: `num_envs` is not a positive integer.

    >>> env = BaseVectorEnv(3, Box(-1, 1, (2,)), Discrete(4))
    >>> env.observation_space
    Box(-1.0, 1.0, (3, 2), float32)
    >>> env.action_space
    MultiDiscrete([4 4 4])
    """

    is_vector_env, viewer = True, None  # what gymnasium 0.29 asks for; 1.x goes by the type

    def __init__(self, num_envs: int, observation_space: Space[Any], action_space: Space[Any]):
        # gymnasium 0.29's own constructor takes these arguments and derives other spaces, 1.x has none: do without.
        if num_envs != int(num_envs) or num_envs < 1:
            raise ValueError(f"num_envs must be a positive integer, not {num_envs!r}")
        self.num_envs = int(num_envs)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.metadata = dict(self.metadata)  # gymnasium's is one dict for all classes
        self.closed = False

    def _state_facts(self) -> dict[str, Any]:
        return state_facts(self)


def state_facts(env: VectorEnv) -> dict[str, Any]:
    """What two vector environments must have in common if one is to have the other's state."""
    spaces = {"observation_space": str(env.single_observation_space), "action_space": str(env.single_action_space)}
    return {"num_envs": env.num_envs, **spaces}


def batch_space(space: Space[Any], num_envs: int) -> Space[Any]:
    """The space of `num_envs` values of `space`, stacked along a new leftmost axis.

    Args:
        space: a `Box`, whose bounds keep dtype and per-element values, or a `Discrete`.
        num_envs: how many, at least 1.

    Returns:
        A `Box` of shape `[num_envs, *space.shape]`, or a `MultiDiscrete` of `num_envs` times n, with the same
        `start` and dtype.

    Raises:
        SpaceError: a space of another kind.

    >>> batch_space(Discrete(3, start=-1), 2).start
    array([-1, -1])
    """
    if isinstance(space, Discrete):
        return MultiDiscrete(
            np.full(num_envs, space.n), dtype=_scalar_type(space), start=np.full(num_envs, space.start)
        )
    if not isinstance(space, Box):
        raise SpaceError(f"expected a Box or a Discrete space, got {space!r}: flatten it, or encode it as one of these")
    stacked = Box(_repeat(space.low, num_envs), _repeat(space.high, num_envs), dtype=_scalar_type(space))
    # An integer Box writes an infinite bound as its dtype's extreme and remembers here that it is none.
    stacked.bounded_below = _repeat(space.bounded_below, num_envs)
    stacked.bounded_above = _repeat(space.bounded_above, num_envs)
    return stacked


def _scalar_type(space: Space[Any]) -> Any:
    return np.dtype(space.dtype).type


def _repeat(values: Any, num_envs: int) -> np.ndarray:
    return np.repeat(np.asarray(values)[None], num_envs, axis=0)
