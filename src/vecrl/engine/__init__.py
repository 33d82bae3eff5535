"""The engine: simulators, workers, backends, the arena, the pool and the transition record. NumPy only, never torch."""

from .pool import Pool
from .simulator import BatchSimulator, BatchStep, Simulator
from .transition import Autoreset, AutoresetMode, Episodes, Transition

__all__ = [
    "Autoreset",
    "AutoresetMode",
    "BatchSimulator",
    "BatchStep",
    "Episodes",
    "Pool",
    "Simulator",
    "Transition",
]
