"""Finds the spec of a function's output by calling it with zeros, a second time if the specs have dynamic sizes (-1).

This module knows specs and tensors. It must not know transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...errors import SpaceError
from ...specs import Composite, TensorSpec, Unbounded

_PROBE_SIZE = 7  # differs from 1, and few functions give the same output size for both


def probe_output(function: Callable[..., Any], *specs: TensorSpec) -> tuple[Any, tuple[int, ...]]:
    """Returns the output of a function for zeros, and its shape.

    The shape is -1 in dimensions that depend on dynamic sizes of the specs, and `()` if the output is no tensor.

    Args:
        function: takes a value of each of the specs, and returns a tensor.
        specs: the specs of its inputs; -1 marks a dynamic size. All dynamic sizes are changed together.

    Raises:
        SpaceError: the number of dimensions depends on a dynamic size.

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
    """Returns a spec without bounds for the output of a function of values of `spec`; `spec` if it is no tensor.

    Raises:
        SpaceError: the function returns None.
    """
    output, shape = probe_output(function, spec)
    if output is None:
        raise SpaceError(
            f"Expected {getattr(function, '__qualname__', function)} to return a value, got None. Return it."
        )
    return Unbounded(shape, dtype=output.dtype, device=spec.device) if isinstance(output, Tensor) else spec


def resize_dynamic(spec: TensorSpec, zeros: Any) -> Any:
    """Returns zeros of `spec` with another value of each dynamic size. Zeros of a `Composite` are changed in place."""
    if isinstance(spec, Composite):
        for key, spec_part in spec.items(include_nested=True, leaves_only=True):
            if spec_part is not None and -1 in spec_part.shape:
                zeros.set(key, resize_dynamic(spec_part, zeros.get(key)))
    elif isinstance(zeros, Tensor):
        return zeros.expand([_PROBE_SIZE if size == -1 else size for size in spec.shape]).clone()
    return zeros


def common_shape(small: Sequence[int], large: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape common to both, with -1 in dimensions that differ.

    Raises:
        SpaceError: the numbers of dimensions differ.
    """
    if len(small) != len(large):
        raise SpaceError(
            f"Expected the output of a transform to have the same number of dimensions for all input sizes, got the "
            f"shapes {tuple(small)} and {tuple(large)} for two sizes. Override its transform_observation_spec."
        )
    return tuple(a if a == b else -1 for a, b in zip(small, large, strict=True))
