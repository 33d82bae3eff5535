"""Environments of PettingZoo over TensorDicts, with agents that act at the same time or in turns."""

from __future__ import annotations

from typing import Any

from ...simulators.agents import TurnBasedAgents
from ...simulators.pettingzoo import acts_in_turns, make, names
from ..library_env import pop_env_arguments
from ..marl_groups import MarlGroupMapType
from .grouped_agents import GroupMap
from .gym_backends import AvailableEnvs
from .parallel_agents import ParallelAgentsEnv


class PettingZooWrapper(ParallelAgentsEnv):
    """An environment of PettingZoo as an `EnvBase`; see `ParallelAgentsEnv` for the entries.

    Where agents act in turns (PettingZoo's AEC interface), each step takes the action of one agent, which "mask" tells.
    The turns of dead agents are skipped.

    Args:
        env: an environment with PettingZoo's parallel or AEC interface.
        return_state: whether "state", the environment's `state()`, is an entry.
        group_map: a `MarlGroupMapType`, a dict of the agents of each group, or a function of the agents' names. By
            default, each agent that acts in turns has a group of its own. Others share one if their names differ only
            in a number at the end.
        use_mask: whether groups have a "mask" of the agents that act next; needed if agents die or act in turns.
        categorical_actions: encode discrete actions as indices, not as one-hot rows.
        seed: of the first episode.
        done_on_any: whether the episode ends when the first agent is done, rather than the last one; by default True
            if the agents act at the same time.
        kwargs: `from_pixels`, and those of `EnvBase`.

    Raises:
        TypeError: `env` is no environment of PettingZoo.
        ValueError: the agents act in turns, and `use_mask` is False.

    >>> from mpe2 import simple_tag_v3  # doctest: +SKIP
    >>> env = PettingZooWrapper(simple_tag_v3.parallel_env())  # doctest: +SKIP
    >>> env.rollout(5)["next", "adversary", "reward"].shape  # doctest: +SKIP
    torch.Size([5, 3, 1])
    """

    libname = "pettingzoo"
    _resets_when_seeded = True
    available_envs: Any = AvailableEnvs(names)

    def __init__(
        self,
        env: Any = None,
        return_state: bool = False,
        group_map: GroupMap = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        **kwargs: Any,
    ):
        if not hasattr(env, "possible_agents") or not callable(getattr(env, "observation_space", None)):
            raise TypeError(f"Expected an environment of PettingZoo, got {env!r:.80}. PettingZooEnv makes one by name.")
        self.parallel = not acts_in_turns(env)
        if not self.parallel:
            if not use_mask:
                raise ValueError("Expected use_mask=True for agents that act in turns, got False.")
            group_map = MarlGroupMapType.ONE_GROUP_PER_AGENT if group_map is None else group_map
        super().__init__(
            env,
            env if self.parallel else TurnBasedAgents(env),
            group_map=group_map,
            use_mask=use_mask,
            categorical_actions=categorical_actions,
            return_state=return_state,
            done_on_any=self.parallel if done_on_any is None else done_on_any,
            seed=seed,
            **kwargs,
        )

    @property
    def lib(self) -> Any:
        """The module `pettingzoo`."""
        import pettingzoo

        return pettingzoo


class PettingZooEnv(PettingZooWrapper):
    """An environment of PettingZoo or mpe2, made by its name; see `PettingZooWrapper`.

    Args:
        task: the name, with its family or without: "sisl/pursuit_v5", "pursuit_v5".
        parallel: whether the agents act at the same time; otherwise in turns. None for the former where the environment
            has both.
        return_state, group_map, use_mask, categorical_actions, seed, done_on_any: see `PettingZooWrapper`.
        kwargs: `from_pixels` and the arguments of `EnvBase`; all others are passed to the environment. ROMs of Atari
            games are those of ale-py.

    Attributes:
        available_envs: class attribute, the names of all environments.

    Raises:
        VersionError: if PettingZoo is not installed.
        ValueError: if there is no environment of that name, or its agents act in turns only.

    >>> PettingZooEnv("multiwalker_v9", parallel=True).group_map  # doctest: +SKIP
    {'walker': ['walker_0', 'walker_1', 'walker_2']}
    """

    def __init__(
        self,
        task: str,
        parallel: bool | None = None,
        return_state: bool = False,
        group_map: GroupMap = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        **kwargs: Any,
    ):
        env_arguments = pop_env_arguments(kwargs, "from_pixels")
        if env_arguments.get("from_pixels"):
            kwargs.setdefault("render_mode", "rgb_array")
        super().__init__(
            make(task, parallel, **kwargs),
            return_state,
            group_map,
            use_mask,
            categorical_actions,
            seed,
            done_on_any,
            **env_arguments,
        )
