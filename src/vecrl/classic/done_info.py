"""Encodes `terminated` and `truncated` as a classic step returns them: `done`, and gym's key in `info` for truncation.

Knows flags and dicts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TIME_LIMIT_KEY = "TimeLimit.truncated"  # truncated and not terminated
TIME_LIMIT_REACHED_KEY = "TimeLimit.reached"  # truncated and terminated in the same step


def to_classic_done(terminated: bool, truncated: bool, info: Mapping[Any, object]) -> tuple[bool, dict[Any, object]]:
    """Returns `done`, and a copy of `info` that distinguishes terminated from truncated episodes.

    >>> to_classic_done(False, True, {"x": 1})
    (True, {'x': 1, 'TimeLimit.truncated': True})
    """
    new_info = dict(info)
    done = bool(terminated or truncated)
    if done:
        new_info[TIME_LIMIT_KEY] = not terminated
        if terminated and truncated:
            new_info[TIME_LIMIT_REACHED_KEY] = True
    return done, new_info


def split_done(done: bool, info: Mapping[Any, object]) -> tuple[bool, bool]:
    """Returns `terminated` and `truncated`; the inverse of `to_classic_done`. Without a key in `info`, an end counts
    as terminated.

    >>> split_done(True, {"TimeLimit.truncated": True}), split_done(True, {})
    ((False, True), (True, False))
    """
    limit = bool(info.get(TIME_LIMIT_KEY, False))
    return bool(done) and not limit, bool(done) and (limit or bool(info.get(TIME_LIMIT_REACHED_KEY, False)))
