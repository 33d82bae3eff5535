"""Implements torch functions for specs: `torch.stack(specs)` is the spec of `torch.stack(values)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ..errors import SpaceError

F = TypeVar("F", bound=Callable[..., Any])

_METHODS = {
    torch.squeeze: "squeeze",
    torch.unsqueeze: "unsqueeze",
    torch.flatten: "flatten",
    torch.unflatten: "unflatten",
    torch.reshape: "reshape",
    torch.broadcast_to: "expand",
    torch.unbind: "unbind",
    torch.clone: "clone",
}
"""Functions of torch, with the methods of specs that implement them."""

_IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {}


def register_torch_function(function: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator that registers a function as the implementation of torch's `function` for specs."""

    def register(implementation: F) -> F:
        _IMPLEMENTATIONS[function] = implementation
        return implementation

    return register


def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the implementation of torch's `function` for specs."""
    if function in _IMPLEMENTATIONS:
        return _IMPLEMENTATIONS[function](*args, **kwargs)
    if function in _METHODS:
        spec, *other_args = args or (kwargs.pop("input"),)
        return getattr(spec, _METHODS[function])(*other_args, **kwargs)
    supported = ", ".join(sorted(f.__name__ for f in (*_IMPLEMENTATIONS, *_METHODS)))
    name = getattr(function, "__name__", function)
    raise SpaceError(f"{name} does not take specs. These functions of torch do: {supported}.")


@register_torch_function(torch.stack)
def stack_tensors(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Returns the spec of stacked values: an ordinary spec if all specs are equal, else a lazy stack."""
    from .stacked import stack_specs  # imported here, since `stacked` imports classes that import this module

    if out is not None:
        raise SpaceError("Specs cannot be stacked into an existing one. Omit `out`.")
    return stack_specs(tensors, dim)
