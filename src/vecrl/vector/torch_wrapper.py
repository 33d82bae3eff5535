"""`TorchWrapper`: takes actions as tensors and returns results as tensors, around any environment.

The wrapper detects the array library of its environment and converts actions and results. This module must not know
how the environments are stepped, nor whether there is one or a batch of them, beyond their spaces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError
from ..snapshot import Stateful
from .arrays import array_type, convert_from_torch, convert_to_torch, convert_to_torch_bool

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class TorchWrapper(Stateful):
    """An environment, single or vectorized, that takes actions and returns observations, rewards and flags as tensors.

    >>> import gymnasium
    >>> env = TorchWrapper(gymnasium.make("CartPole-v1"))
    >>> obs, info = env.reset(seed=0)
    >>> obs.dtype, obs.shape
    (torch.float32, torch.Size([4]))
    >>> obs, reward, terminated, truncated, info = env.step(torch.tensor(1))
    >>> reward, terminated
    (tensor(1.), tensor(False))
    >>> env.close()

    Args:
        env: a gymnasium environment or vector environment, another `TorchWrapper`, or any object with their methods.
            It may use JAX arrays. It may have the old interface (`reset` returns only the observation, `step` four
            values); the wrapper then returns the same number of values.
        force_classic_api: whether `reset` returns only the observation, and `step` four values with
            `done = terminated | truncated`.
        discrete_to_continuous_act: whether to take scores `[..., n]` as actions of a `Discrete(n)` and to use their
            arg max as the action; no effect on other action spaces.
        clip_actions: whether to clip actions of a `Box` to its bounds; no effect on other action spaces.

    Attributes:
        env: the wrapped environment.
        observation_space, action_space: its spaces; with `discrete_to_continuous_act` the action space is that of the
            scores.
        single_observation_space, single_action_space, num_envs: those of a vectorized environment; absent for a single
            environment.
        array_type: "numpy", "torch" or "jax", detected from the first observation; None until the first `reset`.

    If the class of an environment has `tensor_reset` and `tensor_step`, as `BatchedVectorEnv` has, the wrapper calls
    these, because they return tensors and `reset` and `step` return NumPy arrays.

    Later calls never overwrite results: results of single environments and of JAX environments are copied, because the
    environment may reuse their memory. Arrays of a NumPy vector environment are shared; tensors of a torch environment
    are returned unchanged, with their gradients.

    Raises:
        SpaceError: a space is none of `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary` (also a `TypeError`).
    """

    def __init__(
        self,
        env: Any,
        *,
        force_classic_api: bool = False,
        discrete_to_continuous_act: bool = False,
        clip_actions: bool = False,
    ):
        self.env = env
        # Checks the type: gymnasium's wrappers forward attribute access, so that a check of `env` would skip them.
        self._tensors = hasattr(type(env), "tensor_step")
        self.array_type: str | None = None
        self._classic = force_classic_api
        self._copy_results = False
        self._device: torch.device | None = None
        self._vectorised = hasattr(self.unwrapped, "single_action_space")  # a look at wrappers of gymnasium 0.29 warns
        self._act_space = array_space(env.single_action_space if self._vectorised else env.action_space)
        self._act_dtype = convert_to_torch(np.empty(0, self._act_space.dtype)).dtype
        self._argmax = discrete_to_continuous_act and isinstance(self._act_space, spaces.Discrete)
        self._bounds = clip_bounds(self._act_space) if clip_actions else None
        self.observation_space = array_space(env.observation_space)
        self.action_space = array_space(env.action_space)
        if self._vectorised:
            self.num_envs: int = env.num_envs
            self.single_observation_space = array_space(env.single_observation_space)
            self.single_action_space = self._act_space
        if self._argmax:
            self._use_score_actions()

    def _use_score_actions(self) -> None:
        n = (int(self._act_space.n),)  # type: ignore[attr-defined]
        if self._vectorised:
            self.single_action_space = spaces.Box(-np.inf, np.inf, n)
            n = (self.num_envs, *n)
        self.action_space = spaces.Box(-np.inf, np.inf, n)

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def unwrapped_actions_env(self) -> Any:
        """The wrapped environment, for code that converts arrays itself.

        Raises:
            SpaceError: this wrapper changes actions (it clips them or takes the arg max of scores).
        """
        if self._argmax or self._bounds is not None:
            raise SpaceError(
                "Expected a TorchWrapper that does not change actions, got discrete_to_continuous_act or clip_actions. "
                "Make the environment without both, and choose or clip actions before the step."
            )
        return self.env

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Resets the environment, which gets all arguments, and returns the observation.

        Returns:
            `(observation, info)`; only the observation with `force_classic_api` or an old-interface environment.
        """
        result = (self.env.tensor_reset if self._tensors else self.env.reset)(*args, **kwargs)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
            observation, *info = result
        else:
            observation, info = result, []
        if self.array_type is None:
            self.array_type = array_type(observation, fallback="numpy")
            self._copy_results = self.array_type == "jax" or (self.array_type == "numpy" and not self._vectorised)
        observation = self._receive(observation)
        self._device = observation.device
        return observation if self._classic or not info else (observation, *info)

    def step(self, action: Any, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Steps the environment and returns the results.

        Args:
            action: a tensor (or a value that converts to one) on any device; it is converted to the array library,
                dtype and device of the environment. A vectorized environment takes one row per environment.
            args, kwargs: passed to the environment.

        Returns:
            `(observation, reward, terminated, truncated, info)`; `(observation, reward, done, info)` with
            `force_classic_api` or an old-interface environment. Flags are bool tensors.

        Raises:
            ValueError: `reset` was not called yet, or the environment does not return 4 or 5 values.
            TypeError: the environment does not return a tuple.
            SpaceError: the action cannot be converted to an element of the action space.
        """
        if self.array_type is None:
            raise ValueError("Expected a reset before the first step. Call reset() once.")
        result = (self.env.tensor_step if self._tensors else self.env.step)(self._send(action), *args, **kwargs)
        if not isinstance(result, tuple):
            raise TypeError(f"Expected the environment's step to return a tuple, got {type(result).__qualname__}.")
        if len(result) not in (4, 5):
            raise ValueError(f"Expected the environment's step to return 4 or 5 values, got {len(result)}.")
        observation, reward, *flags, info = result
        flags = [convert_to_torch_bool(self._receive(flag)) for flag in flags]
        if self._classic and len(flags) == 2:
            flags = [flags[0] | flags[1]]
        return (self._receive(observation), self._receive(reward), *flags, info)

    def seed(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `seed` of the environment, if it has one (gymnasium's environments take `reset(seed=...)`)."""
        return self.env.seed(*args, **kwargs)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of `render` of the environment."""
        return self.env.render(*args, **kwargs)

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Closes the environment."""
        return self.env.close(*args, **kwargs)

    def __enter__(self) -> TorchWrapper:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TorchWrapper({self.env!r})"

    # -- conversions --------------------------------------------------------------------------------

    def _receive(self, x: Any) -> torch.Tensor:
        x = convert_to_torch(x)
        return x.clone() if self._copy_results else x

    def _send(self, action: Tree) -> Any:
        x = self._to_action(convert_to_torch(action))
        if self.array_type == "torch":
            return x.to(self._device)
        if self.array_type == "jax":
            # Cloned, because JAX computes asynchronously and may read the array after the caller changed its tensor.
            return convert_from_torch(x.detach().clone(memory_format=torch.contiguous_format), "jax")
        x = convert_from_torch(x, "numpy")
        return x[()] if x.ndim == 0 else x  # a NumPy scalar can be a key or an index, an array cannot

    def _to_action(self, x: torch.Tensor) -> torch.Tensor:
        """Converts the tensor `x` to the shape and dtype of the environment's action space."""
        space = self._act_space
        if self._vectorised and (x.ndim == 0 or x.shape[0] != self.num_envs):
            raise SpaceError(
                f"Expected one action per environment ({self.num_envs} environments), got shape {list(x.shape)}."
            )
        if self._argmax:
            x = self._argmax_action(x)
        elif x.is_floating_point() and not isinstance(space, spaces.Box):
            raise SpaceError(
                f"Expected integer actions for {space}, got {x.dtype}. Round them, or set "
                "discrete_to_continuous_act=True to pass scores for a Discrete."
            )
        if self._bounds is not None:
            x = self._clip(x, *self._bounds)
        if isinstance(space, spaces.Discrete):
            shape = [self.num_envs] if self._vectorised else []
            if x.numel() != math.prod(shape):
                raise SpaceError(f"Expected actions of shape {shape} for {space}, got {list(x.shape)}.")
            x = x.reshape(shape)
        return x.to(self._act_dtype)

    def _argmax_action(self, scores: torch.Tensor) -> torch.Tensor:
        expected = self.action_space.shape
        if scores.shape != expected:
            raise SpaceError(f"Expected scores of shape {list(expected or ())}, got {list(scores.shape)}.")
        return scores.argmax(-1) + int(self._act_space.start)  # type: ignore[attr-defined]

    def _clip(self, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Clips in the wider dtype: before a narrowing cast, so that integers do not wrap around, and after a widening
        cast, so that no value exceeds a bound by rounding."""
        if low.device != x.device:
            self._bounds = low, high = low.to(x.device), high.to(x.device)
        common_dtype = torch.promote_types(x.dtype, low.dtype)
        return x.to(common_dtype).clamp(low.to(common_dtype), high.to(common_dtype))


def array_space(space: Any) -> AnySpace:
    """Returns `space` if its elements are arrays, and converts a space of the old `gym` package to gymnasium's.

    Raises:
        SpaceError: any other space; the message contains it.
    """
    if isinstance(space, ARRAY_SPACES):
        return space
    kind = type(space)
    if kind.__module__.partition(".")[0] == "gym":
        if kind.__name__ == "Box":
            return spaces.Box(space.low, space.high, dtype=space.dtype)
        if kind.__name__ == "Discrete":
            return spaces.Discrete(space.n, start=getattr(space, "start", 0))
        if kind.__name__ == "MultiDiscrete":
            return spaces.MultiDiscrete(space.nvec)
    raise SpaceError(f"Expected a Box, Discrete, MultiDiscrete or MultiBinary space, got {space!r}. Flatten it first.")


def clip_bounds(space: AnySpace) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns the bounds of a `Box` as tensors, and None for other spaces."""
    if not isinstance(space, spaces.Box):
        return None
    return convert_to_torch(space.low.copy()), convert_to_torch(space.high.copy())
