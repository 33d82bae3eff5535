"""Small layers for policies: bounds, selections, arithmetic, recurrent cells, and the chain that threads their states.

A layer with a hidden state takes `(x, h=None)` and returns `(y, h)`; None is the state at the start of an episode.
The last dimension of `x` holds the features, any others are batch dimensions. Knows nothing of parameter batches:
the batched form of each layer stands in `batched.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Activation = Callable[[Tensor], Tensor]
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}


def find_activation(nonlinearity: str | Activation | None) -> Activation:
    """The function that a name such as "tanh" or "relu" stands for; a callable comes back as itself, None as identity.

    >>> find_activation("relu")(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if nonlinearity is None:
        return _identity
    if not isinstance(nonlinearity, str):
        return nonlinearity
    function = getattr(torch, nonlinearity, None) or getattr(F, nonlinearity, None)
    if not callable(function):
        raise ValueError(f"no nonlinearity is called {nonlinearity!r}: use a name of torch or torch.nn.functional")
    return function  # pyright: ignore[reportReturnType]


def _identity(x: Tensor) -> Tensor:
    return x


class Clip(nn.Module):
    """Values below `lb` become `lb`, values above `ub` become `ub`.

    >>> Clip(-1.0, 1.0)(torch.tensor([-3.0, 0.5, 3.0])).tolist()
    [-1.0, 0.5, 1.0]
    """

    def __init__(self, lb: float, ub: float):
        super().__init__()
        self.lb, self.ub = float(lb), float(ub)

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(self.lb, self.ub)

    def extra_repr(self) -> str:
        return f"lb={self.lb}, ub={self.ub}"


class Bin(nn.Module):
    """Every value becomes the nearer of the two: with `lb = -ub`, its sign times `ub`. The midpoint becomes `lb`.

    >>> Bin(-1.0, 1.0)(torch.tensor([-0.2, 0.1, 3.0])).tolist()
    [-1.0, 1.0, 1.0]
    """

    def __init__(self, lb: float, ub: float):
        super().__init__()
        self.lb, self.ub = float(lb), float(ub)

    def forward(self, x: Tensor) -> Tensor:
        upper = (x > (self.lb + self.ub) / 2).to(x.dtype)
        return upper * self.ub + (1 - upper) * self.lb

    def extra_repr(self) -> str:
        return f"lb={self.lb}, ub={self.ub}"


class Slice(nn.Module):
    """The features `from_index` up to, but without, `to_index`.

    >>> Slice(1, 3)(torch.arange(5)).tolist()
    [1, 2]
    """

    def __init__(self, from_index: int, to_index: int):
        super().__init__()
        self.from_index, self.to_index = from_index, to_index

    def forward(self, x: Tensor) -> Tensor:
        return x[..., self.from_index : self.to_index]

    def extra_repr(self) -> str:
        return f"from_index={self.from_index}, to_index={self.to_index}"


class Round(nn.Module):
    """Values rounded to `ndigits` decimals, halves to even.

    >>> Round(1)(torch.tensor([0.26, -1.74])).tolist() == torch.tensor([0.3, -1.7]).tolist()
    True
    """

    def __init__(self, ndigits: int = 0):
        super().__init__()
        self.ndigits = int(ndigits)

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(x, decimals=self.ndigits)

    def extra_repr(self) -> str:
        return f"ndigits={self.ndigits}"


class Apply(nn.Module):
    """`x operator argument`, the operator being one of "+", "-", "*", "/", "**".

    >>> Apply("*", 2.0)(torch.tensor([1.0, 3.0])).tolist()
    [2.0, 6.0]
    """

    def __init__(self, operator: str, argument: float):
        super().__init__()
        if operator not in OPERATORS:
            raise ValueError(f"the operator should be one of {', '.join(map(repr, OPERATORS))}, not {operator!r}")
        self.operator, self.argument = operator, float(argument)

    def forward(self, x: Tensor) -> Tensor:
        return OPERATORS[self.operator](x, self.argument)

    def extra_repr(self) -> str:
        return f"operator={self.operator!r}, argument={self.argument}"


class _RecurrentCell(nn.Module):
    """What `RNN` and `LSTM` share: the weights of `gates` stacked affine maps of the input and of the state.

    Names, order and initial values are those of torch's `RNNCell` and `LSTMCell`, so that states carry over.
    """

    def __init__(self, input_size: int, hidden_size: int, gates: int, dtype: torch.dtype | None, device: Any):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        rows = gates * hidden_size

        def parameter(*shape: int) -> nn.Parameter:
            bound = hidden_size**-0.5 if hidden_size else 0.0
            return nn.Parameter(torch.empty(*shape, dtype=dtype, device=device).uniform_(-bound, bound))

        self.weight_ih = parameter(rows, input_size)
        self.weight_hh = parameter(rows, hidden_size)
        self.bias_ih = parameter(rows)
        self.bias_hh = parameter(rows)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class RNN(_RecurrentCell):
    """One recurrent layer: `h' = nonlinearity(W x + b + U h + c)`, returned as `(h', h')`.

    `x` is `[..., input_size]`, `h` is `[..., hidden_size]` or None for zeros.

    >>> y, h = RNN(3, 5)(torch.zeros(3))
    >>> y.shape, h is y
    (torch.Size([5]), True)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: str = "tanh",
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__(input_size, hidden_size, 1, dtype, device)
        self.nonlinearity = nonlinearity
        self._activation = find_activation(nonlinearity)

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = F.linear(x, self.weight_ih, self.bias_ih) + self.bias_hh
        if h is not None:
            total = total + F.linear(h, self.weight_hh)
        y = self._activation(total)
        return y, y

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, nonlinearity={self.nonlinearity!r}"


class LSTM(_RecurrentCell):
    """One long short-term memory layer, returned as `(y, (y, c))`.

    `x` is `[..., input_size]`; the state is None for zeros, or two tensors `[..., hidden_size]`: output and cell.

    >>> y, (h, c) = LSTM(3, 5)(torch.zeros(3))
    >>> y.shape, h is y, c.shape
    (torch.Size([5]), True, torch.Size([5]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__(input_size, hidden_size, 4, dtype, device)

    def forward(self, x: Tensor, h: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        gates = F.linear(x, self.weight_ih, self.bias_ih) + self.bias_hh
        if h is not None:
            gates = gates + F.linear(h[0], self.weight_hh)
        return lstm_gates(gates, None if h is None else h[1])


def lstm_gates(gates: Tensor, cell: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Output and next state from the stacked gates `[..., 4 * hidden]` (input, forget, candidate, output)."""
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, -1)
    gated_input = input_gate.sigmoid() * candidate.tanh()
    cell = gated_input if cell is None else forget_gate.sigmoid() * cell + gated_input
    y = output_gate.sigmoid() * cell.tanh()
    return y, (y, cell)


class MultiLayered(nn.Module):
    """Layers one after another, the hidden states of the recurrent ones threaded through.

    With at least one recurrent layer the result is `(y, h)`, `h` being a dict of states by the index of the layer;
    otherwise it is `y` alone. Has a length, is indexable (a slice gives a `MultiLayered`) and iterable.

    >>> net = MultiLayered(nn.Linear(3, 4), RNN(4, 5), nn.Linear(5, 2))
    >>> y, h = net(torch.zeros(3))
    >>> y.shape, {i: tuple(state.shape) for i, state in h.items()}, len(net), net[2].out_features
    (torch.Size([2]), {1: (5,)}, 3, 2)
    """

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, h: dict[int, Any] | None = None) -> Any:
        return apply_in_sequence(list(self.layers), x, h)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int | slice) -> nn.Module:
        if isinstance(index, slice):
            return MultiLayered(*list(self.layers)[index])
        return self.layers[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.layers)


def apply_in_sequence(layers: list[Any], x: Tensor, h: dict[int, Any] | None) -> Any:
    """Pass `x` through `layers`, each with its own state out of `h`; `y`, or `(y, states)` if any layer has one."""
    states: dict[int, Any] = {}
    for i, layer in enumerate(layers):
        state = None if h is None else h.get(i)
        result = layer(x) if state is None else layer(x, state)
        if isinstance(result, tuple):
            x, states[i] = result
        else:
            x = result
    return (x, states) if states else x
