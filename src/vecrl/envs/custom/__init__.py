"""TensorDict environments written in torch, without other libraries."""

from .pendulum import PendulumEnv
from .tictactoe import TicTacToeEnv
from .trading import FinancialRegimeEnv

__all__ = ["FinancialRegimeEnv", "PendulumEnv", "TicTacToeEnv"]
