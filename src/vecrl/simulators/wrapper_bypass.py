"""Steps gymnasium environments past the wrappers that have nothing to say after the first step.

`gymnasium.make` puts three wrappers around every environment. The checker passes each step on once it has checked the
first, the order enforcer once there was a reset, and the time limit only counts. Together they are a tenth of a step
of CartPole. Here the limits of all environments are counted as one array; the wrappers' own state is brought up to
date whenever somebody may look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

_NO_LIMIT = 1 << 62
_NO_ROWS: frozenset[int] = frozenset()
Env = gymnasium.Env[Any, Any]


class WrapperBypass:
    """The ways to step k environments.

    Attributes:
        steps: for each environment, what to call with an action.
        resets: for each environment, what to call to begin anew.
    """

    def __init__(self, envs: Sequence[Env]):
        self.steps: list[Callable[[Any], Any]] = [env.step for env in envs]
        self.resets: list[Callable[[], Any]] = [env.reset for env in envs]
        self._envs = envs
        self._unchecked = set(range(len(envs)))
        self._limits: list[TimeLimit[Any, Any] | None] = [None] * len(envs)
        self._elapsed = np.zeros(len(envs), np.int64)
        self._unflushed_steps = 0  # steps of all that are not yet in there
        self._max_steps = np.full(len(envs), _NO_LIMIT)
        self._steps_until_limit = _NO_LIMIT  # so many steps at least until some limit is reached

    def replace_env(self, row: int, env: Env) -> None:
        """Another environment is in this row's place."""
        self.steps[row], self.resets[row] = env.step, env.reset
        self._unchecked.add(row)
        self._limits[row], self._max_steps[row] = None, _NO_LIMIT

    def before_step(self, rows: Sequence[int] | None) -> frozenset[int]:
        """Note that `rows` (None: all) are about to step; those whose limit this step reaches."""
        if rows is None:
            self._unflushed_steps += 1
        else:
            self._elapsed[rows] += 1
        self._steps_until_limit -= 1
        if self._steps_until_limit > 0:
            return _NO_ROWS
        self._flush_steps()
        remaining = self._max_steps - self._elapsed
        self._steps_until_limit = int(remaining.min())
        return frozenset((remaining <= 0).nonzero()[0].tolist())

    def _flush_steps(self) -> None:
        self._elapsed += self._unflushed_steps
        self._unflushed_steps = 0

    def after_step(self, rows: Sequence[int]) -> None:
        """Note that `rows` have stepped: whoever did so for the first time takes the short way from now on."""
        if not self._unchecked:
            return
        for row in self._unchecked.intersection(rows):
            env, limit = find_stepping_env(self._envs[row])
            self.steps[row], self.resets[row] = env.step, env.reset
            if limit is not None:
                self._limits[row] = limit
                self._max_steps[row] = limit._max_episode_steps
                self.read_elapsed(row)
        self._unchecked.difference_update(rows)

    def after_reset(self, row: int) -> None:
        """Note that `row` was reset."""
        self._flush_steps()
        self._elapsed[row] = 0

    def write_elapsed(self, row: int) -> None:
        """Bring the wrappers of `row` up to date: somebody is about to look."""
        self._flush_steps()
        limit = self._limits[row]
        if limit is not None:
            limit._elapsed_steps = int(self._elapsed[row])

    def read_elapsed(self, row: int) -> None:
        """Somebody may have changed the wrappers of `row`."""
        self._flush_steps()
        limit = self._limits[row]
        if limit is not None:
            self._elapsed[row] = limit._elapsed_steps or 0
            self._steps_until_limit = 0


class TimeLimitSync:
    """While it lasts, the wrappers of `row` are up to date, and may be changed.

    (No generator: if Ctrl-C strikes one that was just begun, it ends where nobody hears of a second.)
    """

    __slots__ = ("_bypass", "_row")

    def __init__(self, bypass: WrapperBypass, row: int):
        self._bypass, self._row = bypass, row

    def __enter__(self) -> None:
        self._bypass.write_elapsed(self._row)

    def __exit__(self, *_: object) -> None:
        self._bypass.read_elapsed(self._row)


def find_stepping_env(env: Env) -> tuple[Env, TimeLimit[Any, Any] | None]:
    """What to step and reset instead of `env`, and the time limit that this leaves out, to be counted by the caller."""
    limit = None
    while not {"step", "reset"} & vars(env).keys():
        if type(env) is TimeLimit and limit is None:
            limit = env
        elif not _is_passive(env):
            break
        env = env.env  # pyright: ignore[reportAttributeAccessIssue]
    return env, limit


def _is_passive(env: Env) -> bool:
    if type(env) is PassiveEnvChecker:
        return bool(env.checked_step and env.checked_reset)
    return type(env) is OrderEnforcing and bool(env.has_reset)
