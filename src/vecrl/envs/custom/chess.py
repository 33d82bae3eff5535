"""Chess, with moves in standard algebraic notation. The rules are those of the chess library."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...imports import import_library
from ...specs import Binary, Bounded, Categorical, Composite, NonTensor, TensorSpec, Unbounded
from ..base import EnvBase
from ..transforms.texts import Hash

Square = tuple[int, int]
"""File and rank, each from 0 to 7."""

_FILES = "abcdefgh"
_STRAIGHT = [(1, 0), (-1, 0), (0, 1), (0, -1)]
_DIAGONAL = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
_JUMPS = [(file, rank) for file, rank in product((-2, -1, 1, 2), repeat=2) if abs(file) != abs(rank)]
_PIECES = {"B": (_DIAGONAL, 7), "N": (_JUMPS, 1), "Q": (_STRAIGHT + _DIAGONAL, 7), "R": (_STRAIGHT, 7)}
_SQUARES: list[Square] = [(file, rank) for file in range(8) for rank in range(8)]
_LAST_RANKS = (0, 7)

_NUM_MOVES = 29_275  # in SAN
_MAX_LEGAL = 218  # the most legal moves that a position has
_START = "<start>"
_START_FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
_WIN, _DRAW = 1.0, 0.5

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


class _SanMoves:
    """Computes the list of moves on first use, also of the class."""

    def __get__(self, instance: object, owner: type | None = None) -> list[str]:
        return san_moves()


class ChessEnv(EnvBase):
    """Chess. An action is the index of a move in `ChessEnv.san_moves`, all moves in standard algebraic notation (SAN).

    Random actions are legal moves. The reward `[1]` is 1 for mate, to the player that moves, and 0.5 for a draw:
    stalemate, too few pieces, fifty moves of each player without a capture or a move of a pawn, and the fifth
    repetition of a position.

    A reset starts from the position in "fen" or "pgn" of its input, if it has any and no mask "_reset". If both differ,
    "fen" is used.

    Args:
        stateful: whether the environment keeps the position. Otherwise each step starts from "fen" or "pgn" in its
            input. Repetitions are noticed with "pgn" only.
        include_san: whether "san" has the last move, "<start>" at first.
        include_fen: whether "fen" has the position in Forsyth-Edwards notation.
        include_pgn: whether "pgn" has the game in portable game notation.
        include_legal_moves: whether "legal_moves" has the indices of the legal moves, int64 `[218]`, and 29275 in the
            places that are left.
        include_hash: whether each text also has its hash, uint8 `[32]`, such as "fen_hash": see `Hash`.
        include_hash_inv: whether a position may be given by "fen_hash" or "pgn_hash" alone, of a text that this
            environment has returned. All of them are kept.
        mask_actions: whether "action_mask" has the legal moves, bool `[29275]`.
        pixels: whether "pixels" has an image of the board, uint8 `[3, 256, 256]`.

    "turn" is True if White moves next.

    Raises:
        VersionError: the chess library is not installed.
        ValueError: `stateful` is False and there is neither "fen" nor "pgn", or `include_hash_inv` is given without
            `include_hash`.
        SpaceError: in a step, if the move is not legal; in a reset, if the game is over.

    >>> env = ChessEnv(include_san=True, include_fen=True)
    >>> start = env.reset()
    >>> env.step(start.set("action", env.san_moves.index("e4")))["next", "fen"]
    'rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1'
    >>> _ = torch.manual_seed(0)
    >>> list(env.rollout(3)["next", "san"])
    ['c3', 'Nh6', 'h4']
    """

    returns_new_tensors = True
    _supports_set_state = True
    excluded_from_state = ("_board", "_game_of_board")  # `_game` is the same as a text
    san_moves = _SanMoves()

    def __init__(
        self,
        *,
        stateful: bool = True,
        include_san: bool = False,
        include_fen: bool = False,
        include_pgn: bool = False,
        include_legal_moves: bool = False,
        include_hash: bool = False,
        include_hash_inv: bool = False,
        mask_actions: bool = True,
        pixels: bool = False,
    ):
        super().__init__()
        self.stateful = stateful
        self._texts = [
            name for name, given in (("san", include_san), ("fen", include_fen), ("pgn", include_pgn)) if given
        ]
        self._positions = [name for name in self._texts if name != "san"]
        if not (stateful or self._positions):
            raise ValueError("Expected include_fen or include_pgn with stateful=False, got neither. Give one.")
        if include_hash_inv and not include_hash:
            raise ValueError("Expected include_hash=True with include_hash_inv=True, got False. Give both.")
        self.include_legal_moves, self.include_hash = include_legal_moves, include_hash
        self.mask_actions, self.pixels = mask_actions, pixels
        self._found: dict[tuple[int, ...], str] | None = {} if include_hash_inv else None
        self._set_game(_chess().Board())
        self._set_specs()

    def _set_specs(self) -> None:
        examples = {"san": _START, "fen": _START_FEN, "pgn": self._pgn(self.board)}
        specs: dict[str, TensorSpec] = {name: NonTensor((), example_data=examples[name]) for name in self._texts}
        if self.include_hash:
            specs |= {f"{name}_hash": Unbounded((32,), dtype=torch.uint8) for name in self._texts}
        state_keys = [key for key in specs if key.removesuffix("_hash") in self._positions]
        if self._found is None:
            state_keys = [key for key in state_keys if not key.endswith("_hash")]
        specs["turn"] = Categorical(2, (), dtype=torch.bool)
        if self.include_legal_moves:
            specs["legal_moves"] = Bounded(0, _NUM_MOVES, (_MAX_LEGAL,), dtype=torch.int64)
        if self.mask_actions:
            specs["action_mask"] = Binary(shape=(_NUM_MOVES,), dtype=torch.bool)
        if self.pixels:
            specs["pixels"] = Bounded(0, 255, (3, SIZE, SIZE), dtype=torch.uint8)
        self.observation_spec = Composite(specs)
        if not self.stateful:
            self.state_spec = Composite({key: specs[key].clone() for key in state_keys})
        self.action_spec = Categorical(_NUM_MOVES, ())
        self.reward_spec = Unbounded((1,))
        flag = Categorical(2, (1,), dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone())

    # -- positions

    def _set_game(self, board: Any) -> None:
        """Keeps a game: the board, and the start and the moves in a text."""
        moves = "".join(f" {move.uci()}" for move in board.move_stack)
        self._board, self._game = board, f"{board.root().fen()};{moves}"
        self._game_of_board = self._game

    @property
    def board(self) -> Any:
        """The current position, a `chess.Board`."""
        if self._game_of_board != self._game:  # a state was restored
            fen, _, moves = self._game.partition(";")
            board = _chess().Board(fen)
            for move in moves.split():
                board.push_uci(move)
            self._set_game(board)
        return self._board

    def _pgn(self, board: Any) -> str:
        return str(_chess().pgn.Game.from_board(board))

    def _board_of_pgn(self, text: str) -> Any:
        game = _chess().pgn.read_game(io.StringIO(text), Visitor=_silent_game_builder())
        if game is None or game.errors:
            raise SpaceError(f"Expected a game in portable game notation, got {text!r:.80}. Pass one that is legal.")
        return game.end().board()

    def _text(self, tensordict: TensorDictBase | None, name: str) -> str | None:
        """Returns the text of a position in the input, possibly by its hash, or None."""
        if tensordict is None:
            return None
        value: Any = tensordict.get(name, None)
        if value is not None:
            return value.data if isinstance(value, NonTensorData) else str(value)
        hashed = None if self._found is None else tensordict.get(f"{name}_hash", None)
        if hashed is None:
            return None
        assert self._found is not None
        key = Hash.hash_to_repertoire_key(hashed)
        if key not in self._found:
            raise SpaceError(
                f"Expected the hash of a position that this environment has returned, got {key!r:.60}. Pass {name!r}."
            )
        return self._found[key]

    def _given_board(self, tensordict: TensorDictBase | None) -> Any:
        """Returns the position in the input, or None."""
        pgn, fen = self._text(tensordict, "pgn"), self._text(tensordict, "fen")
        board = None if pgn is None else self._board_of_pgn(pgn)
        return _chess().Board(fen) if fen is not None and (board is None or board.fen() != fen) else board

    def _board_of(self, tensordict: TensorDictBase | None) -> Any:
        """Returns the current position."""
        if self.stateful:
            return self.board
        board = self._given_board(tensordict)
        if board is None:
            raise ValueError(f"Expected one of {self._positions} in the input, as stateful=False, got none. Pass it.")
        return board

    def get_legal_moves(self, tensordict: TensorDictBase | None = None, uci: bool = False) -> list[str]:
        """Returns the legal moves.

        Args:
            tensordict: the position, if the environment is not stateful.
            uci: whether to return moves such as "g1f3" (universal chess interface) instead of "Nf3".

        Raises:
            ValueError: the environment is not stateful, and there is no position.
        """
        board = self._board_of(tensordict)
        return [move.uci() if uci else board.san(move) for move in board.legal_moves]

    def all_actions(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Returns the legal moves in "action" `[number]`, of the position in `tensordict` or the current one."""
        given = None if tensordict is None else self._given_board(tensordict)
        indices = self._legal_indices(self._board_of(tensordict) if given is None else given)
        return TensorDict({"action": indices}, indices.shape, device=self.device)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Writes a random legal move into `tensordict` and returns it; any action if the game is over."""
        data = TensorDict({}, device=self.device) if tensordict is None else tensordict
        mask = data.get("action_mask", None)
        if mask is not None:
            legal = mask.nonzero().squeeze(-1)
        elif self.stateful or self._given_board(data) is not None:
            legal = self._legal_indices(self._board_of(data))
        else:
            return super().rand_action(tensordict)
        if not len(legal):
            return super().rand_action(tensordict)
        return data.set("action", legal[torch.randint(len(legal), ())])

    # -- resets and steps

    def _legal_indices(self, board: Any) -> Tensor:
        indices = san_indices()
        return torch.tensor([indices[board.san(move)] for move in board.legal_moves], dtype=torch.int64)

    def _observe(self, board: Any, san: str) -> TensorDict:
        data: dict[str, Any] = {"turn": torch.tensor(board.turn)}
        for name in self._texts:
            data[name] = text = san if name == "san" else board.fen() if name == "fen" else self._pgn(board)
            if self.include_hash:
                data[f"{name}_hash"] = hashed = Hash.reproducible_hash(text)
                if self._found is not None:
                    self._found[Hash.hash_to_repertoire_key(hashed)] = text
        if self.include_legal_moves or self.mask_actions:
            legal = self._legal_indices(board)
            if self.include_legal_moves:
                data["legal_moves"] = torch.nn.functional.pad(legal, (0, _MAX_LEGAL - len(legal)), value=_NUM_MOVES)
            if self.mask_actions:
                data["action_mask"] = torch.zeros(_NUM_MOVES, dtype=torch.bool).index_fill_(0, legal, True)
        if self.pixels:
            data["pixels"] = board_pixels(board)
        return TensorDict(data, device=self.device)

    def _is_done(self, board: Any) -> bool:
        return board.is_game_over() or board.is_fifty_moves()

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase | None = None, *, set_state: bool | None = None
    ) -> TensorDictBase:
        board = None
        if set_state is not False and tensordict is not None and tensordict.get("_reset", None) is None:
            board = self._given_board(tensordict)
        board = _chess().Board() if board is None else board
        if self._is_done(board):
            raise SpaceError(f"Expected a position to start from, got one in which the game is over: {board.fen()!r}.")
        self._set_game(board)
        return self._observe(board, _last_san(board))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        board = self._board_of(tensordict)
        action = int(tensordict["action"])
        if not 0 <= action < _NUM_MOVES:
            raise SpaceError(
                f'Expected an action from 0 to {_NUM_MOVES - 1}, got {action}. Select one where "action_mask" is True; '
                f'{_NUM_MOVES} fills the places of "legal_moves" that are left.'
            )
        san = san_moves()[action]
        move = _legal_move(board, san)
        board.push(move)
        if self.stateful:
            self._game_of_board = self._game = f"{self._game} {move.uci()}"
        done = torch.tensor([self._is_done(board)])
        reward = (_WIN if board.is_checkmate() else _DRAW) if done else 0.0
        flags = {"reward": torch.tensor([reward]), "done": done, "terminated": done.clone()}
        return self._observe(board, san).update(flags)

    def _set_seed(self, seed: int | None) -> None: ...


def _last_san(board: Any) -> str:
    """Returns the last move, "<start>" if there is none."""
    if not board.move_stack:
        return _START
    before = board.copy()
    return before.san(before.pop())


def _legal_move(board: Any, san: str) -> Any:
    """Returns the move with this text. Raises a SpaceError if it is not legal, or if "+" or "#" are wrong."""
    try:
        move = board.parse_san(san)
    except ValueError:
        move = None
    if move is None or board.san(move) != san:
        raise SpaceError(
            f"Expected a legal move in {board.fen()!r}, got {san!r}. Select one of get_legal_moves(), or a move where "
            f'"action_mask" is True.'
        )
    return move


def _silent_game_builder() -> Any:
    """Returns a builder of games of the chess library that keeps errors without logging them."""

    class SilentGameBuilder(_chess().pgn.GameBuilder):
        def handle_error(self, error: Exception) -> None:
            self.game.errors.append(error)

    return SilentGameBuilder


def _chess() -> Any:
    """Returns the chess library."""
    hint = 'Expected the chess library to be installed: pip install "vecrl[chess]"'
    import_library("chess.pgn", hint)
    return import_library("chess", hint)


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
