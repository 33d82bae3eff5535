"""`BaseEnv`: a single environment with states as arrays and four values a step.

A subclass implements reset and step of its environment; this module normalizes states and scales rewards for all of
them. Of gymnasium it knows only the spaces, and no other simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self, TypeAlias, TypedDict

import numpy as np
from gymnasium.spaces import Box

from ..errors import SpaceError
from ..running_stats import RunningStats
from ..snapshot import Stateful
from ..validation import parse_number
from .config import Config
from .normalization import MinMaxScaler, float_dtype
from .spaces import SpaceInfo, space_of_info

Step: TypeAlias = tuple[np.ndarray, float, bool, dict[str, Any]]
"""The next state, the reward, whether the episode ended, and a dict of infos."""


class BaseOptions(TypedDict, total=False):
    """The options of `BaseEnv`, for functions that pass them on."""

    fixed_normalize_states: bool
    running_normalize_states: bool
    scale_reward: bool
    gamma: float


class BaseEnv(Stateful, ABC):
    """Base class of classic environments. A subclass defines the abstract methods, and may override the others.

    The options apply to the results of the subclass's `reset`, `step` and `get_state_info`: these methods return plain
    states and rewards, and the caller gets the normalized ones.

    Args:
        env_name: the environment's name.
        fixed_normalize_states: map each dimension of the state from its bounds to `[-1, 1]`.
        running_normalize_states: subtract the mean of the states so far and divide by their standard deviation.
        scale_reward: divide rewards by the standard deviation of the discounted return so far.
        gamma: the discount of that return, in [0, 1].

    Attributes:
        env: what `_create_env` returned.
        state_stats, return_stats: the `RunningStats` of the options, else None. `state_stats.freeze()` stops their
            updates; several environments may share them.
        reward_dtype: the NumPy dtype that represents rewards exactly.

    Raises:
        SpaceError: the states to normalize are no numbers, or a bound that is needed is infinite.
        ValueError: both ways of normalizing are chosen, or `gamma` is not in [0, 1].

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
    reward_dtype: np.dtype = np.dtype(np.float64)

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
            raise ValueError("Expected fixed_normalize_states or running_normalize_states, got both. Choose one.")
        self.env_name = env_name
        self.gamma = parse_number("gamma", gamma, 0, 1)
        self.env = self._create_env()
        self.state_stats: RunningStats | None = None
        self.return_stats = RunningStats() if scale_reward else None
        self._min_max_scaler: MinMaxScaler | None = None
        self._return = 0.0
        if fixed_normalize_states or running_normalize_states:
            space = space_of_info(self.get_state_info(), is_action=False)
            if not isinstance(space, Box):
                raise SpaceError(f"Expected states that are numbers to normalize, got {space} for {env_name}.")
            if fixed_normalize_states:
                self._min_max_scaler = MinMaxScaler(space.low, space.high)
            else:
                self.state_stats = RunningStats(space.shape)
        if fixed_normalize_states or running_normalize_states or scale_reward:
            # On the object, not on the class, so that it applies once even if subclasses call each other's methods.
            self.reset, self.step, self.get_state_info = self._reset_scaled, self._step_scaled, self._scaled_state_info

    # -- defined by subclasses

    @abstractmethod
    def _create_env(self) -> Any:
        """Creates and returns the environment. The constructor calls it and stores the result as `env`."""

    @abstractmethod
    def reset(self) -> np.ndarray:
        """Resets the environment and returns the first state as a new array."""

    @abstractmethod
    def step(self, action: Any) -> Step:
        """Steps the environment.

        Args:
            action: an int for discrete actions, else a float or an array.

        Returns:
            The next state, the reward, whether the episode ended, and a dict of infos. If "TimeLimit.truncated" is true
            in the infos, the episode was truncated.
        """

    @abstractmethod
    def get_state_info(self) -> SpaceInfo:
        """Returns the description of states: "shape", "dtype" ("continuous", or "int" for discrete ones), and
        "low_bound" and "high_bound" if there are bounds."""

    @abstractmethod
    def get_action_info(self) -> SpaceInfo:
        """Returns the description of actions, as `get_state_info` does for states. If "dtype" is "int", "n" is the
        number of choices; without "n", "shape" is, as in `dict(shape=(2,), dtype="int")`."""

    @property
    @abstractmethod
    def simulator(self) -> str:
        """The name of the simulator."""

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Sets the seed of the next reset; returns it in a list.

        Raises:
            NotImplementedError: the environment has no seeds.
        """
        raise NotImplementedError(
            f"Expected {type(self).__name__} to have seeds, got a class without them. Define a method seed(seed)."
        )

    # -- derived from them

    def update_config(self, config: Config) -> None:
        """Adds a section "env": name, simulator, options, and the descriptions of states and actions."""
        if not isinstance(config, Config):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected config to be a vecrl.classic.Config, got {config!r:.80}.")
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
            # The deviation is 0 while all returns are equal.
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

    def _scaled_state_info(self) -> SpaceInfo:
        info = type(self).get_state_info(self)
        if self._min_max_scaler is None and self.state_stats is None:
            return info
        bound = 1.0 if self._min_max_scaler is not None else np.inf
        high = np.full(info["shape"], bound, float_dtype(space_of_info(info, is_action=False).dtype))
        return {**info, "dtype": "continuous", "low_bound": -high, "high_bound": high}

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Renders the environment and returns what its `render` returns."""
        return self.env.render(*args, **kwargs)

    def close(self) -> None:
        """Closes the environment if it has a `close`; may be called twice."""
        if hasattr(self.env, "close"):
            self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env_name!r}, simulator={self.simulator!r})"
