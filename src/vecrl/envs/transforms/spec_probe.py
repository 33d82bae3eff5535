"""The specs of what functions make of values, found by trying them: once, and with other sizes where sizes are open.

Knows specs and tensors, not transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...errors import SpaceError
from ...specs import Composite, TensorSpec, Unbounded

_PROBE_SIZE = 7  # a size beside 1 that few functions treat alike


def probe_output(function: Callable[..., Any], *specs: TensorSpec) -> tuple[Any, tuple[int, ...]]:
    """What a function makes of zeros, and its shape: -1 where that follows from sizes of the specs that are not fixed,
    `()` where it is no tensor.

    Args:
        function: takes a value of each of the specs, and returns a tensor.
        specs: with -1 for such sizes, which are tried together.

    Raises:
        SpaceError: how many dimensions there are depends on such a size.

    >>> import torch
    >>> probe_output(lambda x: x.flatten(), Unbounded((-1, 2)))[1]
    (-1,)
    """
    output = function(*[spec.zero() for spec in specs])
    if not isinstance(output, Tensor):
        return output, ()
    if not any(-1 in spec.shape for spec in specs):
        return output, tuple(output.shape)
    return output, common_shape(output.shape, function(*[resize_dynamic(spec, spec.zero()) for spec in specs]).shape)


def infer_spec(spec: TensorSpec, function: Callable[[Any], Any]) -> TensorSpec:
    """A spec without bounds for what a function makes of values of `spec`; the same one where that is no tensor."""
    output, shape = probe_output(function, spec)
    return Unbounded(shape, dtype=output.dtype, device=spec.device) if isinstance(output, Tensor) else spec


def resize_dynamic(spec: TensorSpec, zeros: Any) -> Any:
    """Zeros of `spec` with another size wherever that is not fixed; those of a `Composite` in place."""
    if isinstance(spec, Composite):
        for key, spec_part in spec.items(include_nested=True, leaves_only=True):
            if spec_part is not None and -1 in spec_part.shape:
                zeros.set(key, resize_dynamic(spec_part, zeros.get(key)))
    elif isinstance(zeros, Tensor):
        return zeros.expand([_PROBE_SIZE if size == -1 else size for size in spec.shape]).clone()
    return zeros


def common_shape(small: Sequence[int], large: Sequence[int]) -> tuple[int, ...]:
    """The shape that is both: -1 where they differ."""
    if len(small) != len(large):
        raise SpaceError(
            f"Expected a transform to give as many dimensions whatever the sizes, but of two sizes it made "
            f"{tuple(small)} and {tuple(large)}: give it a transform_observation_spec that says what comes of it."
        )
    return tuple(a if a == b else -1 for a, b in zip(small, large, strict=True))
