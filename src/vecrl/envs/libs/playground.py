"""MuJoCo Playground's environments over TensorDicts, under TorchRL's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...engine.simulator import BatchSimulator
from ...engine.space_layout import Tree
from ...simulators import playground
from ...simulators.jax_simulator import JaxSimulator, JaxTask, shared_task
from ...specs import Composite
from .agent_mapping import AgentParts, MujocoPlaygroundAgentMapping, find_mapping
from .gym.backends import AvailableEnvs
from .simulator_env import SimulatorEnv, batch_size_of


class MujocoPlaygroundWrapper(SimulatorEnv):
    """An environment of MuJoCo Playground, in one or many rows, as an `EnvBase`; see `SimulatorEnv`.

    Observations are under "observation"; those that Playground returns in a dict have its keys. With `agent_mapping`,
    there is a group of each agent, which has its "observation", its "action" and the common "reward"; flags are those
    of the environment.

    Args:
        env: the environment, without wrappers.
        agent_mapping: divides the observations and actions among agents: a `MujocoPlaygroundAgentMapping`, or
            "halfcheetah_6x1" (for "CheetahRun") or "walker2d_2x3" (for those of the walker); None for one agent.
        batch_size: the batch size; None for a single environment without batch dimensions.
        episode_length: steps until an episode is truncated; None for no limit.
        device: the device of the simulator and of all tensors; None is JAX's default device.
        kwargs: arguments of `SimulatorEnv`, also `num_envs` instead of `batch_size`.

    Raises:
        SpaceError: (a `ValueError`) the mapping does not fit the environment.

    >>> from mujoco_playground import registry  # doctest: +SKIP
    >>> MujocoPlaygroundWrapper(registry.load("CheetahRun"), batch_size=[8]).rollout(3).shape  # doctest: +SKIP
    torch.Size([8, 3])
    """

    libname = "mujoco_playground"
    _resets_when_seeded = False
    git_url = "https://github.com/google-deepmind/mujoco_playground"
    available_envs: Any = AvailableEnvs(lambda: playground.playground_module().registry.ALL_ENVS)

    def __init__(
        self,
        env: Any = None,
        *,
        agent_mapping: MujocoPlaygroundAgentMapping | str | None = None,
        batch_size: Sequence[int] | int | None = None,
        episode_length: int | None = None,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ):
        if not (hasattr(env, "mjx_model") and hasattr(env, "action_size")):
            raise TypeError(f"Expected an environment of MuJoCo Playground, got {type(env).__name__}.")
        task = playground.PlaygroundTask(env, episode_length=episode_length)
        self._set_up(task, agent_mapping, batch_size, device, kwargs)

    def _set_up(
        self,
        task: JaxTask,
        agent_mapping: MujocoPlaygroundAgentMapping | str | None,
        batch_size: Sequence[int] | int | None,
        device: torch.device | str | int | None,
        kwargs: dict[str, Any],
    ) -> None:
        self._mapping = None if agent_mapping is None else find_mapping(agent_mapping)
        self._agents: AgentParts | None = None
        shape = batch_size_of(kwargs.pop("num_envs", None), batch_size) or torch.Size()
        render_mode = "rgb_array" if kwargs.get("from_pixels") else None
        simulator = JaxSimulator(task, shape.numel(), device=device, render_mode=render_mode)
        SimulatorEnv.__init__(self, simulator, batch_size=shape, device=device, **kwargs)

    def _make_specs(self, env: BatchSimulator) -> None:
        super()._make_specs(env)
        if self._mapping is None:
            return
        agents = self._agents = AgentParts(self._mapping, env.observation_space, env.action_space.shape[0])  # pyright: ignore[reportOptionalSubscript]
        observations, actions, rewards = agents.specs(self.device or torch.device("cpu"))
        groups = self._batched(Composite({} if self.from_pixels and self.pixels_only else observations))
        self.observation_spec = groups.set("pixels", self.observation_spec["pixels"]) if self.from_pixels else groups
        self.action_spec, self.reward_spec = self._batched(Composite(actions)), self._batched(Composite(rewards))
        self._decoders = self._make_decoders([(name, "action") for name in agents.names])

    def read_obs(self, observations: Tree) -> dict[str, Any]:
        """Converts observations of all rows to a nested dict of tensors."""
        entries = super().read_obs(observations)
        if self._agents is None or not self._encoders:
            return entries
        parts = self._agents.divide([entries.pop(name) for name in self._agents.entries])
        return entries | {name: {"observation": part} for name, part in parts.items()}

    def _actions_of(self, tensordict: TensorDictBase) -> Tree:
        if self._agents is None:
            return super()._actions_of(tensordict)
        return self._agents.join([decode(tensordict.get(key)) for key, decode in self._decoders])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = super()._step(tensordict)
        if self._agents is not None:
            reward = result.pop("reward")
            for name in self._agents.names:
                result.set((name, "reward"), reward.clone())
        return result

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        return None if self._agents is not None else super()._rollout_at_once(steps, actions, break_when_any_done)

    @property
    def lib(self) -> Any:
        """The module `mujoco_playground`."""
        return playground.playground_module()


class MujocoPlaygroundEnv(MujocoPlaygroundWrapper):
    """An environment of MuJoCo Playground, made by its name; see `MujocoPlaygroundWrapper`.

    Args:
        env_name: one of `available_envs`.
        config: its configuration, an `ml_collections.ConfigDict`; None for its default one.
        config_overrides: values that replace some of the configuration. Without a CUDA device, `impl` is "jax" unless
            this or `config` says otherwise.
        episode_length: steps until an episode is truncated; None for that of the configuration.
        agent_mapping, batch_size, device, kwargs: as in `MujocoPlaygroundWrapper`.

    Attributes:
        available_envs: class attribute, the names of all environments. Those of robots download their models.

    Raises:
        VersionError: MuJoCo Playground is not installed.
        ValueError: there is no environment of this name.

    >>> MujocoPlaygroundEnv("CartpoleBalance").rollout(3)["next", "observation"].shape  # doctest: +SKIP
    torch.Size([3, 5])
    """

    def __init__(
        self,
        env_name: str,
        *,
        config: Any = None,
        config_overrides: Mapping[str, Any] | None = None,
        agent_mapping: MujocoPlaygroundAgentMapping | str | None = None,
        batch_size: Sequence[int] | int | None = None,
        episode_length: int | None = None,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ):
        arguments = {"config": config, "config_overrides": config_overrides, "episode_length": episode_length}
        given = {name: value for name, value in arguments.items() if value is not None}
        task = shared_task(playground.make_task, env_name, **given)
        self.env_name = env_name
        self._set_up(task, agent_mapping, batch_size, device, kwargs)

    def __repr__(self) -> str:
        return f"MujocoPlaygroundEnv({self.env_name!r}, batch_size={tuple(self.batch_size)}, device={self.device})"
