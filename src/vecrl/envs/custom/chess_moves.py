"""Every move of chess in standard algebraic notation (SAN), found from the ways in which pieces move.

A move is listed if some position allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

Square = tuple[int, int]
"""File and rank, each from 0 to 7."""

_FILES = "abcdefgh"
_STRAIGHT = [(1, 0), (-1, 0), (0, 1), (0, -1)]
_DIAGONAL = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
_JUMPS = [(file, rank) for file, rank in product((-2, -1, 1, 2), repeat=2) if abs(file) != abs(rank)]
_PIECES = {"B": (_DIAGONAL, 7), "N": (_JUMPS, 1), "Q": (_STRAIGHT + _DIAGONAL, 7), "R": (_STRAIGHT, 7)}
_SQUARES: list[Square] = [(file, rank) for file in range(8) for rank in range(8)]
_LAST_RANKS = (0, 7)


@cache
def san_moves() -> list[str]:
    """Returns the 29,275 moves: shorter ones first, otherwise by character codes, and an empty text at the end.

    Each move also occurs with "+" for check and "#" for mate.

    >>> len(san_moves()), san_moves()[:2], san_moves()[-2:]
    (29275, ['a2', 'a3'], ['hxg8=R+', ''])
    """
    plain = {*_piece_moves(), *_king_moves(), *_pawn_moves()}
    moves = [move + suffix for move in plain for suffix in ("", "+", "#")]
    return [*sorted(moves, key=lambda move: (len(move), move)), ""]


@cache
def san_indices() -> dict[str, int]:
    """Returns the index of each move in `san_moves`."""
    return {move: index for index, move in enumerate(san_moves())}


def _name(square: Square) -> str:
    return f"{_FILES[square[0]]}{square[1] + 1}"


def _lines(piece: str, target: Square) -> list[list[Square]]:
    """Returns the squares from which a piece reaches `target`, one list for each direction."""
    directions, reach = _PIECES[piece]
    lines = [[(target[0] + x * n, target[1] + y * n) for n in range(1, reach + 1)] for x, y in directions]
    return [[(file, rank) for file, rank in line if file in range(8) and rank in range(8)] for line in lines]


def _origins(square: Square, others: list[tuple[int, Square]]) -> Iterator[str]:
    """Yields how SAN may tell a piece on `square` from equal pieces that reach the same target.

    Args:
        square: where the piece is.
        others: the direction and the square of each other piece that may be there. Two of them in one direction cannot
            both reach the target.
    """
    yield ""
    if any(other[0] != square[0] for _, other in others):
        yield _FILES[square[0]]
    same_file = [direction for direction, other in others if other[0] == square[0]]
    same_rank = [direction for direction, other in others if other[1] == square[1]]
    if same_file:
        yield str(square[1] + 1)
    if any(first != second for first, second in product(same_file, same_rank)):
        yield _name(square)


def _piece_moves() -> Iterator[str]:
    for piece, target in product(_PIECES, _SQUARES):
        starts = [(direction, start) for direction, line in enumerate(_lines(piece, target)) for start in line]
        for direction, start in starts:
            others = [(other, square) for other, square in starts if other != direction]
            for origin, capture in product(_origins(start, others), ("", "x")):
                yield f"{piece}{origin}{capture}{_name(target)}"


def _king_moves() -> Iterator[str]:
    yield from ("O-O", "O-O-O")
    for target, capture in product(_SQUARES, ("", "x")):
        yield f"K{capture}{_name(target)}"


def _pawn_moves() -> Iterator[str]:
    for file, rank in _SQUARES:
        captures = [f"{_FILES[other]}x" for other in (file - 1, file + 1) if other in range(8)]
        promotions = [f"={piece}" for piece in _PIECES] if rank in _LAST_RANKS else [""]
        for start, promotion in product(["", *captures], promotions):
            yield f"{start}{_name((file, rank))}{promotion}"
