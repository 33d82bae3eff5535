"""`attribute_at`: looks up attributes by a path with dots. It must not know which environments it is called with."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def attribute_at(env: Any, path: str) -> Any:
    """Returns the attribute of an environment at a path with dots.

    A batch of environments returns a list with that of each, since it looks up the whole path in each environment.

    Raises:
        AttributeError: there is no such attribute.
    """
    try:
        return getattr(env, path)
    except AttributeError:
        if "." not in path:
            raise
        return attrgetter(path)(env)
