"""Compiles functions of inputs with constant shapes, dtypes and devices.

`torch.compile` checks the inputs on every call, which takes longer than the step of a small batch (about 20 µs of 30).
A simulator's batch never changes and its actions are checked before, so this module passes the graph to TorchInductor
directly. It knows no simulators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx


def compile_static(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Compiles `function` on the first call, for the shapes, dtypes and devices of that call.

    Args:
        function: a pure function of tensors that returns a tuple of tensors and never reads their values in Python.

    Returns:
        A function of the same arguments, without gradients. Later calls need tensors of the same shapes, dtypes and
        devices.
    """
    compiled: list[Any] = []
    bool_results: list[int] = []  # indices of the bool results

    def trace(*args: Tensor) -> tuple[Tensor, ...]:
        results = function(*args)
        bool_results.extend(i for i, value in enumerate(results) if value.dtype == torch.bool)
        return tuple(as_bytes(value) for value in results)

    @torch.no_grad()
    def call(*args: Tensor) -> tuple[Tensor, ...]:
        if not compiled:
            compiled.append(torch._inductor.compile(make_fx(trace, tracing_mode="fake")(*args), list(args)))
        results = list(compiled[0](*args))
        for i in bool_results:
            results[i] = results[i].view(torch.bool)
        return tuple(results)

    return call


def as_bytes(value: Tensor) -> Tensor:
    """Converts bools to uint8 0 or 1, for a `view` as bools outside the compiled code; returns other tensors unchanged.

    TorchInductor's CPU code stores bools one by one, which took most of a step's time. It stores bytes in vectors.
    """
    return torch.where(value, 1, 0).to(torch.uint8) if value.dtype == torch.bool else value
