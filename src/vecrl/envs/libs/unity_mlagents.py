"""Unity builds with ML-Agents over TensorDicts, under TorchRL's names.

Every agent has entries and episodes of its own. This module imports ML-Agents when a player is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...simulators.unity import ACTION_MASK, CONTINUOUS, DISCRETE, UnityAgents, player_module, start_agents
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ...specs.convert import spec_from_gym
from ..entries.keys import FLAGS
from ..library_env import LibraryEnv, pop_env_arguments
from .grouped_agents import GroupMap, make_group_map
from .gym.backends import AvailableEnvs


class UnityMLAgentsWrapper(LibraryEnv):
    """The agents of a Unity player, each with entries, done flags and episodes of its own.

    The entries of an agent are under (group, agent): its observations by the names of its sensors, float32; with
    discrete actions "action_mask" `[sum of options]` bool; "continuous_action" `[k]` float32; "discrete_action" int32
    (one-hot rows of all branches one after another, or `[branches]` indices); "reward", "group_reward", "done",
    "terminated" and "truncated" `[1]`. An interruption by Unity truncates. There are no done flags at the root.

    Agents end at different steps, and Unity begins the next episode of an agent at once. A partial reset of agents that
    are done therefore returns the first observations of these episodes, or zeros until the agent asks for a decision. A
    reset of all agents resets the player. An agent that does not ask for a decision keeps its observation, gets no
    reward, and its action is ignored; so does an agent that is done and not reset.

    Args:
        env: a `mlagents_envs.environment.UnityEnvironment`, which ignores seeds after its start.
        group_map: a dict of the agents of each group, a `MarlGroupMapType`, or "behavior" for one group for each
            behavior. None groups agents by Unity's group ids: "group_0", "group_1" …
        categorical_actions: encode discrete actions as indices, not as one-hot rows.
        kwargs: see `EnvBase`.

    Raises:
        VersionError: ML-Agents is not installed.
        ConnectionError, TimeoutError: the player has ended, or sent no reply.
    """

    libname = "mlagents_envs"

    def __init__(
        self,
        env: Any = None,
        *,
        group_map: GroupMap | str = None,
        categorical_actions: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**{"allow_done_after_reset": True, **kwargs})
        player_module()
        if not callable(getattr(env, "get_steps", None)):
            raise TypeError(f"Expected a UnityEnvironment of ML-Agents, got {env!r:.80}.")
        self._set_agents(UnityAgents(env), group_map, categorical_actions)

    def _set_agents(self, agents: UnityAgents, group_map: GroupMap | str, categorical: bool) -> None:
        self._env = self._agents = agents
        self.categorical_actions = categorical
        self._seed: int | None = None
        self.group_map = make_group_map(_groups_of(agents, group_map), agents.possible_agents)
        self._keys = {name: (group, name) for group, names in self.group_map.items() for name in names}
        device = self.device or torch.device("cpu")
        observations = {name: self._observation_spec(name, device) for name in self._keys}
        actions = {name: self._action_spec_of(name, device) for name in self._keys}
        number = Unbounded((1,), device=device)
        flag = Categorical(2, (1,), device=device, dtype=torch.bool)
        self.observation_spec = self._grouped(observations)
        self.action_spec = self._grouped(actions)
        self.reward_spec = self._grouped({name: {"reward": number, "group_reward": number} for name in self._keys})
        self.full_done_spec = self._grouped({name: dict.fromkeys(FLAGS, flag) for name in self._keys})
        self._last = {name: self._encode(name, agent.observation) for name, agent in agents.members.items()}

    def _lookup_attribute(self, name: str) -> Any:
        return getattr(self._agents.env, name)

    # -- specs

    def _observation_spec(self, name: str, device: torch.device) -> dict[str, TensorSpec]:
        specs: Any = spec_from_gym(self._agents.observation_space(name), device=device)
        entries = dict(specs.items())
        if ACTION_MASK in entries:
            entries[ACTION_MASK] = Categorical(2, entries[ACTION_MASK].shape, device=device, dtype=torch.bool)
        return entries

    def _action_spec_of(self, name: str, device: torch.device) -> dict[str, TensorSpec]:
        spec: Any = spec_from_gym(self._agents.action_space(name), device=device, categorical=self.categorical_actions)
        if isinstance(spec, Composite):
            return {key: spec[key] for key in (CONTINUOUS, DISCRETE)}
        return {DISCRETE if ACTION_MASK in self._agents.observation_space(name).spaces else CONTINUOUS: spec}

    def _grouped(self, entries: Mapping[str, Mapping[str, TensorSpec]]) -> Composite:
        """Returns a `Composite` of the specs of all agents."""
        return Composite(
            {
                group: Composite(
                    {name: Composite({k: spec.clone() for k, spec in entries[name].items()}) for name in names}
                )
                for group, names in self.group_map.items()
            }
        )

    # -- resets and steps

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        names = [name for name in self._keys if _is_selected(tensordict, self._keys[name])]
        if len(names) == len(self._keys):
            seed, self._seed = self._seed, None
            observations, _ = self._agents.reset(seed=seed)
        else:
            if running := [name for name in names if self._agents.members[name].alive]:
                raise SpaceError(
                    f"Expected '_reset' masks of all agents or of agents that are done, got one of {running}. Unity "
                    "resets all agents together."
                )
            observations = self._agents.revive(names)
        data = self._read(observations)
        done = {name: (not agent.alive, False) for name, agent in self._agents.members.items()}
        return self._with_flags(data, done)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        agents = self._agents
        actions = {name: self._read_action(name, tensordict) for name in agents.acting}
        was_done = {name: (True, False) for name, agent in agents.members.items() if not agent.alive}
        observations, rewards, terminations, truncations, infos = agents.step(actions)
        data = self._read(observations)
        for name, (group, _) in self._keys.items():
            entries = data.get(group).get(name)
            entries.set("reward", self._number(rewards.get(name, 0)))
            entries.set("group_reward", self._number(infos.get(name, {}).get("group_reward", 0)))
        return self._with_flags(data, {**was_done, **{n: (terminations[n], truncations[n]) for n in terminations}})

    def _read_action(self, name: str, tensordict: TensorDictBase) -> Any:
        data = tensordict.get(self._keys[name])
        specs: Any = self.full_action_spec[self._keys[name]]
        parts = {key: spec.to_numpy(data.get(key)) for key, spec in specs.items()}
        return parts if len(parts) > 1 else next(iter(parts.values()))

    def _read(self, observations: Mapping[str, Any]) -> TensorDictBase:
        """Returns the observations of all agents, the last ones of those without new ones; sets the action masks."""
        self._last.update({name: self._encode(name, observation) for name, observation in observations.items()})
        data: Any = TensorDict(device=self.device)
        for group, names in self.group_map.items():
            data.set(group, TensorDict({name: TensorDict(self._last[name]) for name in names}, device=self.device))
        for name, agent in self._agents.members.items():
            if ACTION_MASK in self._last[name]:
                mask = self._last[name][ACTION_MASK] if agent.alive and agent.acts else None
                self.full_action_spec[(*self._keys[name], DISCRETE)].update_mask(mask)
        return data

    def _encode(self, name: str, observation: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        specs: Any = self.observation_spec[self._keys[name]]
        return {key: specs[key].encode(np.array(value)) for key, value in observation.items()}

    def _with_flags(self, data: TensorDictBase, done: Mapping[str, tuple[bool, bool]]) -> TensorDictBase:
        for name, (terminated, truncated) in done.items():
            flags = {"done": terminated or truncated, "terminated": terminated, "truncated": truncated}
            group = self._keys[name][0]
            data.get(group).get(name).update({key: self._flag(flag) for key, flag in flags.items()})
        return data

    def _number(self, value: float) -> Tensor:
        return torch.tensor([value], dtype=torch.float32, device=self.device)

    def _flag(self, value: bool) -> Tensor:
        return torch.tensor([value], device=self.device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._agents.env}, agents={len(self._keys)}, device={self.device})"

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed if self._agents.takes_seeds else None


class UnityMLAgentsEnv(UnityMLAgentsWrapper):
    """The agents of a Unity player that is started here; see `UnityMLAgentsWrapper`.

    The player connects to 127.0.0.1 only. `set_seed` starts a new player at the next reset of all agents, since Unity
    takes a seed at its start only.

    Args:
        file_name: the path of a build; without a name, waits for the Unity editor on port 5004.
        registered_name: the name of a build in ML-Agents' registry, which is downloaded once.
        group_map, categorical_actions: see `UnityMLAgentsWrapper`.
        seed: of the player; None for a random one.
        timeout: seconds to wait for a message of the player.
        kwargs: arguments of `EnvBase`; all others are those of `mlagents_envs.environment.UnityEnvironment`.

    Attributes:
        available_envs: class attribute; empty, since a name is the path of a build.

    Raises:
        ValueError: both names are given, or the registry has no such build.
        VersionError, ConnectionError, TimeoutError: see `UnityMLAgentsWrapper`.
    """

    available_envs: Any = AvailableEnvs(list)  # builds have paths, no names

    def __init__(
        self,
        file_name: str | None = None,
        registered_name: str | None = None,
        *,
        group_map: GroupMap | str = None,
        categorical_actions: bool = False,
        **kwargs: Any,
    ):
        if file_name is not None and registered_name is not None:
            raise ValueError(f"Expected file_name or registered_name, got both: {file_name!r}, {registered_name!r}.")
        super(UnityMLAgentsWrapper, self).__init__(**{"allow_done_after_reset": True, **pop_env_arguments(kwargs)})
        player_module()
        name = registered_name or file_name
        agents = start_agents(name, registered=registered_name is not None, **kwargs)
        self._set_agents(agents, group_map, categorical_actions)


def _groups_of(agents: UnityAgents, group_map: GroupMap | str) -> GroupMap:
    """Returns a dict of groups for None and "behavior", and other values unchanged."""
    if group_map is not None and group_map != "behavior":
        return group_map  # pyright: ignore[reportReturnType]
    groups: dict[str, list[str]] = {}
    for name, agent in agents.members.items():
        group = f"group_{agent.group_id}" if group_map is None else agent.behavior.partition("?")[0]
        groups.setdefault(group, []).append(name)
    return groups


def _is_selected(tensordict: TensorDictBase | None, key: Sequence[str]) -> bool:
    mask = None if tensordict is None else tensordict.get((*key, "_reset"), None)
    return mask is None or bool(mask.any())
