"""`TorchWrapper`: takes actions as tensors and returns results as tensors, around any environment.

The wrapper detects the array library of its environment and converts actions and results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Discrete

from ..engine.space_layout import AnySpace, Layout, Tree
from ..engine.trees import first_leaf, is_nested, leaf_spaces, map_tree, named_leaves
from ..errors import SpaceError
from ..gym_interface import raise_explained
from ..snapshot import Stateful
from ..validation import check_seed
from .arrays import array_type, convert_from_torch, convert_to_torch, convert_to_torch_bool
from .base import batch_space


class TorchWrapper(Stateful):
    """An environment, single or vectorized, that takes actions and returns observations, rewards and flags as tensors.

    Observations and actions of Dict and Tuple spaces are nested dicts and tuples of tensors.

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
            arg max as the action; no effect on other action spaces. In a nested space, this holds for each leaf.
        clip_actions: whether to clip actions of a `Box` to its bounds; no effect on other action spaces. In a nested
            space, this holds for each leaf.

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
        SpaceError: a space is or contains another one than `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Dict`
            and `Tuple` (also a `TypeError`).
    """

    def __init__(
        self,
        env: Any,
        *,
        force_classic_api: bool = False,
        discrete_to_continuous_act: bool = False,
        clip_actions: bool = False,
    ):
        parts = "observation_space", "action_space", "reset", "step"
        if isinstance(env, type) or not all(hasattr(env, name) for name in parts):
            raise TypeError(
                f"Expected env to be an environment, with the attributes {', '.join(parts)}, got {env!r:.80}. Make it, "
                "for example with gymnasium.make."
            )
        self.env = env
        # Checks the type: gymnasium's wrappers forward attribute access, so that a check of `env` would skip them.
        self._tensors = hasattr(type(env), "tensor_step")
        self.array_type: str | None = None
        self._classic, self._clips = force_classic_api, clip_actions
        self._copy_results = False
        self._device: torch.device | None = None
        self._vectorized = hasattr(self.unwrapped, "single_action_space")
        self.observation_space = array_space(env.observation_space)
        self.action_space = array_space(env.action_space)
        self._nested_obs = is_nested(self.observation_space)
        num_envs = None
        if self._vectorized:
            self.num_envs: int = env.num_envs
            num_envs = env.num_envs
            self.single_observation_space = array_space(env.single_observation_space)
            self.single_action_space = array_space(env.single_action_space)
        self._init_actions(num_envs, discrete_to_continuous_act, clip_actions)

    def _init_actions(self, num_envs: int | None, takes_scores: bool, clips: bool) -> None:
        space = self.action_space if num_envs is None else self.single_action_space
        self._layout = Layout(space)
        leaves = leaf_spaces(space)
        self._leaves = [ActionLeaf(leaf, num_envs, takes_scores, clips) for leaf in leaves]
        self._changes_actions = any(leaf.changes_values for leaf in self._leaves)
        if takes_scores and any(isinstance(leaf, Discrete) for leaf in leaves):
            self.action_space = scores = score_space(space)
            if num_envs is not None:
                self.single_action_space, self.action_space = scores, batch_space(scores, num_envs)

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
        if self._changes_actions:
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
        check_seed(kwargs.get("seed"))
        try:
            result = (self.env.tensor_reset if self._tensors else self.env.reset)(*args, **kwargs)
        except TypeError as error:
            raise_explained(error, self.env)
            raise
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
            observation, *info = result
        else:
            observation, info = result, []
        if self.array_type is None:
            self.array_type = array_type(first_leaf(observation), fallback="numpy")
            self._copy_results = self.array_type == "jax" or (self.array_type == "numpy" and not self._vectorized)
        observation = self._receive_obs(observation)
        self._device = getattr(first_leaf(observation), "device", None)
        return observation if self._classic or not info else (observation, *info)

    def step(self, action: Any, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Steps the environment and returns the results.

        Args:
            action: a tensor (or a value that converts to one) on any device; it is converted to the array library,
                dtype and device of the environment. Environments that return NumPy arrays, and vecrl's, get the
                dtype of `action` for a `Box` of floats. A vectorized environment takes one row per environment.
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
        return (self._receive_obs(observation), self._receive(reward), *flags, info)

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

    def _state_facts(self) -> dict[str, object]:
        return {"force_classic_api": self._classic, "clip_actions": self._clips}

    def _receive(self, x: Any) -> torch.Tensor:
        x = convert_to_torch(x)
        return x.clone() if self._copy_results else x

    def _receive_obs(self, observation: Tree) -> Tree:
        return map_tree(self._receive, observation) if self._nested_obs else self._receive(observation)

    def _send(self, action: Tree) -> Any:
        if self._layout.flat:
            return self._send_leaf(self._leaves[0], action)
        values = (value for _, _, value in named_leaves("the action", self._layout.space, action))
        return self._layout.build([self._send_leaf(*pair) for pair in zip(self._leaves, values, strict=True)])

    def _send_leaf(self, leaf: ActionLeaf, action: Tree) -> Any:
        x = leaf.convert(convert_to_torch(action), keeps_precision=self._tensors or self.array_type == "numpy")
        if self.array_type == "torch":
            return x if x.device == self._device else x.to(self._device)
        if self.array_type == "jax":
            # Cloned, because JAX computes asynchronously and may read the array after the caller changed its tensor.
            return convert_from_torch(x.detach().clone(memory_format=torch.contiguous_format), "jax")
        x = convert_from_torch(x, "numpy")
        return x[()] if x.ndim == 0 else x  # a NumPy scalar can be a key or an index, an array cannot


class TorchVectorEnv(TorchWrapper, gymnasium.vector.VectorEnv):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A `TorchWrapper` around a vector environment, which is a vector environment of gymnasium too.

    So libraries that require one take it, such as EvoTorch. gymnasium's wrappers that compute with NumPy belong around
    `env`, because it returns arrays.

    >>> from vecrl.vector import make_vector_env
    >>> env = make_vector_env("native::CartPole-v1", num_envs=2)
    >>> isinstance(env, gymnasium.vector.VectorEnv), env.reset(seed=1)[0].shape
    (True, torch.Size([2, 4]))

    Args:
        env, options: see `TorchWrapper`; `env` is a vector environment.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv, **options: bool):
        super().__init__(env, **options)

    @property
    def metadata(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The metadata of `env`."""
        return self.env.metadata

    @property
    def spec(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The gymnasium spec of `env`, or None."""
        return self.env.spec

    @property
    def render_mode(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The render mode of `env`."""
        return self.env.render_mode

    @property
    def closed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether `env` is closed."""
        return self.env.closed

    def __del__(self) -> None:
        """Does nothing: `env` may still be used."""

    __str__ = TorchWrapper.__repr__


ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ActionLeaf:
    """Converts the actions of one leaf of an action space.

    Args:
        space: the leaf, for one environment.
        num_envs: the number of rows; None for a single environment.
        takes_scores: whether actions of a `Discrete` are the arg max of scores `[..., n]`.
        clips: whether to clip actions of a `Box` to its bounds.

    Attributes:
        changes_values: whether actions are clipped or the arg max of scores.
    """

    def __init__(self, space: AnySpace, num_envs: int | None, takes_scores: bool, clips: bool):
        self._space, self._num_envs = space, num_envs
        self._dtype = convert_to_torch(np.empty(0, space.dtype)).dtype
        self._is_float_box = isinstance(space, spaces.Box) and self._dtype.is_floating_point
        self._num_scores = int(space.n) if takes_scores and isinstance(space, spaces.Discrete) else None
        self._bounds = _bounds(space) if clips else None
        self._shape = (() if num_envs is None else (num_envs,)) + (space.shape or ())
        self.changes_values = self._num_scores is not None or self._bounds is not None

    def convert(self, x: torch.Tensor, keeps_precision: bool = False) -> torch.Tensor:
        """Converts the tensor `x` to the shape and dtype of the space.

        Args:
            x: the actions.
            keeps_precision: whether numbers for a `Box` of floats keep their dtype, as in gymnasium.

        Raises:
            SpaceError: this is not possible.
        """
        space, n = self._space, self._num_envs
        if x.dtype == self._dtype and x.shape == self._shape and not self.changes_values:
            return x
        if n is not None and (x.ndim == 0 or x.shape[0] != n):
            raise SpaceError(f"Expected one action per environment ({n} environments), got shape {list(x.shape)}.")
        if self._num_scores is not None:
            x = self._argmax(x, self._num_scores)
        elif x.is_floating_point() and not isinstance(space, spaces.Box):
            raise SpaceError(
                f"Expected integer actions for {space}, got {x.dtype}. Round them, or set "
                "discrete_to_continuous_act=True to pass scores for a Discrete."
            )
        if self._bounds is not None:
            x = self._clip(x, *self._bounds)
        if isinstance(space, spaces.Discrete):
            shape = [] if n is None else [n]
            if x.numel() != math.prod(shape):
                raise SpaceError(f"Expected actions of shape {shape} for {space}, got {list(x.shape)}.")
            x = x.reshape(shape)
        return x if keeps_precision and self._is_float_box else x.to(self._dtype)

    def _argmax(self, scores: torch.Tensor, num_scores: int) -> torch.Tensor:
        expected = (num_scores,) if self._num_envs is None else (self._num_envs, num_scores)
        if scores.shape != expected:
            raise SpaceError(f"Expected scores of shape {list(expected)}, got {list(scores.shape)}.")
        return scores.argmax(-1) + int(self._space.start)  # type: ignore[attr-defined]

    def _clip(self, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Clips in the wider dtype: before a narrowing cast, so that integers do not wrap around, and after a widening
        cast, so that no value exceeds a bound by rounding."""
        if low.device != x.device:
            self._bounds = low, high = low.to(x.device), high.to(x.device)
        common_dtype = torch.promote_types(x.dtype, low.dtype)
        return x.to(common_dtype).clamp(low.to(common_dtype), high.to(common_dtype))


def _bounds(space: AnySpace) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns the bounds of a `Box` as tensors, and None for other spaces."""
    if not isinstance(space, spaces.Box):
        return None
    return convert_to_torch(space.low.copy()), convert_to_torch(space.high.copy())


def score_space(space: AnySpace) -> AnySpace:
    """Returns `space` with a `Box` of scores in place of each `Discrete`.

    >>> score_space(spaces.Tuple([spaces.Discrete(3)]))
    Tuple(Box(-inf, inf, (3,), float32))
    """
    if isinstance(space, spaces.Discrete):
        return spaces.Box(-np.inf, np.inf, (int(space.n),))
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: score_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([score_space(part) for part in space.spaces])
    return space


def array_space(space: Any) -> AnySpace:
    """Returns `space` if its elements are (nested) arrays; converts spaces of the old `gym` package to gymnasium's.

    Raises:
        SpaceError: any other space; the message contains it.
    """
    if isinstance(space, ARRAY_SPACES):
        return space
    kind = type(space)
    if is_nested(space):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            array_space(part)
        return space
    if kind.__module__.partition(".")[0] == "gym" and kind.__name__ in _GYM_SPACES:
        return _GYM_SPACES[kind.__name__](space)
    raise SpaceError(
        "Expected a Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict or Tuple of these, "
        f"got {space!r}. Encode it as one of them."
    )


_GYM_SPACES = {
    "Box": lambda space: spaces.Box(space.low, space.high, dtype=space.dtype),
    "Discrete": lambda space: spaces.Discrete(space.n, start=getattr(space, "start", 0)),
    "MultiDiscrete": lambda space: spaces.MultiDiscrete(space.nvec),
    "Dict": lambda space: spaces.Dict({key: array_space(part) for key, part in space.spaces.items()}),
    "Tuple": lambda space: spaces.Tuple([array_space(part) for part in space.spaces]),
}
