"""Pickles factories and policies of users by value, with the files of their code, so that tracebacks can show lines."""

from __future__ import annotations

import io
from types import CodeType
from typing import Any, cast

import cloudpickle

_REPLACED = "<dynamic-code>"  # what cloudpickle 3.1.3 and newer writes in place of a file


def dump_with_files(value: object) -> bytes:
    """Pickles a value with cloudpickle; functions and classes of `__main__` by value.

    Raises:
        Exception: any exception from pickling the value.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _reduce_code(code: CodeType) -> Any:
    make, arguments, *others = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return (make, tuple(code.co_filename if entry == _REPLACED else entry for entry in arguments), *others)


class _Pickler(cloudpickle.Pickler):
    # it goes on to look into cloudpickle's table and that of `copyreg`, to which users may add later
    dispatch_table: Any = cast(Any, cloudpickle.Pickler.dispatch_table).new_child({CodeType: _reduce_code})
