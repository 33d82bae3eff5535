"""Actions with another dtype than that of their spec: whole numbers are cast to integers and flags.

Policies return floats, also for environments that count with integers. This module must not know environments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase

from ..specs import Composite
from ..specs.dtypes import cast_exactly, is_integral
from .keys import Key

Dtypes = Sequence[tuple[Key, torch.dtype]]


def integral_entries(specs: Composite) -> Dtypes:
    """Returns the key and dtype of each entry of integers or flags."""
    dtypes = [(key, None if spec is None else spec.dtype) for key, spec in specs.items(True, True)]
    return [(key, dtype) for key, dtype in dtypes if dtype is not None and is_integral(dtype)]


def with_exact_dtypes(data: TensorDictBase, dtypes: Dtypes) -> TensorDictBase:
    """Returns `data` with these dtypes; `data` itself, which is not changed, if it has them already.

    Raises:
        SpaceError: values are no whole numbers, or the dtype cannot hold them.
    """
    result = data
    for key, dtype in dtypes:
        value = data.get(key, None)
        if isinstance(value, torch.Tensor) and value.dtype != dtype:
            result = data.copy() if result is data else result
            result.set(key, cast_exactly(value, dtype, key))
    return result
