"""`CheckedSimulator`: calls a `BatchSimulator`, checks what it returns, and raises its exceptions as `WorkerError`.

Every interface over a batched simulator calls it by this class, so that the author of a simulator reads the same
messages everywhere. Checks compare shapes, dtypes and devices, and never the values, so no call waits for a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..engine.simulator import BatchSimulator, BatchStep, SupportsStepWhere, raise_if_of_caller
from ..engine.space_layout import AnySpace, Layout, Tree
from ..engine.trees import is_nested, map_tree, named_leaves
from ..engine.worker import describe_failure
from ..errors import SpaceError, VecrlError, failures_to_error
from ..simulators.array_library import on_host, to_tensors

STEP_NAMES = ("num_envs", "observation_space", "action_space", "device", "reset", "reset_where", "step")
STATE_NAMES = ("get_state", "set_state")
ALL_NAMES = (*STEP_NAMES, *STATE_NAMES, "metadata", "render_mode", "render", "close")
Seeds = Sequence[int | None] | None
Options = Mapping[str, object] | None


class CheckedSimulator:
    """The methods of a `BatchSimulator`, with checks of their arguments and results.

    The first result of each method is checked completely, later ones by the shapes of arrays and the dtype of flags.
    Actions are converted to the dtype of the action space. A simulator with the attribute `checks_actions` gets them
    unchanged. Observations and actions of nested spaces are trees of tensors, see `vecrl.engine.trees`.

    Args:
        simulator: the simulator.

    Attributes:
        checks_actions: whether actions are checked and converted here.

    Raises:
        TypeError: the simulator lacks an attribute or a method that every caller needs.

    All methods raise `SpaceError` if an argument or a result has the wrong shape, dtype or device, and `WorkerError`,
    with the exception as its cause, if the simulator raises an exception that vecrl does not define.
    """

    def __init__(self, simulator: BatchSimulator):
        require(simulator, STEP_NAMES)
        self.simulator = simulator
        self._checked: set[str] = set()
        self._rows = (simulator.num_envs,)
        self._obs_shape = _batch_shape(simulator.observation_space, simulator.num_envs)
        self._nested_obs = is_nested(simulator.observation_space)
        self._steps_rows = isinstance(simulator, SupportsStepWhere)
        self.checks_actions = not getattr(simulator, "checks_actions", False)
        action_space = simulator.action_space
        self._nested_actions = Layout(action_space) if is_nested(action_space) else None
        self._action_shape = _batch_shape(action_space, simulator.num_envs)
        self._action_dtype = None if self._nested_actions else _torch_dtype(action_space)
        self._array_form = self._action_shape, action_space.dtype

    # -- the methods of a simulator ------------------------------------------------------------------

    def reset(self, seeds: Seeds = None, options: Options = None) -> Tree:
        """Calls `BatchSimulator.reset`."""
        try:
            obs = self.simulator.reset(seeds, options)
        except BaseException as error:
            self._raise("reset", error)
        return self._checked_obs("reset", obs)

    def reset_where(self, mask: Tensor) -> Tree:
        """Calls `BatchSimulator.reset_where`."""
        try:
            obs = self.simulator.reset_where(mask)
        except BaseException as error:
            self._raise("reset_where", error)
        return self._checked_obs("reset_where", obs)

    def step(self, actions: Tree) -> BatchStep:
        """Calls `BatchSimulator.step`."""
        actions = self._as_actions(actions)
        try:
            step = self.simulator.step(actions)
        except BaseException as error:
            self._raise("step", error)
        return self._checked_step("step", step)

    def step_and_reset(self, actions: Tree) -> tuple[BatchStep, Tensor, Tree]:
        """Calls `SupportsStepAndReset.step_and_reset`, which the simulator must have."""
        actions = self._as_actions(actions)
        try:
            result = self.simulator.step_and_reset(actions)  # pyright: ignore[reportAttributeAccessIssue]
        except BaseException as error:
            self._raise("step_and_reset", error)
        if "step_and_reset" not in self._checked or not self._has_obs_shape(result[2]):
            self._check_step_and_reset(result)
            self._checked.add("step_and_reset")
        return result

    @property
    def gives_arrays(self) -> bool:
        """Whether `step_and_reset_arrays` may be called, see `SupportsArrays`."""
        simulator: Any = self.simulator
        owner = next((base for base in type(simulator).__mro__ if "step_and_reset_arrays" in vars(base)), None)
        if owner is None or self._nested_obs or self._nested_actions is not None:
            return False
        is_own = "step_and_reset" in vars(owner) and type(simulator).step_and_reset is owner.step_and_reset
        return is_own and "step_and_reset" not in vars(simulator) and simulator.arrays == "numpy"

    def step_and_reset_arrays(
        self, actions: Tensor | np.ndarray, mask: np.ndarray | None = None
    ) -> tuple[BatchStep, np.ndarray, np.ndarray]:
        """Calls `SupportsArrays.step_and_reset_arrays`; only if `gives_arrays`. Arrays are not checked."""
        if isinstance(actions, Tensor):
            actions = on_host(self._as_actions(actions))
        try:
            result: Any = self.simulator.step_and_reset_arrays(actions, mask)  # pyright: ignore[reportAttributeAccessIssue]
        except BaseException as error:
            self._raise("step_and_reset", error)
        if "step_and_reset_arrays" not in self._checked or result[2].shape != self._obs_shape:
            step, done, obs = result
            values = (step.next_obs, step.reward, step.terminated, step.truncated, done, obs)
            next_obs, reward, terminated, truncated, done, obs = to_tensors(values)
            self._check_step_and_reset((BatchStep(next_obs, reward, terminated, truncated, step.info), done, obs))
            self._checked.add("step_and_reset_arrays")
        return result

    def step_where(self, mask: Tensor, actions: Tree) -> BatchStep:
        """Steps the rows of `mask` `[n]`: calls `SupportsStepWhere.step_where`, or restores the state of other rows.

        Raises:
            NotImplementedError: the simulator has neither `step_where` nor states.
        """
        if not self._steps_rows:
            state_before = self._state("A step of some rows", "step_where")
            step = self.step(actions)
            restore_other_rows(self.simulator, mask, state_before)
            return step
        actions = self._as_actions(actions)
        try:
            step = self.simulator.step_where(mask, actions)  # pyright: ignore[reportAttributeAccessIssue]
        except BaseException as error:
            self._raise("step_where", error)
        return self._checked_step("step_where", step)

    def reset_rows(self, mask: Tensor, seeds: Seeds, options: Options) -> Tree:
        """Resets only the rows in `mask` `[n]`; returns the observations of all rows.

        Raises:
            NotImplementedError: there are seeds or options, and the simulator has no states.
        """
        if seeds is None and not options:
            return self.reset_where(mask)
        # Simulators take seeds and options only for all rows: reset all, then restore the other rows.
        state_before = self._state("A reset of some rows with seeds or options")
        self.reset(seeds, options)
        restore_other_rows(self.simulator, mask, state_before)
        return self.reset_where(torch.zeros_like(mask))

    def _state(self, operation: str, method: str | None = None) -> Mapping[str, Tensor]:
        """Returns the state that an operation restores in other rows; `method` would make it unnecessary."""
        require(self.simulator, STATE_NAMES)
        try:
            return self.simulator.get_state()
        except NotImplementedError as error:
            lacking = "states" if method is None else f"states or {method}"
            raise NotImplementedError(
                f"{operation} needs a simulator with {lacking}, which {self._name} does not have: {error} "
                "Do the same with all rows at once."
            ) from error

    # -- errors --------------------------------------------------------------------------------------

    def _raise(self, method: str, error: BaseException) -> NoReturn:
        raise_if_of_caller(error)
        if isinstance(error, VecrlError):  # which says already what was expected
            raise error
        failure = describe_failure(tuple(range(self.simulator.num_envs)), method, error, 0, 0)
        name = f"{type(self.simulator).__name__}.{method}"
        advice = f"One call of {name} computes all rows, so all are affected. Reset all environments to continue."
        raise failures_to_error([failure], advice=advice) from error

    # -- checks --------------------------------------------------------------------------------------

    def takes_array(self, actions: np.ndarray) -> bool:
        """Returns whether a simulator that `gives_arrays` gets these actions unchanged."""
        return not self.checks_actions or (actions.shape, actions.dtype) == self._array_form

    def _as_actions(self, actions: Tree) -> Tree:
        if not self.checks_actions:
            return actions
        space, layout = self.simulator.action_space, self._nested_actions
        if layout is None:
            return self._as_action("actions", space, actions, self._action_shape, self._action_dtype)
        return layout.build(
            [
                self._as_action(name, leaf, value, (*self._rows, *(leaf.shape or ())), _torch_dtype(leaf))
                for name, leaf, value in named_leaves("actions", space, actions)
            ]
        )

    def _as_action(
        self, field: str, space: AnySpace, actions: Tensor, shape: Tree, dtype: torch.dtype | None
    ) -> Tensor:
        """Returns the actions of one leaf in the dtype of its space."""
        if shape is None or (actions.shape == shape and actions.dtype == dtype):
            return actions
        if actions.shape != shape:
            raise SpaceError(
                f"Expected {field} of shape {shape} for {self._name}, one row per environment, each in {space}, got "
                f"shape {tuple(actions.shape)}. Give one element of action_space per environment."
            )
        if dtype is None or torch.can_cast(actions.dtype, dtype):
            return actions if dtype is None else actions.to(dtype)
        raise SpaceError(
            f"Expected {field} of dtype {dtype} for {self._name}, got {actions.dtype}. Convert them first."
        )

    def _has_obs_shape(self, obs: Tree) -> bool:
        return (_shapes(obs) if self._nested_obs else obs.shape) == self._obs_shape

    def _checked_obs(self, method: str, obs: Tree) -> Tree:
        if method not in self._checked or not self._has_obs_shape(obs):
            self._check_obs(f"the observations of {self._name}.{method}", obs)
            self._checked.add(method)
        return obs

    def _checked_step(self, method: str, step: BatchStep) -> BatchStep:
        rows = self._rows
        if (
            method not in self._checked
            or not self._has_obs_shape(step.next_obs)
            or not step.reward.shape == step.terminated.shape == step.truncated.shape == rows
            or not step.terminated.dtype == step.truncated.dtype == torch.bool
        ):
            self._check_step(method, step)
            self._checked.add(method)
        return step

    @property
    def _name(self) -> str:
        return type(self.simulator).__name__

    def _check_step(self, method: str, step: BatchStep) -> None:
        name, rows = f"{self._name}.{method}", self._rows
        if not isinstance(step, BatchStep):
            raise SpaceError(
                f"Expected a BatchStep from {name}, got {_describe(step)}. "
                "Return BatchStep(next_obs, reward, terminated, truncated, info) of vecrl.engine."
            )
        self._check_obs(f"next_obs of {name}", step.next_obs)
        self._check_array(f"reward of {name}", step.reward, rows, "float32", "float64", "float16", "bfloat16")
        self._check_array(f"terminated of {name}", step.terminated, rows, "bool")
        self._check_array(f"truncated of {name}", step.truncated, rows, "bool")
        if not isinstance(step.info, Mapping):
            raise SpaceError(
                f"Expected info of {name} to be one dict of arrays, got {_describe(step.info)}. Return arrays of "
                f"leading size {rows[0]}, keyed by name."
            )
        for key, value in step.info.items():
            if not hasattr(value, "shape") or tuple(value.shape[:1]) != rows:
                raise SpaceError(
                    f"Expected info[{key!r}] of {name} to be an array of leading size {rows[0]}, got "
                    f"{_describe(value)}. Return one row per environment."
                )

    def _check_step_and_reset(self, result: tuple[BatchStep, Tensor, Tensor]) -> None:
        name = f"{self._name}.step_and_reset"
        if not isinstance(result, tuple) or len(result) != 3:
            raise SpaceError(
                f"Expected (step, done, obs) from {name}, got {_describe(result)}. Return the BatchStep, the mask of "
                "rows with an ended episode, and the observations after their resets."
            )
        step, done, obs = result
        self._check_step("step_and_reset", step)
        self._check_array(f"done of {name}", done, self._rows, "bool")
        self._check_obs(f"the observations after resets of {name}", obs)

    def _check_obs(self, field: str, obs: Tree) -> None:
        for name, space, value in named_leaves(field, self.simulator.observation_space, obs):
            self._check_array(name, value, _batch_shape(space, self._rows[0]), np.dtype(space.dtype).name)

    def _check_array(self, field: str, value: Tensor, shape: tuple[int, ...] | None, *dtypes: str) -> None:
        """Checks one tensor; `dtypes` are the names of those that it may have."""
        device = torch.device(self.simulator.device)
        if not isinstance(value, Tensor):
            raise SpaceError(
                f"Expected {field} to be a torch tensor, got {_describe(value)}. Return a tensor on device "
                f"{str(device)!r}."
            )
        if shape is not None and value.shape != shape:
            raise SpaceError(
                f"Expected {field} to have the shape {shape}, got {tuple(value.shape)}. Return one row per "
                "environment, of the shape that the space declares."
            )
        if shape is not None and str(value.dtype).removeprefix("torch.") not in dtypes:
            raise SpaceError(
                f"Expected {field} to have the dtype {dtypes[0]}, got {str(value.dtype).removeprefix('torch.')}. "
                f"Convert it by .to(torch.{dtypes[0]}), or by .astype({dtypes[0]!r}) if NumPy computes it, or declare "
                "another space."
            )
        if value.device.type != device.type or None is not value.device.index != device.index is not None:
            raise SpaceError(
                f"Expected {field} on device {str(device)!r}, which {self._name}.device names, got "
                f"{str(value.device)!r}. Create it there, or name the other device."
            )


def require(simulator: object, names: Sequence[str]) -> None:
    """Raises a `TypeError` that lists the attributes and methods of `BatchSimulator` that a simulator lacks."""
    missing = [name for name in names if not hasattr(simulator, name)]
    if missing:
        raise TypeError(
            f"Expected a simulator with the attributes and methods of vecrl.engine.BatchSimulator, got "
            f"{type(simulator).__name__} without {', '.join(missing)}. Define what is missing."
        )


def restore_other_rows(simulator: BatchSimulator, mask: Tensor, state_before: Mapping[str, Tensor]) -> None:
    """Restores the rows outside of `mask` `[n]` to `state_before`, which `get_state` returned."""
    state_after = simulator.get_state()
    simulator.set_state(
        {name: select_rows(mask, state_after[name], old_value) for name, old_value in state_before.items()}
    )


def select_rows(mask: Tensor, new_values: Tensor | float, old_values: Tensor) -> Tensor:
    """Returns `new_values` in the rows where `mask` `[n]` is True, and `old_values` `[n, ...]` in the others."""
    return torch.where(mask.view(-1, *[1] * (old_values.ndim - 1)), new_values, old_values)


def _batch_shape(space: AnySpace, num_envs: int) -> Tree:
    """Returns the shapes of a batch of elements, nested as the space is; None for elements that are no arrays."""
    layout = Layout(space)
    return layout.build([None if leaf.dtype is None else (num_envs, *leaf.shape) for leaf in layout.leaves])


def _shapes(tree: Tree) -> Tree:
    return map_tree(lambda leaf: leaf.shape, tree)


def _torch_dtype(space: AnySpace) -> torch.dtype | None:
    return getattr(torch, np.dtype(space.dtype).name, None)


def _describe(value: object) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)} and dtype {dtype}"
    return f"{type(value).__name__} {str(value)[:60]!r}"
