"""Which agents act as one group: their entries lie together under the group's name. Knows names only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum


class MarlGroupMapType(Enum):
    """The usual ways to group agents.

    ALL_IN_ONE_GROUP puts all of them into a group "agents", ONE_GROUP_PER_AGENT each into one of its own name.

    >>> MarlGroupMapType.ALL_IN_ONE_GROUP.get_group_map(["cat", "dog"])
    {'agents': ['cat', 'dog']}
    >>> MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(["cat", "dog"])
    {'cat': ['cat'], 'dog': ['dog']}
    """

    ALL_IN_ONE_GROUP = 1
    ONE_GROUP_PER_AGENT = 2

    def get_group_map(self, agent_names: Sequence[str]) -> dict[str, list[str]]:
        """The agents of every group."""
        if self is MarlGroupMapType.ALL_IN_ONE_GROUP:
            return {"agents": list(agent_names)}
        return {name: [name] for name in agent_names}


def check_marl_grouping(group_map: Mapping[str, Sequence[str]], agent_names: Sequence[str]) -> None:
    """See that every agent is in exactly one group, and that no group is empty.

    Args:
        group_map: the agents of every group.
        agent_names: all agents.

    Raises:
        ValueError: which says who is missing, unknown or there twice.

    >>> check_marl_grouping({"cats": ["tom"], "mice": ["jerry"]}, ["tom", "jerry"])
    """
    empty = [name for name, group in group_map.items() if not group]
    if empty:
        raise ValueError(f"Expected every group to have an agent, but {empty} have none: leave them out.")
    if len(set(agent_names)) < len(agent_names):
        raise ValueError(f"Expected agents of different names, but they are {list(agent_names)}.")
    occurrences = Counter(name for group in group_map.values() for name in group)
    problems = {
        "in more than one place": [name for name, count in occurrences.items() if count > 1],
        "in no group": [name for name in agent_names if name not in occurrences],
        "unknown": [name for name in occurrences if name not in agent_names],
    }
    message = "; ".join(f"{problem}: {names}" for problem, names in problems.items() if names)
    if message:
        raise ValueError(f"Expected every one of the agents {list(agent_names)} in exactly one group, but {message}.")
