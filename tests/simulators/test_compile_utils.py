"""What is compiled for native tasks computes the same as torch, but for a faster hyperbolic tangent."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vecrl.simulators.compile_utils import compile_static, fast_tanh, replace_tanh

torch.set_num_threads(1)
X = torch.cat([torch.linspace(-12, 12, 200_001), torch.logspace(-30, 1, 20_001), -torch.logspace(-30, 1, 20_001)])


def test_fast_tanh_is_accurate_everywhere() -> None:
    exact = torch.tanh(X.double())
    assert ((fast_tanh(X) - exact).abs() <= 4e-7 * exact.abs()).all()
    special = torch.tensor([float("inf"), -float("inf"), 0.0, float("nan"), 1e30, -1e30])
    torch.testing.assert_close(fast_tanh(special), torch.tanh(special), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("tanh", [torch.tanh, nn.Tanh(), nn.functional.tanh, lambda x: x.tanh()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_form_of_tanh_is_replaced_for_float32_only(tanh: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    graphs: list[Any] = []

    def run_graph(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        replace_tanh(graph)
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    x = X.to(dtype)
    result = torch.compile(lambda x: 2 * tanh(x + 1) + tanh(x), backend=run_graph, fullgraph=True)(x)
    replacement = fast_tanh if dtype == torch.float32 else torch.tanh
    assert torch.equal(result, 2 * replacement(x + 1) + replacement(x))
    assert len(graphs) == 1
    assert ("tanh" in graphs[0].code) == (dtype == torch.float64)


def test_a_tanh_with_keywords_is_left_to_torch() -> None:
    def run_graph(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        replace_tanh(graph)
        assert "tanh" in graph.code
        return graph.forward

    torch.compiler.reset()
    assert torch.equal(torch.compile(lambda x: torch.tanh(input=x), backend=run_graph)(X), torch.tanh(X))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised by torch while it imports its compiler
def test_compiled_functions_use_it_for_float32() -> None:
    def outputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x), torch.tanh(y)

    single, double = compile_static(outputs)(X, X.double())
    torch.testing.assert_close(single, fast_tanh(X), rtol=1e-6, atol=0)
    assert not torch.equal(single, torch.tanh(X))
    torch.testing.assert_close(double, torch.tanh(X.double()), rtol=1e-14, atol=0)
