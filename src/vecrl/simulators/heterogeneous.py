"""Environments that need neither be alike nor gymnasium's: whatever has `reset` and `step`, k of them as a simulator.

What their spaces have in common decides where observations and actions travel: in the arena where all lie in memory
alike, else as the objects that they are. Worker processes import this, so it knows neither torch nor any dialect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from ..engine.simulator import ObjectRows, RowBuffers
from ..engine.space_layout import Layout
from ..errors import SpaceError
from .gymnasium import GymnasiumSimulator
from .legacy_gym import LegacyGymAdapter, as_gymnasium_space

REWARD = "_reward"
"""The key of an info under which a reward that is no single number travels, since the engine's rewards are numbers."""
_FALLBACK_ATTRIBUTES: Mapping[str, Any] = {"metadata": {}, "spec": None, "reward_range": (-float("inf"), float("inf"))}
"""What environments that leave these out are taken to say; gymnasium's have had no reward range since 1.0."""


class AnySpace(gymnasium.Space[Any]):
    """The space of all objects: what is in it lies in no array, and travels as it is.

    >>> AnySpace() == AnySpace(), "text" in AnySpace()
    (True, True)
    """

    def contains(self, x: Any) -> bool:
        """Always."""
        return True

    @property
    def is_np_flattenable(self) -> bool:
        """Never."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnySpace)

    def __repr__(self) -> str:
        return "AnySpace()"

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class DuckTypedEnv(LegacyGymAdapter):
    """An environment of any class that has `reset` and `step`, behind gymnasium's interface.

    It may leave out spaces, `metadata`, `spec`, `render_mode` and `close`, take any keywords at a reset, and return
    what gymnasium's environments do or what the old gym's did.
    """

    def __init__(self, env: Any):
        self.legacy_env = env
        self.observation_space = _declared_space(env, "observation_space")
        self.action_space = _declared_space(env, "action_space")
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)
        self._has_seed_method = callable(getattr(env, "seed", None))

    def reset(self, *, seed: int | None = None, options: Any = None, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        """As gymnasium's; only what was given is passed on."""
        if options is not None:
            keywords["options"] = options
        if seed is not None and self._has_seed_method:
            self.legacy_env.seed(seed)
        elif seed is not None:
            keywords["seed"] = seed
        result = self.legacy_env.reset(**keywords)
        return (
            result if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict) else (result, {})
        )

    def close(self) -> None:
        """Close it, if it can be."""
        if callable(close := getattr(self.legacy_env, "close", None)):
            close()


class HeterogeneousSimulator(GymnasiumSimulator):
    """k environments that may differ in their spaces, or declare none; see `engine.simulator.Simulator`.

    Args:
        env_fns: each makes an environment.
        trust_spaces: whether what environments declare is what they give and take; if not, it is not looked at.

    Raises:
        RowsFailed: with the index and the exception of each that could not be made.
    """

    def __init__(self, env_fns: Sequence[Any], trust_spaces: bool = True):
        self._trust = trust_spaces
        super().__init__([_DuckTypedFactory(make) for make in env_fns])

    def _check_spaces(self, same_spaces: bool, same_actions: bool) -> None:
        """Spaces that differ are no fault here: see what they have in common."""
        self.observation_space, self.action_space = AnySpace(), AnySpace()
        if self._trust:
            self.observation_space = common_space([env.observation_space for env in self.envs])
            self.action_space = common_space([env.action_space for env in self.envs], nested=False)

    def set_spaces(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        """See `Simulator.set_spaces`."""
        self.observation_space, self.action_space = observation_space, action_space
        self._layout = Layout(observation_space)

    def _write_one(self, row: int, obs: Any, leaves: list[Any], objects: ObjectRows) -> None:
        try:
            super()._write_one(row, obs, leaves, objects)
        except SpaceError as error:
            raise SpaceError(f"{error} Or take it as it comes, by trust_spaces=False.") from None

    def _write_rewards(self, rows: Sequence[int], rewards: list[Any], out: RowBuffers, notes: Any) -> None:
        """Rewards of several numbers, an objective or an agent each, go along in the infos."""
        vector_rewards = {
            row: np.array(reward)
            for row, reward in zip(rows, rewards, strict=True)
            if isinstance(reward, list | tuple | np.ndarray) and np.size(reward) > 1
        }
        if vector_rewards:
            infos_by_row = dict(notes.infos)
            notes.infos = [
                (row, {**infos_by_row.pop(row, {}), REWARD: values}) for row, values in vector_rewards.items()
            ]
            notes.infos += infos_by_row.items()
            rewards = [0.0 if row in vector_rewards else reward for row, reward in zip(rows, rewards, strict=True)]
        super()._write_rewards(rows, rewards, out, notes)

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """See `Simulator.invoke`. To set reaches the innermost environment; to get looks through all wrappers.

        To call "seed" gives the list of seeds that it says it used, or None where an environment has no such method.
        """
        env = self.envs[row]
        inner = env.legacy_env if isinstance(env, DuckTypedEnv) else env
        with self.synced_time_limit(row):
            if kind == "set":
                return setattr(getattr(inner, "unwrapped", inner), name, value)
            result = _get(inner, name)
            if kind == "get":
                if result is _MISSING:
                    raise AttributeError(f"{type(inner).__name__!r} object has no attribute {name!r}")
                return result
            args, kwargs = value
            if name == "seed":
                return _as_list(result(*args, **kwargs), args) if callable(result) else None
            if result is _MISSING:
                raise AttributeError(f"{type(inner).__name__!r} object has no method {name!r}")
            return result(*args, **kwargs)


class _DuckTypedFactory:
    """A maker whose environments are gymnasium's, or made to look so."""

    def __init__(self, make: Any):
        self.make = make

    def __call__(self) -> Any:
        env = self.make()
        if isinstance(env, gymnasium.Env) or not callable(getattr(env, "step", None)):
            return env  # what cannot step is told of by whoever called
        return DuckTypedEnv(env)


def common_space(spaces: Sequence[gymnasium.Space[Any]], nested: bool = True) -> gymnasium.Space[Any]:
    """The first of `spaces`, if all lie in memory alike; else the space of all objects.

    Args:
        spaces: those of several environments.
        nested: whether spaces that nest will do.

    >>> from gymnasium.spaces import Discrete, Text
    >>> common_space([Discrete(2), Discrete(3)]), common_space([Discrete(2), Text(3)])
    (Discrete(2), Anything())
    """
    first_space, *other_spaces = spaces
    layout = Layout(first_space)
    same_layout = all(Layout(other).leaves == layout.leaves for other in other_spaces)
    return first_space if same_layout and (nested or layout.flat) else AnySpace()


_MISSING: Any = object()


def _get(env: Any, name: str) -> Any:
    """What the environment or one of its wrappers has under this name, the outermost first."""
    try:
        return env.get_wrapper_attr(name) if isinstance(env, gymnasium.Env) else getattr(env, name)
    except AttributeError:
        return _FALLBACK_ATTRIBUTES.get(name, _MISSING)


def _as_list(result: Any, args: Sequence[Any]) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else list(args)


def _declared_space(env: Any, name: str) -> gymnasium.Space[Any]:
    """The space of that name, in gymnasium's classes; where there is none, anything."""
    try:
        return as_gymnasium_space(getattr(env, name))
    except (AttributeError, SpaceError):
        return AnySpace()
