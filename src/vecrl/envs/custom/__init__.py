"""TensorDict environments written in torch, and chess, which needs the chess library when it is made."""

from ..aliases import lazy_names
from .chess import ChessEnv
from .pendulum import PendulumEnv
from .text_generation import LLMEnv, LLMHashingEnv
from .tictactoe import TicTacToeEnv
from .trading import FinancialRegimeEnv

__all__ = ["ChessEnv", "FinancialRegimeEnv", "LLMEnv", "LLMHashingEnv", "PendulumEnv", "TicTacToeEnv"]

__getattr__ = lazy_names(__name__)
