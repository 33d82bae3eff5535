"""Decides how entries of TensorDicts are passed between a batched environment and its sub-environments.

An entry with one shape and dtype in all environments is in the engine's batch buffers, under the path of its key. All
other entries (objects, shapes that vary over time or between environments, entries that only some environments have)
are pickled: each row has one dict of its pickled entries. This module knows specs and spaces. It must not know workers
or TensorDicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor

from ...errors import SpaceError
from ...specs import Composite, StackedComposite, TensorSpec
from ...specs.dtypes import numpy_dtype
from ...specs.stacked import stack_specs
from ..entries.keys import INPUTS, OUTPUTS, Key, join_key
from .metadata import EnvMetaData

Path = tuple[str, ...]
Space = spaces.Space[Any]
EntryFormat = tuple[tuple[int, ...], str]
"""The shape and the dtype of an entry in one row."""

PICKLED: Path = ()
"""The name of the pickled entries in a space; its other names are paths."""
STEP: Path = ("_step",)
"""The path of the mask of rows to step inside an environment that is a batch."""
NEXT: Path = ("next",)
"""The prefix of the paths of states that a policy, such as a recurrent one, may write for the next step.

The path itself is a flag: whether these states are given."""


class PickledEntries(Space):
    """The space of entries that are not in the batch buffers; the engine treats them as objects."""

    def __init__(self) -> None:
        super().__init__(None, None)


def paths_of(space: Space) -> list[Path]:
    """Returns the names in a space from `space_of_formats`, in the order of its layout."""
    names: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else []
    return names


def key_of(path: Path) -> Key:
    """Returns a path as a key of a TensorDict.

    >>> key_of(("action",)), key_of(("agents", "action"))
    ('action', ('agents', 'action'))
    """
    return join_key(path[:-1], path[-1])


def plain_array(value: Tensor) -> np.ndarray:
    """Returns the values of a tensor on any device, without its graph; without a copy on the CPU."""
    return value.numpy(force=True) if value.requires_grad or value.device.type != "cpu" else value.numpy()


def is_next(path: Path) -> bool:
    """Returns whether a path is of a state for the next step."""
    return path[:1] == NEXT


def outputs_of(meta: EnvMetaData) -> dict[Path, EntryFormat | None]:
    """Returns the formats of the outputs of an environment; None for entries that are pickled."""
    return _merge_formats(meta.full(name) for name in OUTPUTS)


def inputs_of(meta: EnvMetaData) -> dict[Path, EntryFormat | None]:
    """Returns the formats of the inputs of an environment. States that are observations too are also under `NEXT`."""
    entries = _merge_formats(meta.full(name) for name in INPUTS)
    observation_formats = _merge_formats([meta.full("observation")])
    state_formats = _merge_formats([meta.full("state")])
    next_entries = {
        (*NEXT, *path): entry_format
        for path, entry_format in state_formats.items()
        if observation_formats.get(path, STEP) == entry_format
    }
    if next_entries:
        entries |= {NEXT: ((), "|b1"), **next_entries}
    if meta.batch_size:
        entries[STEP] = (tuple(meta.batch_size), "|b1")
    return entries


def stack_full_specs(metas: Sequence[EnvMetaData], name: str) -> Composite:
    """Returns the stacked `Composite` "action", "state", "observation", "reward" or "done" of all environments.

    Raises:
        SpaceError: entries of one key have different numbers of dimensions, dtypes or devices.
    """
    first_spec = metas[0].full(name)
    for row, meta in enumerate(metas):
        other_spec = first_spec if meta is metas[0] else meta.full(name)
        for key in (
            set() if other_spec is first_spec else {*first_spec.keys(True, True)} & {*other_spec.keys(True, True)}
        ):
            formats = [
                (spec.ndim, spec.dtype, spec.device) for spec in (first_spec[key], other_spec[key]) if spec is not None
            ]
            if len(set(formats)) > 1:
                raise SpaceError(
                    f"Expected environments with an equal number of dimensions, dtype and device of the {name} at "
                    f"{key!r}, got: environment 0 has {first_spec[key]} and environment {row} has {other_spec[key]}. "
                    f"Batch equal environments, or transform each of them."
                )
    return stack_specs([meta.full(name) for meta in metas])


def space_of_formats(all_formats: Sequence[Mapping[Path, EntryFormat | None]]) -> spaces.Dict:
    """Returns the space of the entries of several environments. Entries with different formats are pickled."""
    entries: dict[Any, Space] = {}
    has_pickled = False
    for path in sorted({path for formats_by_path in all_formats for path in formats_by_path}):
        formats = {formats_by_path.get(path) for formats_by_path in all_formats}
        entry_format = formats.pop()
        if formats or entry_format is None:
            has_pickled = True
        else:
            entries[path] = _box(*entry_format)
    if has_pickled:
        entries[PICKLED] = PickledEntries()
    return spaces.Dict(entries)


def only_non_tensors(metas: Sequence[EnvMetaData]) -> bool:
    """Returns whether all pickled outputs are non-tensors, with the same keys in every environment."""
    all_formats = [outputs_of(meta) for meta in metas]
    for path in {path for formats_by_path in all_formats for path in formats_by_path}:
        formats = {formats_by_path.get(path, "missing") for formats_by_path in all_formats}
        if formats == {None}:
            specs_found = [meta.full(name).get(path, None) for meta in metas for name in OUTPUTS]
            if any(spec is not None and (spec.dtype or isinstance(spec, Composite)) for spec in specs_found):
                return False
        elif len(formats) > 1:
            return False
    return True


def is_tensordict_layout(space: Space) -> bool:
    """Returns whether a space is from `space_of_formats`."""
    return isinstance(space, spaces.Dict) and all(isinstance(name, tuple) for name in space.spaces)


def _merge_formats(composites: Iterable[Composite]) -> dict[Path, EntryFormat | None]:
    entries = {path: entry_format for composite in composites for path, entry_format in _entry_formats(composite, ())}
    pickled_paths = [path for path, entry_format in entries.items() if entry_format is None]
    return {
        path: entry_format
        for path, entry_format in entries.items()
        if not any(_is_nested_in(path, pickled_path) for pickled_path in pickled_paths)
    }


def _is_nested_in(path: Path, ancestor: Path) -> bool:
    return len(path) > len(ancestor) and path[: len(ancestor)] == ancestor


def _entry_formats(composite: Composite, parent: Path) -> Iterator[tuple[Path, EntryFormat | None]]:
    for name, spec in composite.items():
        path = (*parent, str(name))
        if isinstance(spec, Composite) and not isinstance(spec, StackedComposite):
            yield from _entry_formats(spec, path)
        else:  # stacked Composites may have different keys, so each is one entry
            yield path, _entry_format(spec)


def _entry_format(spec: TensorSpec | None) -> EntryFormat | None:
    if spec is None or spec.dtype is None or -1 in spec.shape:
        return None
    try:
        dtype = numpy_dtype(spec.dtype)
    except SpaceError:  # e.g. bfloat16
        return None
    return (tuple(spec.shape), dtype.str) if dtype.kind in "biuf" else None


def _box(shape: tuple[int, ...], dtype: str) -> spaces.Box:
    np_dtype: Any = np.dtype(dtype)
    low, high = (0, 1) if np_dtype.kind == "b" else (-np.inf, np.inf)
    if np_dtype.kind in "iu":
        low, high = np.iinfo(np_dtype).min, np.iinfo(np_dtype).max
    return spaces.Box(low, high, shape, np_dtype.type)
