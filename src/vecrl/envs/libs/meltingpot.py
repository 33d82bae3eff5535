"""Substrates of Melting Pot over TensorDicts."""

from __future__ import annotations

from typing import Any

import torch

from ...simulators.meltingpot import SubstrateAgents, build, names
from ..library_env import pop_env_arguments
from ..marl_groups import MarlGroupMapType
from .grouped_agents import GroupMap
from .gym_backends import AvailableEnvs
from .parallel_agents import ParallelAgentsEnv


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
    available_envs: Any = AvailableEnvs(names)
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
            SubstrateAgents(env, max_steps, "rgb_array"),
            group_map=group_map,
            categorical_actions=categorical_actions,
            return_state=True,
            **kwargs,
        )

    @property
    def lib(self) -> Any:
        """The module `meltingpot`."""
        import meltingpot

        return meltingpot

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
        super().__init__(build(substrate, **kwargs), categorical_actions, group_map, max_steps, **env_arguments)
