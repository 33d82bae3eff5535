"""A population of one network as batched kernels: how n members, each with its own parameters, answer in few calls.

`batched_forward(module, parameters)` turns a module and its parameters, each `[n, *shape]`, into a `BatchedForward`: a
callable
from `x` `[n, 1, features]` to `y` `[n, 1, features]`; with a hidden state, from `(x, h)` to `(y, h)`, states being
`[n, …]` as the module itself would have them under `vmap`. The module types of the table below have hand-written
steps; any other runs under `torch.func.vmap`, alone, so that one unusual layer does not slow its neighbours down.

Knows nothing of policies, flat vectors or episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vecrl.policy import layers, networks
from vecrl.policy.functional import call_with
from vecrl.policy.layers import apply_in_sequence, lstm_gates
from vecrl.policy.networks import sinusoids

BatchedForward = Callable[..., Any]
Parameters = Mapping[str, Tensor]
Builder = Callable[[Any, Parameters], "BatchedForward | None"]

BUILDERS: dict[type[nn.Module], Builder] = {}
"""Batched forms by the exact type of the module: a subclass may compute something else."""


BuilderT = TypeVar("BuilderT", bound=Builder)


def register_batched(*types: type[nn.Module]) -> Callable[[BuilderT], BuilderT]:
    """Let the decorated `make_forward(module, parameters)` make the `BatchedForward` of modules of exactly these types.

    A builder returns None for a module that it cannot do, which then runs under `vmap`.
    """

    def decorator(make_forward: BuilderT) -> BuilderT:
        BUILDERS.update(dict.fromkeys(types, make_forward))
        return make_forward

    return decorator


def batched_forward(module: nn.Module, parameters: Parameters) -> BatchedForward:
    """The fastest known `BatchedForward` of `module` for these parameters, `[n, *shape]` each, by name.

    >>> step = batched_forward(nn.Linear(3, 2), {"weight": torch.ones(5, 2, 3), "bias": torch.zeros(5, 2)})
    >>> step(torch.ones(5, 1, 3)).shape
    torch.Size([5, 1, 2])
    """
    make_forward = BUILDERS.get(type(module))
    has_hooks = module._forward_hooks or module._forward_pre_hooks
    step = None if make_forward is None or has_hooks else make_forward(module, parameters)
    return VmapForward(module, parameters) if step is None else step


class VmapForward:
    """Any module, one call for all members by `torch.func.vmap`."""

    def __init__(self, module: nn.Module, parameters: Parameters):
        buffers = dict(module.named_buffers())

        def call(parameters: Parameters, x: Tensor, h: Any = None) -> Any:
            return call_with(module, parameters, buffers, x, h)

        self.parameters = dict(parameters)
        self.call = torch.func.vmap(call, randomness="different")

    def __call__(self, x: Tensor, *h: Any) -> Any:
        result = self.call(self.parameters, x.squeeze(1), *h)
        if isinstance(result, tuple):
            y, state = result
            return y.unsqueeze(1), state
        return result.unsqueeze(1)


# ---------------------------------------------------------------------- linear maps


MAX_CACHED_ELEMENTS = 2**21
"""How many weights the cache is taken to hold."""


class RowMatmul:
    """`x W` with `W` `[n, in, out]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight = weight
        self.bias = None if bias is None else bias.unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(x, self.weight)
        return torch.baddbmm(self.bias, x, self.weight)


class ColumnMatmul:
    """`W x` with `W` `[n, out, in]`: faster than `RowMatmul` where the weights of a member fill the nearest caches."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight = weight
        self.bias = None if bias is None else bias.unsqueeze(2)

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(self.weight, x.mT).mT
        return torch.baddbmm(self.bias, self.weight, x.mT).mT


class NarrowInputSum:
    """Products with `W` `[n, in, out]` summed over a short input: for matrices below BLAS's interest."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight = weight
        self.bias = None if bias is None else bias.unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        y = (self.weight * x.mT).sum(1, keepdim=True)
        return y if self.bias is None else y + self.bias


class LongInputSum:
    """Products with `W` `[n, out, in]` summed over a long input: for few outputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        y = (self.weight * x).sum(2)
        return (y if self.bias is None else y + self.bias).unsqueeze(1)


def linear(weight: Tensor, bias: Tensor | None) -> BatchedForward:
    """`x W^T + b` for weights `[n, out, in]` and biases `[n, out]`, by the kernel that suits their sizes.

    On the CPU torch multiplies batches of matrices of fewer than 400 products by plain loops; there, sums of
    elementwise products win for long rows. Larger ones go to BLAS, which likes transposed weights as long as those of
    all members lie in the cache. Weights of many members are copied out of the flat vectors, whose stride would have
    each of them in a memory page of its own. The limits were measured on one core for 10 to 4,096 members.
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
    """Modules that do to `[n, 1, features]` what they do to `[features]`."""
    return module.forward


@register_batched(nn.Softmax, nn.LogSoftmax, nn.Softmin)
def _softmax(module: Any, parameters: Parameters) -> BatchedForward | None:
    return module.forward if module.dim == -1 else None


class BatchedLayerNorm:
    """Layer normalisation over the features, with scale and shift of each member's own."""

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
    """The affine maps that `RNN` and `LSTM` begin with."""

    def __init__(self, parameters: Parameters):
        self.input = linear(parameters["weight_ih"], parameters["bias_ih"] + parameters["bias_hh"])
        self.state = linear(parameters["weight_hh"], None)

    def affine(self, x: Tensor, h: Tensor | None) -> Tensor:
        y = self.input(x)
        return y if h is None else y + self.state(h.unsqueeze(1))


@register_batched(layers.RNN)
class BatchedRNN(BatchedRecurrent):
    """All members' `RNN`."""

    def __init__(self, module: layers.RNN, parameters: Parameters):
        super().__init__(parameters)
        self.activation = layers.find_activation(module.nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = self.activation(self.affine(x, h))
        return y, y.squeeze(1)


@register_batched(layers.LSTM)
class BatchedLSTM(BatchedRecurrent):
    """All members' `LSTM`."""

    def __init__(self, module: layers.LSTM, parameters: Parameters):
        super().__init__(parameters)

    def __call__(self, x: Tensor, h: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        gates = self.affine(x, None if h is None else h[0]).squeeze(1)
        y, state = lstm_gates(gates, None if h is None else h[1])
        return y.unsqueeze(1), state


@register_batched(networks.LocomotorNet)
class BatchedLocomotorNet:
    """All members' `LocomotorNet`."""

    def __init__(self, module: networks.LocomotorNet, parameters: Parameters):
        self.linear = batched_forward(module.linear, child_parameters(parameters, "linear"))
        self.amplitudes, self.frequencies = parameters["amplitudes"], parameters["frequencies"]
        self.phases = parameters["phases"]

    def __call__(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        t = x.new_zeros(len(x)) if h is None else h
        waves = sinusoids(self.amplitudes, self.frequencies, self.phases, t)
        return self.linear(x) + waves.unsqueeze(1), t + 1


# ---------------------------------------------------------------------- layers made of layers


def child_parameters(parameters: Parameters, child: str) -> dict[str, Tensor]:
    """The parameters of the submodule `child`, by their names in it."""
    prefix = child + "."
    return {name.removeprefix(prefix): p for name, p in parameters.items() if name.startswith(prefix)}


STATELESS = {nn.Linear, nn.LayerNorm, networks.FeedForwardNet, networks.StructuredControlNet, *ELEMENTWISE}
"""Types that never return a state, so that a chain of them need not look for any."""


class SequentialForward:
    """Steps one after another, none of which has a state."""

    def __init__(self, steps: list[BatchedForward]):
        self.steps = steps

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class StatefulSequentialForward:
    """Steps one after another, each with its own state out of a dict."""

    def __init__(self, steps: list[BatchedForward]):
        self.steps = steps

    def __call__(self, x: Tensor, h: dict[int, Any] | None = None) -> Any:
        return apply_in_sequence(self.steps, x, h)


class SumForward:
    """The sum of what two steps without a state make of the same input."""

    def __init__(self, linear_forward: BatchedForward, second: BatchedForward):
        self.first, self.second = linear_forward, second

    def __call__(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x)


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


@register_batched(networks.FeedForwardNet)
def _feed_forward(module: networks.FeedForwardNet, parameters: Parameters) -> BatchedForward:
    steps: list[BatchedForward] = []
    for i, (layer, activation) in enumerate(zip(module.linears, module.activations, strict=True)):
        vmapped = activation if module.is_elementwise[i] else torch.func.vmap(torch.func.vmap(activation))
        steps += [batched_forward(layer, child_parameters(parameters, f"linears.{i}")), vmapped]
    return SequentialForward(steps)


@register_batched(networks.StructuredControlNet)
def _structured(module: networks.StructuredControlNet, parameters: Parameters) -> BatchedForward:
    linear_forward = batched_forward(module.linear, child_parameters(parameters, "linear"))
    return SumForward(linear_forward, batched_forward(module.nonlinear, child_parameters(parameters, "nonlinear")))
