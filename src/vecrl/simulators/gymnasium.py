"""Lifts k single gymnasium environments to one `Simulator`.

The loop here is where a Python environment's time goes, so it does little more than call `step`: observations
are gathered and written as one block, flags only where they are set. Knows no workers, modes or dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from ..engine.layout import Layout, check_element
from ..engine.simulator import Notes, ObjectRows, Rows, RowsFailed
from ..errors import SpaceError
from ..states.putting import UnknownClassError, put
from ..states.taking import take
from .shortcuts import Shortcuts, Shown

EnvFn = Callable[[], gymnasium.Env[Any, Any]]
RAISED = (Exception, SystemExit)  # what an environment may throw at us; KeyboardInterrupt is the user's


class ResetKeywords(dict[str, Any]):
    """Given for a reset's `options`: every keyword of the environments' `reset` but the seed, not the options alone."""


class GymnasiumSimulator:
    """k environments made by `env_fns`, one after another.

    Args:
        env_fns: each makes a `gymnasium.Env`.
        observation_space: the space to write observations in, where it is not the first environment's own.
        same_spaces, same_actions: whether observation and action spaces must be equal, or only lie in memory alike.

    Raises:
        RowsFailed: with the index and the exception of each that could not be made.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        observation_space: gymnasium.Space[Any] | None = None,
        same_spaces: bool = True,
        same_actions: bool = True,
    ):
        self.envs = make_all(env_fns, _check_env)
        self._env_fns = env_fns
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.observation_space = observation_space or first.observation_space
        self.action_space = first.action_space
        self.metadata = dict(first.metadata or {})
        self.render_mode = first.render_mode
        self.spec = first.spec
        self._check_spaces(same_spaces, same_actions)
        self._layout = Layout(self.observation_space)
        self._all = list(range(self.num_envs))
        self._ways = Shortcuts(self.envs)
        self._closed = False

    def _check_spaces(self, same_spaces: bool, same_actions: bool) -> None:
        failures: list[tuple[int, BaseException]] = []
        for row, env in enumerate(self.envs):
            pairs = [("action_space", self.action_space, env.action_space, same_actions)]
            pairs.append(("observation_space", self.observation_space, env.observation_space, same_spaces))
            for name, expected, came, equal in pairs:
                if expected == came or (not equal and Layout(expected).leaves == Layout(came).leaves):
                    continue
                text = f"its {name} is {came}, but environments of one vector must have the same, here {expected}."
                failures.append((row, SpaceError(text)))
                break
        if failures:
            close_all(self.envs)
            raise RowsFailed(failures)

    def reset(
        self,
        rows: Sequence[int] | None,
        seeds: Sequence[int | None] | None,
        options: Mapping[str, Any] | None,
        out: Rows,
    ) -> Notes:
        """See `Simulator.reset`."""
        rows = range(self.num_envs) if rows is None else rows
        notes, kept, obs_list = Notes(), [], []
        keywords = options if isinstance(options, ResetKeywords) else {"options": options}
        for j, row in enumerate(rows):
            try:
                obs, info = self.envs[row].reset(seed=None if seeds is None else seeds[j], **keywords)  # pyright: ignore[reportArgumentType]
                if info:
                    notes.infos.append((row, info))
            except RAISED as error:
                notes.failures.append((row, error))
                continue
            self._ways.began(row)
            kept.append(row)
            obs_list.append(obs)
        self._write(kept, obs_list, out.obs, notes.objects, notes)
        return notes

    def step(self, rows: Sequence[int] | None, actions: Sequence[Any], out: Rows, renew: bool) -> Notes:
        """See `Simulator.step`."""
        if self.num_envs == 1:
            return self._step_alone(actions[0], out, renew)
        return self._step_several(rows, actions, out, renew)

    def _step_several(self, rows: Sequence[int] | None, actions: Sequence[Any], out: Rows, renew: bool) -> Notes:
        notes = Notes()
        obs_list: list[Any] = []
        rewards: list[Any] = []
        finals: list[Any] = []
        kept: Sequence[int] = self._all if rows is None else rows
        ways = self._ways
        steps = ways.steps if rows is None else [ways.steps[row] for row in rows]
        expired = ways.stepping(rows)
        for row, step, action in zip(kept, steps, actions, strict=True):
            try:
                obs, reward, terminated, truncated, info = step(action)
                if expired and row in expired:
                    truncated = True
                if terminated or truncated:
                    out.terminated[row], out.truncated[row] = terminated, truncated
                    notes.ended.append(row)
                    if renew:
                        finals.append(_copied(obs))  # which the reset may write over
                        if info:
                            notes.final_infos.append((row, info))
                        obs, info = ways.resets[row]()
                        ways.began(row)
                if info:
                    notes.infos.append((row, info))
            except RAISED as error:
                notes.failures.append((row, error))
                obs, reward = None, np.nan
            obs_list.append(obs)
            rewards.append(reward)
        if notes.failures:
            kept, obs_list, finals = _drop_failed(kept, obs_list, finals, notes, out)
        ways.stepped(kept)
        self._write(kept, obs_list, out.obs, notes.objects, notes)
        self._write_rewards(self._all if rows is None else rows, rewards, out, notes)
        if finals:
            self._write(notes.ended, finals, out.final_obs, notes.final_objects, notes)
        return notes

    def _step_alone(self, action: Any, out: Rows, renew: bool) -> Notes:
        """`step` where there is one environment. Where each has a process of its own, what a step costs is how much
        memory it looks at, since another process has just had the core: so no lists here, and no array operations."""
        notes = Notes()
        ways = self._ways
        expired = ways.stepping(None)
        final = _NO_FINAL
        try:
            obs, reward, terminated, truncated, info = ways.steps[0](action)
            if expired:
                truncated = True
            if terminated or truncated:
                notes.ended.append(0)
                if renew:
                    final = _copied(obs)  # which the reset may write over
                    if info:
                        notes.final_infos.append((0, info))
                    obs, info = ways.resets[0]()
                    ways.began(0)
        except RAISED as error:
            failed = Notes()
            failed.failures.append((0, error))
            out.reward[0] = np.nan
            return failed
        if notes.ended:
            out.terminated[0], out.truncated[0] = terminated, truncated
        if info:
            notes.infos.append((0, info))
        ways.stepped(self._all)
        self._write_obs(obs, out.obs, notes.objects, notes)
        if type(reward) is float:
            out.reward[0] = reward
        else:
            self._write_rewards(self._all, [reward], out, notes)
        if final is not _NO_FINAL:
            self._write_obs(final, out.final_obs, notes.final_objects, notes)
        return notes

    def _write_obs(self, obs: Any, leaves: list[Any], objects: ObjectRows, notes: Notes) -> None:
        """Write the observation of the only environment."""
        leaf = leaves[0] if self._layout.flat else None
        if leaf is not None and type(obs) is np.ndarray and obs.dtype == leaf.dtype and obs.shape == leaf.shape[1:]:
            leaf[0] = obs
        else:
            self._write(self._all, [obs], leaves, objects, notes)

    def _write(
        self, rows: Sequence[int], obs_list: list[Any], leaves: list[Any], objects: ObjectRows, notes: Notes
    ) -> None:
        """Write observations into their rows; those that do not fit become failures."""
        if not rows:
            return
        try:
            for index, values in enumerate(self._layout.columns(obs_list)):
                target = leaves[index]
                if target is None:  # copies: an environment may go on with its own
                    objects[index] = list(zip(rows, deepcopy(values), strict=True))
                elif len(rows) == self.num_envs:
                    _stack(values, target)
                else:
                    _scatter(values, target, rows)
        except Exception:
            objects.clear()
            for row, obs in zip(rows, obs_list, strict=True):
                try:
                    self._write_one(row, obs, leaves, objects)
                except Exception as error:
                    notes.failures.append((row, error))

    def _write_one(self, row: int, obs: Any, leaves: list[Any], objects: ObjectRows) -> None:
        values = self._layout.split(obs)
        for index, (value, leaf) in enumerate(zip(values, self._layout.leaves, strict=True)):
            check_element(value, leaf)
            if leaf.dtype is None:
                objects.setdefault(index, []).append((row, deepcopy(value)))
            else:
                leaves[index][row] = value

    def _write_rewards(self, rows: Sequence[int], rewards: list[Any], out: Rows, notes: Notes) -> None:
        where: Any = slice(None) if len(rows) == self.num_envs else rows
        try:
            out.reward[where] = _numbers(rewards)
        except (TypeError, ValueError):  # an array of one element is a number too; anything else is not
            for row, reward in zip(rows, rewards, strict=True):
                try:
                    out.reward[row] = _numbers(reward).reshape(())
                except (TypeError, ValueError):
                    notes.failures.append((row, SpaceError(f"the reward should be a number, but is {reward!r}.")))

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """See `Simulator.invoke`."""
        with self.shown(row):
            return _invoke(self.envs[row], kind, name, value)

    def shown(self, row: int) -> Shown:
        """While somebody looks at an environment, or changes it, its wrappers are up to date."""
        return Shown(self._ways, row)

    def remake(self, row: int) -> None:
        """See `Simulator`."""
        old = self.envs[row]
        close_all([old])
        env = self._env_fns[row]()
        _check_env(env)
        for name in ("observation_space", "action_space"):
            if (came := getattr(env, name)) != (was := getattr(old, name)):
                raise SpaceError(f"its {name} was {was}, but is {came} now that it was made anew.")
        self.take(row, env)

    def take(self, row: int, env: gymnasium.Env[Any, Any]) -> None:
        """Have another environment in a row's place."""
        self.envs[row] = env
        self._ways.take(row, env)

    def get_state(self, row: int) -> Any:
        """See `Simulator`."""
        with self.shown(row):
            return take(self.envs[row])

    def set_state(self, row: int, state: Any, allow: Sequence[str]) -> None:
        """See `Simulator`; the environment is reset before if it has no objects of a class that the state holds."""
        with self.shown(row):
            env = self.envs[row]
            put_back(env, lambda: put(env, state, allow=allow))

    def close(self) -> None:
        """Close every environment, also where one of them raises; then raise what they raised."""
        if not self._closed:
            self._closed = True
            failures = close_all(self.envs)
            if failures:
                raise RowsFailed(failures)


def put_back(env: Any, set_state: Callable[[], Any]) -> None:
    """Have an environment's state set; where it lacks objects of some class, it may have them after a reset."""
    try:
        set_state()
    except UnknownClassError:
        env.reset()
        set_state()


_NO_FINAL: Any = object()


def _copied(obs: Any) -> Any:
    return obs.copy() if type(obs) is np.ndarray else deepcopy(obs)


def _invoke(env: gymnasium.Env[Any, Any], kind: str, name: str, value: Any) -> Any:
    if kind == "render":
        return env.render()
    if kind == "set":
        return env.set_wrapper_attr(name, value)
    found = env.get_wrapper_attr(name)
    if kind == "get" or not callable(found):
        return found
    args, kwargs = value
    return found(*args, **kwargs)


def _drop_failed(
    rows: Sequence[int], obs_list: list[Any], finals: list[Any], notes: Notes, out: Rows
) -> tuple[Sequence[int], list[Any], list[Any]]:
    """Leave out the rows that raised: they end nothing, and hold nothing."""
    failed = {row for row, _ in notes.failures}
    finals = [obs for row, obs in zip(notes.ended, finals, strict=False) if row not in failed]
    notes.ended = [row for row in notes.ended if row not in failed]
    gone = list(failed)
    out.terminated[gone] = out.truncated[gone] = False
    kept = [(row, obs) for row, obs in zip(rows, obs_list, strict=True) if row not in failed]
    return [row for row, _ in kept], [obs for _, obs in kept], finals


def _check_env(env: Any) -> None:
    if not callable(getattr(env, "step", None)):
        raise TypeError(f"Expected an environment, but the function that makes it returned {env!r:.80}.")


def make_all(makers: Sequence[Callable[[], Any]], check: Callable[[Any], None]) -> list[Any]:
    """What each of `makers` makes.

    Args:
        makers: one a row.
        check: raises where what was made will not do.

    Raises:
        RowsFailed: with the row and the exception of each that failed; those that stand are closed.
    """
    envs: list[Any] = []
    failures: list[tuple[int, BaseException]] = []
    for row, make in enumerate(makers):
        try:
            env = make()
            check(env)
            envs.append(env)
        except RAISED as error:
            failures.append((row, error))
    if failures:
        close_all(envs)
        raise RowsFailed(failures)
    return envs


def close_all(envs: Sequence[Any]) -> list[tuple[int, BaseException]]:
    """Close all of them; the row and the exception of each that raised."""
    failures: list[tuple[int, BaseException]] = []
    for row, env in enumerate(envs):
        try:
            env.close()
        except RAISED as error:
            failures.append((row, error))
    return failures


def _numbers(values: Any) -> np.ndarray:
    """As an array of real numbers; NumPy alone would take None for a NaN, and text for the number that it spells."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"not a number: {values!r}")
    return array


def _scatter(values: list[Any], target: np.ndarray, rows: Sequence[int]) -> None:
    """Write elements into some rows of `target`."""
    shape, dtype = target.shape[1:], target.dtype
    for row, value in zip(rows, values, strict=True):
        fits = getattr(value, "shape", None) == shape
        if not fits or not (value.dtype == dtype or np.can_cast(value.dtype, dtype, "same_kind")):
            raise SpaceError(f"an observation does not have shape {shape}")  # caught: it is looked at more closely
        target[row] = value


def _stack(values: list[Any], target: np.ndarray) -> np.ndarray:
    """Write k elements into `target` `[k, *shape]`: as one concatenation along the first axis where they have one."""
    if target.ndim == 1:
        np.copyto(target, values, casting="same_kind")
    else:
        if [*map(len, values)].count(target.shape[1]) < len(values):  # lengths may differ and yet have the right sum
            raise SpaceError("an observation has another length")  # caught: it is looked at more closely
        flat = target.reshape(-1, *target.shape[2:])
        np.concatenate(values, out=flat, casting="same_kind")
    return target
