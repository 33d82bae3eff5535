"""Noughts and crosses: two players in turn, or one against chance. The board travels in the TensorDict."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Categorical, Composite, Unbounded
from ..base import EnvBase
from ..spec_container import FLAGS

_LINES = torch.tensor(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]], dtype=torch.int64
)


class TicTacToeEnv(EnvBase):
    """Three in a row win, a full board is a draw. Any batch size will do: that of what `reset` is given.

    Args:
        single_player: player 1 moves at random, in the same step, unless player 0 has ended the game; `set_seed`
            decides how.
        device: where everything is computed.

    Entries: "board" `[*batch, 3, 3]` int32, seen by who moved last: 0 where that player is, 1 where the other one is,
    -1 where nobody is. "turn" `[*batch, 1]` int32: whose turn it is. "mask" `[*batch, 9]` bool: the free cells, row by
    row, which "action" `[*batch]` int64 chooses among; random actions obey it. ("player0", "reward") and
    ("player1", "reward") `[*batch, 1]`: 1 for who has won, else 0.

    Raises:
        SpaceError: a move to a cell that is taken (TorchRL's puts the new piece in the place of the old one).

    >>> env = TicTacToeEnv()
    >>> data = env.step(env.reset().set("action", torch.tensor(4)))["next"]
    >>> data["board"].tolist(), data["turn"].item()
    ([[-1, -1, -1], [-1, 0, -1], [-1, -1, -1]], 1)
    """

    batch_locked = False

    def __init__(self, *, single_player: bool = False, device: Any = None):
        super().__init__(device=device)
        self.single_player = single_player
        self._set_seed(None)
        self._lines = _LINES.to(device)
        where = self._lines.device
        self.observation_spec = Composite(
            board=Unbounded((3, 3), dtype=torch.int32, device=where),
            turn=Categorical(2, (1,), dtype=torch.int32, device=where),
            mask=Categorical(2, (9,), dtype=torch.bool, device=where),
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Categorical(9, (), device=where)
        pay = Unbounded((1,), device=where)
        self.reward_spec = Composite({player: {"reward": pay.clone()} for player in ("player0", "player1")})
        flag = Categorical(2, (1,), dtype=torch.bool, device=where)
        self.full_done_spec = Composite({name: flag.clone() for name in FLAGS})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        board = torch.full((*shape, 3, 3), -1, dtype=torch.int32, device=self._lines.device)
        turn = torch.zeros((*shape, 1), dtype=torch.int32, device=board.device)
        mask = torch.ones((*shape, 9), dtype=torch.bool, device=board.device)
        return TensorDict({"board": board, "turn": turn, "mask": mask}, shape, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tensordict.batch_size
        board, turn, action = tensordict["board"].flatten(-2), tensordict["turn"], tensordict["action"].unsqueeze(-1)
        taken = board.gather(-1, action) >= 0
        if bool(taken.any()):
            rows = f"those of the rows {taken.nonzero()[:5, :-1].tolist()} are" if shape else f"{action.item()} is"
            raise SpaceError(
                f"Expected moves to free cells, but {rows} taken: "
                'choose among those where "mask" is True, and begin anew when a game is done.'
            )
        board, won = self._moved(board, action)
        wins = [won & (turn == player) for player in (0, 1)]
        done = won | _is_full(board)
        turn = 1 - turn
        if self.single_player:
            answer, lost = self._moved(board, _any_free(board, self._generator))
            board = torch.where(done, board, answer)
            turn = torch.where(done, turn, 0)
            wins[1] = wins[1] | (lost & ~done)
            done = done | lost | _is_full(board)
        flags = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
        pays = {f"player{i}": TensorDict({"reward": w.to(torch.float32)}, shape) for i, w in enumerate(wins)}
        seen = {"board": board.unflatten(-1, (3, 3)), "turn": turn, "mask": board < 0}
        return TensorDict({**seen, **flags, **pays}, shape, device=self.device)

    def _moved(self, board: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The board `[*, 9]` after a move, seen by who made it, and whether that won `[*, 1]`."""
        board = torch.where(board < 0, board, 1 - board).scatter(-1, cell, 0)
        won = (board[..., self._lines] == 0).all(-1).any(-1, keepdim=True)
        return board, won

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A move to a free cell for every board, written into `tensordict` (an empty board by default)."""
        if tensordict is None or tensordict.get("board", None) is None:
            return super().rand_action(tensordict)
        return tensordict.set("action", _any_free(tensordict["board"].flatten(-2)).squeeze(-1))

    def _set_seed(self, seed: int | None) -> None:
        self._generator = torch.Generator(self.device or "cpu")  # of the opponent's moves alone
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)


def _is_full(board: Tensor) -> Tensor:
    return (board >= 0).all(-1, keepdim=True)


def _any_free(board: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A free cell `[*, 1]` of each board `[*, 9]`; any cell of those that are full."""
    where = board.device if generator is None else generator.device
    luck = torch.rand(board.shape, generator=generator, device=where).to(board.device)
    return luck.masked_fill(board >= 0, -1).argmax(-1, keepdim=True)
