"""TensorDict environments written in torch, without other libraries."""

from .pendulum import PendulumEnv
from .text_generation import LLMEnv, LLMHashingEnv
from .tictactoe import TicTacToeEnv
from .trading import FinancialRegimeEnv

__all__ = ["FinancialRegimeEnv", "LLMEnv", "LLMHashingEnv", "PendulumEnv", "TicTacToeEnv"]
