"""How an episode ended, in what a classic step returns: `done`, and under gym's name in `info` whether time ran out.

Knows flags and dicts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIMIT = "TimeLimit.truncated"  # time ran out, and the environment itself had not ended
REACHED = "TimeLimit.reached"  # time ran out as well, in the very step that ended the environment


def joined(terminated: bool, truncated: bool, info: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """`done`, and a copy of `info` that tells the two ends apart.

    >>> joined(False, True, {"x": 1})
    (True, {'x': 1, 'TimeLimit.truncated': True})
    """
    told = dict(info)
    done = bool(terminated or truncated)
    if done:
        told[LIMIT] = not terminated
        if terminated and truncated:
            told[REACHED] = True
    return done, told


def parted(done: bool, info: Mapping[str, Any]) -> tuple[bool, bool]:
    """`terminated` and `truncated`; the inverse of `joined`. Without a word on it, an end is the environment's own.

    >>> parted(True, {"TimeLimit.truncated": True}), parted(True, {})
    ((False, True), (True, False))
    """
    limit = bool(info.get(LIMIT, False))
    return bool(done) and not limit, bool(done) and (limit or bool(info.get(REACHED, False)))
