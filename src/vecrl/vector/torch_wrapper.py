"""Tensors in and tensors out, around whatever environment there is.

The wrapper finds out what kind of array its environment speaks and converts at the border; it does not care whether
there is one environment or a batch of them, nor who steps them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ..errors import SpaceError
from ..snapshot import Stateful
from .arrays import array_type, convert_from_torch, convert_to_torch, convert_to_torch_bool

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class TorchWrapper(Stateful):
    """An environment, single or vectorised, that takes actions and gives observations, rewards and flags as tensors.

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
        env: a gymnasium environment or vector environment, another `TorchWrapper`, or anything with their methods:
            what speaks JAX arrays, or the old interface (`reset` gives the observation alone, `step` four values),
            whose results keep their number.
        force_classic_api: `reset` returns the observation alone and `step` four values, done being
            `terminated | truncated`.
        discrete_to_continuous_act: on a `Discrete(n)` take scores `[..., n]`, of which the arg max is the action;
            without effect on other action spaces.
        clip_actions: on a `Box` clip actions to its bounds; without effect on other action spaces.

    Attributes:
        env: the environment as given.
        observation_space, action_space: its spaces, the latter as `discrete_to_continuous_act` makes it.
        single_observation_space, single_action_space, num_envs: the same of a vectorised environment; a single one
            has none of the three.
        array_type: "numpy", "torch" or "jax", by the first observation; None until the first `reset`.

    An environment whose class has `tensor_reset` and `tensor_step`, as `BatchedVectorEnv` has, is called by these; they
    return tensors where its `reset` and `step` return NumPy arrays.

    Results are the caller's own: what a single or a JAX environment hands out is copied, since it may go on using
    it. Arrays of a NumPy vector environment are shared, tensors of a torch one are handed on as they are, with
    their gradients.

    Raises:
        SpaceError: spaces other than `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary` (a `TypeError`).
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
        # By the type: gymnasium's wrappers pass attributes on, and must not be passed over.
        self._tensors = hasattr(type(env), "tensor_step")
        self.array_type: str | None = None
        self._classic = force_classic_api
        self._copy_results = False
        self._device: torch.device | None = None
        self._vectorised = hasattr(self.unwrapped, "single_action_space")  # gymnasium 0.29's wrappers warn if asked
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
        """The environment as given, for who converts by other means.

        Raises:
            SpaceError: it would get other actions then, since this wrapper clips them or chooses among scores.
        """
        if self._argmax or self._bounds is not None:
            raise SpaceError(
                "Expected a TorchWrapper that leaves actions as they are: make the environment without "
                "discrete_to_continuous_act and clip_actions, and choose or clip where the actions are made."
            )
        return self.env

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin anew; all arguments go to the environment.

        Returns:
            `(observation, info)`, or the observation alone with `force_classic_api` and from an old-interface
            environment.
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

    def step(self, action: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Take one step.

        Args:
            action: a tensor (or what can become one) on any device; it is converted to the array kind, dtype and
                device that the environment has. A vectorised environment takes one row an environment.
            args, kwargs: handed on to the environment.

        Returns:
            `(observation, reward, terminated, truncated, info)`, or `(observation, reward, done, info)` with
            `force_classic_api` and from an old-interface environment. Flags are bool tensors.

        Raises:
            ValueError: before the first `reset`, or if the environment returns a number of values other than 4 or 5.
            TypeError: the environment does not return a tuple.
            SpaceError: an action that cannot be one of the action space.
        """
        if self.array_type is None:
            raise ValueError("step() came before the first reset(): call reset() once to begin")
        result = (self.env.tensor_step if self._tensors else self.env.step)(self._send(action), *args, **kwargs)
        if not isinstance(result, tuple):
            raise TypeError(f"expected the environment's step to return a tuple, got {type(result).__qualname__}")
        if len(result) not in (4, 5):
            raise ValueError(f"expected the environment's step to return 4 or 5 values, got {len(result)}")
        observation, reward, *flags, info = result
        flags = [convert_to_torch_bool(self._receive(flag)) for flag in flags]
        if self._classic and len(flags) == 2:
            flags = [flags[0] | flags[1]]
        return (self._receive(observation), self._receive(reward), *flags, info)

    def seed(self, *args: Any, **kwargs: Any) -> Any:
        """Call the environment's `seed`, where it has one (gymnasium's environments take `reset(seed=...)`)."""
        return self.env.seed(*args, **kwargs)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """What the environment's `render` returns."""
        return self.env.render(*args, **kwargs)

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the environment."""
        return self.env.close(*args, **kwargs)

    def __enter__(self) -> TorchWrapper:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TorchWrapper({self.env!r})"

    # -- the border ---------------------------------------------------------------------------------

    def _receive(self, x: Any) -> torch.Tensor:
        x = convert_to_torch(x)
        return x.clone() if self._copy_results else x

    def _send(self, action: Any) -> Any:
        x = self._to_action(convert_to_torch(action))
        if self.array_type == "torch":
            return x.to(self._device)
        if self.array_type == "jax":
            # JAX computes later and may keep what it was given: the caller's tensor stays the caller's.
            return convert_from_torch(x.detach().clone(memory_format=torch.contiguous_format), "jax")
        x = convert_from_torch(x, "numpy")
        return x[()] if x.ndim == 0 else x  # a NumPy scalar can be a key or an index, an array cannot

    def _to_action(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor `x` as an element of the environment's action space, by shape and dtype."""
        space = self._act_space
        if self._vectorised and (x.ndim == 0 or x.shape[0] != self.num_envs):
            raise SpaceError(f"expected one action for each of {self.num_envs} environments, got shape {list(x.shape)}")
        if self._argmax:
            x = self._argmax_action(x)
        elif x.is_floating_point() and not isinstance(space, spaces.Box):
            raise SpaceError(
                f"expected actions of {space}, which are integers, got {x.dtype}: round them, or take the scores of "
                "a Discrete with discrete_to_continuous_act=True"
            )
        if self._bounds is not None:
            x = self._clip(x, *self._bounds)
        if isinstance(space, spaces.Discrete):
            shape = [self.num_envs] if self._vectorised else []
            if x.numel() != math.prod(shape):
                raise SpaceError(f"expected actions of shape {shape} for {space}, got {list(x.shape)}")
            x = x.reshape(shape)
        return x.to(self._act_dtype)

    def _argmax_action(self, scores: torch.Tensor) -> torch.Tensor:
        expected = self.action_space.shape
        if scores.shape != expected:
            raise SpaceError(f"expected scores of shape {list(expected or ())}, got {list(scores.shape)}")
        return scores.argmax(-1) + int(self._act_space.start)  # type: ignore[attr-defined]

    def _clip(self, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Clip before narrowing, so that nothing wraps around, and after widening, so that nothing is out by an ulp."""
        if low.device != x.device:
            self._bounds = low, high = low.to(x.device), high.to(x.device)
        common_dtype = torch.promote_types(x.dtype, low.dtype)
        return x.to(common_dtype).clamp(low.to(common_dtype), high.to(common_dtype))


def array_space(space: Any) -> spaces.Space[Any]:
    """`space` itself if its elements are arrays; one of the old `gym` package becomes gymnasium's equal.

    Raises:
        SpaceError: any other space, by name.
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
    raise SpaceError(f"expected a Box, Discrete, MultiDiscrete or MultiBinary space, got {space!r}: flatten it first")


def clip_bounds(space: spaces.Space[Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The bounds of a `Box` as tensors, None for other spaces."""
    if not isinstance(space, spaces.Box):
        return None
    return convert_to_torch(space.low.copy()), convert_to_torch(space.high.copy())
