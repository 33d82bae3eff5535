"""Environments of our own over TensorDicts, that stand on no other library."""

from .pendulum import PendulumEnv
from .tictactoe import TicTacToeEnv

__all__ = ["PendulumEnv", "TicTacToeEnv"]
