"""Rules of the methods `transform_*_spec` of all transforms: they accept the spec of one entry, and keys must exist.

This module knows keys and specs. It must not know single transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any

from ...errors import SpaceError
from ...specs import Composite, TensorSpec
from ..keys import Key

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
