"""`ParallelAgentsEnv`: environments of several agents over TensorDicts, with the agents in groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import PendingError, SpaceError
from ...simulators.agents import AgentFlags, ByAgent, ParallelAgents, zeros_in
from ...simulators.gymnasium.make import read_frame
from ...specs import Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from ...specs.convert import spec_from_gym
from ...specs.dtypes import torch_dtype
from ..entries.keys import FLAGS
from ..library_env import LibraryEnv
from .grouped_agents import GroupedEntries, GroupMap, make_group_map

ACTION_MASK = "action_mask"


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
    excluded_from_state = ("_entries_of", "_observations", "_actions")
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
        self._entries_of: dict[str, AgentEntries] = {}
        for members in self.group_map.values():
            self._entries_of |= entries_of_group(agents, members, infos, use_mask, categorical_actions, spec_device)
        self._set_specs(spec_device)
        entries_of = self._entries_of
        self.has_action_mask = {name: entries_of[group[0]].has_mask for name, group in self.group_map.items()}

    def _set_specs(self, device: torch.device) -> None:
        entries_of = self._entries_of.items()
        self._observations = GroupedEntries(self.group_map, {name: entries.spec for name, entries in entries_of})
        self._actions = GroupedEntries(
            self.group_map, {name: Composite(action=entries.action_spec) for name, entries in entries_of}
        )
        self.action_spec = self._actions.spec
        self.observation_spec = Composite({**dict(self._observations.spec.items()), **self._root_specs(device)})
        reward = Unbounded((1,), device, self.reward_dtype)
        flag = Categorical(2, (1,), device, torch.bool)
        self.reward_spec = reward if self.has_shared_reward else self._spec_for_all(Composite(reward=reward))
        done_spec = Composite({name: flag.clone() for name in self.episode_flags})
        if self.has_agent_flags:
            done_spec.update(dict(self._spec_for_all(Composite(dict.fromkeys(FLAGS, flag))).items()))
        self.full_done_spec = done_spec

    def _spec_for_all(self, spec: Composite) -> Composite:
        return GroupedEntries(self.group_map, dict.fromkeys(self._entries_of, spec)).spec

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
        active = [name for name, is_active in self._agent_flags.active.items() if is_active]
        if not active:
            raise PendingError("Expected an agent that acts, got none: there was no reset, or the episode has ended.")
        actions = self._actions.decode(tensordict, "action", agents=active)
        observations, rewards, terminations, truncations, infos = self._agents.step(actions)
        self._agent_flags.update(terminations, truncations)
        data = self._read(observations, infos)
        self._set_rewards(data, rewards)
        return data

    def _read(self, observations: ByAgent, infos: ByAgent) -> TensorDictBase:
        """Returns the observations and done flags of a reset or a step; sets the masks of the action specs.

        Raises:
            SpaceError: agents are missing without `use_mask`.
        """
        missing = [agent for agent in self._entries_of if agent not in observations]
        if missing and not self.use_mask:
            raise SpaceError(
                f"Expected observations of all agents, got none of {missing}, which died. Make the environment with "
                "use_mask=True."
            )
        flags = self._agent_flags
        values = {
            agent: entries.read(observations.get(agent), infos.get(agent) or {}, flags.active[agent])
            for agent, entries in self._entries_of.items()
        }
        data: Any = TensorDict(self._root_entries(infos), device=self.device)
        for group, group_data in self._observations.encode(values).items():
            if self.has_agent_flags:
                terminated, truncated = (self._column(group, ends) for ends in (flags.terminated, flags.truncated))
                group_data.update({"done": terminated | truncated, "terminated": terminated, "truncated": truncated})
            data.set(group, group_data)
            if self.has_action_mask[group]:
                _set_action_mask(self.full_action_spec[group, "action"], group_data)
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
        for group in self.group_map:
            data.get(group).set("reward", self._column(group, rewards, dtype))

    def _column(self, group: str, values: Mapping[str, Any], dtype: torch.dtype = torch.bool) -> Tensor:
        """Returns one number of each agent of a group, `[n, 1]`; 0 for agents without one."""
        return torch.tensor(
            [[values.get(agent, 0)] for agent in self.group_map[group]], dtype=dtype, device=self.device
        )

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed


@dataclass(frozen=True, slots=True)
class AgentEntries:
    """The entries of one agent.

    Attributes:
        spec: of all of them except the action.
        action_spec: of the action.
        blank: what the agent observes when it is not in the episode.
        has_mask: whether its actions have a mask.
        mask_in_obs: whether the mask is part of the observation, rather than of the info.
        numbers: the shapes of the numbers and arrays in the infos.
    """

    spec: Composite
    action_spec: Any
    blank: Any
    has_mask: bool
    mask_in_obs: bool
    numbers: Mapping[str, tuple[int, ...]]

    def read(self, observation: Any, info: Mapping[str, Any], is_active: bool) -> dict[str, Any]:
        """Returns the values of the entries in `spec`."""
        observation = self.blank if observation is None else observation
        entries: dict[str, Any] = {"observation": observation, "mask": is_active}
        if self.has_mask:
            mask = (observation if self.mask_in_obs else info).get(ACTION_MASK)
            if mask is None or not is_active:  # an action that is ignored may be any
                mask = np.ones(self.action_spec.n)
            entries[ACTION_MASK] = np.asarray(mask, np.bool_)
        entries["info"] = {name: info.get(name, np.zeros(shape)) for name, shape in self.numbers.items()}
        return entries


def entries_of_group(
    env: ParallelAgents, members: Sequence[str], infos: ByAgent, use_mask: bool, categorical: bool, device: torch.device
) -> dict[str, AgentEntries]:
    """Returns the entries of each agent of a group.

    Args:
        env: the environment of all agents.
        members: the agents of the group.
        infos: the infos of a reset, in which numbers become entries.
        use_mask, categorical: see `ParallelAgentsEnv`.
        device: of the specs.
    """
    obs_specs: list[Any] = [spec_from_gym(env.observation_space(agent), device=device) for agent in members]
    mask_in_obs = all(isinstance(spec, Composite) and ACTION_MASK in spec for spec in obs_specs)
    has_mask = mask_in_obs or all(ACTION_MASK in infos.get(agent, {}) for agent in members)
    numbers = _numbers_in(infos[agent] for agent in members if agent in infos)
    found: dict[str, AgentEntries] = {}
    for agent, obs_spec in zip(members, obs_specs, strict=True):
        action_spec: Any = spec_from_gym(env.action_space(agent), device=device, categorical=categorical)
        spec = Composite(observation=obs_spec)
        if mask_in_obs:
            del obs_spec[ACTION_MASK]
        if has_mask:
            if not hasattr(action_spec, "update_mask") or isinstance(action_spec, MultiCategorical):
                raise SpaceError(f"Expected one discrete action of agents with an action mask, got {action_spec!r}.")
            spec[ACTION_MASK] = Categorical(2, (action_spec.n,), device, torch.bool)
        if use_mask:
            spec["mask"] = Categorical(2, (), device, torch.bool)
        if numbers:
            spec["info"] = Composite({name: Unbounded(shape, device, torch.float32) for name, shape in numbers.items()})
        blank = zeros_in(env.observation_space(agent))
        found[agent] = AgentEntries(spec, action_spec, blank, has_mask, mask_in_obs, numbers)
    return found


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
