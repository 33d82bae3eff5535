"""Classes for libraries of several agents with a parallel interface: PettingZoo, Melting Pot, SMACv2 and teams.

A library is imported when an environment is made.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from ...simulators import meltingpot, pettingzoo, smacv2
from ...simulators.agents import ByAgent, TurnBasedAgents
from ...simulators.gymnasium.libraries import PLUGINS, env_fn, names
from ...simulators.teams import FORAGING_LIMIT, as_agents
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ..library_env import pop_env_arguments
from ..marl_groups import MarlGroupMapType
from .grouped_agents import GroupMap
from .gym.backends import AvailableEnvs
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
        ValueError: the agents act in turns, and `use_mask` is False; or `return_state`, and there is no `state`.

    >>> from mpe2 import simple_tag_v3  # doctest: +SKIP
    >>> env = PettingZooWrapper(simple_tag_v3.parallel_env())  # doctest: +SKIP
    >>> env.rollout(5)["next", "adversary", "reward"].shape  # doctest: +SKIP
    torch.Size([5, 3, 1])
    """

    libname = "pettingzoo"
    _resets_when_seeded = True
    available_envs: Any = AvailableEnvs(pettingzoo.names)

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
        if return_state and not callable(getattr(env, "state", None)):
            raise ValueError(f"Expected return_state=False, got {return_state!r:.80}: {env!r:.80} has no `state`.")
        self.parallel = not pettingzoo.acts_in_turns(env)
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
        return import_module("pettingzoo")


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
            pettingzoo.make(task, parallel, **kwargs),
            return_state,
            group_map,
            use_mask,
            categorical_actions,
            seed,
            done_on_any,
            **env_arguments,
        )


class MeltingpotWrapper(ParallelAgentsEnv):
    """A substrate of Melting Pot as an `EnvBase`; see `ParallelAgentsEnv` for the entries of groups.

    Observations are nested: ("agents", "observation", "RGB") `[n, H, W, 3]` uint8, and others of the substrate. "RGB"
    at the root is the image of the whole world. Rewards are float64. "done" and "terminated" are at the root only, and
    both are True after `max_steps` too.

    Seeds have no effect, since Melting Pot cannot repeat an episode.

    Args:
        env: a `meltingpot.utils.substrates.substrate.Substrate`.
        categorical_actions: encode actions as indices, not as one-hot rows.
        group_map: see `ParallelAgentsEnv`; by default all players are in the group "agents".
        max_steps: number of steps after which an episode ends; None for the substrate's own end only.
        kwargs: of `EnvBase`.

    Raises:
        TypeError: `env` is no substrate.
    """

    libname = "melting-pot"
    available_envs: Any = AvailableEnvs(meltingpot.names)
    has_agent_flags = False
    episode_flags = ("done", "terminated")
    reward_dtype = torch.float64
    state_key = "RGB"

    def __init__(
        self,
        env: Any = None,
        categorical_actions: bool = True,
        group_map: GroupMap = MarlGroupMapType.ALL_IN_ONE_GROUP,
        max_steps: int | None = None,
        **kwargs: Any,
    ):
        if not callable(getattr(env, "observation_spec", None)) or not callable(getattr(env, "observables", None)):
            raise TypeError(f"Expected a substrate of Melting Pot, got {env!r:.80}. MeltingpotEnv makes one by name.")
        self.max_steps = max_steps
        super().__init__(
            env,
            meltingpot.SubstrateAgents(env, max_steps, "rgb_array"),
            group_map=group_map,
            categorical_actions=categorical_actions,
            return_state=True,
            **kwargs,
        )

    @property
    def lib(self) -> Any:
        """The module `meltingpot`."""
        return import_module("meltingpot")

    def get_rgb_image(self) -> torch.Tensor:
        """Returns the image of the whole world, uint8 `[H, W, 3]`."""
        return torch.from_numpy(self.render().copy())

    def render(self, *args: object, **kwargs: object) -> Any:
        """Returns the image of the whole world as an array, uint8 `[H, W, 3]`."""
        return self._agents.render()


class MeltingpotEnv(MeltingpotWrapper):
    """A substrate of Melting Pot, made by its name or configuration; see `MeltingpotWrapper`.

    Args:
        substrate: the name, such as "commons_harvest__open", or a `ConfigDict` of `meltingpot.substrate.get_config`.
        max_steps, categorical_actions, group_map: see `MeltingpotWrapper`.
        kwargs: `roles`, the role of each player, `from_pixels`, and those of `EnvBase`.

    Attributes:
        available_envs: class attribute, the names of all substrates.

    Raises:
        VersionError: if Melting Pot is not installed.
        ValueError: if there is no such substrate.

    >>> env = MeltingpotEnv("commons_harvest__open", max_steps=5)  # doctest: +SKIP
    >>> env.rollout(10)["next", "agents", "reward"].shape  # doctest: +SKIP
    torch.Size([5, 7, 1])
    """

    def __init__(
        self,
        substrate: Any,
        *,
        max_steps: int | None = None,
        categorical_actions: bool = True,
        group_map: GroupMap = MarlGroupMapType.ALL_IN_ONE_GROUP,
        **kwargs: Any,
    ):
        env_arguments = pop_env_arguments(kwargs, "from_pixels")
        super().__init__(
            meltingpot.build(substrate, **kwargs), categorical_actions, group_map, max_steps, **env_arguments
        )


class SMACv2Wrapper(ParallelAgentsEnv):
    """A battle of StarCraft II, with the units of the team as the group "agents".

    Entries: ("agents", "observation") `[n, k]` float32, ("agents", "action_mask") `[n, actions]` bool, ("agents",
    "action") `[n]` indices or `[n, actions]` one-hot rows, int64; "state" `[m]` float32; ("info", …) "battle_won" and
    "episode_limit" bool, "dead_allies" and "dead_enemies" int64, without dimensions; "reward" `[1]` float32 (the
    team's); "done" and "terminated" `[1]`, also at the time limit.

    Args:
        env: a `smacv2.env.StarCraft2Env`, or a `StarCraftCapabilityEnvWrapper`.
        categorical_actions: encode actions as indices, not as one-hot rows.
        kwargs: see `EnvBase`.

    Attributes:
        available_envs: class attribute, the names of the maps; empty if smacv2 is not installed.

    Raises:
        TypeError: `env` has not the methods of a `StarCraft2Env`.
    """

    libname = "smacv2"
    has_agent_flags = False
    has_shared_reward = True
    episode_flags = ("done", "terminated")
    available_envs: Any = AvailableEnvs(smacv2.names)

    def __init__(self, env: Any = None, categorical_actions: bool = True, **kwargs: Any):
        if not callable(getattr(env, "get_avail_actions", None)):
            raise TypeError(f"Expected a StarCraft2Env of smacv2, got {env!r:.80}.")
        self._set_up(smacv2.SmacAgents(env), categorical_actions, kwargs)

    def _set_up(self, agents: smacv2.SmacAgents, categorical_actions: bool, kwargs: dict[str, Any]) -> None:
        super().__init__(
            agents,
            agents,
            group_map={"agents": agents.possible_agents},
            categorical_actions=categorical_actions,
            return_state=True,
            **kwargs,
        )

    def _lookup_attribute(self, name: str) -> Any:
        return getattr(self._env.env, name)

    def _root_specs(self, device: torch.device) -> dict[str, TensorSpec]:
        flag = Categorical(2, (), device=device, dtype=torch.bool)
        count = Unbounded((), device=device, dtype=torch.int64)
        last_info = self._env.last_info
        info = {key: flag if isinstance(value, np.bool_) else count for key, value in last_info.items()}
        return {**super()._root_specs(device), "info": Composite({key: spec.clone() for key, spec in info.items()})}

    def _root_entries(self, infos: ByAgent) -> dict[str, Any]:
        info = {key: torch.tensor(value.item(), device=self.device) for key, value in self._env.last_info.items()}
        return {**super()._root_entries(infos), "info": info}


class SMACv2Env(SMACv2Wrapper):
    """A battle of StarCraft II that is started here; see `SMACv2Wrapper`.

    `set_seed` starts a new game at the next reset, since StarCraft II takes a seed at its start only.

    Args:
        map_name: of a map of SMAC ("3m"), or of SMACv2 ("10gen_terran"), which needs a `capability_config`.
        capability_config: the distributions of units and places.
        seed: of the game; None for a random one.
        categorical_actions: see `SMACv2Wrapper`.
        kwargs: arguments of `EnvBase`; all others are those of `smacv2.env.StarCraft2Env`.

    Raises:
        VersionError: smacv2 is not installed.
    """

    def __init__(
        self,
        map_name: str,
        capability_config: dict[str, Any] | None = None,
        seed: int | None = None,
        categorical_actions: bool = True,
        **kwargs: Any,
    ):
        base_kwargs = pop_env_arguments(kwargs)
        agents = smacv2.start_agents(map_name, capability_config, seed=seed, **kwargs)
        self._set_up(agents, categorical_actions, base_kwargs)


class RwareEnv(PettingZooWrapper):
    """Robots in a warehouse, such as "rware-tiny-2ag-v2"; see `PettingZooWrapper` for the entries.

    Args:
        task: the name.
        kwargs: `from_pixels`, those of `PettingZooWrapper` and of `EnvBase`; all others are passed to the environment.

    Raises:
        VersionError: the library is not installed.
        ValueError: there is no environment of that name.

    >>> RwareEnv("rware-tiny-2ag-v2").group_map  # doctest: +SKIP
    {'agent': ['agent_0', 'agent_1']}
    """

    libname = "rware"
    available_envs: Any = AvailableEnvs(partial(names, "rware"))

    def __init__(self, task: str, **kwargs: Any):
        team, kwargs = _make_team(task, "rware", kwargs)
        super().__init__(team, **kwargs)


class LBForagingWrapper(PettingZooWrapper):
    """An environment of level-based foraging; see `PettingZooWrapper` for the entries.

    All agents are in the group "agents". Flags are at the root only, since an episode ends for all agents at once: at
    the time limit it is truncated.

    Args:
        env: made by `gymnasium.make("Foraging-8x8-2p-1f-v3")`.
        kwargs: arguments of `PettingZooWrapper`.

    Raises:
        TypeError: this is no environment of lbforaging.
    """

    libname = "lbforaging"
    has_agent_flags = False
    git_url = "https://github.com/semitable/lb-foraging"
    available_envs: Any = AvailableEnvs(partial(names, "lbforaging"))

    def __init__(self, env: Any = None, **kwargs: Any):
        if not hasattr(getattr(env, "unwrapped", None), FORAGING_LIMIT):
            raise TypeError(f"Expected an environment of lbforaging, got {env!r:.80}. LBForagingEnv makes one by name.")
        self._set_up_team(as_agents(env, FORAGING_LIMIT, env.render_mode).agents_env, kwargs)

    def _lookup_attribute(self, name: str) -> Any:
        return getattr(self._env.env.unwrapped, name)

    def _set_up_team(self, team: Any, kwargs: dict[str, Any]) -> None:
        PettingZooWrapper.__init__(self, team, **{"group_map": MarlGroupMapType.ALL_IN_ONE_GROUP, **kwargs})


class LBForagingEnv(LBForagingWrapper):
    """An environment of level-based foraging, made by its name; see `LBForagingWrapper`.

    Args:
        env_name: the name, such as "Foraging-8x8-2p-1f-v3".
        kwargs: as of `RwareEnv`.

    Raises:
        VersionError: the library is not installed.
        ValueError: there is no environment of that name.

    >>> LBForagingEnv("Foraging-8x8-2p-1f-v3").group_map  # doctest: +SKIP
    {'agents': ['agent_0', 'agent_1']}
    """

    def __init__(self, env_name: str, **kwargs: Any):
        self._set_up_team(*_make_team(env_name, "lbforaging", kwargs))


_OF_WRAPPER = "return_state", "group_map", "use_mask", "categorical_actions", "seed", "done_on_any"


def _make_team(task: str, library: str, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Makes a team by the name of its environment. Returns it, and the arguments of `PettingZooWrapper`."""
    own = {name: kwargs.pop(name) for name in _OF_WRAPPER if name in kwargs}
    env_arguments = pop_env_arguments(kwargs, "from_pixels")
    if env_arguments.get("from_pixels"):
        kwargs.setdefault("render_mode", "rgb_array")
    env_fn(task, library=library)  # imports the library, and checks the name
    make: Any = PLUGINS[library].make
    return make(task, disable_env_checker=True, **kwargs).agents_env, own | env_arguments
