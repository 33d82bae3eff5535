"""Captures immutable values of the standard library as text and numbers, and rebuilds them."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
from collections.abc import Callable
from typing import Any

from ...errors import StateError
from .base import Get, Node, Ref, Restored, class_name

_Conversion = tuple[type, Callable[[Any], Any], Callable[[Any], Any]]
_CONVERSIONS: list[_Conversion] = [
    (decimal.Decimal, str, decimal.Decimal),
    (fractions.Fraction, str, lambda text: fractions.Fraction(*map(int, text.split("/")))),
    (uuid.UUID, str, uuid.UUID),
    (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    (datetime.timedelta, lambda d: [d.days, d.seconds, d.microseconds], lambda parts: datetime.timedelta(*parts)),
    (pathlib.PosixPath, str, pathlib.Path),
    (pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    (pathlib.PureWindowsPath, str, pathlib.PureWindowsPath),
]
_BY_CLASS: dict[type, _Conversion] = {conversion[0]: conversion for conversion in _CONVERSIONS}
_BY_NAME = {class_name(conversion[0]): conversion for conversion in _CONVERSIONS}


class StdlibValues:
    """Decimals, fractions, dates, times, paths and UUIDs."""

    tag = "literal"

    def matches(self, cls: type) -> bool:
        return cls in _BY_CLASS

    def capture(self, value: object, ref: Ref) -> Node:
        return {"of": class_name(type(value)), "value": _BY_CLASS[type(value)][1](value)}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        try:
            return _BY_NAME[node["of"]][2](node["value"]), None
        except ArithmeticError as error:
            raise StateError(f"Expected a {node['of']}, got {node['value']!r:.80}.") from error


HANDLERS = (StdlibValues(),)
