"""Checks the functions of a task over rows: calls them for some steps, with each array library that they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..engine.simulator import Array
from ..errors import SpaceError
from .row_task import RowTaskSimulator

_ROWS = 11  # hardly a number of quantities too, so that transposed arrays are noticed
_STEPS = 3
_LIBRARIES = {"numpy": "NumPy", "torch": "torch"}


def check_functions(task: RowTaskSimulator) -> None:
    """Calls `initial`, `advance` and `observe` of a task for three steps of eleven rows.

    Raises:
        SpaceError: a function returns another number of values, shape or dtype than `RowTask` describes, writes to its
            arguments, gives other results when it is called again or for a row alone, or with the other library.
    """
    libraries = ["numpy", "torch"] if task.supports_numpy else ["torch"]
    results = [_FunctionCalls(task, library).run() for library in libraries]
    for step, by_library in enumerate(zip(*results, strict=True)):
        if not all(all(map(_same, by_library[0], other)) for other in by_library[1:]):
            what = f"step {step} of {type(task).__name__}" if step else f"{type(task).__name__}.initial"
            raise SpaceError(
                f"Expected {what} to be the same with NumPy and torch, got other values. Use functions of "
                "namespace_of(state), or set supports_numpy = False."
            )


class _FunctionCalls:
    """Calls the functions of a task with arrays of one library, and checks what they do."""

    def __init__(self, task: RowTaskSimulator, library: str):
        self._task, self._name, self._library = task, type(task).__name__, _LIBRARIES[library]
        self._array: Callable[..., Any] = (
            partial(torch.as_tensor, device=task.device) if library == "torch" else np.asarray
        )

    def run(self) -> list[list[np.ndarray]]:
        """Returns the start states, then the state, the reward, the flags and the observations of each step."""
        task, rng = self._task, np.random.default_rng(0)
        task.action_space.seed(0)
        uniforms = self._array(rng.random((task.num_draws, _ROWS), np.float32))
        state = self._call("initial", uniforms, {})
        size = state.shape[0] if getattr(state, "ndim", 0) == 2 else 1
        self._check("the state from", "initial", state, (size, _ROWS), "float32")
        found = [[_as_numpy(state).copy()]]
        for _ in range(_STEPS):
            action = self._sample()
            results = self._advance(state, action)
            self._check_rows(state, action, results)
            state, reward, terminated = results
            obs = self._call("observe", state)
            space = task.observation_space
            self._check("the observations from", "observe", obs, (math.prod(space.shape), _ROWS), space.dtype.name)
            found.append([_as_numpy(value).copy() for value in (state, reward, terminated, obs)])
        return found

    def _sample(self) -> Array:
        space = self._task.action_space
        samples = np.stack([space.sample() for _ in range(_ROWS)])
        return self._array((samples - space.start if isinstance(space, Discrete) else samples).astype(np.float32))

    def _advance(self, state: Array, action: Array) -> tuple[Array, Array, Array]:
        result = self._call("advance", state, action)
        if not isinstance(result, tuple) or len(result) != 3:
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise SpaceError(
                f"Expected (state, reward, terminated) from {self._name}.advance, got {found}. Return these arrays."
            )
        self._check("the state from", "advance", result[0], tuple(state.shape), "float32")
        self._check("the reward from", "advance", result[1], (_ROWS,), "float32", "float64")
        self._check("terminated from", "advance", result[2], (_ROWS,), "bool")
        again = self._call("advance", state, action)
        if not all(map(_same, result, again)):
            raise SpaceError(
                f"Expected {self._name}.advance to give the same results for the same state and actions, got others. "
                "Draw random numbers in initial only, and carry in the state what later steps need."
            )
        return result

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function; its arguments must not change."""
        before = [None if isinstance(value, dict) else _as_numpy(value).copy() for value in arguments]
        result = getattr(self._task, name)(*arguments)
        for value, copy in zip(arguments, before, strict=True):
            if copy is not None and not np.array_equal(_as_numpy(value), copy, equal_nan=True):
                raise SpaceError(
                    f"Expected {self._name}.{name} not to change its arguments, got other values in one. Return new "
                    "arrays: x = x + 1 instead of x += 1."
                )
        return result

    def _check_rows(self, state: Array, action: Array, results: tuple[Array, ...]) -> None:
        """Checks that the first and the last row are the same when they are computed alone."""
        for row in (0, _ROWS - 1):
            alone = self._task.advance(state[:, row : row + 1], action[row : row + 1])
            if not all(_same(value[..., row : row + 1], own) for value, own in zip(results, alone, strict=True)):
                raise SpaceError(
                    f"Expected {self._name}.advance to compute each environment from its own state and action, got "
                    f"another result for environment {row} alone. Use no values of other environments: action[:, 0] is "
                    "the first number of all actions, and action[0] the action of the first environment."
                )

    def _check(self, what: str, function: str, value: Any, shape: tuple[int, ...], *dtypes: str) -> None:
        """Checks the shape of an array, and that it has one of these dtypes."""
        what = f"{what} {self._name}.{function} with {self._library}"
        if not isinstance(value, np.ndarray | Tensor):
            raise SpaceError(
                f"Expected {what} to be an array of the shape {shape} for {_ROWS} environments, got {value!r:.60}."
            )
        if tuple(value.shape) != shape:
            raise SpaceError(
                f"Expected {what} to have the shape {shape} for {_ROWS} environments, got {tuple(value.shape)}. "
                "Environments are the last dimension."
            )
        found = str(value.dtype).removeprefix("torch.")
        if found not in dtypes:
            raise SpaceError(
                f"Expected {what} to have the dtype {dtypes[0]}, got {found}. Convert it: "
                "namespace_of(state).asarray(values, dtype=…) is for both libraries."
            )


def _same(one: Array, other: Array) -> bool:
    return np.allclose(_as_numpy(one), _as_numpy(other), rtol=1e-3, atol=1e-4, equal_nan=True)


def _as_numpy(value: Array) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, Tensor) else value
