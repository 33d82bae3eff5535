"""How the entries of TensorDicts travel between a batched environment and its sub-environments.

What has one shape and dtype in all of them lies in the engine's arena, under the path of its key. Everything else
(objects, shapes that vary in time or from one environment to the next, entries that only some have) travels pickled
beside it, as a *parcel*: a dict of whatever there is, one a row. Knows specs and spaces, not workers or TensorDicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ...errors import SpaceError
from ...specs import Composite, StackedComposite, TensorSpec
from ...specs.convert.dtypes import numpy_dtype
from ...specs.stacked import stack_specs
from ..spec_container import INPUTS, OUTPUTS, Key, join_key
from .metadata import EnvMetaData

Path = tuple[str, ...]
EntryFormat = tuple[tuple[int, ...], str]
"""The shape and the dtype of one row's entry."""

PICKLED: Path = ()
"""The name of the parcels in a space whose other names are paths."""
STEP: Path = ("_step",)
"""Who is to step in a row that is a batch itself."""
NEXT: Path = ("next",)
"""What the paths begin with of states that a policy may have written for the step to come, as a recurrent one does."""


class PickledEntries(spaces.Space[Any]):
    """What does not lie in the arena: to the engine, objects."""

    def __init__(self) -> None:
        super().__init__(None, None)


def paths_of(space: spaces.Space[Any]) -> list[Path]:
    """The names in a space that `space_of_formats` made, in the order of its layout."""
    names: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else []
    return names


def key_of(path: Path) -> Key:
    """A path as the key of a TensorDict.

    >>> key_of(("action",)), key_of(("agents", "action"))
    ('action', ('agents', 'action'))
    """
    return join_key(path[:-1], path[-1])


def outputs_of(meta: EnvMetaData) -> dict[Path, EntryFormat | None]:
    """The entries that come out of an environment, with their looks; None for what goes into parcels."""
    return _merge_formats(meta.full(name) for name in OUTPUTS)


def inputs_of(meta: EnvMetaData) -> dict[Path, EntryFormat | None]:
    """The entries that go into an environment, those that it gives out too also below `NEXT`."""
    entries = _merge_formats(meta.full(name) for name in INPUTS)
    observation_formats = _merge_formats([meta.full("observation")])
    state_formats = _merge_formats([meta.full("state")])
    entries |= {
        (*NEXT, *path): entry_format
        for path, entry_format in state_formats.items()
        if observation_formats.get(path, STEP) == entry_format
    }
    if meta.batch_size:
        entries[STEP] = (tuple(meta.batch_size), "|b1")
    return entries


def stack_full_specs(metas: Sequence[EnvMetaData], name: str) -> Composite:
    """The `Composite` of that name of all environments.

    Raises:
        SpaceError: entries of one key that no tensor, nor a lazy stack, holds side by side.
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
                    f"Expected environments whose {name} at {key!r} has one number of dimensions, one dtype and one "
                    f"device, but environment 0 has {first_spec[key]} and environment {row} has {other_spec[key]}. "
                    f"Batch like "
                    "ones, or make them alike by a transform of each."
                )
    return stack_specs([meta.full(name) for meta in metas])


def space_of_formats(all_formats: Sequence[Mapping[Path, EntryFormat | None]]) -> spaces.Dict:
    """The space of the entries of many environments, in which all that differs is a parcel."""
    entries: dict[Any, spaces.Space[Any]] = {}
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
    """Whether all that comes out in parcels are objects, and the same ones of every environment."""
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


def is_tensordict_layout(space: spaces.Space[Any]) -> bool:
    """Whether a space is one that `space_of_formats` made."""
    return isinstance(space, spaces.Dict) and all(isinstance(name, tuple) for name in space.spaces)


def _merge_formats(composites: Iterable[Composite]) -> dict[Path, EntryFormat | None]:
    entries = {path: entry_format for composite in composites for path, entry_format in _entry_formats(composite, ())}
    pickled_paths = [path for path, entry_format in entries.items() if entry_format is None]
    return {
        path: entry_format
        for path, entry_format in entries.items()
        if not any(_is_below(path, other_spec) for other_spec in pickled_paths)
    }


def _is_below(path: Path, other_spec: Path) -> bool:
    return len(path) > len(other_spec) and path[: len(other_spec)] == other_spec


def _entry_formats(composite: Composite, parent: Path) -> Iterator[tuple[Path, EntryFormat | None]]:
    for name, spec in composite.items():
        path = (*parent, str(name))
        if isinstance(spec, Composite) and not isinstance(spec, StackedComposite):
            yield from _entry_formats(spec, path)
        else:  # of stacked Composites some may have keys that others lack: they travel as a whole
            yield path, _entry_format(spec)


def _entry_format(spec: TensorSpec | None) -> EntryFormat | None:
    if spec is None or spec.dtype is None or -1 in spec.shape:
        return None
    try:
        dtype = numpy_dtype(spec.dtype)
    except SpaceError:  # such as bfloat16
        return None
    return (tuple(spec.shape), dtype.str) if dtype.kind in "biuf" else None


def _box(shape: tuple[int, ...], dtype: str) -> spaces.Box:
    np_dtype: Any = np.dtype(dtype)
    low, high = (0, 1) if np_dtype.kind == "b" else (-np.inf, np.inf)
    if np_dtype.kind in "iu":
        low, high = np.iinfo(np_dtype).min, np.iinfo(np_dtype).max
    return spaces.Box(low, high, shape, np_dtype.type)
