"""`BaseEnv`: a single environment with states as arrays and four values a step.

A subclass says how its environment begins and steps; normalised states and scaled rewards are made of that here,
whatever the environment is. Knows no library but for its spaces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from gymnasium.spaces import Box

from ..errors import SpaceError
from ..running_stats import RunningStats
from ..snapshot import Stateful
from .config import Config
from .normalization import MinMaxScaler, float_dtype
from .spaces import space_of_info

Step = tuple[np.ndarray, float, bool, dict[str, Any]]


class BaseEnv(Stateful, ABC):
    """An environment. A subclass gives all that is abstract here; it may give `seed`, `render` and `close`.

    What the options ask for is done to what the subclass's own `reset`, `step` and `get_state_info` return: they
    give plain states and rewards, and the caller gets the normalised ones.

    Args:
        env_name: the environment's name.
        fixed_normalize_states: map each dimension of the state from its bounds to `[-1, 1]`.
        running_normalize_states: less the mean of the states so far, over their deviation.
        scale_reward: divide rewards by the deviation of the discounted return so far.
        gamma: the discount of that return.

    Attributes:
        env: what `_create_env` returned, from the constructor on.
        state_stats, return_stats: the `RunningStats` that the options keep, else None. `state_stats.freeze()` has
            them learn no more; another environment may be given the same ones.
        reward_dtype: in which rewards lose no digits, as NumPy's dtype.

    Raises:
        SpaceError: normalised states are no numbers, or lack a bound that is needed.
        ValueError: both ways of normalising, or a `gamma` out of [0, 1].

    >>> class Walk(BaseEnv):
    ...     simulator = "none"
    ...     def _create_env(self): return None
    ...     def get_state_info(self): return dict(shape=(1,), dtype="continuous", low_bound=-4, high_bound=4)
    ...     def get_action_info(self): return dict(shape=(1,), dtype="continuous", low_bound=-1, high_bound=1)
    ...     def reset(self):
    ...         self.x = np.zeros(1)
    ...         return self.x.copy()
    ...     def step(self, action):
    ...         self.x += action
    ...         return self.x.copy(), -abs(self.x.item()), abs(self.x.item()) > 3, {}
    >>> env = Walk("walk", fixed_normalize_states=True)
    >>> env.reset(), env.step(2.0)
    (array([0.]), (array([0.5]), -2.0, False, {}))
    """

    env: Any = None
    reward_dtype: np.dtype[Any] = np.dtype(np.float64)

    def __init__(
        self,
        env_name: str,
        *,
        fixed_normalize_states: bool = False,
        running_normalize_states: bool = False,
        scale_reward: bool = False,
        gamma: float = 0.99,
    ):
        if fixed_normalize_states and running_normalize_states:
            raise ValueError("fixed_normalize_states and running_normalize_states are two ways of one thing: give one.")
        if not 0 <= gamma <= 1:
            raise ValueError(f"Expected gamma from 0 to 1, but {gamma} came.")
        self.env_name = env_name
        self.gamma = gamma
        self.env = self._create_env()
        self.state_stats: RunningStats | None = None
        self.return_stats = RunningStats() if scale_reward else None
        self._min_max_scaler: MinMaxScaler | None = None
        self._return = 0.0
        if fixed_normalize_states or running_normalize_states:
            space = space_of_info(self.get_state_info(), is_action=False)
            if not isinstance(space, Box):
                raise SpaceError(f"Expected states that are numbers to normalise, but of {env_name} they are {space}.")
            if fixed_normalize_states:
                self._min_max_scaler = MinMaxScaler(space.low, space.high)
            else:
                self.state_stats = RunningStats(space.shape)
        if fixed_normalize_states or running_normalize_states or scale_reward:
            # Of this object, not of a class: so it is done once, however many subclasses call each other's.
            self.reset, self.step, self.get_state_info = self._reset_scaled, self._step_scaled, self._scaled_state_info

    # -- what a subclass gives

    @abstractmethod
    def _create_env(self) -> Any:
        """Make and return the environment. The constructor calls it, and keeps what it returns as `env`."""

    @abstractmethod
    def reset(self) -> np.ndarray:
        """Begin an episode; its first state, an array of the caller's own."""

    @abstractmethod
    def step(self, action: Any) -> Step:
        """Take an action.

        Args:
            action: an int where the actions are choices, else a float or an array.

        Returns:
            The next state, the reward, whether the episode is over, and a dict of further information. Where that
            has a true "TimeLimit.truncated", the episode is over since time ran out.
        """

    @abstractmethod
    def get_state_info(self) -> dict[str, Any]:
        """What states look like: "shape" and "dtype" ("continuous", or "int" for choices), and where there are any,
        "low_bound" and "high_bound"."""

    @abstractmethod
    def get_action_info(self) -> dict[str, Any]:
        """What actions look like, as `get_state_info` says it. With "int" there may be "n", how many choices there
        are; without, "shape" says so, as in `dict(shape=(2,), dtype="int")`."""

    @property
    @abstractmethod
    def simulator(self) -> str:
        """The name of the simulator."""

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Have the next reset begin with this seed; returns it in a list.

        Raises:
            NotImplementedError: the environment has no seeds.
        """
        raise NotImplementedError(f"{type(self).__name__} has no seeds: give it a method seed(seed).")

    # -- what is made of it

    def update_config(self, config: Config) -> None:
        """Write a section "env": name, simulator, options, and what states and actions look like."""
        options = {
            "fixed_normalize_states": self._min_max_scaler is not None,
            "running_normalize_states": self.state_stats is not None,
            "scale_reward": self.return_stats is not None,
        }
        infos = {"state_info": self.get_state_info(), "action_info": self.get_action_info()}
        config.env = {"name": self.env_name, "simulator": self.simulator, **options, **infos}

    def _reset_scaled(self) -> np.ndarray:
        self._return = 0.0
        return self._scale_state(type(self).reset(self))

    def _step_scaled(self, action: Any) -> Step:
        state, reward, done, info = type(self).step(self, action)
        if self.return_stats is not None:
            self._return = self.gamma * self._return + float(reward)
            self.return_stats.update(np.float64(self._return))
            # As long as all returns were the same there is nothing to divide by.
            reward = float(reward / (self.return_stats.std or 1.0))
            self._return = 0.0 if done else self._return
        return self._scale_state(state), reward, done, info

    def _scale_state(self, state: np.ndarray) -> np.ndarray:
        if self._min_max_scaler is not None:
            return self._min_max_scaler(state)
        if self.state_stats is None:
            return state
        self.state_stats.update(state)
        return self.state_stats.normalize(state)

    def _scaled_state_info(self) -> dict[str, Any]:
        info = type(self).get_state_info(self)
        if self._min_max_scaler is None and self.state_stats is None:
            return info
        bound = 1.0 if self._min_max_scaler is not None else np.inf
        high = np.full(info["shape"], bound, float_dtype(space_of_info(info, is_action=False).dtype))
        return {**info, "dtype": "continuous", "low_bound": -high, "high_bound": high}

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """What the environment's own `render` returns."""
        return self.env.render(*args, **kwargs)

    def close(self) -> None:
        """Close the environment, if it can be closed; twice is harmless."""
        if hasattr(self.env, "close"):
            self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env_name!r}, simulator={self.simulator!r})"
