"""TensorDict environments written in torch, without other libraries."""

from .pendulum import PendulumEnv
from .tictactoe import TicTacToeEnv

__all__ = ["PendulumEnv", "TicTacToeEnv"]
