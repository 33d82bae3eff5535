"""Images of chess boards."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

SIZE = 256  # of an image in pixels

_SCALE = SIZE // 64
_SQUARE_COLORS = ((181, 136, 99), (240, 217, 181))  # dark and light
_PIECE_COLORS = ((20, 20, 20), (255, 255, 255))  # black and white
_SHAPES = {  # eight rows of eight pixels for each piece, each row as a number in base 16
    "p": "00 18 3c 18 18 3c 7e 00",
    "n": "00 18 3c 7c 1c 3c 7e 00",
    "b": "18 34 2c 3c 18 3c 7e 00",
    "r": "00 5a 7e 3c 3c 3c 7e 00",
    "q": "5a 5a 7e 3c 3c 18 7e 00",
    "k": "18 7e 18 3c 3c 3c 7e 00",
}


@cache
def _shape(symbol: str) -> Tensor:
    """Returns the pixels of a piece, bool `[SIZE / 8, SIZE / 8]`."""
    rows = [[(int(row, 16) >> bit) & 1 for bit in range(7, -1, -1)] for row in _SHAPES[symbol].split()]
    return torch.tensor(rows).bool().repeat_interleave(_SCALE, 0).repeat_interleave(_SCALE, 1)


@cache
def _empty_board() -> Tensor:
    squares = torch.arange(8)
    is_light = ((squares.unsqueeze(1) + squares) % 2 == 0).long()
    colors = torch.tensor(_SQUARE_COLORS, dtype=torch.uint8)[is_light]  # [8, 8, 3], the first row is rank 8
    return colors.permute(2, 0, 1).repeat_interleave(SIZE // 8, 1).repeat_interleave(SIZE // 8, 2)


def board_pixels(board: Any) -> Tensor:
    """Returns the image of a `chess.Board` with White at the bottom, uint8 `[3, SIZE, SIZE]`."""
    image, side = _empty_board().clone(), SIZE // 8
    for square, piece in board.piece_map().items():
        top, left = (7 - square // 8) * side, square % 8 * side
        color = torch.tensor(_PIECE_COLORS[piece.color], dtype=torch.uint8).reshape(3, 1)
        image[:, top : top + side, left : left + side][:, _shape(piece.symbol().lower())] = color
    return image
