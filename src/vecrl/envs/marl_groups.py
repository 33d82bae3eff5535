"""Groups of agents; the entries of a group are under its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum


class MarlGroupMapType(Enum):
    """The common ways to group agents.

    ALL_IN_ONE_GROUP puts all agents into a group "agents"; ONE_GROUP_PER_AGENT makes a group of each agent's name.

    >>> MarlGroupMapType.ALL_IN_ONE_GROUP.get_group_map(["cat", "dog"])
    {'agents': ['cat', 'dog']}
    >>> MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(["cat", "dog"])
    {'cat': ['cat'], 'dog': ['dog']}
    """

    ALL_IN_ONE_GROUP = 1
    ONE_GROUP_PER_AGENT = 2

    def get_group_map(self, agent_names: Sequence[str]) -> dict[str, list[str]]:
        """Returns the agents of every group."""
        if self is MarlGroupMapType.ALL_IN_ONE_GROUP:
            return {"agents": list(agent_names)}
        return {name: [name] for name in agent_names}


def check_marl_grouping(group_map: Mapping[str, Sequence[str]], agent_names: Sequence[str]) -> None:
    """Checks that every agent is in exactly one group, and that no group is empty.

    Args:
        group_map: the agents of every group.
        agent_names: all agents.

    Raises:
        ValueError: if groups are empty, or agents are missing, unknown or in several groups.

    >>> check_marl_grouping({"cats": ["tom"], "mice": ["jerry"]}, ["tom", "jerry"])
    """
    if not agent_names:
        raise ValueError("Expected one agent or more, got none.")
    empty = [name for name, group in group_map.items() if not group]
    if empty:
        raise ValueError(f"Expected every group to have an agent, got the empty groups {empty}. Omit them.")
    if len(set(agent_names)) < len(agent_names):
        raise ValueError(f"Expected agents of different names, got {list(agent_names)}.")
    occurrences = Counter(name for group in group_map.values() for name in group)
    problems = {
        "in more than one place": [name for name, count in occurrences.items() if count > 1],
        "in no group": [name for name in agent_names if name not in occurrences],
        "unknown": [name for name in occurrences if name not in agent_names],
    }
    message = "; ".join(f"{problem}: {names}" for problem, names in problems.items() if names)
    if message:
        raise ValueError(f"Expected each of the agents {list(agent_names)} in exactly one group, got {message}.")
