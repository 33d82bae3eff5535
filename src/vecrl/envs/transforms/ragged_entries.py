"""Ragged entries: entries with other shapes in the parts of a lazy stack, such as the observations of unlike agents.

They are read, changed and written part by part, or refused by a message that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import nn

from ...errors import SpaceError, VecrlError
from ...specs import Composite, Stacked, StackedComposite, TensorSpec
from ...specs.stacked import stack_specs
from ..entries.keys import Key, Prefix, join_key, key_path


def parts_of(td: TensorDictBase, key: Key, new_key: Key) -> Iterator[tuple[TensorDictBase, Key, Key]]:
    """Yields the parts of `td` in which the entry at `key` is one tensor, with both keys as they are in these parts.

    Args:
        td: a lazy stack, or a TensorDict with lazy stacks in it.
        key: the key of a ragged entry.
        new_key: the key at which another ragged entry is written.

    Raises:
        SpaceError: the keys are not in the same lazy stack.
    """
    if isinstance(td, LazyStackedTensorDict):
        for part in td.tensordicts:
            yield from parts_of(part, key, new_key)
        return
    (group, *path), (new_group, *new_path) = key_path(key), key_path(new_key)
    if not path:
        yield td, key, new_key
        return
    nested = td.get(group, None)
    if not is_tensor_collection(nested):
        return
    if group != new_group or not new_path:
        raise SpaceError(
            f"Expected {key!r}, which has other shapes in other rows, to stay in its group, got the new key "
            f"{new_key!r}. Use a key that starts with {group!r}."
        )
    yield from parts_of(nested, tuple(path), tuple(new_path))


def entries_at(td: TensorDictBase, key: Key, new_key: Key) -> list[tuple[TensorDictBase, Key, Any]]:
    """Returns the entry at `key`, or None, and where to write it: one for each part if it is ragged.

    Raises:
        SpaceError: the entry is ragged, and the keys are not in the same lazy stack.
    """
    try:
        return [(td, new_key, td.get(key, None))]
    except RuntimeError:
        return [(part, new, part.get(old, None)) for part, old, new in parts_of(td, key, new_key)]


def part_leaves(td: TensorDictBase, prefix: Prefix = ()) -> Iterator[tuple[TensorDictBase, Key, Any]]:
    """Yields all leaves: the part of lazy stacks that holds it, its key in the whole, and its value.

    Values may be replaced in the parts during the iteration, under the last name of their keys.
    """
    if isinstance(td, LazyStackedTensorDict):
        for part in td.tensordicts:
            yield from part_leaves(part, prefix)
        return
    entries: list[tuple[str, Any]] = list(td.items())
    for name, value in entries:
        if is_tensor_collection(value) and not is_non_tensor(value):
            yield from part_leaves(value, (*prefix, name))
        else:
            yield td, join_key(prefix, name), value


def is_ragged(spec: TensorSpec) -> TypeGuard[Stacked]:
    """Returns whether the values of a spec have other shapes in other rows."""
    return isinstance(spec, Stacked) and (
        len({part.shape for part in spec.specs}) > 1 or any(is_ragged(part) for part in spec.specs)
    )


def map_parts(function: Callable[[TensorSpec], TensorSpec], spec: TensorSpec) -> TensorSpec:
    """Returns `function(spec)`; for a ragged spec, the stack of the results for its parts."""
    if not is_ragged(spec):
        return function(spec)
    return stack_specs([map_parts(function, part) for part in spec.specs], spec.dim)


Hook = Callable[[TensorDictBase, TensorDictBase], TensorDictBase]


@contextmanager
def heterogeneous_errors(transform: nn.Module, specs: Composite) -> Iterator[None]:
    """Replaces errors of a transform by a `SpaceError` if `specs` are heterogeneous. Used as a context manager.

    Raises:
        SpaceError: the transform failed on rows with different shapes.
    """
    try:
        yield
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        if isinstance(error, VecrlError) or not is_heterogeneous(specs):
            raise
        expected = f"since {transform!r:.120} needs rows of one shape, got"
        if _has_unlike_environments(specs):
            raise SpaceError(
                f"Expected environments with equal specs, {expected} a batch of different ones. Transform each "
                "environment instead: SerialEnv(n, lambda: TransformedEnv(make(), ...))."
            ) from error
        raise SpaceError(
            f"Expected agents with equal specs, {expected} agents of different ones. Transform entries of one "
            "shape, or change the others in the environment."
        ) from error


def with_heterogeneous_errors(hook: Hook, transform: nn.Module, specs: Composite) -> Hook:
    """Returns a hook of a transform with errors as of `heterogeneous_errors`; `hook` itself if `specs` are equal."""
    if not is_heterogeneous(specs):
        return hook

    def checked_hook(input_td: TensorDictBase, output_td: TensorDictBase) -> TensorDictBase:
        with heterogeneous_errors(transform, specs):
            return hook(input_td, output_td)

    return checked_hook


def _has_unlike_environments(specs: Composite) -> bool:
    """Returns whether the rows of a batch have different specs; otherwise it is those of agents that differ."""
    groups: list[Any] = list(specs.values())
    return any(isinstance(full_spec, StackedComposite) for group in groups for full_spec in group.values())


def is_heterogeneous(spec: TensorSpec | None) -> bool:
    """Returns whether any entry of a spec has different specs by row."""
    if isinstance(spec, Composite) and not isinstance(spec, StackedComposite):
        return any(is_heterogeneous(sub_spec) for sub_spec in spec.values())
    return isinstance(spec, Stacked | StackedComposite)
