"""What torch's functions do with specs: `torch.stack(specs)` is the spec of `torch.stack(values)`."""

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
"""Functions that do what the method of the spec does."""

_IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {}


def register_torch_function(function: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator: what `function` does with specs is the decorated function."""

    def register(implementation: F) -> F:
        _IMPLEMENTATIONS[function] = implementation
        return implementation

    return register


def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `function` makes of specs."""
    if function in _IMPLEMENTATIONS:
        return _IMPLEMENTATIONS[function](*args, **kwargs)
    if function in _METHODS:
        spec, *other_args = args or (kwargs.pop("input"),)
        return getattr(spec, _METHODS[function])(*other_args, **kwargs)
    supported = ", ".join(sorted(f.__name__ for f in (*_IMPLEMENTATIONS, *_METHODS)))
    name = getattr(function, "__name__", function)
    raise SpaceError(f"{name} does not take specs. Those of torch that do: {supported}.")


@register_torch_function(torch.stack)
def stack_tensors(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """The spec of values that are stacked: an ordinary one if all are equal, else a lazy stack."""
    from .stacked import stack_specs  # which needs the classes that need this module

    if out is not None:
        raise SpaceError("Specs are not stacked into an existing one: leave `out` away.")
    return stack_specs(tensors, dim)
