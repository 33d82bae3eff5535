"""Complete networks for control from publications, with the parameters in the usual order.

This module must not know parameter batches: `batched_kernels` has the batched form of each network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .layers import Activation, find_activation


class FeedForwardNet(nn.Module):
    """Linear layers with nonlinearities.

    Args:
        input_size: the number of features of the observation.
        layers: `(size, nonlinearity)` or `(size, nonlinearity, bias)` per layer; the nonlinearity is a name in torch or
            `torch.nn.functional`, a callable, or None.

    >>> FeedForwardNet(4, [(16, "tanh"), (2, None, False)])(torch.zeros(4)).shape
    torch.Size([2])
    """

    def __init__(self, input_size: int, layers: Sequence[tuple[Any, ...] | list[Any]]):
        super().__init__()
        self.linears = nn.ModuleList()
        self.activations: list[Activation] = []
        self.is_elementwise: list[bool] = []  # whether the nonlinearity is torch's, thus elementwise
        for layer in layers:
            if len(layer) not in (2, 3):
                raise ValueError(f"Expected a layer (size, nonlinearity) or (size, nonlinearity, bias), got {layer!r}.")
            size, nonlinearity, bias = layer if len(layer) == 3 else (*layer, True)
            self.linears.append(nn.Linear(input_size, size, bias=bool(bias)))
            self.activations.append(find_activation(nonlinearity))
            self.is_elementwise.append(not callable(nonlinearity))
            input_size = size

    def forward(self, x: Tensor) -> Tensor:
        for linear, activation in zip(self.linears, self.activations, strict=True):
            x = activation(linear(x))
        return x


class StructuredControlNet(nn.Module):
    """The sum of a linear map and a small nonlinear network of the observation (Srouji, Zhang, Salakhutdinov 2018).

    Args:
        in_features: the number of features of the observation.
        out_features: the number of features of the action.
        num_layers: the number of hidden layers of the nonlinear network.
        hidden_size: the size of each hidden layer.
        bias: whether the linear map has a bias; the nonlinear network always has biases.
        nonlinearity: see `FeedForwardNet`.

    >>> net = StructuredControlNet(in_features=3, out_features=2, num_layers=2, hidden_size=5)
    >>> net(torch.zeros(3)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_layers: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str | Activation = "tanh",
    ):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        hidden = [(hidden_size, nonlinearity)] * num_layers
        self.nonlinear = FeedForwardNet(in_features, [*hidden, (out_features, None)])

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.nonlinear(x)


class LocomotorNet(nn.Module):
    """The sum of a linear map of the observation and trainable sinusoids of time, for gaits (Srouji and others 2018).

    Time is the hidden state: the number of steps since the start of the episode, for each row of a batch.
    `forward(x, h=None)` returns `(y, h)`, with `h` `[...]` of the dtype of `x`, 1 after the first step.

    Args:
        in_features: the number of features of the observation.
        out_features: the number of features of the action.
        bias: whether the linear map has a bias.
        num_sinusoids: the number of sinusoids per feature of the action.

    >>> y, time = LocomotorNet(in_features=3, out_features=2)(torch.zeros(3))
    >>> y.shape, time.item()
    (torch.Size([2]), 1.0)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, num_sinusoids: int = 16):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.amplitudes = nn.Parameter(torch.randn(num_sinusoids, out_features))
        self.frequencies = nn.Parameter(torch.randn(num_sinusoids, out_features))
        self.phases = nn.Parameter(torch.randn(num_sinusoids, out_features))

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        time = x.new_zeros(x.shape[:-1]) if h is None else h
        return self.linear(x) + sinusoids(self.amplitudes, self.frequencies, self.phases, time), time + 1


def sinusoids(amplitudes: Tensor, frequencies: Tensor, phases: Tensor, time: Tensor) -> Tensor:
    """Returns `sum_k a_k sin(f_k time + p_k)` `[..., features]`; coefficients `[..., k, features]`, `time` `[...]`."""
    return (amplitudes * torch.sin(frequencies * time[..., None, None] + phases)).sum(-2)
