"""Derives the batched spaces of a vector environment from the spaces of a single environment, and reads its seeds.

`BaseVectorEnv` is the base class of vector environments over arrays, so that `num_envs` and the four spaces mean the
same in all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space as gymnasium_batch_space

from ..engine import large_boxes
from ..engine.space_layout import AnySpace
from ..errors import SpaceError
from ..snapshot import Stateful
from ..validation import check_seed, parse_count

Facts = dict[str, Any]
"""Properties that two objects must share for one to load the state of the other."""


class BaseVectorEnv(Stateful, VectorEnv):
    """A gymnasium vector environment that derives its batched spaces from the single ones.

    Subclasses implement `reset`, `step` and, if they hold resources, `close_extras`.

    Args:
        num_envs: the number of environments, at least 1.
        observation_space, action_space: the spaces of one environment: `Box`, `Discrete`, `MultiDiscrete`,
            `MultiBinary`, or these nested in `Dict` and `Tuple`.

    Attributes:
        num_envs: the argument.
        single_observation_space, single_action_space: the arguments `observation_space` and `action_space`.
        observation_space, action_space: the batched spaces that `batch_space` returns.

    Raises:
        SpaceError: a space is or contains another one (also a `TypeError` and a `ValueError`).
        ValueError: `num_envs` is not a positive integer.

    >>> env = BaseVectorEnv(3, Box(-1, 1, (2,)), Discrete(4))
    >>> env.observation_space
    Box(-1.0, 1.0, (3, 2), float32)
    >>> env.action_space
    MultiDiscrete([4 4 4])
    """

    def __init__(self, num_envs: int, observation_space: AnySpace, action_space: AnySpace):
        self.num_envs = parse_count("num_envs", num_envs)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.metadata = dict(self.metadata)  # gymnasium shares one dict between all classes
        self.closed = False

    def _state_facts(self) -> Facts:
        return state_facts(self)


def state_facts(env: VectorEnv) -> Facts:
    """Returns the properties that two vector environments must share for one to load the other's state."""
    spaces = {"observation_space": str(env.single_observation_space), "action_space": str(env.single_action_space)}
    return {"num_envs": env.num_envs, **spaces}


def batch_space(space: AnySpace, num_envs: int) -> AnySpace:
    """Returns the space of `num_envs` values of `space`, stacked along a new leftmost axis.

    Args:
        space: a `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary`, or these nested in `Dict` and `Tuple`.
        num_envs: the number of values, at least 1.

    Returns:
        For a `Box`: a `Box` of shape `[num_envs, *space.shape]` with the same dtype and per-element bounds. For a
        `Discrete(n)`: a `MultiDiscrete` of `num_envs` times n, with the same `start` and dtype. For a `Dict` or a
        `Tuple`: one of the batched spaces of its parts. For others: what gymnasium's `batch_space` returns.

    Raises:
        SpaceError: `space` is or contains another one.

    >>> batch_space(Discrete(3, start=-1), 2).start
    array([-1, -1])
    """
    if isinstance(space, Discrete):
        return MultiDiscrete(
            np.full(num_envs, space.n), dtype=_scalar_type(space), start=np.full(num_envs, space.start)
        )
    if isinstance(space, Dict):
        return Dict({key: batch_space(part, num_envs) for key, part in space.spaces.items()})
    if isinstance(space, Tuple):
        return Tuple([batch_space(part, num_envs) for part in space.spaces])
    if isinstance(space, MultiDiscrete | MultiBinary):
        return gymnasium_batch_space(space, num_envs)
    if not isinstance(space, Box):
        raise SpaceError(
            "Expected a Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict or Tuple of these, "
            f"got {space!r}. Encode it as one of them."
        )
    if large_boxes.is_large(space, num_envs):
        stacked = large_boxes.batch_box(space, num_envs)
        stacked._np_random = None  # as below: seeded by entropy when it is first used
        return stacked
    stacked = Box(_repeat(space.low, num_envs), _repeat(space.high, num_envs), dtype=_scalar_type(space))
    # An integer Box stores an infinite bound as its dtype's extreme value; these masks mark such bounds as infinite.
    stacked.bounded_below = _repeat(space.bounded_below, num_envs)
    stacked.bounded_above = _repeat(space.bounded_above, num_envs)
    return stacked


def _scalar_type(space: AnySpace) -> Any:
    return np.dtype(space.dtype).type


def _repeat(values: object, num_envs: int) -> np.ndarray:
    return np.repeat(np.asarray(values)[None], num_envs, axis=0)


def seeds_of(seed: int | Sequence[int | None] | np.ndarray | None, count: int) -> list[int | None] | None:
    """Returns one seed per environment; None for None.

    Args:
        seed: None, an int that seeds environment i with `seed + i`, or one seed or None per environment.
        count: the number of environments.

    Raises:
        TypeError: `seed` or one of its items has another type.
        SpaceError: there are not `count` seeds, or one is negative.
    """
    if seed is None:
        return None
    check_seed(seed)
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(count)]
    if not hasattr(seed, "__len__") or isinstance(seed, str) or getattr(seed, "ndim", 1) != 1:
        raise TypeError(f"Expected a seed to be None, an integer or one per environment, got {seed!r}.")
    given = list(seed)
    if len(given) != count:
        raise SpaceError(f"Expected one seed or {count}, one per environment, got {len(given)}.")
    seeds: list[int | None] = []
    for s in given:
        if isinstance(s, bool | np.bool_) or not (s is None or hasattr(s, "__index__")):
            raise TypeError(f"Expected each seed to be None or an integer, got {s!r}. Give integers.")
        seeds.append(None if s is None else operator.index(s))
        check_seed(seeds[-1])
    return seeds
