"""Adapts environments of the old gym (0.21 to 0.26), or with the same methods, to gymnasium's interface.

They differ in what `reset` and `step` return, in how they are seeded, and in the classes of their spaces. The classes
are recognized by their names: gym itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.core import RenderFrame

from ..engine.simulator import ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError
from ..gym_interface import EnvReset, EnvStep


class LegacyGymAdapter(gymnasium.Env[Tree, Tree]):
    """An environment of the old gym behind gymnasium's interface. Other attributes are those of the environment.

    Args:
        env: an environment with a `step` that returns four or five values, and a `reset` that returns an observation,
            or an observation and an info.

    Attributes:
        legacy_env: the given environment.
        observation_space, action_space: gymnasium spaces with the same elements.
    """

    def __init__(self, env: Any):
        self.legacy_env = env
        self.observation_space = as_gymnasium_space(env.observation_space)
        self.action_space = as_gymnasium_space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)
        # true before gym 0.26, where `reset` returns no info
        self._has_seed_method = callable(getattr(env, "seed", None))

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Resets the environment, which is seeded by its `seed` method if it has one; passes only what is given."""
        keywords: dict[str, Any] = {} if options is None else {"options": options}
        if self._has_seed_method:
            if seed is not None:
                self.legacy_env.seed(seed)
            return self.legacy_env.reset(**keywords), {}
        result = self.legacy_env.reset(**keywords, **({} if seed is None else {"seed": seed}))
        return result if isinstance(result, tuple) and len(result) == 2 else (result, {})

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment; a single "done" is a truncation if the info has "TimeLimit.truncated"."""
        result = self.legacy_env.step(action)
        if len(result) == 5:
            return result
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> RenderFrame | list[RenderFrame] | None:
        """Renders a frame; without a render mode, environments before gym 0.26 render an RGB array."""
        if self.render_mode is None and self._has_seed_method:
            return self.legacy_env.render(mode="rgb_array")
        return self.legacy_env.render()

    def close(self) -> None:
        """Closes the environment, if it has such a method."""
        if hasattr(self.legacy_env, "close"):
            self.legacy_env.close()

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return self.legacy_env.unwrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "legacy_env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.legacy_env, name)

    def __str__(self) -> str:
        return str(self.legacy_env)


def as_gymnasium_space(space: object) -> AnySpace:
    """Converts a space to the gymnasium space with the same elements; gymnasium spaces are returned unchanged.

    Raises:
        SpaceError: there is no gymnasium space of this name, or it cannot be converted.
    """
    return space if isinstance(space, spaces.Space) else convert_space(spaces, space)


def convert_space(library: ModuleType, space: object) -> Any:
    """Converts a space to the space with the same elements in another library's module of spaces."""
    converter = _CONVERTERS.get(type(space).__name__)
    if converter is None:
        raise SpaceError(f"Expected a space that both libraries have ({', '.join(_CONVERTERS)}), got {space!r:.80}.")
    return converter(library, space)


def _discrete(library: ModuleType, old: Any) -> Any:
    start = int(getattr(old, "start", 0))
    return library.Discrete(int(old.n), **({"start": start} if start else {}))


def _box(library: ModuleType, old: Any) -> Any:
    return library.Box(old.low, old.high, old.shape, np.dtype(old.dtype).type)


def _multi_discrete(library: ModuleType, old: Any) -> Any:
    return library.MultiDiscrete(np.asarray(old.nvec), dtype=np.dtype(old.dtype).type)


_CONVERTERS: dict[str, Callable[[ModuleType, Any], Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda library, old: library.MultiBinary(old.n),
    "Dict": lambda library, old: library.Dict({name: convert_space(library, sub) for name, sub in old.spaces.items()}),
    "Tuple": lambda library, old: library.Tuple([convert_space(library, sub) for sub in old.spaces]),
}
