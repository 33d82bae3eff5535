"""Steps batches of environments: simulators, workers, backends, batch buffers, the pool and the transition record.

The engine uses NumPy only. It must not import torch.
"""

from .backends.registry import register_backend
from .pool import Pool
from .pool_options import PoolOptions
from .simulator import BatchSimulator, BatchStep, Simulator
from .transition import Autoreset, AutoresetMode, Episodes, Transition

__all__ = [
    "Autoreset",
    "AutoresetMode",
    "BatchSimulator",
    "BatchStep",
    "Episodes",
    "Pool",
    "PoolOptions",
    "Simulator",
    "Transition",
    "register_backend",
]
