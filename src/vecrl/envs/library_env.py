"""`LibraryEnv`: the base of environments that wrap an object of another library."""

from __future__ import annotations

from typing import Any

from .base import EnvBase
from .env_specs import is_defined

ENV_ARGUMENTS = (
    *("device", "batch_size", "run_type_checks", "allow_done_after_reset", "spec_locked", "auto_reset"),
    "auto_reset_replace",
)
"""The arguments of `EnvBase`."""


def pop_env_arguments(kwargs: dict[str, Any], *more: str) -> dict[str, Any]:
    """Removes the arguments of `EnvBase`, and those named in `more`, from `kwargs` and returns them."""
    return {name: kwargs.pop(name) for name in (*ENV_ARGUMENTS, *more) if name in kwargs}


class LibraryEnv(EnvBase):
    """Wraps an environment of another library, which it keeps in `_env`. Missing attributes are looked up there."""

    _env: Any

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            has_env = "_env" in {**vars(self), **vars(self).get("_modules", {})}  # an environment may be a module
            if is_defined(self, name) or name.startswith("_") or not has_env:
                raise
        return self._lookup_attribute(name)

    def _lookup_attribute(self, name: str) -> Any:
        """Returns an attribute of the library's environment."""
        return getattr(self._env, name)

    def render(self, *args: object, **kwargs: object) -> Any:
        """Returns what the library's environment renders."""
        return self._env.render(*args, **kwargs)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes this environment and the library's.

        Args:
            raise_if_closed: raise a `ClosedError` if it is closed already; otherwise a second call does nothing.
        """
        if not self.is_closed and hasattr(self._env, "close"):
            self._env.close()
        super().close(raise_if_closed=raise_if_closed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._env}, batch_size={tuple(self.batch_size)}, device={self.device})"
