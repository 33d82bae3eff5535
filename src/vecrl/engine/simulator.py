"""Defines the interface that an adapter implements so that vecrl can drive a simulator.

A simulator is always a batch. It knows the spaces of one row and how to reset and step rows. There are two kinds, which
differ in where the rows are:

* `Simulator` writes rows into host arrays that it is given (the batch buffers). Wrapped Python environments and
  CPU libraries are of this kind.
* `BatchSimulator` returns whole batches as its own arrays or tensors, on any device. They are not copied.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from .infos import Info
from .space_layout import AnySpace, Tree

Array = Any
"""A NumPy array, a torch tensor or a JAX array. The engine never reads its elements."""


class RowBuffers:
    """The rows of one worker in a slot of the batch buffers. The worker's simulator writes them.

    Attributes:
        obs: one array `[k, *leaf_shape]` per leaf of the observation space; None for an opaque leaf.
        final_obs: arrays as in `obs`, for the final observations of rows that a step reset.
        reward: `[k]` float64.
        terminated, truncated: `[k]` bool, all False when a step begins.
        was_reset, flags, returns, lengths: for the worker only. Simulators must not use them.
    """

    __slots__ = ("final_obs", "flags", "lengths", "obs", "returns", "reward", "terminated", "truncated", "was_reset")

    def __init__(
        self,
        obs: list[Any],
        final_obs: list[Any],
        reward: np.ndarray,
        flags: np.ndarray,
        returns: np.ndarray,
        lengths: np.ndarray,
    ):
        self.obs = obs
        self.final_obs = final_obs
        self.reward = reward
        self.flags = flags
        self.terminated, self.truncated, self.was_reset = flags
        self.returns = returns
        self.lengths = lengths


ResetOptions = Mapping[str, Any]
"""The argument `options` of a reset, for every environment."""


class ResetKeywords(dict[str, object]):
    """Keyword arguments of the environments' `reset`, except the seed; passed in place of a reset's `options`."""


InfoRows = list[tuple[int, Info]]
ObjectRows = dict[int, list[tuple[int, Tree]]]


class StepNotes:
    """What a simulator returns in addition to the rows that it wrote.

    Attributes:
        done_rows: rows in which this step ended the episode.
        infos: `(row, info)` of each row with a non-empty info.
        final_infos: `(row, info)` of the step itself, for rows that the step reset.
        objects: lists of `(row, object)`, keyed by the index of the opaque leaf.
        final_objects: lists as in `objects`, for final observations.
        failures: `(row, exception)` of each row that raised. The contents of these rows are undefined.
    """

    __slots__ = ("done_rows", "failures", "final_infos", "final_objects", "infos", "objects")

    def __init__(self) -> None:
        self.done_rows: list[int] = []
        self.infos: InfoRows = []
        self.final_infos: InfoRows = []
        self.objects: ObjectRows = {}
        self.final_objects: ObjectRows = {}
        self.failures: list[tuple[int, BaseException]] = []


class RowFailures(Exception):
    """Raised by a simulator if some of its rows could not be made or closed.

    Attributes:
        failures: `(row, exception)`.
    """

    def __init__(self, failures: Sequence[tuple[int, BaseException]]):
        super().__init__(*(error for _, error in failures))
        self.failures = list(failures)


def raise_if_of_caller(error: BaseException) -> None:
    """Raises an exception again that is not of an environment, but of the caller in this thread.

    These are KeyboardInterrupt, and SystemExit if a signal handler raised it.
    """
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and _is_of_signal_handler(error)):
        raise error


def _is_of_signal_handler(error: BaseException) -> bool:
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """What another interpreter needs to make an environment, as plain data.

    Attributes:
        target: the function to call there: "MODULE:NAME" or "FILE.py:NAME". Of several, divided by "|", the first with
            a module that is installed.
        args, kwargs: its arguments.
        modules: modules to import before.
        python: the path of the interpreter; None for the one that the pool is given.
    """

    target: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    modules: Sequence[str] = ()
    python: str | None = None


@runtime_checkable
class DescribesEnv(Protocol):
    """A function without arguments that makes an environment, which another interpreter can make as well."""

    description: EnvDescription


@dataclass(frozen=True, slots=True)
class SimulatorMaker:
    """Makes the simulator of one worker.

    Attributes:
        simulator: the class of the simulator, which is called with `env_fns`.
        env_fns: functions that each make one environment.
        options: further arguments of the class.
    """

    simulator: Callable[..., Simulator]
    env_fns: Sequence[Callable[[], Any]]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self) -> Simulator:
        return self.simulator(self.env_fns, **self.options)

    @property
    def descriptions(self) -> list[EnvDescription]:
        """The descriptions of those environments that have one."""
        return [env_fn.description for env_fn in self.env_fns if isinstance(env_fn, DescribesEnv)]


class Simulator(Protocol):
    """A batch of k environments with their rows in host memory. Every argument `rows` is in ascending order.

    Optional methods are in protocols of their own, which the engine looks for: `SupportsState`, `SupportsRebuild`,
    `StepsAndResets`, `SupportsSetSpaces`.

    Attributes:
        num_envs: k.
        observation_space, action_space: the spaces of one row.
        metadata, render_mode, spec: as in gymnasium.
    """

    num_envs: int
    observation_space: AnySpace
    action_space: AnySpace
    metadata: dict[str, Any]
    render_mode: str | None
    spec: Any

    def reset(
        self,
        rows: Sequence[int] | None,
        seeds: Sequence[int | None] | None,
        options: ResetOptions | None,
        out: RowBuffers,
    ) -> StepNotes:
        """Resets `rows` and writes their observations into `out.obs`.

        Args:
            rows: the rows to reset; None for all.
            seeds: `seeds[j]` is the seed of the j-th of these rows; None for no seeds.
            options: the options of gymnasium's `reset`.
            out: the buffers to write.
        """
        ...

    def step(self, rows: Sequence[int] | None, actions: Sequence[Tree], out: RowBuffers, reset_done: bool) -> StepNotes:
        """Steps `rows` and writes their observations, rewards and flags into `out`.

        Args:
            rows: the rows to step; None for all.
            actions: `actions[j]` is the action of the j-th of these rows.
            out: the buffers to write.
            reset_done: whether rows in which the episode ends are reset at once. For these rows, the step's observation
                and info go into `out.final_obs` and `final_infos`, those of the reset into `out.obs` and `infos`.
        """
        ...

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """Accesses one environment and returns the result.

        Args:
            row: its row.
            kind: "get", "set", "call", "render" or "is_wrapped" (whether the environment has a wrapper of a class).
            name: the name of the attribute or method, or the class's module and qualified name, joined by a dot.
            value: the value to set, or args and kwargs of the call.
        """
        ...

    def close(self) -> None:
        """Frees all resources. A second call does nothing."""
        ...


@runtime_checkable
class SupportsState(Protocol):
    """A `Simulator` with environments that can be saved and restored one by one."""

    def get_state(self, row: int) -> dict[str, Any]:
        """Returns the state of one environment as plain data."""
        ...

    def set_state(self, row: int, state: Mapping[str, Any], allow: Sequence[str]) -> None:
        """Restores what `get_state` returned. `allow` names classes that may be made, see `vecrl.snapshot.restore`."""
        ...


@runtime_checkable
class SupportsRebuild(Protocol):
    """A `Simulator` with environments that can be made one by one, which `on_failure` needs."""

    def rebuild(self, row: int) -> None:
        """Closes the environment, whatever its state, and makes another in its place."""
        ...


@runtime_checkable
class StepsAndResets(Protocol):
    """A `Simulator` that steps some rows and resets the others in one loop, which next-step auto-reset often needs."""

    def step(
        self,
        rows: Sequence[int] | None,
        actions: Sequence[Tree],
        out: RowBuffers,
        reset_done: bool,
        reset_mask: Sequence[bool] | None = None,
    ) -> StepNotes:
        """Steps `rows`, see `Simulator.step`.

        Args:
            rows, actions, out, reset_done: those of `Simulator.step`.
            reset_mask: with `rows` None: one bool per row, True to reset the row, with reward 0, and not to step it.
        """
        ...

    mixes_steps_and_resets: Literal[True]


@runtime_checkable
class SupportsSetSpaces(Protocol):
    """A `Simulator` that accepts spaces that the workers of a pool agreed on, other than its own."""

    def set_spaces(self, observation_space: AnySpace, action_space: AnySpace) -> None:
        """Sets the spaces; called once, before anything is reset."""
        ...


@runtime_checkable
class SupportsInnermostEnvs(Protocol):
    """A `Simulator` of environments that are Python objects, which must not be in two rows of a pool."""

    @property
    def innermost_envs(self) -> Sequence[object]:
        """The environment of each row, behind all wrappers."""
        ...


@dataclass(frozen=True, slots=True)
class BatchStep:
    """The results of one step of a `BatchSimulator`, one row per environment, before any row is reset.

    Attributes:
        next_obs: `[n, *obs_shape]`, or a tree of such arrays: the observations after the step, final ones included.
        reward: `[n]`, floating point.
        terminated: `[n]`, bool.
        truncated: `[n]`, bool.
        info: arrays of leading size n, keyed by name.
    """

    next_obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    info: Mapping[str, Array] = field(default_factory=dict)


@runtime_checkable
class BatchSimulator(Protocol):
    """A simulator that steps a whole batch at once, on one device.

    If a space is a Dict or a Tuple, observations or actions are dicts or tuples of arrays `[n, ...]`, nested as the
    space is. A simulator that cannot return its states raises `NotImplementedError` in `get_state` and `set_state`,
    with the reason; callers can then not reset some rows with seeds, nor step some rows without `SupportsStepWhere`.

    vecrl checks that actions are elements of `action_space` before it calls `step`. A simulator with the optional
    attribute `checks_actions = True` gets all actions unchanged and checks them itself. One with
    `differentiable = True` keeps the graphs of its results, so that no rollout of it is computed without gradients.

    Attributes:
        num_envs: n, the number of rows.
        observation_space: the observation space of one row.
        action_space: the action space of one row.
        device: the device of its tensors, as a string ("cpu", "cuda:0").
        metadata: gymnasium's metadata ("render_modes", "render_fps").
        render_mode: as in gymnasium.
    """

    num_envs: int
    observation_space: AnySpace
    action_space: AnySpace
    device: str
    metadata: dict[str, Any]
    render_mode: str | None

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Array:
        """Resets every row and returns the observations `[n, *obs_shape]`.

        Args:
            seeds: `seeds[i]` seeds the random stream of row i. If it is None, the stream continues.
            options: the options of gymnasium's `reset`.
        """
        ...

    def reset_where(self, mask: Array) -> Array:
        """Resets the rows in which `mask` (`[n]` bool) is True and returns the observations of ALL rows."""
        ...

    def step(self, actions: Array) -> BatchStep:
        """Steps every row. A row with an ended episode must not raise; its values are undefined."""
        ...

    def render(self, row: int) -> np.ndarray | None:
        """Returns a frame `[height, width, 3]` uint8 of one row, or None without a render mode."""
        ...

    def get_state(self) -> dict[str, Array]:
        """Returns copies of the complete state, tensors of leading size n, which `set_state` restores exactly."""
        ...

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Restores a state that `get_state` returned."""
        ...

    def close(self) -> None:
        """Frees all resources. A second call does nothing."""
        ...


@runtime_checkable
class SupportsStepAndReset(Protocol):
    """A `BatchSimulator` that steps and resets in one call, which saves time on a device."""

    def step_and_reset(self, actions: Array) -> tuple[BatchStep, Array, Array]:
        """Steps every row, then resets the rows with an ended episode.

        Returns:
            The step, `done` `[n]` bool, and the observations to act on next.
        """
        ...


@runtime_checkable
class SupportsArrays(Protocol):
    """A `BatchSimulator` that may compute with NumPy, and then returns arrays where no tensors are needed.

    The method is called if spaces are not nested, and `step_and_reset` is of the class that defines this method.

    Attributes:
        arrays: the library that computes; the method is only called if it is "numpy".
    """

    arrays: str

    def step_and_reset_arrays(
        self, actions: np.ndarray, mask: np.ndarray | None = None
    ) -> tuple[BatchStep, np.ndarray, np.ndarray]:
        """Returns what `SupportsStepAndReset.step_and_reset` does, infos included, as NumPy arrays.

        Args:
            actions: of all rows.
            mask: bool `[n]`, the rows to reset; None for those with an ended episode.
        """
        ...


@runtime_checkable
class SupportsStepWhere(Protocol):
    """A `BatchSimulator` that can step some of its rows. For others, vecrl saves and restores the state of the rest."""

    def step_where(self, mask: Array, actions: Array) -> BatchStep:
        """Steps the rows where the bool `mask` `[n]` holds. `actions` has all rows; other results are ignored."""
        ...
