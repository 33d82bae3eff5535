"""`ParallelAgentsEnv`: environments of several agents over TensorDicts, with the agents in groups.

The entries of the agents of a group are stacked. This module must not know the libraries; subclasses do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from ...errors import SpaceError
from ...simulators.agents import AgentFlags, ByAgent, ParallelAgents, group_by_name, zeros_in
from ...simulators.gymnasium.make import read_frame
from ...specs import Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from ...specs.convert import spec_from_gym
from ...specs.dtypes import numpy_dtype, torch_dtype
from ..gym_like import fast_encoder
from ..keys import FLAGS
from ..library_env import LibraryEnv
from ..marl_groups import MarlGroupMapType, check_marl_grouping

ACTION_MASK = "action_mask"
Groups = Mapping[str, Sequence[str]]
GroupMap = MarlGroupMapType | Groups | Callable[[Sequence[str]], Groups] | None


class ParallelAgentsEnv(LibraryEnv):
    """An environment of several agents with PettingZoo's parallel interface, as an `EnvBase`.

    The entries of a group of n agents are under its name: "observation" `[n, ...]`, "action" `[n, ...]`, "reward"
    `[n, 1]`, and the agents' own done flags `[n, 1]`. Those at the root are the episode's. If the agents' observations
    or infos hold an "action_mask", the group has it `[n, options]` bool, and the last one is set in the action spec.
    Numbers in the infos of the first reset are under "info", as float32. Agents of unlike spaces in one group are
    stacked lazily.

    Agents that died or are not to act observe zeros or what they saw, get no reward, keep their done flags, and their
    actions are ignored: "mask" `[n]` bool tells which agents act, with `use_mask`.

    Args:
        env: the library's object.
        agents: `env` with the parallel interface, see `vecrl.simulators.agents.ParallelAgents`. It is reset once.
        group_map: a dict of the agents of each group, a `MarlGroupMapType`, or a function of the agents' names that
            returns a dict. None puts agents into one group if their names differ only in a number at the end ("cat_0",
            "cat_1").
        use_mask: whether groups have a "mask"; needed if agents may die or act in turns.
        categorical_actions: encode discrete actions as indices, not as one-hot rows.
        return_state: whether the state that all agents share is an entry, "state".
        done_on_any: whether the episode ends when the first agent is done, rather than the last one.
        seed: of the first episode.
        from_pixels: whether the rendered frame is an entry, "pixels", uint8 `[H, W, 3]`; the render mode must be
            "rgb_array".
        kwargs: see `EnvBase`.

    Raises:
        ValueError: an agent is not in exactly one group.
        SpaceError: in a step, if agents are missing and `use_mask` is False.
    """

    libname: str | None = None
    has_agent_flags = True
    """Whether groups have done flags of their own."""
    has_shared_reward = False
    """Whether there is one reward, "reward" `[1]`, that of the first agent, instead of one for each agent."""
    episode_flags: tuple[str, ...] = FLAGS
    """The done flags at the root."""
    reward_dtype = torch.float32
    state_key = "state"
    returns_new_tensors = True

    def __init__(
        self,
        env: Any,
        agents: ParallelAgents,
        *,
        group_map: GroupMap = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        return_state: bool = False,
        done_on_any: bool = True,
        seed: int | None = None,
        from_pixels: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**{"allow_done_after_reset": True, **kwargs})
        self._env, self._agents, self._seed = env, agents, seed
        self.use_mask, self.return_state, self.done_on_any = use_mask, return_state, done_on_any
        self.categorical_actions, self.from_pixels = categorical_actions, from_pixels
        self.group_map = make_group_map(group_map, list(agents.possible_agents))
        self._agent_flags = AgentFlags(agents, done_on_any)
        spec_device = self.device or torch.device("cpu")
        _, infos = agents.reset(seed=seed)
        self._groups = [
            AgentGroup(agents, group, members, infos, self, spec_device) for group, members in self.group_map.items()
        ]
        self._set_specs(spec_device)
        self.has_action_mask = {group.name: group.has_action_mask for group in self._groups}

    def _set_specs(self, device: torch.device) -> None:
        groups = self._groups
        self.action_spec = Composite({group.name: group.action_spec for group in groups})
        self.observation_spec = Composite(
            {**{group.name: group.observation_spec for group in groups}, **self._root_specs(device)}
        )
        reward = Unbounded((1,), device, self.reward_dtype)
        flag = Categorical(2, (1,), device, torch.bool)
        self.reward_spec = (
            reward if self.has_shared_reward else Composite({g.name: g.stacked({"reward": reward}) for g in groups})
        )
        done_spec = Composite({name: flag.clone() for name in self.episode_flags})
        if self.has_agent_flags:
            done_spec.update({group.name: group.stacked(dict.fromkeys(FLAGS, flag)) for group in groups})
        self.full_done_spec = done_spec

    # -- entries that all agents share; a subclass may have others

    def _root_specs(self, device: torch.device) -> dict[str, TensorSpec]:
        """Returns the specs of observations that all agents share."""
        specs: dict[str, TensorSpec] = {}
        agents: Any = self._agents
        if self.return_state:
            space = getattr(agents, "state_space", None)
            state = None if space is not None else np.asarray(agents.state())
            specs[self.state_key] = (
                spec_from_gym(space, device=device)
                if state is None
                else Unbounded(state.shape, device, torch_dtype(state.dtype))
            )
        if self.from_pixels:
            specs["pixels"] = Unbounded(read_frame(agents).shape, device, torch.uint8)
        return specs

    def _root_entries(self, infos: ByAgent) -> dict[str, Any]:
        """Returns the observations that all agents share, after a reset or a step that returned these infos."""
        entries: dict[str, Any] = {}
        agents: Any = self._agents
        if self.return_state:
            entries[self.state_key] = self.observation_spec[self.state_key].encode(np.array(agents.state()))
        if self.from_pixels:
            entries["pixels"] = torch.from_numpy(read_frame(agents).copy())
        return entries

    # -- resets and steps

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        seed, self._seed = self._seed, None
        observations, infos = self._agents.reset(**{"seed": seed, **kwargs})
        self._agent_flags.reset()
        return self._read(observations, infos)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        active = self._agent_flags.active
        actions: ByAgent = {}
        for group in self._groups:
            actions.update(group.read_actions(tensordict.get(group.name), active))
        observations, rewards, terminations, truncations, infos = self._agents.step(actions)
        self._agent_flags.update(terminations, truncations)
        data = self._read(observations, infos)
        self._set_rewards(data, rewards)
        return data

    def _read(self, observations: ByAgent, infos: ByAgent) -> TensorDictBase:
        """Returns the observations and done flags of a reset or a step; sets the masks of the action specs."""
        flags = self._agent_flags
        data: Any = TensorDict(self._root_entries(infos), device=self.device)
        for group in self._groups:
            group_data = group.read(observations, infos, flags.active)
            if self.has_agent_flags:
                terminated, truncated = group.column(flags.terminated), group.column(flags.truncated)
                group_data.update({"done": terminated | truncated, "terminated": terminated, "truncated": truncated})
            data.set(group.name, group_data)
            if group.has_action_mask:
                _set_action_mask(self.full_action_spec[group.name, "action"], group_data)
        terminated, truncated = flags.of_episode()
        values = {"done": terminated or truncated, "terminated": terminated, "truncated": truncated}
        if "truncated" not in self.episode_flags:
            values["terminated"] = values["done"]
        for name in self.episode_flags:
            data.set(name, torch.tensor([values[name]], device=self.device))
        return data

    def _set_rewards(self, data: TensorDictBase, rewards: ByAgent) -> None:
        dtype = self.reward_dtype
        if self.has_shared_reward:
            data.set("reward", torch.tensor([rewards.get(self._agents.possible_agents[0], 0)], dtype=dtype))
            return
        for group in self._groups:
            data.get(group.name).set("reward", group.column(rewards, dtype))

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed


def make_group_map(group_map: GroupMap, agents: Sequence[str]) -> dict[str, list[str]]:
    """Returns the agents of each group; see `ParallelAgentsEnv` for the forms of `group_map`.

    Raises:
        ValueError: an agent is not in exactly one group.
        TypeError: `group_map` has none of these forms.
    """
    if group_map is None:
        groups: Any = group_by_name(agents)
    elif isinstance(group_map, MarlGroupMapType):
        groups = group_map.get_group_map(agents)
    else:
        groups = group_map(agents) if callable(group_map) else group_map
    if not isinstance(groups, Mapping):
        raise TypeError(f"Expected a dict of groups, a MarlGroupMapType or a function, got {groups!r:.80}.")
    check_marl_grouping(groups, agents)
    return {name: list(group) for name, group in groups.items()}


class AgentGroup:
    """The agents of one group: the specs of their entries, and conversions of their values.

    Args:
        env: the environment of all agents.
        name, members: of the group.
        infos: the infos of a reset, in which numbers become entries.
        options: has `use_mask` and `categorical_actions`, see `ParallelAgentsEnv`.
        device: of the specs.

    Attributes:
        action_spec, observation_spec: the group's specs.
        has_action_mask: whether the agents have action masks.
    """

    def __init__(
        self,
        env: ParallelAgents,
        name: str,
        members: Sequence[str],
        infos: ByAgent,
        options: ParallelAgentsEnv,
        device: torch.device,
    ):
        self.name, self.members = name, members
        self._device, self._use_mask = device, options.use_mask
        self._blank = {agent: zeros_in(env.observation_space(agent)) for agent in members}
        self._info_shapes = _numbers_in(infos[agent] for agent in members if agent in infos)
        obs_specs: list[Any] = [spec_from_gym(env.observation_space(agent), device=device) for agent in members]
        self._mask_in_obs = all(isinstance(spec, Composite) and ACTION_MASK in spec for spec in obs_specs)
        self.has_action_mask = self._mask_in_obs or all(ACTION_MASK in infos.get(agent, {}) for agent in members)
        self._action_specs: list[Any] = [
            spec_from_gym(env.action_space(agent), device=device, categorical=options.categorical_actions)
            for agent in members
        ]
        specs = list(map(self._agent_spec, obs_specs, self._action_specs))
        self.observation_spec = _stack(specs)
        self.action_spec = _stack([Composite({"action": spec}) for spec in self._action_specs])
        self._equal_specs, self._equal_actions = _all_equal(specs), _all_equal(self._action_specs)
        self._encoders = (
            [_encoders(specs[0], len(members))] if self._equal_specs else [_encoders(spec, 1) for spec in specs]
        )

    def _agent_spec(self, obs_spec: Any, action_spec: Any) -> Composite:
        device = self._device
        entries: dict[str, Any] = {"observation": obs_spec}
        if self._mask_in_obs:
            del entries["observation"][ACTION_MASK]
        if self.has_action_mask:
            if not hasattr(action_spec, "update_mask") or isinstance(action_spec, MultiCategorical):
                raise SpaceError(f"Expected one discrete action of agents with an action mask, got {action_spec!r}.")
            entries[ACTION_MASK] = Categorical(2, (action_spec.n,), device, torch.bool)
        if self._use_mask:
            entries["mask"] = Categorical(2, (), device, torch.bool)
        if self._info_shapes:
            shapes = self._info_shapes.items()
            entries["info"] = Composite({name: Unbounded(shape, device, torch.float32) for name, shape in shapes})
        return Composite(entries)

    def stacked(self, specs: Mapping[str, TensorSpec]) -> Composite:
        """Returns a `Composite` `[n]` of specs that are the same for all agents."""
        return _stack([Composite({name: spec.clone() for name, spec in specs.items()}) for _ in self.members])

    def column(self, values: Mapping[str, Any], dtype: torch.dtype = torch.bool) -> Tensor:
        """Returns one number of each agent, `[n, 1]`; 0 for agents without one."""
        return torch.tensor([[values.get(agent, 0)] for agent in self.members], dtype=dtype, device=self._device)

    # -- actions

    def read_actions(self, data: TensorDictBase, active: Mapping[str, bool]) -> ByAgent:
        """Returns the actions of the active agents, as the library takes them."""
        if not any(active[agent] for agent in self.members):
            return {}
        specs = self._action_specs
        if self._equal_actions:
            values = _to_numpy(specs[0], data.get("action"))
            rows = [_row(values, i) for i in range(len(specs))]
        else:
            rows = [_row(_to_numpy(spec, data[i].get("action")), ()) for i, spec in enumerate(specs)]
        return {agent: row for agent, row in zip(self.members, rows, strict=True) if active[agent]}

    # -- observations

    def read(self, observations: ByAgent, infos: ByAgent, active: Mapping[str, bool]) -> TensorDictBase:
        """Returns the observations, infos and masks of the group.

        Raises:
            SpaceError: agents are missing without `use_mask`.
        """
        missing = [agent for agent in self.members if agent not in observations]
        if missing and not self._use_mask:
            raise SpaceError(
                f"Expected observations of all agents, got none of {missing}, which died. Make the environment with "
                "use_mask=True."
            )
        rows = [self._entries(agent, observations, infos, active[agent]) for agent in self.members]
        if self._equal_specs:
            return TensorDict(_encode(self._encoders[0], rows), [len(rows)])
        encoded = [_encode(encoders, [row]) for encoders, row in zip(self._encoders, rows, strict=True)]
        return lazy_stack([TensorDict(entries, [1])[0] for entries in encoded])

    def _entries(self, agent: str, observations: ByAgent, infos: ByAgent, is_active: bool) -> dict[str, Any]:
        observation = observations.get(agent, self._blank[agent])
        info = infos.get(agent) or {}
        entries: dict[str, Any] = {"observation": observation}
        if self.has_action_mask:
            mask = (observation if self._mask_in_obs else info).get(ACTION_MASK)
            if mask is None or not is_active:  # an action that is ignored may be any
                mask = np.ones(self._action_specs[self.members.index(agent)].n)
            entries[ACTION_MASK] = np.asarray(mask, np.bool_)
        if self._use_mask:
            entries["mask"] = is_active
        if self._info_shapes:
            entries["info"] = {name: info.get(name, np.zeros(shape)) for name, shape in self._info_shapes.items()}
        return entries


def _set_action_mask(action_spec: Any, data: TensorDictBase) -> None:
    """Sets the action masks of a group's data in the spec of its actions."""
    if hasattr(action_spec, "update_mask"):
        action_spec.update_mask(data.get(ACTION_MASK).clone())
        return
    for i, spec in enumerate(action_spec.specs):
        spec.update_mask(data[i].get(ACTION_MASK).clone())


def _numbers_in(infos: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Returns the keys of the numbers and arrays in infos, with their shapes; action masks are not among them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for info in infos:
        for name, value in info.items():
            if name != ACTION_MASK and not isinstance(value, Mapping) and np.asarray(value).dtype.kind in "biuf":
                shapes[str(name)] = np.shape(value)
    return shapes


def _all_equal(specs: Sequence[Any]) -> bool:
    return all(spec == specs[0] for spec in specs)


def _stack(specs: Any) -> Any:
    return torch.stack(specs)


def _encoders(spec: Any, num_rows: int) -> Any:
    """Returns functions that encode `num_rows` values of each leaf of a spec as one tensor, nested as the spec."""
    if isinstance(spec, Composite):
        return {name: _encoders(part, num_rows) for name, part in spec.items()}
    return fast_encoder(spec.expand(num_rows, *spec.shape), numpy_dtype(spec.dtype), copy=False)


def _encode(encoders: Any, rows: Sequence[Any]) -> Any:
    """Encodes the values of several agents as tensors `[rows, ...]`."""
    if isinstance(encoders, dict):
        return {name: _encode(part, [_item(row, name) for row in rows]) for name, part in encoders.items()}
    return encoders(np.stack(rows))


def _item(row: Any, name: str) -> Any:
    return row[int(name)] if isinstance(row, tuple) else row[name]


def _to_numpy(spec: Any, action: Any) -> Any:
    if isinstance(spec, Composite):
        return {name: _to_numpy(part, action.get(name)) for name, part in spec.items()}
    return spec.to_numpy(action)


def _row(values: Any, index: Any) -> Any:
    if isinstance(values, dict):
        return {name: _row(value, index) for name, value in values.items()}
    return values[index]
