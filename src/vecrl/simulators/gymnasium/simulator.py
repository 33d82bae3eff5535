"""Combines k single gymnasium environments to one `Simulator`.

The loop over the environments is time-critical, so it does little more than call `step`: observations are collected and
written as one block, and flags are written only if they are set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from ...engine.large_boxes import equal_spaces
from ...engine.simulator import (
    ObjectRows,
    ResetKeywords,
    ResetOptions,
    RowBuffers,
    RowFailures,
    StepNotes,
    raise_if_of_caller,
)
from ...engine.space_layout import AnySpace, Layout, Tree, check_element
from ...errors import OutOfSpecError, SpaceError
from ...gym_interface import Env, check_gymnasium_env, explain, is_wrapped, read_reset
from ...snapshot.capture import capture
from ...snapshot.handlers.base import State
from ...snapshot.restore import UnknownClassError, restore

EnvFn = Callable[[], Env]
_FEW = 6  # observations: so many are written faster one by one than as a block
_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})  # most types of rewards


class SupportsReset(Protocol):
    def reset(self) -> object: ...


class SupportsClose(Protocol):
    def close(self) -> None: ...


E = TypeVar("E", bound=SupportsClose)


class GymnasiumSimulator:
    """k environments that are stepped one after another; a `vecrl.engine.simulator.Simulator`.

    Args:
        env_fns: functions that each construct a `gymnasium.Env`.
        observation_space: the space in which observations are written; that of the first environment by default.
        same_spaces, same_actions: whether observation and action spaces must be equal, or only have the same layout.

    Raises:
        RowFailures: environments could not be constructed; with the row and the exception of each.
    """

    mixes_steps_and_resets: Literal[True] = True

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        observation_space: AnySpace | None = None,
        same_spaces: bool = True,
        same_actions: bool = True,
    ):
        self.envs = make_all(env_fns, check_gymnasium_env)
        self._env_fns = env_fns
        self.num_envs = len(self.envs)
        first_env = self.envs[0]
        self.observation_space = observation_space or first_env.observation_space
        self.action_space = first_env.action_space
        self.metadata = dict(first_env.metadata or {})
        self.render_mode = first_env.render_mode
        self.spec = first_env.spec
        self._check_spaces(same_spaces, same_actions)
        self._layout = Layout(self.observation_space)
        self._all_rows = list(range(self.num_envs))
        self._closed = False

    def _check_spaces(self, same_spaces: bool, same_actions: bool) -> None:
        failures: list[tuple[int, BaseException]] = []
        for row, env in enumerate(self.envs):
            checks = [("action_space", self.action_space, env.action_space, same_actions)]
            checks.append(("observation_space", self.observation_space, env.observation_space, same_spaces))
            for name, expected, actual, must_equal in checks:
                if equal_spaces(expected, actual) or (
                    not must_equal and Layout(expected).leaves == Layout(actual).leaves
                ):
                    continue
                text = f"its {name} is {actual}, expected {expected}, as the first environment has."
                failures.append((row, OutOfSpecError(text)))
                break
        if failures:
            close_all(self.envs)
            raise RowFailures(failures)

    def reset(
        self,
        rows: Sequence[int] | None,
        seeds: Sequence[int | None] | None,
        options: ResetOptions | None,
        out: RowBuffers,
    ) -> StepNotes:
        """Resets environments and writes their observations into `out`, as `Simulator.reset`."""
        rows = range(self.num_envs) if rows is None else rows
        notes, ok_rows, obs_list = StepNotes(), [], []
        keywords = options if isinstance(options, ResetKeywords) else {"options": options}
        for j, row in enumerate(rows):
            try:
                result = self.envs[row].reset(seed=None if seeds is None else seeds[j], **keywords)  # pyright: ignore[reportArgumentType]
                obs, info = read_reset(result, self.envs[row])
                if info:
                    notes.infos.append((row, info))
            except BaseException as error:
                raise_if_of_caller(error)
                notes.failures.append((row, explain(error, self.envs[row])))
                continue
            ok_rows.append(row)
            obs_list.append(obs)
        self._write(ok_rows, obs_list, out.obs, notes.objects, notes)
        return notes

    def step(
        self,
        rows: Sequence[int] | None,
        actions: Sequence[Tree],
        out: RowBuffers,
        reset_done: bool,
        reset_mask: Sequence[bool] | None = None,
    ) -> StepNotes:
        """Steps, or resets, environments and writes the results into `out`, as `StepsAndResets.step`."""
        notes = StepNotes()
        rewards = out.reward
        obs_list: list[Tree] = []
        final_obs_list: list[Tree] = []
        ok_rows: Sequence[int] = self._all_rows if rows is None else rows
        envs = self.envs if rows is None else [self.envs[row] for row in rows]
        for row, env, action in zip(ok_rows, envs, actions, strict=False):  # of one length; `strict` takes time
            try:
                if reset_mask is not None and reset_mask[row]:
                    obs, info = read_reset(env.reset(), env)
                    reward = 0.0
                else:
                    obs, reward, terminated, truncated, info = env.step(action)
                    if terminated or truncated:
                        out.terminated[row], out.truncated[row] = terminated, truncated
                        notes.done_rows.append(row)
                        if reset_done:
                            final_obs_list.append(_copied(obs))  # a copy, since the reset may overwrite it
                            obs, info = _reset_done(row, env, info, notes)
                if info:
                    notes.infos.append((row, info))
                if type(reward) in _NUMBERS:
                    rewards[row] = reward
                else:
                    self._write_reward(row, reward, out, notes)
            except BaseException as error:
                raise_if_of_caller(error)
                notes.failures.append((row, explain(error, self.envs[row])))
                obs, rewards[row] = None, np.nan
            obs_list.append(obs)
        if notes.failures:
            ok_rows, obs_list, final_obs_list = _drop_failed(ok_rows, obs_list, final_obs_list, notes, out)
        self._write(ok_rows, obs_list, out.obs, notes.objects, notes)
        if final_obs_list:
            self._write(notes.done_rows, final_obs_list, out.final_obs, notes.final_objects, notes)
        return notes

    def _write(
        self, rows: Sequence[int], obs_list: list[Tree], leaves: list[Tree], objects: ObjectRows, notes: StepNotes
    ) -> None:
        """Writes observations into their rows; those that do not fit are added to the failures."""
        if not rows:
            return
        try:
            if self._layout.is_array:
                _write_leaf(obs_list, leaves[0], rows)
                return
            for index, values in enumerate(self._layout.columns(obs_list)):
                target = leaves[index]
                if target is None:  # copies, since environments may change their own objects
                    objects[index] = list(zip(rows, deepcopy(values), strict=True))
                else:
                    _write_leaf(values, target, rows)
        except Exception:
            objects.clear()
            for row, obs in zip(rows, obs_list, strict=True):
                try:
                    self._write_one(row, obs, leaves, objects, notes)
                except Exception as error:
                    notes.failures.append((row, error))

    def _write_one(self, row: int, obs: Tree, leaves: list[Tree], objects: ObjectRows, notes: StepNotes) -> None:
        values = self._layout.split(obs)
        for index, (value, leaf) in enumerate(zip(values, self._layout.leaves, strict=True)):
            check_element(value, leaf)
            if leaf.dtype is None:
                objects.setdefault(index, []).append((row, deepcopy(value)))
            else:
                leaves[index][row] = value

    def _write_reward(self, row: int, reward: object, out: RowBuffers, notes: StepNotes) -> None:
        """Writes a reward of another type than `_NUMBERS`: an array of one element is a number too."""
        try:
            out.reward[row] = _as_number(reward)
        except (TypeError, ValueError):
            notes.failures.append((row, SpaceError(f"expected a number as the reward, got {reward!r}.")))

    def invoke(self, row: int, kind: str, name: str, value: object) -> object:
        """Calls `render`, or gets, sets or calls an attribute of an environment, as `Simulator.invoke`."""
        return _invoke(self.envs[row], kind, name, value)

    @property
    def innermost_envs(self) -> list[object]:
        """The environments behind all wrappers."""
        return [_innermost(env) for env in self.envs]

    def rebuild(self, row: int) -> None:
        """Closes an environment and constructs a new one for its row, as `Simulator.rebuild`."""
        old_env = self.envs[row]
        close_all([old_env])
        env = self._env_fns[row]()
        check_gymnasium_env(env)
        for name in ("observation_space", "action_space"):
            if (actual := getattr(env, name)) != (expected := getattr(old_env, name)):
                raise SpaceError(f"expected a rebuilt environment with the {name} {expected}, got {actual}.")
        self.envs[row] = env

    def get_state(self, row: int) -> State:
        """Returns the state of an environment as plain data, as `Simulator.get_state`."""
        return capture(self.envs[row])

    def set_state(self, row: int, state: State, allow: Sequence[str]) -> None:
        """Restores a state, as `Simulator.set_state`.

        The environment is reset first if it contains no objects of a class that the state contains.
        """
        env = self.envs[row]
        restore_env(env, lambda: restore(env, state, allow=allow))

    def close(self) -> None:
        """Closes every environment, even if one of them raises, and then raises all failures."""
        if not self._closed:
            self._closed = True
            failures = close_all(self.envs)
            if failures:
                raise RowFailures(failures)


def restore_env(env: SupportsReset, set_state: Callable[[], object]) -> None:
    """Calls `set_state`; resets `env` and tries again if `env` contains no objects of a class in the state."""
    try:
        set_state()
    except UnknownClassError:
        env.reset()
        set_state()


def _innermost(env: Any) -> object:
    try:
        return env.unwrapped
    except AttributeError:  # of another class than gymnasium's
        return getattr(env, "legacy_env", env)


def _reset_done(row: int, env: Env, info: Any, notes: StepNotes) -> tuple[Tree, Any]:
    """Resets an environment after the end of its episode, and keeps the info of the step."""
    if info:
        notes.final_infos.append((row, info))
    return read_reset(env.reset(), env)


def _copied(obs: Tree) -> Tree:
    return obs.copy() if type(obs) is np.ndarray else deepcopy(obs)


def _invoke(env: Env, kind: str, name: str, value: Any) -> object:
    if kind == "render":
        return env.render()
    if kind == "set":
        return env.set_wrapper_attr(name, value)
    if kind == "is_wrapped":
        return is_wrapped(env, name)
    attribute = env.get_wrapper_attr(name)
    if kind == "get" or not callable(attribute):
        return attribute
    args, kwargs = value
    return attribute(*args, **kwargs)


def _drop_failed(
    rows: Sequence[int], obs_list: list[Tree], final_obs_list: list[Tree], notes: StepNotes, out: RowBuffers
) -> tuple[Sequence[int], list[Tree], list[Tree]]:
    """Removes the rows that raised from the results: they have no observations and no ended episodes."""
    failed_rows = {row for row, _ in notes.failures}
    final_obs_list = [obs for row, obs in zip(notes.done_rows, final_obs_list, strict=False) if row not in failed_rows]
    notes.done_rows = [row for row in notes.done_rows if row not in failed_rows]
    failed_index = list(failed_rows)
    out.terminated[failed_index] = out.truncated[failed_index] = False
    remaining = [(row, obs) for row, obs in zip(rows, obs_list, strict=True) if row not in failed_rows]
    return [row for row, _ in remaining], [obs for _, obs in remaining], final_obs_list


def make_all(makers: Sequence[Callable[[], E]], check: Callable[[E], None]) -> list[E]:
    """Calls all `makers` and returns the environments.

    Args:
        makers: one function per row.
        check: a function that raises if an environment is not valid.

    Raises:
        RowFailures: some failed; with the row and the exception of each. The others are closed.
    """
    envs: list[E] = []
    failures: list[tuple[int, BaseException]] = []
    for row, make in enumerate(makers):
        try:
            env = make()
            check(env)
            envs.append(env)
        except BaseException as error:
            raise_if_of_caller(error)
            failures.append((row, error))
    if failures:
        close_all(envs)
        raise RowFailures(failures)
    return envs


def close_all(envs: Sequence[SupportsClose]) -> list[tuple[int, BaseException]]:
    """Closes all environments and returns the row and the exception of each that raised."""
    failures: list[tuple[int, BaseException]] = []
    for row, env in enumerate(envs):
        try:
            env.close()
        except BaseException as error:
            raise_if_of_caller(error)
            failures.append((row, error))
    return failures


def _as_number(value: object) -> np.ndarray:
    """Converts to an array `[]`. NumPy alone would convert None to NaN, and text such as "1" to a number."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"expected a number, got {value!r}")
    return array.reshape(())


def _write_leaf(values: list[Tree], target: np.ndarray, rows: Sequence[int]) -> None:
    """Writes elements into some rows of `target`, or into all."""
    shape, dtype = target.shape[1:], target.dtype
    if len(rows) == len(target) and (len(rows) > _FEW or not shape):
        _stack(values, target)
        return
    for row, value in zip(rows, values, strict=False):
        if value.shape != shape or (value.dtype != dtype and not np.can_cast(value.dtype, dtype, "same_kind")):
            # caught in `_write`, as is an AttributeError; each observation is checked then
            raise SpaceError(f"expected an observation of shape {shape} and a dtype that casts to {dtype}")
        target[row] = value


def _stack(values: list[Tree], target: np.ndarray) -> np.ndarray:
    """Writes k elements into `target` `[k, *shape]`, in one concatenation unless elements are scalars."""
    if target.ndim == 1:
        numbers = np.asarray(values)
        if numbers.ndim != 1:  # copyto would broadcast an array of one element
            raise SpaceError("expected observations that are numbers")
        np.copyto(target, numbers, casting="same_kind")
    else:
        if [*map(len, values)].count(target.shape[1]) < len(values):  # different lengths may have the correct sum
            # caught in `_write`, which then checks each observation
            raise SpaceError(f"expected observations of length {target.shape[1]}")
        flat = target.reshape(-1, *target.shape[2:])
        np.concatenate(values, out=flat)  # casts within the same kind only
    return target
