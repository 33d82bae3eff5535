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


class Modern(gymnasium.Env[Any, Any]):
    """An environment of the old gym behind gymnasium's interface; what is not here is looked up in it.

    Args:
        old: an environment whose `step` returns four values or five, and whose `reset` returns an observation, or
            one and an info.

    Attributes:
        old: as given.
        observation_space, action_space: gymnasium's, with the same elements.
    """

    def __init__(self, old: Any):
        self.old = old
        self.observation_space = modern_space(old.observation_space)
        self.action_space = modern_space(old.action_space)
        self.metadata = dict(getattr(old, "metadata", None) or {})
        self.render_mode = getattr(old, "render_mode", None)
        self.spec = getattr(old, "spec", None)
        self._seeds = callable(getattr(old, "seed", None))  # those before 0.26, which return no info at a reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As gymnasium's."""
        if self._seeds:
            if seed is not None:
                self.old.seed(seed)
            return (self.old.reset() if options is None else self.old.reset(options=options)), {}
        found = self.old.reset(seed=seed) if options is None else self.old.reset(seed=seed, options=options)
        return found if isinstance(found, tuple) and len(found) == 2 else (found, {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As gymnasium's: of a lone "done" it is the info that says whether time ran out."""
        result = self.old.step(action)
        if len(result) == 5:
            return result
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """A frame, if a render mode was asked for."""
        if self.render_mode is None and self._seeds:
            return self.old.render(mode="rgb_array")
        return self.old.render()

    def close(self) -> None:
        """Close it."""
        self.old.close()

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return self.old.unwrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "old":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.old, name)

    def __str__(self) -> str:
        return str(self.old)


def modern_space(space: Any) -> spaces.Space[Any]:
    """gymnasium's space of the same elements; its own are returned as they are.

    Raises:
        SpaceError: for a space that the old gym had under no such name.
    """
    return space if isinstance(space, spaces.Space) else space_of(spaces, space)


def space_of(library: Any, space: Any) -> Any:
    """The space of the same elements in another library's module of spaces."""
    rule = _RULES.get(type(space).__name__)
    if rule is None:
        raise SpaceError(f"Expected a space that both libraries have ({', '.join(_RULES)}), but {space!r:.80} came.")
    return rule(library, space)


def _discrete(library: Any, old: Any) -> Any:
    start = int(getattr(old, "start", 0))
    return library.Discrete(int(old.n), **({"start": start} if start else {}))


def _box(library: Any, old: Any) -> Any:
    return library.Box(old.low, old.high, old.shape, np.dtype(old.dtype).type)


def _multi_discrete(library: Any, old: Any) -> Any:
    return library.MultiDiscrete(np.asarray(old.nvec), dtype=np.dtype(old.dtype).type)


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda library, old: library.MultiBinary(old.n),
    "Dict": lambda library, old: library.Dict({name: space_of(library, sub) for name, sub in old.spaces.items()}),
    "Tuple": lambda library, old: library.Tuple([space_of(library, sub) for sub in old.spaces]),
}
