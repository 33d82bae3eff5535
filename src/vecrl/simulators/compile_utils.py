"""Compiles functions of inputs with constant shapes, dtypes and devices.

`torch.compile` checks the inputs on every call, which takes longer than the step of a small batch (about 20 µs of 30).
A simulator's batch never changes and its actions are checked before, so this module passes the graph to TorchInductor
directly.

In both ways of compiling here, `fast_tanh` replaces the hyperbolic tangent before TorchInductor gets the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node, Proxy

_TANH_LIMIT = 7.90531110763549805  # from here on, the nearest float32 is 1
_TANH_NUMERATOR = (  # of the odd powers, from x**13 to x
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_DENOMINATOR = 1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03


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
            from torch.fx.experimental.proxy_tensor import make_fx  # takes a second to import

            graph = make_fx(trace, decomposition_table={torch.ops.aten.tanh.default: _tanh}, tracing_mode="fake")(*args)
            compiled.append(torch._inductor.compile(graph, list(args)))
        results = list(compiled[0](*args))
        for i in bool_results:
            results[i] = results[i].view(torch.bool)
        return tuple(results)

    return call


def fast_tanh(x: Any) -> Any:
    """Computes the hyperbolic tangent of a float32 tensor, with relative errors of up to 4e-7 (more below 1e-35).

    It is the rational function that Eigen and XLA use. On a CPU, TorchInductor computes it in two fifths of the time
    that it takes for `torch.tanh`, which was half of the time of a rollout.
    """
    x = x.clamp(-_TANH_LIMIT, _TANH_LIMIT)
    square = x * x
    numerator, denominator = _polynomial(square, _TANH_NUMERATOR), _polynomial(square, _TANH_DENOMINATOR)
    return x * numerator / denominator


def _polynomial(x: Any, factors: Sequence[float]) -> Any:
    value = x * factors[0] + factors[1]
    for factor in factors[2:]:
        value = value * x + factor
    return value


def _tanh(x: Tensor) -> Tensor:
    return fast_tanh(x) if x.dtype == torch.float32 else NotImplemented


def compile_graph(graph: GraphModule, inputs: Sequence[Any], *, cpp_wrapper: bool) -> Callable[..., Any]:
    """Compiles a graph of torch.compile with TorchInductor, in which `fast_tanh` replaces `torch.tanh`."""
    replace_tanh(graph)
    compiled: Any = torch._inductor.compile(graph, list(inputs), options={"cpp_wrapper": cpp_wrapper})
    return compiled


def replace_tanh(graph: GraphModule) -> None:
    """Replaces `torch.tanh` of float32 tensors by the operations of `fast_tanh`.

    A decomposition would not be part of the key of the compiler's cache, so that another program could get this code
    for its own `torch.tanh`. A changed graph has a key of its own.
    """
    for node in [node for node in graph.graph.nodes if _is_tanh(node)]:
        with graph.graph.inserting_before(node):
            result = fast_tanh(Proxy(node.args[0]))
        node.replace_all_uses_with(result.node)
        graph.graph.erase_node(node)
    graph.recompile()


def _is_tanh(node: Node) -> bool:
    targets = ("tanh",) if node.op == "call_method" else (torch.tanh, torch.nn.functional.tanh)
    if node.target not in targets or node.kwargs or len(node.args) != 1:
        return False
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and value.dtype == torch.float32


def as_bytes(value: Tensor) -> Tensor:
    """Converts bools to uint8 0 or 1, for a `view` as bools outside the compiled code; returns other tensors unchanged.

    TorchInductor's CPU code stores bools one by one, which took most of a step's time. It stores bytes in vectors.
    """
    return torch.where(value, 1, 0).to(torch.uint8) if value.dtype == torch.bool else value
