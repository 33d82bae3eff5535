"""Environments of gymnasium, or of the old gym, as classic ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..simulators.gym_factory import as_gymnasium, make
from .base import BaseEnv, Step
from .config import Config
from .done_info import to_classic_done
from .spaces import info_of_space, to_space_action

Wrapper = Callable[[Any], Any]


class GymEnv(BaseEnv):
    """An environment of gymnasium by its name.

    Args:
        env_name: as `gymnasium.make` takes it.
        wrappers: functions from environment to environment, applied in this order.
        seed: that the first reset begins with, see `seed`.
        library: whose `make` makes the environment: "gymnasium", or "gym".
        fixed_normalize_states, running_normalize_states, scale_reward, gamma: see `BaseEnv`.
        kwargs: for `make`.

    Raises:
        SpaceError: states or actions that are neither a Box nor a Discrete nor a MultiDiscrete space.
        TypeError: a wrapper that returns no environment.

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
        self.wrappers = list(wrappers)
        self._library = library
        self._make_kwargs = kwargs
        self._seed = seed
        try:
            super().__init__(
                env_name,
                fixed_normalize_states=fixed_normalize_states,
                running_normalize_states=running_normalize_states,
                scale_reward=scale_reward,
                gamma=gamma,
            )
            self.get_state_info()  # now, rather than in the midst of a training, where one cannot be said
            self.get_action_info()
        except Exception:
            self.close()
            raise

    def _create_env(self) -> Any:
        env = make(self._id(), self._library, **self._make_kwargs)
        for wrapper in self.wrappers:
            wrapped = wrapper(env)
            if not all(callable(getattr(wrapped, name, None)) for name in ("reset", "step")):
                env.close()
                raise TypeError(
                    f"Expected the wrapper {_describe_wrapper(wrapper)} to return an environment, but {wrapped!r} came."
                )
            env = as_gymnasium(wrapped)
        return env

    def _id(self) -> str:
        """The name that the library knows the environment by."""
        return self.env_name

    @property
    def simulator(self) -> str:
        """The library that the environment was made by."""
        return self._library

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Have the next reset begin with this seed, later ones with what follows from it; returns it in a list."""
        self._seed = seed
        return [seed]

    def reset(self) -> np.ndarray:
        """Begin an episode; its first state, an array of the caller's own."""
        seed, self._seed = self._seed, None
        return np.array(self.env.reset(seed=seed)[0])

    def step(self, action: Any) -> Step:
        """Take an action, see `BaseEnv.step`.

        Args:
            action: whatever `int` takes where the actions are choices; else numbers, as many as an action has.

        Returns:
            The next state, an array of the caller's own, the reward, whether the episode is over, and the info. At an
            end that has "TimeLimit.truncated", whether time ran out rather than that the environment itself had ended;
            "TimeLimit.reached" besides, where both came in one step.
        """
        obs, reward, terminated, truncated, info = self.env.step(to_space_action(action, self.env.action_space))
        return np.array(obs), float(reward), *to_classic_done(bool(terminated), bool(truncated), info)

    def get_state_info(self) -> dict[str, Any]:
        """What states look like, see `get_space_info`; normalised ones as they are then."""
        return self.get_space_info(self.env.observation_space)

    def get_action_info(self) -> dict[str, Any]:
        """What actions look like, see `get_space_info`."""
        return self.get_space_info(self.env.action_space)

    @staticmethod
    def get_space_info(space: spaces.Space[Any]) -> dict[str, Any]:
        """A space as a dict.

        | space | shape | dtype | beside |
        |---|---|---|---|
        | Box | of an element | "continuous" | "low_bound", "high_bound": arrays of the shape |
        | Discrete | (n,): one number a choice, as networks have it | "int" | "n" |
        | MultiDiscrete | of an element | "int" | "n": an array of the shape |

        Choices that do not begin at 0 have a "start".

        Raises:
            SpaceError: any other space.

        >>> GymEnv.get_space_info(spaces.Discrete(3))
        {'shape': (3,), 'dtype': 'int', 'n': 3}
        """
        return info_of_space(space)

    def update_config(self, config: Config) -> None:
        """Write a section "env", see `BaseEnv.update_config`, with the names of the wrappers."""
        super().update_config(config)
        config.env.wrappers = [_describe_wrapper(wrapper) for wrapper in self.wrappers]


def _describe_wrapper(wrapper: Any) -> str:
    if isinstance(wrapper, partial):
        arguments = [*map(repr, wrapper.args), *(f"{name}={value!r}" for name, value in wrapper.keywords.items())]
        return f"{_describe_wrapper(wrapper.func)}({', '.join(arguments)})"
    return f"{wrapper.__module__}.{wrapper.__qualname__}" if hasattr(wrapper, "__qualname__") else repr(wrapper)
