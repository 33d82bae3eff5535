"""Substrates of Melting Pot: worlds of several players, by name or configuration.

Episodes cannot be repeated: equal seeds give different ones, so seeds are ignored. Worker processes import this module,
so it must not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.space_layout import AnySpace
from ..errors import VersionError
from ..gym_interface import Env
from ..registries import check_name
from .agents import AgentsEnv, ByAgent
from .gymnasium.make import apply_pixel_wrappers

WORLD_FRAME = "WORLD.RGB"


def substrates() -> Any:
    """Imports the module `meltingpot.substrate`.

    Melting Pot imports TensorFlow for its bots only. If TensorFlow is not installed, a module that is almost empty
    stands for it during the import.

    Raises:
        ImportError: Melting Pot is not installed.
    """
    if find_spec("meltingpot") is None:
        raise VersionError("Expected dm-meltingpot to be installed. See 'Melting Pot' in the documentation of vecrl.")
    with _substitute_for_tensorflow():
        return import_module("meltingpot.substrate")


@contextmanager
def _substitute_for_tensorflow() -> Iterator[None]:
    name = "tensorflow"
    if name in sys.modules or find_spec(name) is not None:
        yield
        return
    module: Any = ModuleType(name)
    module.Tensor, module.executing_eagerly = object, lambda: True  # what the classes of bots use when they are defined
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


def names() -> list[str]:
    """Returns the names of all substrates; raises ImportError as `substrates`."""
    return sorted(substrates().SUBSTRATES)


def build(substrate: Any, roles: Sequence[str] | None = None) -> Any:
    """Makes a substrate.

    Args:
        substrate: its name, or a configuration such as `meltingpot.substrate.get_config(name)` returns.
        roles: the role of each player; None for the substrate's default.

    Raises:
        ValueError: there is no substrate of that name, or no such role.
    """
    library = substrates()
    config = substrate
    if isinstance(substrate, str):
        check_name("a substrate of Melting Pot", substrate, library.SUBSTRATES)
        config = library.get_config(substrate)
    return library.build_from_config(config, roles=config.default_player_roles if roles is None else roles)


class SubstrateAgents:
    """A substrate as `ParallelAgents`; the players are "player_0", "player_1", …

    Observations are dicts; numbers have the shape (1,). The image of the whole world is the state and what is rendered.

    Args:
        substrate: a `meltingpot.utils.substrates.substrate.Substrate`.
        max_steps: number of steps after which an episode is truncated; None for the substrate's own end only.
        render_mode: "rgb_array" or None.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, substrate: Any, max_steps: int | None = None, render_mode: str | None = None):
        self.substrate = substrate
        self.max_steps, self.render_mode = max_steps, render_mode
        specs = substrate.observation_spec()
        self.possible_agents = [f"player_{i}" for i in range(len(specs))]
        self.agents: list[str] = []
        self._observation_spaces = {
            agent: spaces.Dict({key: _space(part) for key, part in spec.items() if key != WORLD_FRAME})
            for agent, spec in zip(self.possible_agents, specs, strict=True)
        }
        actions = zip(self.possible_agents, substrate.action_spec(), strict=True)
        self._action_spaces = {agent: spaces.Discrete(int(spec.num_values)) for agent, spec in actions}
        self.state_space = _space(specs[0][WORLD_FRAME])
        self._num_steps = 0
        self._frame: Any = None

    def observation_space(self, agent: str) -> AnySpace:
        """Returns the observation space of a player."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> AnySpace:
        """Returns the action space of a player."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        """Begins an episode. The seed is ignored: it would not determine the episode."""
        self._num_steps, self.agents = 0, list(self.possible_agents)
        return self._read(self.substrate.reset()), {}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps all players."""
        timestep = self.substrate.step([int(actions[agent]) for agent in self.possible_agents])
        self._num_steps += 1
        rewards = {agent: float(reward) for agent, reward in zip(self.agents, timestep.reward, strict=True)}
        terminated = bool(timestep.last())
        truncated = not terminated and self.max_steps is not None and self._num_steps >= self.max_steps
        terminations, truncations = (dict.fromkeys(self.agents, flag) for flag in (terminated, truncated))
        observations = self._read(timestep)
        if terminated or truncated:
            self.agents = []
        return observations, rewards, terminations, truncations, {}

    def _read(self, timestep: Any) -> ByAgent:
        self._frame = timestep.observation[0][WORLD_FRAME]
        return {
            agent: {key: np.reshape(observation[key], part.shape or ()) for key, part in space.spaces.items()}
            for (agent, space), observation in zip(self._observation_spaces.items(), timestep.observation, strict=True)
        }

    def state(self) -> np.ndarray:
        """Returns the image of the whole world, uint8 `[H, W, 3]`."""
        return self._frame

    def render(self) -> Any:
        """Returns the image of the whole world if the render mode is "rgb_array"."""
        return None if self.render_mode is None else self._frame

    def close(self) -> None:
        """Closes the substrate."""
        self.substrate.close()


def _space(spec: Any) -> spaces.Box:
    is_image = spec.dtype == np.uint8
    low, high = (0, 255) if is_image else (-np.inf, np.inf)
    return spaces.Box(low, high, spec.shape or (1,), spec.dtype)


def make_gym(
    substrate: Any,
    *,
    roles: Sequence[str] | None = None,
    max_steps: int | None = None,
    render_mode: str | None = None,
    from_pixels: bool = False,
    pixels_only: bool = True,
    frame_skip: int | None = None,
) -> Env:
    """Makes a substrate with gymnasium's interface, see `vecrl.simulators.agents.AgentsEnv`.

    Args:
        substrate, roles: see `build`.
        max_steps, render_mode: see `SubstrateAgents`.
        from_pixels, pixels_only: see `ObservePixels`.
        frame_skip: number of steps per step.
    """
    agents = SubstrateAgents(build(substrate, roles), max_steps, "rgb_array" if from_pixels else render_mode)
    return apply_pixel_wrappers(
        AgentsEnv(agents), from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip
    )


def env_fn(name: str, **kwargs: Any) -> Callable[[], Env]:
    """Returns a function that makes the substrate `name` by `make_gym`. Its name is checked when it is made."""
    return partial(make_gym, name, **kwargs)
