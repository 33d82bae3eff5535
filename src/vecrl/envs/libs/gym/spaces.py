"""Conversions of spaces that `vecrl.specs.convert` does not cover: user-defined rules, and actions that are tuples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ....engine.space_layout import Layout
from ....errors import SpaceError
from ....specs import Composite, TensorSpec
from ....specs.convert import space_from_spec, spec_from_gym
from ....specs.convert.from_gym import ConversionOptions, register_space
from ...entries.keys import FLAGS, Key, key_path
from ...env_specs import Device

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


def gym_to_spec(
    space: object,
    dtype: torch.dtype | None = None,
    device: Device = None,
    categorical_action_encoding: bool = False,
    remap_state_to_observation: bool = True,
    batch_size: Sequence[int] = (),
) -> TensorSpec:
    """Converts a gymnasium space to a spec: `spec_from_gym` with the arguments of TorchRL.

    Args:
        space: the space to convert.
        dtype: of choices; None for the space's own.
        device: of the spec; None for torch's default device.
        categorical_action_encoding: choices as indices instead of one-hot rows.
        remap_state_to_observation: rename the entry "state" of a Dict space to "observation".
        batch_size: the leading dimensions of the spec.
    """
    spec = spec_from_gym(space, device=device, categorical=categorical_action_encoding, dtype=dtype, merge_equal=True)
    if remap_state_to_observation and isinstance(spec, Composite) and "state" in spec.keys():  # noqa: SIM118
        spec = Composite({"observation" if key == "state" else key: part for key, part in spec.items()})
    return spec.expand(*batch_size, *spec.shape)


def spec_to_gym(spec: TensorSpec, categorical_action_encoding: bool = False) -> Any:
    """Converts a spec to a gymnasium space: `space_from_spec` with the arguments of TorchRL.

    Args:
        spec: the spec to convert.
        categorical_action_encoding: has no effect, since choices are indices in gymnasium.
    """
    return space_from_spec(spec)


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


def observation_keys_of(layout: Layout, action_keys: Sequence[Key]) -> list[tuple[str, ...]]:
    """Returns the keys of the observation leaves in TensorDicts.

    Raises:
        SpaceError: if a key is, contains or is inside that of an action or of another entry of a step.
    """
    keys = [("observation",) if leaf.path == () else tuple(map(str, leaf.path)) for leaf in layout.leaves]
    taken = [key_path(key) for key in (*FLAGS, "next", "reward", *action_keys)]
    conflicts = [key for key in keys if any(key[: len(path)] == path or path[: len(key)] == key for path in taken)]
    if conflicts:
        names = ", ".join(sorted(repr(key[0] if len(key) == 1 else key) for key in conflicts))
        raise SpaceError(
            f"Expected observations of other names than {names}, which are reserved for actions or the other entries "
            "of a step. Rename them, for example with gymnasium.wrappers.TransformObservation."
        )
    return keys


def find_tuple_spaces(space: object) -> Any:
    """Returns the space if it is or contains a Tuple space; otherwise None."""
    parts: Any = getattr(space, "spaces", ())
    subspaces = parts.values() if hasattr(parts, "values") else parts
    has_tuples = any(find_tuple_spaces(part) is not None for part in subspaces)
    return space if has_tuples or type(space).__name__ == "Tuple" else None


def convert_action_space(obs_space: Any, action_space: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """Returns the space of the actions in TensorDicts, and the function from them to elements of `action_space`.

    The function is None if the actions need no conversion. If the observations mask combinations of a MultiDiscrete
    action, the action in TensorDicts is a choice among all combinations. They do if the entry "action_mask" has one
    flag per combination, so if its shape is the `nvec` of the actions.
    """
    tuples = find_tuple_spaces(action_space)
    if tuples is not None:
        return action_space, partial(restore_tuples, space=tuples)
    mask = obs_space.spaces.get("action_mask") if isinstance(obs_space, spaces.Dict) else None
    nvec = getattr(action_space, "nvec", None)
    if mask is None or nvec is None or tuple(mask.shape or ()) != tuple(np.ravel(nvec)):
        return action_space, None
    return spaces.Discrete(int(np.prod(nvec))), partial(split_joint_action, action_space=action_space)


def split_joint_action(index: Any, action_space: Any) -> np.ndarray:
    """Converts indices of combinations, in the order of C, to elements `[..., components]` of a MultiDiscrete space."""
    components = np.stack(np.unravel_index(index, action_space.nvec), -1)
    return (components + getattr(action_space, "start", 0)).astype(action_space.dtype)


def restore_tuples(value: Any, space: Any) -> Any:
    """Converts dicts with the keys "0", "1", … in an action to the tuples of its Tuple spaces."""
    if type(space).__name__ == "Tuple":
        return tuple(restore_tuples(value[str(i)], part) for i, part in enumerate(space.spaces))
    if isinstance(value, dict):
        return {name: restore_tuples(part, space.spaces[name]) for name, part in value.items()}
    return value
