"""Environments of any simulator, or of the old gym, as classic ones. Knows simulators by the registry only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from numpy.typing import ArrayLike

from ..errors import SpaceError
from ..gym_interface import raise_explained, read_reset
from ..imports import require_extra
from ..simulators.gymnasium.make import as_gymnasium, make
from ..simulators.registry import SEPARATOR, check_env_name, explained_arguments, find_entry
from ..validation import check_callables, check_seed
from .base import BaseEnv, Step
from .config import Config
from .done_info import to_classic_done
from .spaces import SpaceInfo, from_numbers, info_of_space, to_space_action

Wrapper = Callable[[Any], Any]
CONTAINERS = spaces.Dict, spaces.Tuple


class GymEnv(BaseEnv):
    """A gymnasium environment, or one of another simulator, as a classic one.

    Observations in a Dict or a Tuple are flattened to one array, as `gymnasium.wrappers.FlattenObservation` does.
    Actions are, too: each choice among n takes n numbers, and is the index of the largest.

    Args:
        env_name: the name for `gymnasium.make`, or one with the prefix of a simulator, such as "native::Pendulum-v1".
        wrappers: functions from environment to environment, applied in this order.
        seed: the seed of the first reset, see `seed`.
        library: the library that creates the environment of a name without prefix: "gymnasium", or "gym".
        fixed_normalize_states, running_normalize_states, scale_reward, gamma: see `BaseEnv`.
        kwargs: keyword arguments of `make`, or of the simulator.

    Raises:
        SpaceError: the space of states or actions has no elements that are arrays of numbers.
        TypeError: a wrapper returns no environment, or `env_name` is no text.

    >>> env = GymEnv("CartPole-v1", seed=0)
    >>> env.reset().shape, env.get_action_info()
    ((4,), {'shape': (2,), 'dtype': 'int', 'n': 2})
    >>> state, reward, done, info = env.step(1)
    """

    def __init__(
        self,
        env_name: str,
        wrappers: Iterable[Wrapper] = (),
        *,
        seed: int | None = None,
        library: str = "gymnasium",
        fixed_normalize_states: bool = False,
        running_normalize_states: bool = False,
        scale_reward: bool = False,
        gamma: float = 0.99,
        **kwargs: Any,
    ):
        check_env_name(env_name)
        if isinstance(wrappers, str) or not isinstance(wrappers, Iterable):
            raise TypeError(f"Expected wrappers to be a list of functions of an environment, got {wrappers!r:.80}.")
        self.wrappers = list(wrappers)
        check_callables("wrappers to be functions of an environment", self.wrappers, "Give a class or a function.")
        self._library = library
        self._make_kwargs = kwargs
        self.seed(seed)
        try:
            super().__init__(
                env_name,
                fixed_normalize_states=fixed_normalize_states,
                running_normalize_states=running_normalize_states,
                scale_reward=scale_reward,
                gamma=gamma,
            )
            self.get_state_info()  # raises here, rather than during training, if a space is not supported
            self.get_action_info()
        except Exception:
            self.close()
            raise

    def _create_env(self) -> Any:
        env = self._make_env()
        for wrapper in self.wrappers:
            wrapped = wrapper(env)
            if not all(callable(getattr(wrapped, name, None)) for name in ("reset", "step")):
                env.close()
                raise TypeError(
                    f"Expected the wrapper {_describe_wrapper(wrapper)} to return an environment, got {wrapped!r}."
                )
            env = as_gymnasium(wrapped)
        if isinstance(env.observation_space, CONTAINERS):
            env = FlattenObservation(env)
        return _FlattenAction(env) if isinstance(env.action_space, CONTAINERS) else env

    def _make_env(self) -> Any:
        if SEPARATOR not in self.env_name:
            return make(self._id(), self._library, **self._make_kwargs)
        entry, name = find_entry(self.env_name)
        if entry.env_fn is not None:
            with explained_arguments(self.env_name, self._make_kwargs):
                return entry.env_fn(name, **self._make_kwargs)()
        require_extra("torch", self.env_name)
        from ..vector.factory import make_single_env

        return make_single_env(self.env_name, **self._make_kwargs)

    def _id(self) -> str:
        """Returns the name of the environment in the library's registry."""
        return self.env_name

    @property
    def simulator(self) -> str:
        """The library that created the environment, or the prefix of its simulator."""
        return self._library if SEPARATOR not in self.env_name else find_entry(self.env_name)[0].prefix

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Sets the seed of the next reset, from which later resets continue; returns it in a list.

        Raises:
            SpaceError: (a `ValueError`) the seed is negative.
        """
        if not isinstance(seed, int | np.integer | None):
            raise SpaceError(f"Expected a seed to be an int of 0 or more, or None, got {seed!r}.")
        check_seed(seed)
        self._seed = seed
        return [seed]

    def reset(self) -> np.ndarray:
        seed, self._seed = self._seed, None
        try:
            result = self.env.reset(seed=seed)
        except (TypeError, ValueError) as error:
            raise_explained(error, self.env)
            raise
        return np.array(read_reset(result, self.env)[0])

    def step(self, action: ArrayLike) -> Step:
        """Steps the environment.

        Args:
            action: a whole number for discrete actions; else as many numbers as an action has, whole ones for integers.

        Returns:
            The next state as a new array, the reward, whether the episode ended, and the info. When it ended, the info
            has "TimeLimit.truncated": True if it was truncated and not terminated. If it was both, "TimeLimit.reached"
            is True.
        """
        action = to_space_action(action, self.env.action_space)
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except (TypeError, ValueError) as error:
            raise_explained(error, self.env)
            raise
        return np.array(obs), float(reward), *to_classic_done(bool(terminated), bool(truncated), info)

    def get_state_info(self) -> SpaceInfo:
        """Returns the description of states (after normalization, if there is any), see `get_space_info`."""
        return self.get_space_info(self.env.observation_space)

    def get_action_info(self) -> SpaceInfo:
        """Returns the description of actions, see `get_space_info`."""
        return self.get_space_info(self.env.action_space)

    @staticmethod
    def get_space_info(space: spaces.Space) -> SpaceInfo:
        """Returns the description of a space as a dict.

        | space | shape | dtype | more keys |
        |---|---|---|---|
        | Box | of an element | "continuous" | "low_bound", "high_bound": arrays of the shape |
        | Discrete | (n,): one output of a network for each choice | "int" | "n" |
        | MultiDiscrete, MultiBinary | of an element | "int" | "n": an array of the shape |

        Spaces with a start other than 0 have a "start".

        Raises:
            SpaceError: any other space.

        >>> GymEnv.get_space_info(spaces.Discrete(3))
        {'shape': (3,), 'dtype': 'int', 'n': 3}
        """
        return info_of_space(space)

    def update_config(self, config: Config) -> None:
        """Adds a section "env" as `BaseEnv.update_config` does, with the names of the wrappers."""
        super().update_config(config)
        config.env.wrappers = [_describe_wrapper(wrapper) for wrapper in self.wrappers]


class _FlattenAction(gymnasium.ActionWrapper):
    """Takes actions in a Dict or a Tuple as one vector, see `from_numbers`."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.action_space = spaces.Box(-np.inf, np.inf, (spaces.flatdim(env.action_space),))

    def action(self, action: np.ndarray) -> Any:
        """Returns the element of the environment's action space."""
        return from_numbers(self.env.action_space, action)


def _describe_wrapper(wrapper: Wrapper) -> str:
    if isinstance(wrapper, partial):
        arguments = [*map(repr, wrapper.args), *(f"{name}={value!r}" for name, value in wrapper.keywords.items())]
        return f"{_describe_wrapper(wrapper.func)}({', '.join(arguments)})"
    name = getattr(wrapper, "__qualname__", None)
    return repr(wrapper) if name is None else f"{wrapper.__module__}.{name}"
