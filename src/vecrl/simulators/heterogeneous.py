"""Combines k environments with different spaces, of any class with `reset` and `step`, to one simulator.

If the spaces of all environments have the same layout, observations and actions are transferred in the batch buffers,
else as pickled objects. Worker processes import this module, so it must not import torch or any dialect.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np

from ..engine.simulator import ObjectRows, ResetOptions, RowBuffers, StepNotes
from ..engine.space_layout import Layout, Tree
from ..errors import SpaceError
from ..gym_interface import EnvReset, is_wrapped
from .gymnasium import GymnasiumSimulator
from .legacy_gym import LegacyGymAdapter, as_gymnasium_space

REWARD = "_reward"
"""The key of an info that contains a reward of several numbers, since rewards of the engine are numbers."""
OBS = "_obs"
"""The key of an info that contains an observation that does not fit the batch buffers; its row of them is undefined."""
_FALLBACK_ATTRIBUTES: Mapping[str, object] = {
    "metadata": {},
    "spec": None,
    "reward_range": (-float("inf"), float("inf")),
    "action_space": None,
    "observation_space": None,
}
"""Values of attributes that an environment does not have; gymnasium removed `reward_range` in 1.0."""


class AnySpace(gymnasium.Space[Tree]):
    """The space of all objects: its elements are transferred as pickled objects, not in arrays.

    >>> AnySpace() == AnySpace(), "text" in AnySpace()
    (True, True)
    """

    def contains(self, x: object) -> bool:
        """Returns True."""
        return True

    @property
    def is_np_flattenable(self) -> bool:
        """Whether elements can be flattened to an array: False."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnySpace)

    def __repr__(self) -> str:
        return "AnySpace()"

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class DuckTypedEnv(LegacyGymAdapter):
    """An environment of any class that has `reset` and `step`, behind gymnasium's interface.

    Spaces, `metadata`, `spec`, `render_mode` and `close` are optional. `reset` may take any keywords. Results may have
    the form of gymnasium or of the old gym.
    """

    def __init__(self, env: Any):
        self.legacy_env = env
        self.observation_space = _declared_space(env, "observation_space")
        self.action_space = _declared_space(env, "action_space")
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)
        self._has_seed_method = callable(getattr(env, "seed", None))

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None, **keywords: object) -> EnvReset:
        """Resets the environment; passes only those arguments on that are given."""
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
        """Closes the environment, if it has `close`."""
        if callable(close := getattr(self.legacy_env, "close", None)):
            close()


class ExactLayout(Layout):
    """A layout that refuses elements with more keys than their space, which would be lost.

    >>> ExactLayout(gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2))).split({"a": 1, "b": 2})
    Traceback (most recent call last):
    vecrl.errors.SpaceError: expected only the keys of Dict('a': Discrete(2)), got ['a', 'b'].
    """

    def split(self, tree: Tree) -> list[Tree]:
        """Returns the leaves of one element in order, as `Layout.split`."""
        values = super().split(tree)
        _refuse_further_keys(tree, self.space)
        return values


def _refuse_further_keys(tree: Tree, space: gymnasium.Space[Tree]) -> None:
    if isinstance(space, gymnasium.spaces.Dict):
        if len(tree) > len(space.spaces):
            raise SpaceError(f"expected only the keys of {space}, got {list(tree)}.")
        for key, part in space.spaces.items():
            _refuse_further_keys(tree[key], part)


class HeterogeneousSimulator(GymnasiumSimulator):
    """k environments that may have different spaces, or none; a `vecrl.engine.simulator.Simulator`.

    Args:
        env_fns: functions that each construct an environment.
        trust_spaces: whether observations and actions are transferred in arrays of the declared spaces. Observations
            that do not fit are transferred as objects. If False, the declared spaces are ignored.

    Raises:
        RowFailures: environments could not be constructed; with the row and the exception of each.
    """

    def __init__(self, env_fns: Sequence[Callable[[], object]], trust_spaces: bool = True):
        self._trust = trust_spaces
        super().__init__([_DuckTypedFactory(make) for make in env_fns])

    def _check_spaces(self, same_spaces: bool, same_actions: bool) -> None:
        """Sets the common spaces. Different spaces are no failure."""
        self.observation_space, self.action_space = AnySpace(), AnySpace()
        if self._trust:
            self.observation_space = common_space([env.observation_space for env in self.envs])
            self.action_space = common_space([env.action_space for env in self.envs], nested=False)

    def set_spaces(self, observation_space: gymnasium.Space[Tree], action_space: gymnasium.Space[Tree]) -> None:
        """Sets the common spaces of all workers of a pool, as `Simulator.set_spaces`."""
        self.observation_space, self.action_space = observation_space, action_space
        self._layout = ExactLayout(observation_space)

    def _write_one(self, row: int, obs: Tree, leaves: list[Tree], objects: ObjectRows, notes: StepNotes) -> None:
        try:
            super()._write_one(row, obs, leaves, objects, notes)
        except Exception:
            if objects is notes.final_objects:  # only other dialects have these
                raise
            _add_to_info(notes, row, OBS, deepcopy(obs))

    def _write_reward(self, row: int, reward: object, out: RowBuffers, notes: StepNotes) -> None:
        """Writes a reward. A reward of several numbers (of objectives or agents) is added to the info."""
        if isinstance(reward, list | tuple | np.ndarray) and np.size(reward) > 1:
            _add_to_info(notes, row, REWARD, np.array(reward))
            reward = 0.0
        super()._write_reward(row, reward, out, notes)

    def invoke(self, row: int, kind: str, name: str, value: Any) -> object:
        """Gets, sets or calls an attribute of an environment, as `Simulator.invoke`.

        "set" sets it on the innermost environment. "get" searches all wrappers. A call of "seed" returns the list of
        seeds that the environment used, or None if it has no such method.
        """
        env = self.envs[row]
        inner = env.legacy_env if isinstance(env, DuckTypedEnv) else env
        if kind == "is_wrapped":
            return is_wrapped(env, name)
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


def _add_to_info(notes: StepNotes, row: int, key: str, value: object) -> None:
    """Adds a key to the info of a row. The infos are in ascending order of their rows."""
    index = bisect_left(notes.infos, row, key=itemgetter(0))
    info = notes.infos[index][1] if index < len(notes.infos) and notes.infos[index][0] == row else None
    notes.infos[index : index + (info is not None)] = [(row, {**(info or {}), key: value})]


class _DuckTypedFactory:
    """Constructs an environment, in a `DuckTypedEnv` if it is not of gymnasium or does not declare its spaces."""

    def __init__(self, make: Callable[[], object]):
        self.make = make

    def __call__(self) -> Any:
        env = self.make()
        spaces = getattr(env, "observation_space", None), getattr(env, "action_space", None)
        is_complete = isinstance(env, gymnasium.Env) and all(isinstance(space, gymnasium.Space) for space in spaces)
        is_invalid = isinstance(env, type | gymnasium.vector.VectorEnv) or not callable(getattr(env, "step", None))
        if is_complete or is_invalid:  # the caller reports an invalid one
            return env
        return DuckTypedEnv(env)


def common_space(spaces: Sequence[gymnasium.Space[Tree]], nested: bool = True) -> gymnasium.Space[Tree]:
    """Returns the first of `spaces` if all have the same layout, else an `AnySpace`.

    Args:
        spaces: the spaces of several environments.
        nested: whether nested spaces are possible; if not, the result for them is an `AnySpace`.

    >>> from gymnasium.spaces import Discrete, Text
    >>> common_space([Discrete(2), Discrete(3)]), common_space([Discrete(2), Text(3)])
    (Discrete(2), AnySpace())
    """
    first_space, *other_spaces = spaces
    layout = Layout(first_space)
    same_layout = all(Layout(other).leaves == layout.leaves for other in other_spaces)
    return first_space if same_layout and (nested or layout.flat) else AnySpace()


_MISSING = object()


def _get(env: object, name: str) -> Any:
    """Returns an attribute of the outermost wrapper, or inner environment, that has it; a fallback if none has it."""
    try:
        return env.get_wrapper_attr(name) if isinstance(env, gymnasium.Env) else getattr(env, name)
    except AttributeError:
        return _FALLBACK_ATTRIBUTES.get(name, _MISSING)


def _as_list(result: object, args: Sequence[object]) -> list[object]:
    return list(result) if isinstance(result, list | tuple) else list(args)


def _declared_space(env: object, name: str) -> gymnasium.Space[Tree]:
    """Returns the declared space as a gymnasium space; an `AnySpace` if there is none, or if it is of another kind."""
    try:
        return as_gymnasium_space(getattr(env, name))
    except (AttributeError, SpaceError):
        return AnySpace()
