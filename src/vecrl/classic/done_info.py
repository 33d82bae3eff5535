"""How an episode ended, in what a classic step returns: `done`, and under gym's name in `info` whether time ran out.

Knows flags and dicts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TIME_LIMIT_KEY = "TimeLimit.truncated"  # time ran out, and the environment itself had not ended
TIME_LIMIT_REACHED_KEY = "TimeLimit.reached"  # time ran out as well, in the very step that ended the environment


def to_classic_done(terminated: bool, truncated: bool, info: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """`done`, and a copy of `info` that tells the two ends apart.

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


def split_done(done: bool, info: Mapping[str, Any]) -> tuple[bool, bool]:
    """`terminated` and `truncated`; the inverse of `to_classic_done`. Without a word on it, an end is the environment's
    own.

    >>> split_done(True, {"TimeLimit.truncated": True}), split_done(True, {})
    ((False, True), (True, False))
    """
    limit = bool(info.get(TIME_LIMIT_KEY, False))
    return bool(done) and not limit, bool(done) and (limit or bool(info.get(TIME_LIMIT_REACHED_KEY, False)))
