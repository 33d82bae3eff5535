"""`JaxTaskEnv`: an environment of a JAX library as pure functions over TensorDicts.

The state of the simulator is an entry of each TensorDict, beside the observations. So a step depends on its input only,
and a TensorDict of any batch size may be stepped. This module must not know any library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from math import prod
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.simulator import BatchStep
from ...errors import SpaceError
from ...seeding import random_seed
from ...simulators.jax_simulator import JaxTask, as_argument, differentiable, jax_device, to_torch
from ...specs import Composite, TensorSpec, Unbounded
from ...specs.choices import CategoricalSpec
from ...specs.dtypes import torch_dtype
from ..env_specs import Device
from .row_task_env import RowTaskEnv

Path = tuple[str, ...]


class JaxTaskEnv(RowTaskEnv):
    """A `JaxTask` as an environment over TensorDicts, which hold its state under "state".

    The state has the structure of the library's, with the names of fields as keys. Its unsigned 32-bit integers (random
    keys) are stored as int32. A reset starts all episodes, or those of the rows that "_reset" selects; with
    `set_seed(seed)` before, they depend on the seed and the batch size only.

    Args:
        task: the environment.
        batch_size: the batch size; None for an environment that takes TensorDicts of any batch size.
        device: the device of all tensors; None is the CPU.
        jit: compile the functions of the task, on the first reset and step of each number of rows.
        requires_grad: whether gradients flow from rewards, observations and states to actions and earlier states.
        kwargs: arguments of `EnvBase`.
    """

    _rows_key = "state"
    excluded_from_state = ("_task", "_functions", "_state_paths", "_obs_structure", "_step_with_grad")

    def __init__(
        self,
        task: JaxTask,
        *,
        batch_size: Sequence[int] | int | None = None,
        device: Device = None,
        jit: bool = True,
        requires_grad: bool = False,
        **kwargs: Any,
    ):
        super().__init__(device=device, batch_size=() if batch_size is None else batch_size, **kwargs)
        self._batch_locked = batch_size is not None
        self._task, self._jit = task, jit
        self._functions = task.compiled[:2] if jit else task.functions
        self.requires_grad = requires_grad
        self._read_state_structure()
        self._set_specs()
        self._set_seed(None)

    # -- specs

    def _action_and_obs_specs(self) -> tuple[TensorSpec, TensorSpec]:
        """Returns the specs of the actions and the observations of one row; a subclass defines it."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define _action_and_obs_specs.")

    def _reward_shape(self) -> tuple[int, ...]:
        return (1,)

    def _read_state_structure(self) -> None:
        import jax

        state, obs = self._task.start_shapes
        leaves, _ = jax.tree_util.tree_flatten_with_path(state)
        self._obs_structure = jax.tree_util.tree_structure(obs)
        self._state_paths: list[Path] = [_names(path) for path, _ in leaves]
        self._state_leaves = [leaf for _, leaf in leaves]

    def _set_specs(self) -> None:
        state_spec = Composite(device=self.device)
        for path, leaf in zip(self._state_paths, self._state_leaves, strict=True):
            dtype = torch.int32 if leaf.dtype == np.uint32 else torch_dtype(leaf.dtype)
            state_spec[path] = Unbounded(tuple(leaf.shape), self.device, dtype)
        self._set_row_specs(*self._action_and_obs_specs(), Unbounded(self._reward_shape(), self.device), state_spec)

    # -- resets and steps

    def _set_seed(self, seed: int | None) -> None:
        import jax

        seed = random_seed() if seed is None else seed
        self._key: Any = jax.device_put(jax.random.PRNGKey(seed % 2**32), self._jax_device)

    @property
    def _jax_device(self) -> Any:
        return jax_device(self.device or "cpu")

    def _reset(self, tensordict: TensorDictBase | None = None, **_: object) -> TensorDictBase:  # pyright: ignore[reportIncompatibleMethodOverride]
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        keys = _split()(self._key, 1 + shape.numel())
        self._key = keys[0]
        state, obs = self._functions[0](keys[1:])
        return self._to_tensordict(to_torch(obs), map(to_torch, state), shape)

    def _step_rows(self, tensordict: TensorDictBase) -> tuple[BatchStep, Iterable[Tensor]]:
        import jax

        inputs = *self._state_of(tensordict), self._action_of(tensordict)
        if self.requires_grad:
            results: Iterable[Tensor] = self._step_with_grad(*inputs)
        else:
            results = map(to_torch, self._step_arrays(*map(as_argument, inputs)))
        *values, reward, terminated, truncated = results
        count = len(self._state_paths)
        obs = jax.tree_util.tree_unflatten(self._obs_structure, values[count:])
        return BatchStep(obs, reward, terminated, truncated), values[:count]

    def _step_arrays(self, *inputs: Any) -> list[Any]:
        """Computes the next state, the observation, the reward and the flags from a state and an action, as leaves."""
        import jax

        *state, action = inputs
        step = self._functions[1](state, action)
        reward = step.info.get("vector_reward", step.reward)
        return [*step.state, *jax.tree_util.tree_leaves(step.obs), reward, step.terminated, step.truncated]

    @cached_property
    def _step_with_grad(self) -> Callable[..., tuple[Tensor, ...]]:
        return differentiable(self._step_arrays)

    def _store_rows(self, rows: Iterable[Tensor], shape: torch.Size) -> TensorDict:
        state_td = TensorDict({}, shape, device=self.device)
        for path, value in zip(self._state_paths, rows, strict=True):
            value = value.view(torch.int32) if value.dtype == torch.uint32 else value
            state_td[path] = value.reshape((*shape, *value.shape[1:]))
        return state_td

    def _state_of(self, tensordict: TensorDictBase) -> list[Tensor]:
        """Returns the leaves of the state of rows."""
        rows, device = tensordict.batch_size.numel(), torch.device(self.device or "cpu")
        leaves: list[Tensor] = []
        for path, leaf in zip(self._state_paths, self._state_leaves, strict=True):
            value = tensordict.get(("state", *path), None)
            if value is None:
                raise SpaceError(
                    f"Expected the entry {('state', *path)} in the TensorDict of a step, got none. Step the result of "
                    "env.reset() or of an earlier step."
                )
            value = value.to(device).reshape((rows, *leaf.shape))
            leaves.append(value.view(torch.uint32) if leaf.dtype == np.uint32 else value)
        return leaves

    def _action_of(self, tensordict: TensorDictBase) -> Tensor:
        spec, space = self.action_spec, self._task.action_space
        action = tensordict.get("action")
        if isinstance(spec, CategoricalSpec):
            action = spec.to_categorical(action)
        shape = (tensordict.batch_size.numel(), *(space.shape or ()))
        if action.numel() != prod(shape):
            raise SpaceError(f"Expected an action of shape {shape}, got {tuple(action.shape)}.")
        dtype = getattr(torch, np.dtype(space.dtype).name)
        return action.to(self.device or "cpu", dtype).reshape(shape)

    # -- rendering and devices

    def render(self, tensordict: TensorDictBase) -> np.ndarray:
        """Returns a frame `[height, width, 3]` uint8 of the state in `tensordict`, which has one row."""
        import jax

        if tensordict.batch_size.numel() != 1:
            raise SpaceError(f"Expected a TensorDict of one row, got the batch size {tuple(tensordict.batch_size)}.")
        state = [jax.numpy.asarray(as_argument(leaf)[0]) for leaf in self._state_of(tensordict)]
        return self._task.draw(self._task.state_of(state))

    def to(self, device: torch.device | str | int) -> Self:
        """Moves the specs and the key of the environment to another device and returns it."""
        import jax

        super().to(device)
        self._key = jax.device_put(self._key, self._jax_device)
        return self

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes the environment and its renderer."""
        self._task.close()
        super().close(raise_if_closed=raise_if_closed)


@cache
def _split() -> Callable[..., Any]:
    """Returns the function that splits a key into as many as its second argument says."""
    import jax

    return jax.jit(jax.random.split, static_argnums=1)


def _names(path: Sequence[Any]) -> Path:
    """Returns the keys of a path of JAX: names of fields and keys, and numbers of parts of tuples, as texts."""
    return tuple(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", None)))) for key in path)
