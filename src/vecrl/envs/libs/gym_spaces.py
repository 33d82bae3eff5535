"""Conversions of spaces that `vecrl.specs.convert` does not cover: user-defined rules, and actions that are tuples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...engine.space_layout import Layout
from ...errors import SpaceError
from ...specs import TensorSpec
from ...specs.convert import space_from_spec
from ...specs.convert.from_gym import ConversionOptions, register_space
from ..keys import FLAGS

Converter = Callable[..., Any]


def register_gym_spec_conversion(spec_type: type | str) -> Callable[[Converter], Converter]:
    """Decorator that registers a conversion from a space class to specs, or from a spec class to spaces.

    Args:
        spec_type: a class of spaces, or its name ("MySpace", "package.module.MySpace"), which needs no import; or a
            subclass of `TensorSpec`.

    A converter of spaces is called with the space and those of the keywords `dtype`, `device`,
    `categorical_action_encoding`, `remap_state_to_observation` and `batch_size` that it accepts. A converter of specs
    is called with the spec alone.

    Raises:
        SpaceError: if `spec_type` is neither a class nor a name.

    >>> from gymnasium import spaces
    >>> from vecrl.specs import Bounded
    >>> from vecrl.specs.convert import spec_from_gym
    >>> class Angle(spaces.Space): ...
    >>> @register_gym_spec_conversion(Angle)
    ... def convert_angle(space, device=None, **kwargs):
    ...     return Bounded(-3.15, 3.15, (1,), device=device)
    >>> spec_from_gym(Angle()).shape
    torch.Size([1])
    """
    if not isinstance(spec_type, type | str):
        raise SpaceError(f"Expected a class or the name of one, got {spec_type!r:.80}.")

    def add(fn: Converter) -> Converter:
        if isinstance(spec_type, type) and issubclass(spec_type, TensorSpec):
            space_from_spec.register(spec_type, fn)
        else:
            register_space(spec_type)(_as_converter(fn))
        return fn

    return add


def _as_converter(fn: Converter) -> Callable[[Any, ConversionOptions], Any]:
    parameters = inspect.signature(fn).parameters
    takes_any_keyword = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())

    def converter(space: object, options: ConversionOptions) -> Any:
        keywords = {
            "dtype": options.dtype,
            "device": options.device,
            "categorical_action_encoding": options.categorical,
            "remap_state_to_observation": False,
            "batch_size": (),
        }
        return fn(space, **{name: value for name, value in keywords.items() if takes_any_keyword or name in parameters})

    return converter


def observation_keys_of(layout: Layout) -> list[tuple[str, ...]]:
    """Returns the keys of the observation leaves in TensorDicts.

    Raises:
        SpaceError: if a key is reserved for other entries of a step.
    """
    keys = [("observation",) if leaf.path == () else tuple(map(str, leaf.path)) for leaf in layout.leaves]
    conflicts = sorted({key[0] for key in keys} & {*FLAGS, "next", "reward"})
    if conflicts:
        raise SpaceError(
            f"Expected observations of other names than {', '.join(map(repr, conflicts))}, which are reserved for the "
            "other entries of a step. Rename them, for example with gymnasium.wrappers.TransformObservation."
        )
    return keys


def find_tuple_spaces(space: object) -> Any:
    """Returns the space if it is or contains a Tuple space; otherwise None."""
    parts: Any = getattr(space, "spaces", ())
    subspaces = parts.values() if hasattr(parts, "values") else parts
    has_tuples = any(find_tuple_spaces(part) is not None for part in subspaces)
    return space if has_tuples or type(space).__name__ == "Tuple" else None


def restore_tuples(value: Any, space: Any) -> Any:
    """Converts dicts with the keys "0", "1", … in an action to the tuples of its Tuple spaces."""
    if type(space).__name__ == "Tuple":
        return tuple(restore_tuples(value[str(i)], part) for i, part in enumerate(space.spaces))
    if isinstance(value, dict):
        return {name: restore_tuples(part, space.spaces[name]) for name, part in value.items()}
    return value
