"""Specs of vecrl as specs of TorchRL, and back. Both libraries use the same names and arguments for them.

This module imports TorchRL, so it is imported only by programs that have imported it. It must not know environments.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torchrl.data as torchrl_specs

from ... import specs as vecrl_specs
from ...specs.shape_ops import concrete

__all__ = ["from_torchrl", "restore_specs", "to_torchrl"]


def to_torchrl(spec: Any) -> Any:
    """Returns a spec of vecrl as a new one of TorchRL; one of TorchRL is returned unchanged.

    Values with a least number other than 0 (`Categorical(3, min=1)`) become a `Bounded` of integers.

    Args:
        spec: a spec of any shape, dtype and device, or None.

    Raises:
        TypeError: there is no such spec in TorchRL.
    """
    return _convert(spec, torchrl_specs)


def from_torchrl(spec: Any) -> Any:
    """Returns a spec of TorchRL as a new one of vecrl; one of vecrl is returned unchanged.

    Args:
        spec: a spec of any shape, dtype and device, or None.

    Raises:
        TypeError: there is no such spec in vecrl.
    """
    return _convert(spec, vecrl_specs)


def restore_specs(spec: Any, original: Any) -> Any:
    """Returns a Composite of TorchRL as one of vecrl, with the leaves of `original` that have not changed.

    Args:
        spec: a Composite of TorchRL that was made from `to_torchrl(original)`.
        original: the Composite of vecrl.
    """
    restored = from_torchrl(spec)
    previous = to_torchrl(original)
    for key in list(restored.keys(include_nested=True, leaves_only=True)):
        leaf = None if original.get(key, None) is None else previous[key]
        if leaf is not None and leaf == spec[key]:
            restored[key] = original[key]
    return restored


def _convert(spec: Any, module: ModuleType) -> Any:
    if spec is None or module.TensorSpec in type(spec).__mro__:  # virtual subclasses are none of the module
        return spec
    for cls in type(spec).__mro__:
        if cls.__name__ in _MAKERS:
            return _MAKERS[cls.__name__](spec, module)
    raise TypeError(
        f"Expected a spec that both vecrl and TorchRL have, got {type(spec).__name__}. Use one of {sorted(_MAKERS)}."
    )


def _composite(spec: Any, module: ModuleType) -> Any:
    leaves = {name: _convert(leaf, module) for name, leaf in spec.items()}
    return module.Composite(leaves, shape=spec.shape, device=spec.device, data_cls=spec.data_cls)


def _bounded(spec: Any, module: ModuleType) -> Any:
    return _integers_or_floats(spec, spec.space.low, spec.space.high, module)


def _integers_or_floats(spec: Any, low: Any, high: Any, module: ModuleType) -> Any:
    bounds = [torch.as_tensor(bound, device=spec.device).expand(concrete(spec.shape)) for bound in (low, high)]
    return module.Bounded(*bounds, shape=spec.shape, dtype=spec.dtype, device=spec.device, domain=spec.domain)


def _unbounded(spec: Any, module: ModuleType) -> Any:
    return module.Unbounded(spec.shape, dtype=spec.dtype, device=spec.device, domain=spec.domain)


def _binary(spec: Any, module: ModuleType) -> Any:
    number = spec.shape[-1] if spec.shape else None
    return module.Binary(number, spec.shape, dtype=spec.dtype, device=spec.device)


def _categorical(spec: Any, module: ModuleType) -> Any:
    least = getattr(spec, "min", 0)
    if least:
        return _integers_or_floats(spec, least, least + spec.n - 1, module)
    return module.Categorical(spec.n, spec.shape, dtype=spec.dtype, device=spec.device, mask=spec.mask)


def _multi_categorical(spec: Any, module: ModuleType) -> Any:
    least = getattr(spec, "min", torch.zeros(()))
    if least.any():
        return _integers_or_floats(spec, least, least + spec.nvec - 1, module)
    return module.MultiCategorical(spec.nvec, spec.shape, dtype=spec.dtype, device=spec.device, mask=spec.mask)


def _one_hot(spec: Any, module: ModuleType) -> Any:
    return module.OneHot(spec.space.n, spec.shape, dtype=spec.dtype, device=spec.device, mask=spec.mask)


def _multi_one_hot(spec: Any, module: ModuleType) -> Any:
    return module.MultiOneHot(list(spec.nvec), spec.shape, dtype=spec.dtype, device=spec.device, mask=spec.mask)


def _non_tensor(spec: Any, module: ModuleType) -> Any:
    fields = {name: getattr(spec, name) for name in ("dtype", "device", "example_data", "batched")}
    if not spec.batched and spec.feature_dims not in (None, len(spec.shape)):
        fields.update(batched=None, feature_dims=spec.feature_dims)
    return module.NonTensor(spec.shape, **fields)


def _choice(spec: Any, module: ModuleType) -> Any:
    choices = spec.choices if module is torchrl_specs else spec._choices  # TorchRL has no public name for them
    return module.Choice([_convert(choice, module) for choice in choices])


def _stacked(spec: Any, module: ModuleType) -> Any:
    parts = [_convert(part, module) for part in spec.unbind(spec.dim)]
    return getattr(module, "StackedComposite" if isinstance(parts[0], module.Composite) else "Stacked")(
        *parts, dim=spec.dim
    )


_MAKERS = {
    "Composite": _composite,
    "StackedComposite": _stacked,
    "Stacked": _stacked,
    "Bounded": _bounded,
    "Unbounded": _unbounded,
    "Binary": _binary,
    "Categorical": _categorical,
    "OneHot": _one_hot,
    "MultiCategorical": _multi_categorical,
    "MultiOneHot": _multi_one_hot,
    "NonTensor": _non_tensor,
    "Choice": _choice,
}
