"""Compiled functions whose inputs never change in shape, dtype or device.

`torch.compile` checks on every call that they did not, which costs more than a small batch's whole step (some 20 µs of
30). A simulator's batch is fixed for life and its actions are checked anyway, so the graph is handed to TorchInductor
directly. Nothing here knows of simulators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx


def compile_static(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """`function` as compiled code, made on the first call for the shapes, dtypes and devices of that call.

    Args:
        function: takes tensors and returns a tuple of tensors; pure, and never looks at a tensor's values.

    Returns:
        A function of the same arguments. Every later call must bring tensors like the first one's; no gradients.
    """
    compiled: list[Any] = []
    bool_results: list[int] = []  # which results are bool

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
    """Bools as uint8 0 or 1, to `view` as bools again outside the compiled code; anything else as it is.

    TorchInductor's CPU code stores bools one by one, which took most of a step's time; bytes it stores in vectors.
    """
    return torch.where(value, 1, 0).to(torch.uint8) if value.dtype == torch.bool else value
