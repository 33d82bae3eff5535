"""What conversions of spaces leave open: rules of a user's own, and actions that are tuples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...engine.layout import Layout
from ...errors import SpaceError
from ...specs import TensorSpec
from ...specs.conversions import space_from_spec
from ...specs.conversions.from_gym import How, register
from ..owner import FLAGS

Rule = Callable[..., Any]


def register_gym_spec_conversion(spec_type: type | str) -> Callable[[Rule], Rule]:
    """Decorator: how spaces of a type become specs, or, for a type of specs, how these become spaces.

    Args:
        spec_type: a class of spaces, or its name ("MySpace", "package.module.MySpace") where it is not to be imported
            yet; or a subclass of `TensorSpec`.

    The decorated function is called with the space, and with those of the keywords `dtype`, `device`,
    `categorical_action_encoding`, `remap_state_to_observation` and `batch_size` that it takes; or with the spec alone.

    >>> from gymnasium import spaces
    >>> from vecrl.specs import Bounded
    >>> from vecrl.specs.conversions import spec_from_gym
    >>> class Angle(spaces.Space): ...
    >>> @register_gym_spec_conversion(Angle)
    ... def convert_angle(space, device=None, **kwargs):
    ...     return Bounded(-3.15, 3.15, (1,), device=device)
    >>> spec_from_gym(Angle()).shape
    torch.Size([1])
    """
    if not isinstance(spec_type, type | str):
        raise SpaceError(f"Expected a class, or the name of one, but {spec_type!r:.80} came.")

    def keep(fn: Rule) -> Rule:
        if isinstance(spec_type, type) and issubclass(spec_type, TensorSpec):
            space_from_spec.register(spec_type, fn)
        else:
            register(spec_type)(_as_rule(fn))
        return fn

    return keep


def _as_rule(fn: Rule) -> Callable[[Any, How], Any]:
    taken = inspect.signature(fn).parameters
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())

    def rule(space: Any, how: How) -> Any:
        keywords = {
            "dtype": how.dtype,
            "device": how.device,
            "categorical_action_encoding": how.categorical,
            "remap_state_to_observation": False,
            "batch_size": (),
        }
        return fn(space, **{name: value for name, value in keywords.items() if anything or name in taken})

    return rule


def observed_keys(layout: Layout) -> list[tuple[str, ...]]:
    """Where the leaves of observations lie in TensorDicts.

    Raises:
        SpaceError: a name is taken by what a step gives beside observations.
    """
    keys = [("observation",) if leaf.path == () else tuple(map(str, leaf.path)) for leaf in layout.leaves]
    taken = sorted({key[0] for key in keys} & {*FLAGS, "next", "reward"})
    if taken:
        raise SpaceError(
            f"Expected observations of other names than {', '.join(map(repr, taken))}, which TensorDicts have for the "
            "rest of a step. Rename them, as by gymnasium.wrappers.TransformObservation."
        )
    return keys


def with_tuples(space: Any) -> Any:
    """The space, if a part of it is a Tuple, whose elements are tuples; else None."""
    parts: Any = getattr(space, "spaces", ())
    below = parts.values() if hasattr(parts, "values") else parts
    within = any(with_tuples(part) is not None for part in below)
    return space if within or type(space).__name__ == "Tuple" else None


def as_tuples(value: Any, space: Any) -> Any:
    """An action with the keys "0", "1", … as the tuple that a Tuple space holds."""
    if type(space).__name__ == "Tuple":
        return tuple(as_tuples(value[str(i)], part) for i, part in enumerate(space.spaces))
    if isinstance(value, dict):
        return {name: as_tuples(part, space.spaces[name]) for name, part in value.items()}
    return value
