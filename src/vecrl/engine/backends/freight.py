"""A worker's rows on their way between two arenas, its own and the caller's, where they share no memory.

Actions go there and results come back as they lie in memory, array after array in one block of bytes, of the rows
asked and no others. Both ends know the layout, so nothing is said of it. Knows nothing of who carries the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arena import Arena
from ..worker import Command, Op

Bytes = bytes | memoryview | np.ndarray
Where = slice | np.ndarray


class Freight:
    """Packs and unpacks at one end.

    Args:
        arena: of this end.
        start, stop: the worker's rows in it.
    """

    def __init__(self, arena: Arena, start: int, stop: int):
        self._count = stop - start
        self._rows = arena.rows(start, stop)
        self._begin = arena.begin[start:stop]
        self._actions = [leaf[start:stop] for leaf in arena.actions if leaf is not None]

    def pack_actions(self, command: Command) -> bytes:
        """What goes with a command: the actions of the rows that it names, and its mask."""
        if command.op != Op.STEP:
            return b""
        where, _ = self._where(command.rows)
        parts = [leaf[where] for leaf in self._actions]
        return _join([*parts, self._begin] if command.masked else parts)

    def take_actions(self, command: Command, data: Bytes) -> None:
        """Put what came with a command where the worker looks for it."""
        if command.op == Op.STEP:
            where, count = self._where(command.rows)
            reader = _Reader(data)
            for leaf in self._actions:
                leaf[where] = reader.read((count, *leaf.shape[1:]), leaf.dtype)
            if command.masked:
                self._begin[:] = reader.read(self._begin.shape, self._begin.dtype)

    def pack(self, command: Command) -> bytes:
        """What a reset or a step wrote into the command's slot: its rows, and the final observations of those that
        ended and began anew."""
        if command.op not in (Op.STEP, Op.RESET):
            return b""
        where, _ = self._where(command.rows)
        slot = self._rows[command.slot]
        ended = self._ended(command.slot, where)
        finals = [leaf[ended] for leaf in slot.final_obs if leaf is not None] if len(ended) else []
        return _join([slot.flags[:, where], *[leaf[where] for leaf in self._leaves(command.slot)], *finals])

    def take(self, command: Command, data: Bytes) -> None:
        """Put what came back into the command's slot."""
        if command.op not in (Op.STEP, Op.RESET):
            return
        where, count = self._where(command.rows)
        reader, slot = _Reader(data), self._rows[command.slot]
        slot.flags[:, where] = reader.read((3, count), slot.flags.dtype)
        for leaf in self._leaves(command.slot):
            leaf[where] = reader.read((count, *leaf.shape[1:]), leaf.dtype)
        ended = self._ended(command.slot, where)
        if len(ended):
            for leaf in slot.final_obs:
                if leaf is not None:
                    leaf[ended] = reader.read((len(ended), *leaf.shape[1:]), leaf.dtype)

    def _where(self, rows: Sequence[int] | None) -> tuple[Where, int]:
        """How to index the rows that a command names, and how many they are."""
        if rows is None:
            return slice(None), self._count
        return np.array([row if row >= 0 else ~row for row in rows], np.int64), len(rows)

    def _leaves(self, slot: int) -> Iterator[np.ndarray]:
        out = self._rows[slot]
        yield from (out.reward, out.returns, out.lengths)
        yield from (leaf for leaf in out.obs if leaf is not None)

    def _ended(self, slot: int, where: Where) -> np.ndarray:
        """Of the rows `where`, those whose episode ended and that began anew at once."""
        terminated, truncated, begun = self._rows[slot].flags[:, where]
        found = ((terminated | truncated) & begun).nonzero()[0]
        return found if isinstance(where, slice) else where[found]


class _Reader:
    """Arrays out of a block, one after the other."""

    def __init__(self, data: Bytes):
        self._data = data
        self._at = 0

    def read(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        count = math.prod(shape)
        found = np.frombuffer(self._data, dtype, count, self._at) if count else np.empty(0, dtype)
        self._at += count * dtype.itemsize
        return found.reshape(shape)


def _join(parts: Sequence[np.ndarray]) -> bytes:
    return b"".join([part.tobytes() for part in parts])
