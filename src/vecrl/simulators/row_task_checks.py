"""Checks the functions of a task over rows by calling them once, with each array library that they take."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..engine.simulator import Array
from ..errors import SpaceError
from .row_task import RowTaskSimulator

_ROWS = 3
_LIBRARIES = {"numpy": "NumPy", "torch": "torch"}
_ADVICE = "Convert it: namespace_of(state).asarray(values, dtype=…) is for both libraries."


def check_functions(task: RowTaskSimulator) -> None:
    """Calls `initial`, `advance` and `observe` of a task with three rows, and compares NumPy with torch.

    Raises:
        SpaceError: a function returns another number of values, shape or dtype than `RowTask` describes, writes to its
            arguments, or gives other values with the other library.
    """
    results = {library: _results(task, library) for library in (["numpy"] if task.supports_numpy else []) + ["torch"]}
    if "numpy" in results:
        for name, value in results["torch"].items():
            if not np.allclose(results["numpy"][name], value, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise SpaceError(
                    f"Expected {name} to be the same with NumPy and torch, got others. Use functions of "
                    "namespace_of(state), or set supports_numpy = False."
                )


def _results(task: RowTaskSimulator, library: str) -> dict[str, np.ndarray]:
    """Returns the results of the functions by their names in messages."""
    rng = np.random.default_rng(0)
    convert: Any = partial(torch.as_tensor, device=task.device) if library == "torch" else np.asarray
    task.action_space.seed(0)
    samples = np.stack([task.action_space.sample() for _ in range(_ROWS)])
    if isinstance(task.action_space, Discrete):
        samples = samples - task.action_space.start
    action = convert(samples.astype(np.float32))
    state = task.initial(convert(rng.random((task.num_draws, _ROWS), np.float32)), {})
    name, of = type(task).__name__, f"with {_LIBRARIES[library]}"
    _check(f"{name}.initial {of}", state, "[d, n]", (state.shape[0] if getattr(state, "ndim", 0) else 1, _ROWS))
    before = [_as_numpy(value).copy() for value in (state, action)]
    result = task.advance(state, action)
    if not isinstance(result, tuple) or len(result) != 3:
        found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise SpaceError(
            f"Expected (state, reward, terminated) from {name}.advance, got {found}. Return these three arrays."
        )
    for argument, value, copy in zip(("state", "action"), (state, action), before, strict=True):
        if not np.array_equal(_as_numpy(value), copy, equal_nan=True):
            raise SpaceError(
                f"Expected {name}.advance not to change its {argument}, got other values in it. Return new arrays: "
                "x = x + 1 instead of x += 1."
            )
    next_state, reward, terminated = result
    _check(f"the state from {name}.advance {of}", next_state, "[d, n]", tuple(state.shape), _dtype(state))
    _check(f"the reward from {name}.advance {of}", reward, "[n]", (_ROWS,))
    _check(f"terminated from {name}.advance {of}", terminated, "[n]", (_ROWS,), "bool")
    obs = task.observe(next_state)
    space = task.observation_space
    _check(f"{name}.observe {of}", obs, "[k, n]", (math.prod(space.shape), _ROWS), np.dtype(space.dtype).name)
    values = {"initial": state, "the state": next_state, "the reward": reward, "terminated": terminated, "observe": obs}
    return {f"{key} of {name}": _as_numpy(value) for key, value in values.items()}


def _check(what: str, value: Array, shape_name: str, shape: tuple[int, ...], dtype: str | None = None) -> None:
    """Checks one array; without a dtype, it may have any float dtype."""
    if not isinstance(value, np.ndarray | Tensor):
        raise SpaceError(f"Expected {what} to be an array {shape_name}, got {value!r:.60}. Return one number per row.")
    if tuple(value.shape) != shape:
        raise SpaceError(
            f"Expected {what} to have the shape {shape} for {_ROWS} rows, got {tuple(value.shape)}. Rows are the last "
            "dimension."
        )
    found = _dtype(value)
    if found != dtype and (dtype is not None or not found.startswith("float")):
        raise SpaceError(f"Expected {what} to have the dtype {dtype or 'float32'}, got {found}. {_ADVICE}")


def _dtype(value: Array) -> str:
    return str(value.dtype).removeprefix("torch.")


def _as_numpy(value: Array) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, Tensor) else value
