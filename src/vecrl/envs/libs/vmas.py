"""VMAS's environments over TensorDicts: batches of teams of robots, with the agents of each group stacked.

The simulator makes resets of some rows, random streams and states; this module only groups its agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...seeding import random_seed
from ...simulators.vmas import VmasSimulator, make_batch, names
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ...specs.convert import spec_from_gym
from ...validation import parse_count
from ...vector.checked_simulator import restore_other_rows
from ..entries.row_masks import reduce_to_rows
from ..library_env import LibraryEnv, pop_env_arguments
from .grouped_agents import GroupedEntries, GroupMap, make_group_map, to_choices
from .gym.backends import AvailableEnvs


class VmasWrapper(LibraryEnv):
    """A VMAS environment, with the batch size `(num_envs,)`.

    The agents of a group are stacked in the second dimension: entries of the group "agents" are "observation"
    `[num_envs, n_agents, ...]`, "reward" `[num_envs, n_agents, 1]`, "action", and "info" (float32) if the scenario
    gives any.
    Agents of unlike spaces in one group are stacked lazily. "done" and "terminated" `[num_envs, 1]` are of all agents;
    "truncated" is there if VMAS was made with `terminated_truncated`.

    Random numbers depend on `set_seed`, the row and the episode. The first reset of all rows after `set_seed(seed)` is
    that of VMAS with this seed. Gradients flow from rewards and observations to actions if VMAS was made with
    `grad_enabled`.

    Args:
        env: made by `vmas.make_env`, without a wrapper.
        categorical_actions: encode discrete actions as indices, otherwise as one-hot rows.
        group_map: the agents of every group, or how to group them. By default agents named "TYPE_NUMBER" are grouped
            by their type, and the group of the type "agent" alone is "agents"; other agents are in one group "agents".
        kwargs: `batch_size`, `device`, `run_type_checks` and `allow_done_after_reset`, see `EnvBase`.

    Attributes:
        available_envs: class attribute, the names of the scenarios.
        group_map: the names of the agents of every group.
        agent_names: all names.
        het_specs_map: whether the agents of a group have unlike spaces, by group; `het_specs` for any group.

    Raises:
        TypeError: if this is no environment of VMAS.
        ValueError: if agents are not in exactly one group each.
        SpaceError: if the batch size is not the number of rows.
    """

    libname = "vmas"
    excluded_from_state = ("_observations", "_actions")
    available_envs: Any = AvailableEnvs(names)

    def __init__(self, env: Any = None, categorical_actions: bool = True, group_map: GroupMap = None, **kwargs: Any):
        if not all(hasattr(env, name) for name in ("get_from_scenario", "scenario", "agents")):
            raise TypeError(f"Expected an environment from vmas.make_env without a wrapper, got {env!r:.80}.")
        self._init_over(VmasSimulator(env, independent_rows=False), categorical_actions, group_map, **kwargs)

    def _init_over(
        self, simulator: VmasSimulator, categorical_actions: bool, group_map: GroupMap, **kwargs: Any
    ) -> None:
        shape = (simulator.num_envs,)
        if tuple(kwargs.setdefault("batch_size", shape)) not in ((), shape):
            raise SpaceError(f"Expected a batch size of {shape}, got {tuple(kwargs['batch_size'])}. Omit it.")
        LibraryEnv.__init__(self, **{**kwargs, "batch_size": shape})
        self.simulator = self._env = simulator
        self.categorical_actions = categorical_actions
        self.group_map = make_group_map(group_map, self.agent_names, _groups_by_type)
        self._set_specs()

    def _set_specs(self) -> None:
        simulator, device = self.simulator, torch.device(self.simulator.device)
        obs_specs: Any = spec_from_gym(simulator.observation_space, device=device)
        action_specs: Any = spec_from_gym(
            simulator.action_space, device=device, categorical=self.categorical_actions, dtype=torch.int64
        )
        infos = simulator.read_infos()
        observed = {agent: {"observation": obs_specs[agent]} for agent in self.agent_names}
        for agent, info in infos.items():
            if info:
                observed[agent]["info"] = Composite(_info_specs(info, device))
        n = self.batch_size[0]
        specs = {agent: (Composite(observed[agent]), Composite(action=action_specs[agent])) for agent in observed}
        self.het_specs_map: dict[str, bool] = {
            group: any(specs[agent] != specs[agents[0]] for agent in agents) for group, agents in self.group_map.items()
        }
        lazy = [group for group, is_lazy in self.het_specs_map.items() if is_lazy]
        self._observations, self._actions = (
            GroupedEntries(self.group_map, {agent: pair[i] for agent, pair in specs.items()}, [n], lazy) for i in (0, 1)
        )
        reward = Composite(reward=Unbounded((1,), device=device))
        self.observation_spec, self.action_spec = self._observations.spec, self._actions.spec
        self.reward_spec = GroupedEntries(self.group_map, dict.fromkeys(observed, reward), [n]).spec
        flag = Categorical(2, (n, 1), dtype=torch.bool, device=device)
        flags = ["done", "terminated", *["truncated"] * bool(simulator.env.terminated_truncated)]
        self.full_done_spec = Composite({name: flag.clone() for name in flags}, shape=(n,))

    # -- resets and steps

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones(self.batch_size, dtype=torch.bool)
        obs = self.simulator.reset_where(reduce_to_rows(mask, self.batch_size))
        return self._tensordict(obs, self.simulator.read_infos())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step = self.simulator.step_agents(self._actions.decode(tensordict, "action", to_choices))
        data = self._tensordict(step.obs, step.infos)
        for group, agents in self.group_map.items():
            rewards = torch.stack([step.rewards[agent] for agent in agents], 1)
            data.get(group).set("reward", rewards.unsqueeze(-1))
        data.set("terminated", step.terminated.unsqueeze(-1))
        if self.simulator.env.terminated_truncated:
            data.set("truncated", step.truncated.unsqueeze(-1))
        return data

    def _tensordict(self, obs: Mapping[str, Any], infos: Mapping[str, Any]) -> Any:
        """Returns the entries of all groups from the observation and the infos of each agent."""
        groups = self._observations.encode({agent: _entries(obs[agent], infos[agent]) for agent in self.agent_names})
        return TensorDict(groups, self.batch_size, device=self.device)

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        state_before = self.simulator.get_state()
        next_td = self._step_and_complete(tensordict)
        rows = reduce_to_rows(mask, self.batch_size).to(self.simulator.device)
        restore_other_rows(self.simulator, rows, state_before)
        return next_td

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            seed = random_seed()
        self.simulator.seed([seed + row for row in range(self.simulator.num_envs)])

    # -- the rest

    @property
    def agent_names(self) -> list[str]:
        """The names of all agents."""
        return self.simulator.agents

    @property
    def het_specs(self) -> bool:
        """Whether the agents of some group have unlike spaces."""
        return any(self.het_specs_map.values())

    def _lookup_attribute(self, name: str) -> Any:
        return getattr(self.simulator.env, name)

    def render(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, mode: str = "rgb_array", env_index: int = 0, **kwargs: Any
    ) -> Any:
        """Renders one row with VMAS's `render`: a frame `[height, width, 3]` uint8 in the mode "rgb_array"."""
        return self.simulator.env.render(mode=mode, env_index=env_index, **kwargs)

    def to(self, device: torch.device | str | int) -> Self:
        """Moves the environment, with its simulator, to another device and returns it."""
        super().to(device)
        self.simulator.to(torch.device(device))
        return self

    def __repr__(self) -> str:
        scenario = f"scenario={self.scenario_name}, " if "scenario_name" in vars(self) else ""
        return (
            f"{type(self).__name__}({scenario}num_envs={self.simulator.num_envs}, n_agents={len(self.agent_names)}, "
            f"batch_size={tuple(self.batch_size)}, device={self.device})"
        )


class VmasEnv(VmasWrapper):
    """A VMAS environment, made by the name of its scenario; see `VmasWrapper`.

    Args:
        scenario: the name, or a `vmas.simulator.scenario.BaseScenario`.
        num_envs: the number of rows.
        continuous_actions: continuous actions, otherwise discrete ones.
        max_steps: steps until an episode ends; None for no limit.
        categorical_actions, group_map: see `VmasWrapper`.
        seed: as for `set_seed`.
        scenario_kwargs: arguments of the scenario, also if an argument here has the same name.
        kwargs: those of `VmasWrapper`; all others are arguments of `vmas.make_env` (`grad_enabled`, `dict_spaces`,
            `multidiscrete_actions`, `clamp_actions`, `terminated_truncated`) and of the scenario (`n_agents`, ...).

    Raises:
        VersionError: (an ImportError) if VMAS is not installed.
        ValueError: if there is no scenario of this name.
    """

    def __init__(
        self,
        scenario: Any,
        *,
        num_envs: int,
        continuous_actions: bool = True,
        max_steps: int | None = None,
        categorical_actions: bool = True,
        seed: int | None = None,
        group_map: GroupMap = None,
        scenario_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        num_envs = parse_count("num_envs", num_envs)
        env_options = pop_env_arguments(kwargs)
        make_options: dict[str, Any] = {
            "device": env_options.get("device"),
            "terminated_truncated": False,
            **kwargs,
            **(scenario_kwargs or {}),
        }
        simulator = make_batch(
            scenario,
            num_envs,
            continuous_actions=continuous_actions,
            max_steps=max_steps,
            independent_rows=False,
            **make_options,
        )
        self._init_over(simulator, categorical_actions, group_map, **env_options)
        self.scenario_name = scenario if isinstance(scenario, str) else type(scenario).__module__
        if seed is not None:
            self.set_seed(seed)


def _groups_by_type(agent_names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    groups: dict[str, list[str]] = {}
    for name in agent_names:
        agent_type, _, number = name.rpartition("_")
        if not agent_type or not number.isdigit():
            return {"agents": agent_names}
        groups.setdefault(agent_type, []).append(name)
    return {"agents": agent_names} if list(groups) == ["agent"] else groups


def _entries(obs: Any, info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of one agent; infos become float32, those of shape `[n]` with the shape `[n, 1]`."""
    return {"observation": obs, "info": _with_columns(info)} if info else {"observation": obs}


def _with_columns(info: Any) -> Any:
    if isinstance(info, Mapping):
        return {key: _with_columns(value) for key, value in info.items()}
    # before the first step, the infos of some scenarios have another dtype than later
    return (info.unsqueeze(-1) if info.ndim == 1 else info).to(torch.float32)


def _info_specs(info: Mapping[str, Any], device: torch.device) -> dict[str, TensorSpec]:
    return {
        key: Composite(_info_specs(value, device))
        if isinstance(value, Mapping)
        else Unbounded(value.shape[1:], device=device, dtype=value.dtype)
        for key, value in _with_columns(info).items()
    }
