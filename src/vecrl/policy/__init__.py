"""Policies with flat parameter vectors, for one member or a whole population per call, and their networks.

policy = Policy("Linear(obs, 64) >> Tanh() >> Linear(64, act)", obs=4, act=2)
policy.set_parameters(torch.randn(256, policy.parameter_length))
actions = policy(observations)          # [256, 4] -> [256, 2], one network per row
"""

from ..imports import require_extra

require_extra("torch", __name__)

from ..errors import NetParsingError
from .batched_kernels import batched_forward, register_batched
from .evaluation.settings import AliveBonus, alive_bonus
from .functional import (
    ModuleExpectingFlatParameters,
    count_parameters,
    fill_parameters,
    make_functional_module,
    parameter_vector,
)
from .layers import (
    LSTM,
    RNN,
    Apply,
    Bin,
    Clip,
    FeedForwardNet,
    LocomotorNet,
    MultiLayered,
    Round,
    Slice,
    StructuredControlNet,
)
from .network_language import str_to_net
from .obs_norm import ObsNormLayer, RunningNorm, RunningStat
from .policy import Policy
from .population import Evaluation, PopulationEvaluator
from .population_search import PopulationSearch
from .search import Search
from .search_algorithms import ALGORITHMS, CEM, CMAES, PGPE, SNES

__all__ = [
    "ALGORITHMS",
    "CEM",
    "CMAES",
    "LSTM",
    "PGPE",
    "RNN",
    "SNES",
    "AliveBonus",
    "Apply",
    "Bin",
    "Clip",
    "Evaluation",
    "FeedForwardNet",
    "LocomotorNet",
    "ModuleExpectingFlatParameters",
    "MultiLayered",
    "NetParsingError",
    "ObsNormLayer",
    "Policy",
    "PopulationEvaluator",
    "PopulationSearch",
    "Round",
    "RunningNorm",
    "RunningStat",
    "Search",
    "Slice",
    "StructuredControlNet",
    "alive_bonus",
    "batched_forward",
    "count_parameters",
    "fill_parameters",
    "make_functional_module",
    "parameter_vector",
    "register_batched",
    "str_to_net",
]
