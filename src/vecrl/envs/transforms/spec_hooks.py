"""Specs of transforms: what holds for all `transform_*_spec`, and specs from a function or its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Composite, TensorSpec, Unbounded
from ..entries.keys import Key

if TYPE_CHECKING:
    from .base import Transform


_INPUTS = ("action", "state")
KINDS = ("observation", "reward", "done", *_INPUTS)

SpecHook = Callable[[Any, Any], Any]


def accept_leaves(cls: type) -> None:
    """Makes the methods `transform_*_spec` that a class defines accept the spec of one entry too."""
    for kind in KINDS:
        name = f"transform_{kind}_spec"
        if name in vars(cls):
            setattr(cls, name, _accept_leaf(kind, vars(cls)[name]))


def _accept_leaf(kind: str, hook: SpecHook) -> SpecHook:
    """Returns a method `transform_<kind>_spec` that also takes the spec of one entry, and then returns one."""
    if hasattr(hook, "accepts_leaf"):
        return hook

    @wraps(hook)
    def transform_spec(self: Transform, spec: TensorSpec) -> TensorSpec:
        if not isinstance(spec, Composite):
            return _transform_leaf(self, kind, hook, spec)
        result = hook(self, spec)
        if isinstance(result, TensorSpec) and not isinstance(result, Composite):  # the method is for single entries
            return (each_input_entry if kind in _INPUTS else each_entry)(hook)(self, spec)
        return result

    return _accepting_leaf(transform_spec)


def _accepting_leaf(hook: SpecHook) -> SpecHook:
    vars(hook)["accepts_leaf"] = True  # `wraps` copies it to methods that pass a leaf on, as in `Compose`
    return hook


def each_entry(hook: SpecHook) -> SpecHook:
    """Decorator of a method `transform_*_spec` that returns the spec of one entry, for the spec of one entry.

    The result also takes a Composite, in which it sets the specs of `out_keys` to what the method returns for those of
    `in_keys`.

    >>> from vecrl.envs import Transform
    >>> from vecrl.specs import Bounded, Unbounded
    >>> class Sine(Transform):
    ...     def _apply_transform(self, value):
    ...         return value.sin()
    ...     @each_entry
    ...     def transform_observation_spec(self, observation_spec):
    ...         return Bounded(-1, 1, observation_spec.shape)
    >>> list(Sine(["angle"], ["sine"]).transform_observation_spec(Composite(angle=Unbounded((1,)))).keys())
    ['angle', 'sine']
    """

    @wraps(hook)
    def transform_spec(self: Transform, spec: TensorSpec) -> TensorSpec:
        if not isinstance(spec, Composite):
            return hook(self, spec)
        for in_key, out_key in self._key_pairs:
            if in_key in spec:
                spec[out_key] = hook(self, spec[in_key].clone())
        return spec

    return _accepting_leaf(transform_spec)


def each_input_entry(hook: SpecHook) -> SpecHook:
    """Decorator as `each_entry`, for the specs of inputs: `out_keys_inv` replace `in_keys_inv`.

    The method may be `transform_input_spec` too, which takes the specs of actions and of states together.
    """

    @wraps(hook)
    def transform_spec(self: Transform, spec: TensorSpec) -> TensorSpec:
        if not isinstance(spec, Composite):
            return hook(self, spec)
        parts = [spec.get(f"full_{kind}_spec", None) for kind in _INPUTS]
        for part in [part for part in parts if part is not None] or [spec]:
            for out_key, in_key in self._inverse_key_pairs:
                if in_key in part:
                    entry = part[in_key]
                    del part[in_key]
                    part[out_key] = hook(self, entry.clone())
        return spec

    return _accepting_leaf(transform_spec)


def _transform_leaf(transform: Transform, kind: str, hook: SpecHook, leaf: TensorSpec) -> TensorSpec:
    """Returns the spec of the entry that the user sees for an entry of the environment with the spec `leaf`."""
    key, new_key = transform._leaf_keys(kind)
    parent = transform.parent
    batch = () if parent is None else parent.batch_size
    is_batched = leaf.shape[: len(batch)] == batch
    specs = hook(transform, Composite({key: leaf.clone()}, shape=batch if is_batched else ()))
    if not isinstance(specs, Composite):  # the method is for single entries
        return hook(transform, leaf)
    found = list(specs.keys(include_nested=True, leaves_only=True))
    if set(found) - {key, new_key}:
        raise SpaceError(
            f"Expected a Composite, to which {type(transform).__name__} adds {found}, got {leaf!r}. Put it into a "
            f"Composite: Composite({key}=...)."
        )
    return next((specs[name] for name in (new_key, key) if name in specs), leaf)


def check_keys(transform: Transform, name: str, specs: Composite) -> None:
    """Checks that entries of the environment exist at the keys that a transform was given.

    Args:
        transform: the transform.
        name: "in_keys" or "in_keys_inv". Default keys are not checked.
        specs: the specs of outputs for "in_keys", of inputs for "in_keys_inv", before the transform.

    Raises:
        KeyError: an entry does not exist.
    """
    keys: list[Key] = getattr(transform, f"_{name}") or []
    if transform.missing_tolerance or name not in transform._checked_keys:
        return
    unknown = [key for key in keys if not any(spec is not None and key in spec for spec in specs.values())]
    parent = transform.parent if unknown else None
    if parent is None:
        return
    known: list[Key] = [key for kind in KINDS for key in getattr(parent, f"full_{kind}_spec").keys(True)]
    for key in unknown:
        if key not in known:
            raise KeyError(
                f"Expected {name} of {type(transform).__name__} to be entries of the environment, got {key!r}. "
                f"{_advice(key, known)}"
            )


def _advice(key: Key, known: list[Key]) -> str:
    by_text = {_text(known_key): known_key for known_key in known}
    nearest = [repr(by_text[text]) for text in get_close_matches(_text(key), by_text)]
    if nearest:
        return f"Did you mean {' or '.join(nearest)}?"
    return f"Its entries are {list(dict.fromkeys(known))}. Call set_missing_tolerance(True) if it may be missing."


def _text(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)


_PROBE_SIZE = 7  # differs from 1, and few functions give the same output size for both


def probe_output(function: Callable[..., Any], *specs: TensorSpec) -> tuple[Any, tuple[int, ...]]:
    """Returns the output of a function for zeros, and its shape.

    The shape is -1 in dimensions that depend on dynamic sizes of the specs, and `()` if the output is no tensor.

    Args:
        function: takes a value of each of the specs, and returns a tensor.
        specs: the specs of its inputs; -1 marks a dynamic size. All dynamic sizes are changed together.

    Raises:
        SpaceError: the number of dimensions depends on a dynamic size.

    >>> import torch
    >>> probe_output(lambda x: x.flatten(), Unbounded((-1, 2)))[1]
    (-1,)
    """
    output = function(*[spec.zero() for spec in specs])
    if not isinstance(output, Tensor):
        return output, ()
    if not any(-1 in spec.shape for spec in specs):
        return output, tuple(output.shape)
    return output, common_shape(output.shape, function(*[resize_dynamic(spec, spec.zero()) for spec in specs]).shape)


def infer_spec(spec: TensorSpec, function: Callable[[Any], Any]) -> TensorSpec:
    """Returns a spec without bounds for the output of a function of values of `spec`; `spec` if it is no tensor.

    Raises:
        SpaceError: the function returns None.
    """
    output, shape = probe_output(function, spec)
    if output is None:
        raise SpaceError(
            f"Expected {getattr(function, '__qualname__', function)} to return a value, got None. Return it."
        )
    return Unbounded(shape, dtype=output.dtype, device=spec.device) if isinstance(output, Tensor) else spec


def resize_dynamic(spec: TensorSpec, zeros: Any) -> Any:
    """Returns zeros of `spec` with another value of each dynamic size. Zeros of a `Composite` are changed in place."""
    if isinstance(spec, Composite):
        for key, spec_part in spec.items(include_nested=True, leaves_only=True):
            if spec_part is not None and -1 in spec_part.shape:
                zeros.set(key, resize_dynamic(spec_part, zeros.get(key)))
    elif isinstance(zeros, Tensor):
        return zeros.expand([_PROBE_SIZE if size == -1 else size for size in spec.shape]).clone()
    return zeros


def common_shape(small: Sequence[int], large: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape common to both, with -1 in dimensions that differ.

    Raises:
        SpaceError: the numbers of dimensions differ.
    """
    if len(small) != len(large):
        raise SpaceError(
            f"Expected the output of a transform to have the same number of dimensions for all input sizes, got the "
            f"shapes {tuple(small)} and {tuple(large)} for two sizes. Override its transform_observation_spec."
        )
    return tuple(a if a == b else -1 for a, b in zip(small, large, strict=True))


Numbers = Tensor | np.ndarray | Sequence[float] | float
"""What `torch.as_tensor` takes."""


def parse_numbers(name: str, value: object) -> Tensor:
    """Returns a number, or nested sequences or an array of them, as a tensor. A tensor is returned itself.

    Raises:
        ValueError: it is no such value, or empty.
    """
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.empty(0)
    if not tensor.numel():
        raise ValueError(f"Expected {name} to be a number, or a tensor of numbers, got {value!r:.80}.")
    return tensor


def clip_to(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Returns values clipped to [low, high], in their dtype, or in torch's default one if theirs cannot hold them."""
    if not (value.dtype.is_floating_point or _can_represent(value.dtype, low, high)):
        value = value.to(torch.get_default_dtype())
    elif not (value.dtype.is_floating_point or value.dtype is torch.bool):
        low, high = _clamp_to_dtype(low, value.dtype), _clamp_to_dtype(high, value.dtype)
    return torch.maximum(torch.minimum(value, high), low).to(value.dtype)


def _can_represent(dtype: torch.dtype, low: Tensor, high: Tensor) -> bool:
    """Returns whether an integer or bool dtype can represent its values clipped to [low, high]."""
    minimum, maximum = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    is_integer = all(bool((bound == bound.round()).all()) for bound in (low, high))
    return is_integer and bool((low <= maximum).all()) and bool((high >= minimum).all())


def _clamp_to_dtype(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the integer bounds clamped to the range of an integer dtype, in that dtype."""
    limits = torch.iinfo(dtype)
    clamped = (bound.double() if bound.is_floating_point() else bound).clamp(limits.min, limits.max)
    return torch.where(clamped >= limits.max, limits.max, clamped.to(dtype))


def map_bounds(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Returns the spec of a monotonic function of values of `spec`. The function is applied to the bounds."""
    zero = spec.zero()
    value = function(zero)
    shape = spec.shape if value.shape == zero.shape else value.shape
    if not isinstance(spec, Bounded):
        return Unbounded(shape, dtype=value.dtype, device=spec.device)
    mapped_bounds = [function(bound) for bound in (spec.low, spec.high)]
    low, high = (
        bound.nan_to_num(fill, posinf=torch.inf, neginf=-torch.inf)
        for bound, fill in ((torch.minimum(*mapped_bounds), -torch.inf), (torch.maximum(*mapped_bounds), torch.inf))
    )
    return Bounded(low, high, shape, dtype=value.dtype, device=spec.device)


def clip_bounds_of(
    spec: TensorSpec, function: Callable[[Tensor], Tensor], low: Tensor | float, high: Tensor | float
) -> TensorSpec:
    """Returns the spec of a monotonic function of values of `spec` with results in [low, high]."""
    if isinstance(spec, Bounded):
        return map_bounds(spec, function)
    value = function(spec.zero())
    if not (value.dtype.is_floating_point or value.dtype is torch.bool):  # integers have no infinite bounds
        limits = torch.iinfo(value.dtype)
        low, high = (function(torch.full_like(value, bound)) for bound in (limits.min, limits.max))
    return Bounded(low, high, spec.shape, dtype=value.dtype, device=spec.device)
