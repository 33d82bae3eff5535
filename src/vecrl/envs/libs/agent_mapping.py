"""Divides the observations and actions of one robot among several agents, under TorchRL's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import index
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ...engine.space_layout import AnySpace, Layout
from ...errors import SpaceError
from ...specs import Bounded, Composite, Unbounded
from ..entries.keys import FLAGS

Mode = Literal["none", "max", "concat"]
_RESERVED = frozenset(("_reset", "_step", "action", "next", "observation", "pixels", "reward", "state", *FLAGS))


@dataclass
class MujocoPlaygroundAgentSpec:
    """The parts of one agent.

    Args:
        name: the key of the agent's entries.
        action_indices: the positions of its actions in the action of the environment.
        observation_indices: the positions of what it observes in the observation of the environment; a dict of
            positions by entry if observations are a dict. The parts are joined in the order of this dict.
    """

    name: str
    action_indices: Sequence[int]
    observation_indices: Sequence[int] | Mapping[str, Sequence[int]]


@dataclass
class MujocoPlaygroundAgentMapping:
    """How an environment is divided among agents that act together.

    Args:
        agents: one spec per agent. Each position of the action belongs to one of them; they may share observations.
        homogenization_mode: "none" gives each agent its own sizes. "max" gives all agents the largest sizes: an
            observation is a one-hot number of the agent, what it observes, then zeros; of an action, the first numbers
            count. "concat" gives all agents the sizes of the environment: an observation has zeros in the positions of
            others; of an action, the agent's positions count. Observations in a dict need "none".

    Raises:
        ValueError: there are no agents, two have one name, a name is that of another entry, or the mode is unknown.

    >>> front = MujocoPlaygroundAgentSpec("front", [0], [0, 1])
    >>> MujocoPlaygroundAgentMapping([front], homogenization_mode="max").homogenization_mode
    'max'
    """

    agents: Sequence[MujocoPlaygroundAgentSpec] = field(default_factory=list)
    homogenization_mode: Mode = "none"

    def __post_init__(self) -> None:
        names: list[Any] = [agent.name for agent in self.agents]
        are_texts = bool(names) and all(isinstance(name, str) for name in names)
        if not are_texts or len(set(names)) < len(names) or not _RESERVED.isdisjoint(names):
            reserved = ", ".join(sorted(_RESERVED))
            raise ValueError(
                f"Expected one agent or more, with different texts as names, other than {reserved}, got {names}. Give "
                "each agent a name of its own."
            )
        if self.homogenization_mode not in get_args(Mode):
            modes = ", ".join(map(repr, get_args(Mode)))
            raise ValueError(f"Expected homogenization_mode to be one of {modes}, got {self.homogenization_mode!r}.")


def _equal_agents(observation_indices: Sequence[Sequence[int]], num_actions: int) -> MujocoPlaygroundAgentMapping:
    """Returns a mapping in which agent i has the i-th group of `num_actions` actions."""
    return MujocoPlaygroundAgentMapping(
        [
            MujocoPlaygroundAgentSpec(f"agent_{i}", [*range(i * num_actions, (i + 1) * num_actions)], indices)
            for i, indices in enumerate(observation_indices)
        ]
    )


_CHEETAH = (
    *([1, 2, 3, 4, 6, 9, 10, 11, 12], [1, 2, 3, 4, 5, 9, 10, 11, 13], [1, 2, 4, 5, 9, 10, 11, 14]),
    *([1, 2, 3, 6, 7, 9, 10, 11, 15], [1, 2, 6, 7, 8, 9, 10, 11, 16], [1, 2, 7, 8, 9, 10, 11]),
)
_WALKER = [0, 2, 3, 4, 5, 8, 9, 11, 12, 13], [0, 2, 5, 6, 7, 8, 9, 14, 15, 16]
KNOWN_MARL_MAPPINGS = {"halfcheetah_6x1": _equal_agents(_CHEETAH, 1), "walker2d_2x3": _equal_agents(_WALKER, 3)}
"""TorchRL's mappings that fit an environment of MuJoCo Playground: "CheetahRun", and those of the walker."""


def find_mapping(mapping: MujocoPlaygroundAgentMapping | str) -> MujocoPlaygroundAgentMapping:
    """Returns a mapping, also by its name; raises ValueError or TypeError."""
    if isinstance(mapping, MujocoPlaygroundAgentMapping):
        return mapping
    if not isinstance(mapping, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected agent_mapping to be a MujocoPlaygroundAgentMapping or a name, got {mapping!r:.80}.")
    if mapping not in KNOWN_MARL_MAPPINGS:
        known = ", ".join(map(repr, KNOWN_MARL_MAPPINGS))
        raise ValueError(f"Expected agent_mapping to be one of {known}, got {mapping!r}. Give a mapping instead.")
    return KNOWN_MARL_MAPPINGS[mapping]


class AgentParts:
    """Divides observations `[..., size]` and joins actions by a mapping.

    Args:
        mapping: the mapping.
        observation_space: a Box of one dimension, or a Dict of them.
        action_size: the size of an action.

    Attributes:
        names: of the agents.
        entries: the keys of the parts of an observation.

    Raises:
        SpaceError: (a `ValueError`) the mapping does not fit the spaces.
    """

    def __init__(self, mapping: MujocoPlaygroundAgentMapping, observation_space: AnySpace, action_size: int):
        self._mode = mapping.homogenization_mode
        self._action_size = action_size
        leaves = Layout(observation_space).leaves
        is_dict = any(leaf.path for leaf in leaves)
        self.entries = [str(leaf.path[0]) for leaf in leaves] if is_dict else ["observation"]
        if any(len(leaf.shape) != 1 or len(leaf.path) > 1 for leaf in leaves):
            raise SpaceError(f"Expected observations that are vectors, to divide them, got {observation_space}.")
        if is_dict and self._mode != "none":
            raise SpaceError(f"Expected homogenization_mode='none' for observations in a dict, got {self._mode!r}.")
        sizes: list[int] = [leaf.shape[0] for leaf in leaves]
        self._obs_size = sum(sizes)
        self.names = [agent.name for agent in mapping.agents]
        ranges = [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        known = dict(zip(self.entries, ranges, strict=True))
        self._obs_indices = [
            torch.tensor(_positions(agent, known, is_dict), dtype=torch.int64) for agent in mapping.agents
        ]
        action_indices = [_as_ints(agent.action_indices, agent) for agent in mapping.agents]
        self._action_indices = [torch.tensor(indices, dtype=torch.int64) for indices in action_indices]
        owned = sorted(chain.from_iterable(action_indices))
        if owned != [*range(action_size)]:
            raise SpaceError(
                f"Expected each of the actions 0 to {action_size - 1} to belong to one agent, got {owned}. Change "
                "action_indices."
            )
        self._order = torch.cat(self._action_indices).argsort()

    def _sizes(self, indices: Sequence[Tensor], full: int, extra: int) -> list[int]:
        if self._mode == "concat":
            return [full] * len(indices)
        sizes = [*map(len, indices)]
        return sizes if self._mode == "none" else [max(sizes) + extra] * len(sizes)

    def specs(self, device: torch.device) -> list[dict[str, Composite]]:
        """Returns the specs of the observation, the action and the reward of each agent, each in a Composite."""
        obs_sizes = self._sizes(self._obs_indices, self._obs_size, len(self.names))
        action_sizes = self._sizes(self._action_indices, self._action_size, 0)
        observations = [Composite(observation=Unbounded((size,), device)) for size in obs_sizes]
        actions = [Composite(action=Bounded(-1.0, 1.0, (size,), device)) for size in action_sizes]
        rewards = [Composite(reward=Unbounded((1,), device)) for _ in self.names]
        return [dict(zip(self.names, specs, strict=True)) for specs in (observations, actions, rewards)]

    def divide(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns what each agent observes, from the `entries` of an observation."""
        obs = parts[0] if len(parts) == 1 else torch.cat([*parts], -1)
        return {name: self._observe(obs, agent) for agent, name in enumerate(self.names)}

    def _observe(self, obs: Tensor, agent: int) -> Tensor:
        indices = self._obs_indices[agent].to(obs.device)
        own = obs.index_select(-1, indices)
        if self._mode == "none":
            return own
        if self._mode == "concat":
            return torch.zeros_like(obs).index_copy(-1, indices, own)
        most = max(map(len, self._obs_indices))
        number = obs.new_zeros(*obs.shape[:-1], len(self.names))
        number[..., agent] = 1
        return torch.cat([number, own, obs.new_zeros(*obs.shape[:-1], most - len(indices))], -1)

    def join(self, actions: Sequence[Tensor]) -> Tensor:
        """Returns the action of the environment, from those of the agents in order."""
        parts: list[Tensor] = []
        for action, indices in zip(actions, self._action_indices, strict=True):
            is_full = self._mode == "concat"
            parts.append(action.index_select(-1, indices.to(action.device)) if is_full else action[..., : len(indices)])
        return torch.cat(parts, -1).index_select(-1, self._order.to(parts[0].device))


def _as_ints(indices: Any, agent: MujocoPlaygroundAgentSpec) -> list[int]:
    """Returns positions as ints; masks of bools and floats are refused."""
    try:
        values = [*indices]
        if any(isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) == torch.bool for value in values):
            raise TypeError("bools")
        return [*map(index, values)]
    except TypeError:
        raise SpaceError(f"Expected a list of positions for the agent {agent.name!r}, got {indices!r:.80}.") from None


def _positions(agent: MujocoPlaygroundAgentSpec, known: Mapping[str, range], is_dict: bool) -> list[int]:
    """Returns the positions of what an agent observes in the joined entries of an observation, `known` by key."""
    indices: Any = agent.observation_indices
    named = dict(indices) if isinstance(indices, Mapping) else {"observation": indices}
    parts = {name: _as_ints(part, agent) for name, part in named.items()}
    if isinstance(indices, Mapping) != is_dict or not parts.keys() <= known.keys():
        expected = f"a dict with keys of {list(known)}" if is_dict else "a list"
        raise SpaceError(f"Expected {expected} as observation_indices of {agent.name!r}, got {indices!r:.80}.")
    for name, part in parts.items():
        if not all(0 <= position < len(known[name]) for position in part):
            raise SpaceError(
                f"Expected positions from 0 to {len(known[name]) - 1} in {name!r} as observation_indices of "
                f"{agent.name!r}, got {list(part)}."
            )
    return [known[name][position] for name, part in parts.items() for position in part]
