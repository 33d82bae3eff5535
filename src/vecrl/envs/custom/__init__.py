"""TensorDict environments written in torch, and chess, which needs the chess library when it is made."""

from .chess import ChessEnv
from .pendulum import PendulumEnv
from .text_generation import LLMEnv, LLMHashingEnv
from .tictactoe import TicTacToeEnv
from .trading import FinancialRegimeEnv

__all__ = ["ChessEnv", "FinancialRegimeEnv", "LLMEnv", "LLMHashingEnv", "PendulumEnv", "TicTacToeEnv"]
