"""Converts modules to functions of one flat parameter vector, which searches over parameters need.

A network of L parameters becomes `f(vector, x)`; the vector has all parameters in the order of `module.parameters()`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..validation import normalize_device

Hidden = Any
"""The hidden state of a module: a tensor, or tensors in tuples and dicts; None before the first call."""
Output = Any
"""The output of a module, or a pair of it and the new hidden state."""


class ParameterSlice(NamedTuple):
    """The position of one parameter in the flat vector; a tied parameter has one entry per name."""

    name: str
    shape: torch.Size
    start: int
    stop: int


class ParameterLayout:
    """The layout of the parameters of `net` in a flat vector: in the order of `net.parameters()`, tied ones once.

    >>> layout = ParameterLayout(nn.Linear(3, 2))
    >>> layout.length, {name: tuple(p.shape) for name, p in layout.split(torch.zeros(5, 8)).items()}
    (8, {'weight': (5, 2, 3), 'bias': (5, 2)})
    """

    def __init__(self, net: nn.Module):
        starts: dict[int, int] = {}
        self.length = 0
        for parameter in net.parameters():
            starts[id(parameter)] = self.length
            self.length += parameter.numel()
        self.entries = tuple(
            ParameterSlice(name, p.shape, starts[id(p)], starts[id(p)] + p.numel())
            for name, p in net.named_parameters(remove_duplicate=False)
        )

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns views of `flat` `[..., length]` by parameter name, each `[..., *shape]`; differentiable."""
        batch_shape = flat.shape[:-1]
        return {
            entry.name: flat[..., entry.start : entry.stop].view(*batch_shape, *entry.shape) for entry in self.entries
        }


def count_parameters(net: nn.Module) -> int:
    """Returns the number of scalars in the parameters of `net`; tied ones count once.

    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in net.parameters())


def parameter_vector(net: nn.Module, *, device: torch.device | str | None = None) -> Tensor:
    """Returns all parameters of `net` as one new vector `[L]`, on `device` (default: that of the parameters).

    The vector is part of the autograd graph: gradients flow back to the parameters.

    >>> parameter_vector(nn.Linear(3, 2)).shape
    torch.Size([8])
    """
    parts = [p.reshape(-1) if device is None else p.reshape(-1).to(device) for p in net.parameters()]
    return torch.cat(parts) if parts else torch.empty(0, device=device)


@torch.no_grad()
def fill_parameters(net: nn.Module, vector: Tensor) -> None:
    """Copies the flat `vector` `[L]`, of any device and dtype, into the parameters of `net`, in place.

    Raises:
        ValueError: `vector` does not have the shape `[L]`; the parameters are not changed then.
    """
    layout = ParameterLayout(net)
    if vector.shape != (layout.length,):
        raise ValueError(f"Expected a parameter vector of shape ({layout.length},), got {tuple(vector.shape)}.")
    values = layout.split(vector)
    for name, parameter in net.named_parameters():
        parameter.copy_(values[name])


class ModuleExpectingFlatParameters:
    """A module as a pure function `f(flat_parameters, x, h=None)`.

    It has a copy of the module, so that later changes of the module have no effect; the copy's parameter values are
    never used. It is differentiable with respect to `flat_parameters` and `x`, and works under `torch.func`'s `vmap`,
    `grad`, `jvp`, ….

    Args:
        net: the module. One with a hidden state takes `(x, h)` and returns `(y, h)`.
        disable_autograd_tracking: whether to detach the buffers from autograd, for code that only uses `torch.func`.

    Attributes:
        parameter_length: L, the length of the expected vector.

    >>> f = make_functional_module(nn.Linear(3, 2))
    >>> torch.func.vmap(f)(torch.zeros(5, f.parameter_length), torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, net: nn.Module, *, disable_autograd_tracking: bool = False):
        self._net = copy.deepcopy(net).requires_grad_(False)
        self._layout = ParameterLayout(self._net)
        self._disable_autograd = disable_autograd_tracking
        self._buffers: dict[str, Tensor] = dict(self._net.named_buffers())
        if disable_autograd_tracking:
            self._buffers = {name: buffer.detach() for name, buffer in self._buffers.items()}

    @property
    def parameter_length(self) -> int:
        """The length L of the expected vector."""
        return self._layout.length

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """The buffers of the module, in its order."""
        return tuple(self._buffers.values())

    def to(self, device: torch.device | str) -> ModuleExpectingFlatParameters:
        """Returns this function with its buffers on `device`, or this object if they are there already."""
        if all(buffer.device == torch.device(normalize_device(device)) for buffer in self._buffers.values()):
            return self
        return ModuleExpectingFlatParameters(
            copy.deepcopy(self._net).to(device), disable_autograd_tracking=self._disable_autograd
        )

    def __call__(self, flat_parameters: Tensor, x: Tensor, h: Hidden = None) -> Output:
        """Returns the module's result for `x` (and the hidden state `h`) with the parameters `[L]`.

        Raises:
            ValueError: `flat_parameters` does not have the shape `[L]`.
        """
        if flat_parameters.shape != (self.parameter_length,):
            actual = tuple(flat_parameters.shape)
            raise ValueError(f"Expected flat parameters of shape ({self.parameter_length},), got {actual}.")
        return call_with(self._net, self._layout.split(flat_parameters), self._buffers, x, h)


def make_functional_module(net: nn.Module, *, disable_autograd_tracking: bool = False) -> ModuleExpectingFlatParameters:
    """Converts `net` to a function of a flat parameter vector; see `ModuleExpectingFlatParameters`."""
    return ModuleExpectingFlatParameters(net, disable_autograd_tracking=disable_autograd_tracking)


def call_with(
    net: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor, h: Hidden = None
) -> Output:
    """Calls `net` on `x` (and the hidden state `h`, unless None) with these tensors instead of those of `net`."""
    inputs = (x,) if h is None else (x, h)
    return torch.func.functional_call(net, ({**parameters}, {**buffers}), inputs, tie_weights=False)
