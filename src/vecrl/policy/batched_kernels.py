"""Batched kernels for a population: computes the outputs of n members, each with separate parameters, in few calls.

`batched_forward(module, parameters)` makes a `BatchedForward` from a module and its parameters, each `[n, *shape]`: a
callable from `x` `[n, 1, features]` to `y` `[n, 1, features]`. With a hidden state it maps `(x, h)` to `(y, h)`; states
are `[n, …]`, as under `vmap`. The module types in `BUILDERS` have hand-written kernels. Any other module runs under
`torch.func.vmap`, separately, so that one unknown layer does not make the other layers slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import layers
from .functional import Hidden, Output, call_with
from .layers import apply_in_sequence, lstm_gates, sinusoids

BatchedForward = Callable[..., Output]
Parameters = Mapping[str, Tensor]
Builder = Callable[[Any, Parameters], "BatchedForward | None"]

BUILDERS: dict[type[nn.Module], Builder] = {}
"""Builders by the exact type of the module, since a subclass may compute something else."""


BuilderT = TypeVar("BuilderT", bound=Builder)


def register_batched(*types: type[nn.Module]) -> Callable[[BuilderT], BuilderT]:
    """Registers the decorated `make_forward(module, parameters)` as the builder for modules of exactly these types.

    A builder returns None for a module that it does not support, which then runs under `vmap`.
    """

    def decorator(make_forward: BuilderT) -> BuilderT:
        BUILDERS.update(dict.fromkeys(types, make_forward))
        return make_forward

    return decorator


def batched_forward(module: nn.Module, parameters: Parameters) -> BatchedForward:
    """Makes the fastest known `BatchedForward` of `module` for these parameters by name, each `[n, *shape]`.

    >>> step = batched_forward(nn.Linear(3, 2), {"weight": torch.ones(5, 2, 3), "bias": torch.zeros(5, 2)})
    >>> step(torch.ones(5, 1, 3)).shape
    torch.Size([5, 1, 2])
    """
    make_forward = BUILDERS.get(type(module))
    has_hooks = module._forward_hooks or module._forward_pre_hooks
    step = None if make_forward is None or has_hooks else make_forward(module, parameters)
    return VmapForward(module, parameters) if step is None else step


class VmapForward:
    """The forward function of any module, with one `torch.func.vmap` call for all members."""

    def __init__(self, module: nn.Module, parameters: Parameters):
        buffers = dict(module.named_buffers())

        def call(parameters: Parameters, x: Tensor, h: Hidden = None) -> Output:
            return call_with(module, parameters, buffers, x, h)

        self.parameters = dict(parameters)
        self.call = torch.func.vmap(call, randomness="different")

    def __call__(self, x: Tensor, *h: Hidden) -> Output:
        result = self.call(self.parameters, x.squeeze(1), *h)
        if isinstance(result, tuple):
            y, state = result
            return y.unsqueeze(1), state
        return result.unsqueeze(1)


# ---------------------------------------------------------------------- linear maps


MAX_CACHED_ELEMENTS = 2**21
"""The assumed number of weights that fit into the cache."""


class RowMatmul:
    """Computes `x W` with `W` `[n, in, out]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight = weight
        self.bias = None if bias is None else bias.unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(x, self.weight)
        return torch.baddbmm(self.bias, x, self.weight)


class ColumnMatmul:
    """Computes `W x` with `W` `[n, out, in]`: faster than `RowMatmul` if a member's weights fill the nearest caches."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight = weight
        self.bias = None if bias is None else bias.unsqueeze(2)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(self.weight, x.mT).mT
        return torch.baddbmm(self.bias, self.weight, x.mT).mT


class NarrowInputSum:
    """Sums the products with `W` `[n, in, out]` over a short input; for matrices that are too small for BLAS."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight = weight
        self.bias = None if bias is None else bias.unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        y = (self.weight * x.mT).sum(1, keepdim=True)
        return y if self.bias is None else y + self.bias


class LongInputSum:
    """Sums the products with `W` `[n, out, in]` over a long input; for few outputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        y = (self.weight * x).sum(2)
        return (y if self.bias is None else y + self.bias).unsqueeze(1)


def linear(weight: Tensor, bias: Tensor | None) -> BatchedForward:
    """Makes the kernel for `x W^T + b` that suits the sizes of the weights `[n, out, in]` and biases `[n, out]`.

    On the CPU, torch multiplies batches of matrices with fewer than 400 products in plain loops; sums of elementwise
    products are faster there for long rows. Larger matrices go to BLAS, which is faster with transposed weights as long
    as the weights of all members fit into the cache. The weights of many members are copied from the flat vectors,
    because the stride of those puts the weights of each member on different memory pages. The limits were measured on
    one core for 10 to 4,096 members.
    """
    members, outputs, inputs = weight.shape
    num_products = outputs * inputs
    if weight.device.type != "cpu" or members < 32:
        return RowMatmul(weight.mT, bias)
    if num_products >= 128 * 128:
        return ColumnMatmul(weight, bias)
    bias = None if bias is None else bias.contiguous()
    if num_products < 400 and inputs <= 8 and outputs >= 16:
        return NarrowInputSum(weight.mT.contiguous(), bias)
    if num_products < 400 and inputs >= 64:
        return LongInputSum(weight.contiguous(), bias)
    if num_products >= 400 and outputs >= 16 and members * num_products <= MAX_CACHED_ELEMENTS:
        return RowMatmul(weight.mT.contiguous(), bias)
    return RowMatmul(weight.contiguous().mT, bias)


@register_batched(nn.Linear)
def _linear(module: nn.Linear, parameters: Parameters) -> BatchedForward:
    return linear(parameters["weight"], parameters.get("bias"))


# ---------------------------------------------------------------------- layers without parameters

ELEMENTWISE = [
    *(nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity),
    *(nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus),
    *(nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold),
    *(layers.Apply, layers.Bin, layers.Clip, layers.Round, layers.Slice),
]


@register_batched(*ELEMENTWISE)
def _elementwise(module: nn.Module, parameters: Parameters) -> BatchedForward:
    """Returns the forward function of modules that compute the same on `[n, 1, features]` as on `[features]`."""
    return module.forward


@register_batched(nn.Softmax, nn.LogSoftmax, nn.Softmin)
def _softmax(module: nn.Softmax | nn.LogSoftmax | nn.Softmin, parameters: Parameters) -> BatchedForward | None:
    return module.forward if module.dim == -1 else None


class BatchedLayerNorm:
    """Layer normalization over the features, with a scale and a shift per member."""

    def __init__(self, module: nn.LayerNorm, parameters: Parameters):
        self.shape, self.eps = module.normalized_shape, module.eps
        self.weight, self.bias = (
            parameters[name].unsqueeze(1) if name in parameters else None for name in ("weight", "bias")
        )

    def __call__(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, self.shape, eps=self.eps)
        if self.weight is not None:
            y = y * self.weight
        return y if self.bias is None else y + self.bias


@register_batched(nn.LayerNorm)
def _layer_norm(module: nn.LayerNorm, parameters: Parameters) -> BatchedForward | None:
    return BatchedLayerNorm(module, parameters) if len(module.normalized_shape) == 1 else None


# ---------------------------------------------------------------------- recurrent layers


class BatchedRecurrent:
    """The affine maps of input and state that `RNN` and `LSTM` share."""

    def __init__(self, parameters: Parameters):
        self.input = linear(parameters["weight_ih"], parameters["bias_ih"] + parameters["bias_hh"])
        self.state = linear(parameters["weight_hh"], None)

    def affine(self, x: Tensor, h: Tensor | None) -> Tensor:
        y = self.input(x)
        return y if h is None else y + self.state(h.unsqueeze(1))


@register_batched(layers.RNN)
class BatchedRNN(BatchedRecurrent):
    """The `RNN` of all members."""

    def __init__(self, module: layers.RNN, parameters: Parameters):
        super().__init__(parameters)
        self.activation = layers.find_activation(module.nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = self.activation(self.affine(x, h))
        return y, y.squeeze(1)


@register_batched(layers.LSTM)
class BatchedLSTM(BatchedRecurrent):
    """The `LSTM` of all members."""

    def __init__(self, module: layers.LSTM, parameters: Parameters):
        super().__init__(parameters)

    def __call__(self, x: Tensor, h: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        gates = self.affine(x, None if h is None else h[0]).squeeze(1)
        y, state = lstm_gates(gates, None if h is None else h[1])
        return y.unsqueeze(1), state


@register_batched(layers.LocomotorNet)
class BatchedLocomotorNet:
    """The `LocomotorNet` of all members."""

    def __init__(self, module: layers.LocomotorNet, parameters: Parameters):
        self.linear = batched_forward(module.linear, child_parameters(parameters, "linear"))
        self.amplitudes, self.frequencies = parameters["amplitudes"], parameters["frequencies"]
        self.phases = parameters["phases"]

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        t = x.new_zeros(len(x)) if h is None else h
        waves = sinusoids(self.amplitudes, self.frequencies, self.phases, t)
        return self.linear(x) + waves.unsqueeze(1), t + 1


# ---------------------------------------------------------------------- composed layers


def child_parameters(parameters: Parameters, child: str) -> dict[str, Tensor]:
    """Returns the parameters of the submodule `child`, by their names in it."""
    prefix = child + "."
    return {name.removeprefix(prefix): p for name, p in parameters.items() if name.startswith(prefix)}


STATELESS = {nn.Linear, nn.LayerNorm, layers.FeedForwardNet, layers.StructuredControlNet, *ELEMENTWISE}
"""Types that never return a state, so that a chain of them need not check for states."""


class SequentialForward:
    """A chain of forward functions without states."""

    def __init__(self, steps: list[BatchedForward]):
        self.steps = steps

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class StatefulSequentialForward:
    """A chain of forward functions, each with its state from a dict."""

    def __init__(self, steps: list[BatchedForward]):
        self.steps = steps

    def __call__(self, x: Tensor, h: dict[int, Hidden] | None = None) -> Output:
        return apply_in_sequence(self.steps, x, h)


class SumForward:
    """The sum of two forward functions without states."""

    def __init__(self, linear_forward: BatchedForward, nonlinear_forward: BatchedForward):
        self.linear_forward, self.nonlinear_forward = linear_forward, nonlinear_forward

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear_forward(x) + self.nonlinear_forward(x)


@register_batched(nn.Sequential)
def _sequential(module: nn.Sequential, parameters: Parameters) -> BatchedForward:
    return SequentialForward(
        [batched_forward(child, child_parameters(parameters, name)) for name, child in module._modules.items() if child]
    )


@register_batched(layers.MultiLayered)
def _multi_layered(module: layers.MultiLayered, parameters: Parameters) -> BatchedForward:
    steps = [batched_forward(layer, child_parameters(parameters, f"layers.{i}")) for i, layer in enumerate(module)]
    return (
        SequentialForward(steps)
        if all(type(layer) in STATELESS for layer in module)
        else StatefulSequentialForward(steps)
    )


@register_batched(layers.FeedForwardNet)
def _feed_forward(module: layers.FeedForwardNet, parameters: Parameters) -> BatchedForward:
    steps: list[BatchedForward] = []
    for i, (layer, activation) in enumerate(zip(module.linears, module.activations, strict=True)):
        vmapped = activation if module.is_elementwise[i] else torch.func.vmap(torch.func.vmap(activation))
        steps += [batched_forward(layer, child_parameters(parameters, f"linears.{i}")), vmapped]
    return SequentialForward(steps)


@register_batched(layers.StructuredControlNet)
def _structured(module: layers.StructuredControlNet, parameters: Parameters) -> BatchedForward:
    linear_forward = batched_forward(module.linear, child_parameters(parameters, "linear"))
    return SumForward(linear_forward, batched_forward(module.nonlinear, child_parameters(parameters, "nonlinear")))
