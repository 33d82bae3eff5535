"""How the standard library's values that never change are held: by text and numbers that make them again."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

from .kinds import Get, Kind, Node, Ref, name_of

_Way = tuple[type, Callable[[Any], Any], Callable[[Any], Any]]
_WAYS: list[_Way] = [
    (decimal.Decimal, str, decimal.Decimal),
    (fractions.Fraction, str, fractions.Fraction),
    (uuid.UUID, str, uuid.UUID),
    (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    (datetime.timedelta, lambda d: [d.days, d.seconds, d.microseconds], lambda parts: datetime.timedelta(*parts)),
    (pathlib.PosixPath, str, pathlib.Path),
    (pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    (pathlib.PureWindowsPath, str, pathlib.PureWindowsPath),
]
_BY_CLASS = {way[0]: way for way in _WAYS}
_BY_NAME = {name_of(way[0]): way for way in _WAYS}


class Literals:
    """Decimals, fractions, dates, times, paths, UUIDs."""

    tag = "literal"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return cls in _BY_CLASS

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {"of": name_of(type(value)), "value": _BY_CLASS[type(value)][1](value)}

    def put(self, node: Node, old: Any, get: Get) -> tuple[Any, None]:
        """See `Kind`."""
        return _BY_NAME[node["of"]][2](node["value"]), None


KINDS: list[Kind] = [Literals()]
