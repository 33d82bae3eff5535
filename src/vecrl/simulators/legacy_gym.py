"""Environments of the old gym, from 0.21 to 0.26, and whatever else steps as they do, as gymnasium's.

They differ in what `reset` and `step` return, in how they are seeded, and in the classes of their spaces, which are
recognised here by their names: gym itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..errors import SpaceError


class LegacyGymAdapter(gymnasium.Env[Any, Any]):
    """An environment of the old gym behind gymnasium's interface; what is not here is looked up in it.

    Args:
        old: an environment whose `step` returns four values or five, and whose `reset` returns an observation, or
            one and an info.

    Attributes:
        old: as given.
        observation_space, action_space: gymnasium's, with the same elements.
    """

    def __init__(self, env: Any):
        self.legacy_env = env
        self.observation_space = as_gymnasium_space(env.observation_space)
        self.action_space = as_gymnasium_space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)
        # those before 0.26, which return no info at a reset
        self._has_seed_method = callable(getattr(env, "seed", None))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As gymnasium's."""
        if self._has_seed_method:
            if seed is not None:
                self.legacy_env.seed(seed)
            return (self.legacy_env.reset() if options is None else self.legacy_env.reset(options=options)), {}
        result = (
            self.legacy_env.reset(seed=seed) if options is None else self.legacy_env.reset(seed=seed, options=options)
        )
        return result if isinstance(result, tuple) and len(result) == 2 else (result, {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As gymnasium's: of a lone "done" it is the info that says whether time ran out."""
        result = self.legacy_env.step(action)
        if len(result) == 5:
            return result
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """A frame, if a render mode was asked for."""
        if self.render_mode is None and self._has_seed_method:
            return self.legacy_env.render(mode="rgb_array")
        return self.legacy_env.render()

    def close(self) -> None:
        """Close it."""
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


def as_gymnasium_space(space: Any) -> spaces.Space[Any]:
    """gymnasium's space of the same elements; its own are returned as they are.

    Raises:
        SpaceError: for a space that the old gym had under no such name.
    """
    return space if isinstance(space, spaces.Space) else convert_space(spaces, space)


def convert_space(library: Any, space: Any) -> Any:
    """The space of the same elements in another library's module of spaces."""
    converter = _CONVERTERS.get(type(space).__name__)
    if converter is None:
        raise SpaceError(
            f"Expected a space that both libraries have ({', '.join(_CONVERTERS)}), but {space!r:.80} came."
        )
    return converter(library, space)


def _discrete(library: Any, old: Any) -> Any:
    start = int(getattr(old, "start", 0))
    return library.Discrete(int(old.n), **({"start": start} if start else {}))


def _box(library: Any, old: Any) -> Any:
    return library.Box(old.low, old.high, old.shape, np.dtype(old.dtype).type)


def _multi_discrete(library: Any, old: Any) -> Any:
    return library.MultiDiscrete(np.asarray(old.nvec), dtype=np.dtype(old.dtype).type)


_CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda library, old: library.MultiBinary(old.n),
    "Dict": lambda library, old: library.Dict({name: convert_space(library, sub) for name, sub in old.spaces.items()}),
    "Tuple": lambda library, old: library.Tuple([convert_space(library, sub) for sub in old.spaces]),
}
