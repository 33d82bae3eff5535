"""Small layers for policies: bounds, selections, arithmetic, recurrent cells, and the chain that passes their states.

A layer with a hidden state takes `(x, h=None)` and returns `(y, h)`; None is the state at the start of an episode.
The last dimension of `x` is the features, all others are batch dimensions.
`batched_kernels` has the batched form of each layer and network.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .functional import Hidden, Output

Activation = Callable[[Tensor], Tensor]
OPERATORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}


def find_activation(nonlinearity: str | Activation | None) -> Activation:
    """Returns the function with a name such as "tanh" or "relu"; a callable is returned unchanged, None gives identity.

    >>> find_activation("relu")(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if nonlinearity is None:
        return _identity
    if not isinstance(nonlinearity, str):
        return nonlinearity
    for library in (torch, F):
        function: Any = getattr(library, nonlinearity, None)
        if _computes(function, nonlinearity):  # a name of a file must not call anything else, such as torch.load
            return function
    raise ValueError(f"Expected a nonlinearity of torch or torch.nn.functional, got {nonlinearity!r:.80}.")


def _computes(function: object, name: str) -> bool:
    """Returns whether this is a function of tensors, and of nothing else."""
    if isinstance(function, BuiltinFunctionType):
        return hasattr(Tensor, name) or hasattr(F, name)
    return isinstance(function, FunctionType) and function.__module__ == F.__name__ and not name.startswith("_")


def _identity(x: Tensor) -> Tensor:
    return x


class Clip(nn.Module):
    """Clips values to `[lb, ub]`.

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
    """Replaces every value by the nearer of `lb` and `ub`; the midpoint becomes `lb`.

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
    """Selects the features from `from_index` up to, but not including, `to_index`.

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
    """Rounds values to `ndigits` decimals, halves to even.

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
    """Computes `x operator argument`; the operator is one of "+", "-", "*", "/", "**".

    >>> Apply("*", 2.0)(torch.tensor([1.0, 3.0])).tolist()
    [2.0, 6.0]
    """

    def __init__(self, operator: str, argument: float):
        super().__init__()
        if operator not in OPERATORS:
            raise ValueError(f"Expected the operator to be one of {', '.join(map(repr, OPERATORS))}, got {operator!r}.")
        self.operator, self.argument = operator, float(argument)

    def forward(self, x: Tensor) -> Tensor:
        return OPERATORS[self.operator](x, self.argument)

    def extra_repr(self) -> str:
        return f"operator={self.operator!r}, argument={self.argument}"


class RecurrentCell(nn.Module):
    """The base class of `RNN` and `LSTM`: the weights of `gates` stacked affine maps of the input and of the state.

    Names, order and initial values are those of torch's `RNNCell` and `LSTMCell`, so that state dicts are compatible.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gates: int,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ):
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


class RNN(RecurrentCell):
    """A recurrent layer: `h' = nonlinearity(W x + b + U h + c)`, returned as `(h', h')`.

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


class LSTM(RecurrentCell):
    """A long short-term memory layer, which returns `(y, (y, c))`.

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
    """Returns output and next state from the stacked gates `[..., 4 * hidden]` (input, forget, candidate, output)."""
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, -1)
    gated_input = input_gate.sigmoid() * candidate.tanh()
    cell = gated_input if cell is None else forget_gate.sigmoid() * cell + gated_input
    y = output_gate.sigmoid() * cell.tanh()
    return y, (y, cell)


class MultiLayered(nn.Module):
    """Applies layers one after another, and passes each recurrent layer its hidden state.

    With at least one recurrent layer the result is `(y, h)`, with `h` a dict from layer index to state;
    otherwise it is only `y`. It has a length, and is iterable and indexable (a slice returns a `MultiLayered`).

    >>> net = MultiLayered(nn.Linear(3, 4), RNN(4, 5), nn.Linear(5, 2))
    >>> y, h = net(torch.zeros(3))
    >>> y.shape, {i: tuple(state.shape) for i, state in h.items()}, len(net), net[2].out_features
    (torch.Size([2]), {1: (5,)}, 3, 2)
    """

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, h: dict[int, Hidden] | None = None) -> Output:
        return apply_in_sequence(list(self.layers), x, h)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int | slice) -> nn.Module:
        if isinstance(index, slice):
            return MultiLayered(*list(self.layers)[index])
        return self.layers[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.layers)


def apply_in_sequence(layers: Sequence[Callable[..., Output]], x: Tensor, h: dict[int, Hidden] | None) -> Output:
    """Applies `layers` to `x`, each with its state from `h`; returns `y`, or `(y, states)` if any layer has a state."""
    states: dict[int, Hidden] = {}
    for i, layer in enumerate(layers):
        state = None if h is None else h.get(i)
        result = layer(x) if state is None else layer(x, state)
        if isinstance(result, tuple):
            x, states[i] = result
        else:
            x = result
    return (x, states) if states else x


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
