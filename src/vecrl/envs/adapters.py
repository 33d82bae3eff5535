"""Adapters for environments and transforms of other libraries.

`vecrl.interop` registers them when a program has imported both libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Adapter = Callable[[Any], Any]

_ENV_ADAPTERS: list[Adapter] = []
_TRANSFORM_ADAPTERS: list[Adapter] = []


def register_adapters(*, env: Adapter, transform: Adapter) -> None:
    """Registers the adapters of a library.

    Args:
        env: takes any object. Returns an `EnvBase` for an environment of the library, None for anything else.
        transform: takes any object. Returns a `Transform` for a transform of the library, None for anything else.
    """
    _ENV_ADAPTERS.append(env)
    _TRANSFORM_ADAPTERS.append(transform)


def adapt_env(env: Any) -> Any:
    """Returns an `EnvBase` for an environment of another library, and anything else unchanged."""
    return _adapt(_ENV_ADAPTERS, env)


def adapt_transform(transform: Any) -> Any:
    """Returns a `Transform` for a transform of another library, and anything else unchanged."""
    return _adapt(_TRANSFORM_ADAPTERS, transform)


def _adapt(adapters: list[Adapter], value: Any) -> Any:
    adapted = (adapter(value) for adapter in adapters)
    return next((result for result in adapted if result is not None), value)
