"""Tensor specs: what the values of TensorDict environments look like, under TorchRL's names.

A spec declares shape, dtype, device and domain of a tensor (or another value). It samples values, checks them, projects
them, and converts them from NumPy and back. `Composite` holds specs under keys, as a TensorDict holds values.
"""

from ..imports import require_extra

require_extra("tensordict", __name__)

from .base import TensorSpec
from .choices import Binary, BoxList, Categorical, CategoricalBox, MultiCategorical, MultiOneHot, OneHot
from .composite import Composite
from .non_tensor import Choice, NonTensor
from .numeric import (
    Bounded,
    BoundedContinuous,
    ContinuousBox,
    Unbounded,
    UnboundedContinuous,
    UnboundedDiscrete,
)
from .stacked import Stacked, StackedComposite, consolidate_spec

__all__ = [
    "Binary",
    "Bounded",
    "BoundedContinuous",
    "BoxList",
    "Categorical",
    "CategoricalBox",
    "Choice",
    "Composite",
    "ContinuousBox",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "Stacked",
    "StackedComposite",
    "TensorSpec",
    "Unbounded",
    "UnboundedContinuous",
    "UnboundedDiscrete",
    "consolidate_spec",
]
