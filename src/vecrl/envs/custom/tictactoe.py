"""Tic-tac-toe for two players, or for one against random moves. The board is an entry of the TensorDict."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Categorical, Composite, Unbounded
from ..base import EnvBase
from ..entries.keys import FLAGS
from .generator import seeded_generator

_LINES = torch.tensor(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]], dtype=torch.int64
)


class TicTacToeEnv(EnvBase):
    """Tic-tac-toe: three in a row win, a full board is a draw. The batch size is that of the input of `reset`.

    Args:
        single_player: player 1 moves at random, in the same step, unless player 0 has ended the game. `set_seed` seeds
            these moves.
        device: the device of all computations.

    Entries: "board" `[*batch, 3, 3]` int32: 0 for the player that moved last, 1 for the other player, -1 for free
    cells. "turn" `[*batch, 1]` int32: the player that moves next. "mask" `[*batch, 9]` bool: the free cells, row by
    row; "action" `[*batch]` int64 is the index of one of them, also for random actions. ("player0", "reward") and
    ("player1", "reward") `[*batch, 1]`: 1 for the winner, else 0.

    Raises:
        SpaceError: in a step, if an action selects a taken cell (TorchRL's environment replaces the piece there).

    >>> env = TicTacToeEnv()
    >>> data = env.step(env.reset().set("action", torch.tensor(4)))["next"]
    >>> data["board"].tolist(), data["turn"].item()
    ([[-1, -1, -1], [-1, 0, -1], [-1, -1, -1]], 1)
    """

    returns_new_tensors = True
    _batch_locked = False

    def __init__(self, *, single_player: bool = False, device: Any = None):
        super().__init__(device=device)
        self.single_player = single_player
        self._set_seed(None)
        self._lines = _LINES.to(device)
        spec_device = self._lines.device
        self.observation_spec = Composite(
            board=Unbounded((3, 3), dtype=torch.int32, device=spec_device),
            turn=Categorical(2, (1,), dtype=torch.int32, device=spec_device),
            mask=Categorical(2, (9,), dtype=torch.bool, device=spec_device),
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Categorical(9, (), device=spec_device)
        reward = Unbounded((1,), device=spec_device)
        self.reward_spec = Composite({player: {"reward": reward.clone()} for player in ("player0", "player1")})
        flag = Categorical(2, (1,), dtype=torch.bool, device=spec_device)
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
            cells = f"in the rows {taken.nonzero()[:5, :-1].tolist()}" if shape else f"{action.item()}"
            raise SpaceError(
                f"Expected actions to select free cells, got taken cells: {cells}. "
                'Select cells where "mask" is True, and reset the environment when a game is done.'
            )
        board, won = self._apply_move(board, action)
        wins = [won & (turn == player) for player in (0, 1)]
        done = won | _is_full(board)
        turn = 1 - turn
        if self.single_player:
            board_after_reply, lost = self._apply_move(board, _random_free_cell(board, self._generator))
            board = torch.where(done, board, board_after_reply)
            turn = torch.where(done, turn, 0)
            wins[1] = wins[1] | (lost & ~done)
            done = done | lost | _is_full(board)
        flags = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
        rewards = {f"player{i}": TensorDict({"reward": w.to(torch.float32)}, shape) for i, w in enumerate(wins)}
        observations = {"board": board.unflatten(-1, (3, 3)), "turn": turn, "mask": board < 0}
        return TensorDict({**observations, **flags, **rewards}, shape, device=self.device)

    def _apply_move(self, board: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the board `[*, 9]` after a move, from the view of the moving player, and whether it won `[*, 1]`."""
        board = torch.where(board < 0, board, 1 - board).scatter(-1, cell, 0)
        won = (board[..., self._lines] == 0).all(-1).any(-1, keepdim=True)
        return board, won

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Writes a random move to a free cell into `tensordict` (any cell if it has no board) and returns it."""
        if tensordict is None or tensordict.get("board", None) is None:
            return super().rand_action(tensordict)
        return tensordict.set("action", _random_free_cell(tensordict["board"].flatten(-2)).squeeze(-1))

    def _set_seed(self, seed: int | None) -> None:
        self._generator = seeded_generator(seed, self.device)  # for the opponent's moves only


def _is_full(board: Tensor) -> Tensor:
    return (board >= 0).all(-1, keepdim=True)


def _random_free_cell(board: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns a random free cell `[*, 1]` of each board `[*, 9]`; an arbitrary cell of a full board."""
    device = board.device if generator is None else generator.device
    random_values = torch.rand(board.shape, generator=generator, device=device).to(board.device)
    return random_values.masked_fill(board >= 0, -1).argmax(-1, keepdim=True)
