"""SMACv2 over TensorDicts, under TorchRL's names. It imports smacv2 when a game is started."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...simulators.agents import ByAgent
from ...simulators.smacv2 import SmacAgents, names, start_agents
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ..library_env import pop_env_arguments
from .gym_backends import AvailableEnvs
from .parallel_agents import ParallelAgentsEnv


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
    available_envs: Any = AvailableEnvs(names)

    def __init__(self, env: Any = None, categorical_actions: bool = True, **kwargs: Any):
        if not callable(getattr(env, "get_avail_actions", None)):
            raise TypeError(f"Expected a StarCraft2Env of smacv2, got {env!r:.80}.")
        self._set_up(SmacAgents(env), categorical_actions, kwargs)

    def _set_up(self, agents: SmacAgents, categorical_actions: bool, kwargs: dict[str, Any]) -> None:
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
        agents = start_agents(map_name, capability_config, seed=seed, **kwargs)
        self._set_up(agents, categorical_actions, base_kwargs)
