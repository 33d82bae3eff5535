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
from ...specs.conversions.dtypes import numpy_dtype
from ...specs.stacked import stack_specs
from ..owner import INPUTS, OUTPUTS, Key, joined
from .metadata import EnvMetaData

Path = tuple[str, ...]
Look = tuple[tuple[int, ...], str]
"""The shape and the dtype of one row's entry."""

PARCEL: Path = ()
"""The name of the parcels in a space whose other names are paths."""
STEP: Path = ("_step",)
"""Who is to step in a row that is a batch itself."""
NEXT: Path = ("next",)
"""What the paths begin with of states that a policy may have written for the step to come, as a recurrent one does."""


class Parcels(spaces.Space[Any]):
    """What does not lie in the arena: to the engine, objects."""

    def __init__(self) -> None:
        super().__init__(None, None)


def paths_of(space: spaces.Space[Any]) -> list[Path]:
    """The names in a space that `space_of` made, in the order of its layout."""
    names: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else []
    return names


def key_of(path: Path) -> Key:
    """A path as the key of a TensorDict.

    >>> key_of(("action",)), key_of(("agents", "action"))
    ('action', ('agents', 'action'))
    """
    return joined(path[:-1], path[-1])


def outputs_of(meta: EnvMetaData) -> dict[Path, Look | None]:
    """The entries that come out of an environment, with their looks; None for what goes into parcels."""
    return _merged(meta.full(name) for name in OUTPUTS)


def inputs_of(meta: EnvMetaData) -> dict[Path, Look | None]:
    """The entries that go into an environment, those that it gives out too also below `NEXT`."""
    found = _merged(meta.full(name) for name in INPUTS)
    seen = _merged([meta.full("observation")])
    states = _merged([meta.full("state")])
    found |= {(*NEXT, *path): look for path, look in states.items() if seen.get(path, STEP) == look}
    if meta.batch_size:
        found[STEP] = (tuple(meta.batch_size), "|b1")
    return found


def stacked(metas: Sequence[EnvMetaData], name: str) -> Composite:
    """The `Composite` of that name of all environments.

    Raises:
        SpaceError: entries of one key that no tensor, nor a lazy stack, holds side by side.
    """
    first = metas[0].full(name)
    for row, meta in enumerate(metas):
        other = first if meta is metas[0] else meta.full(name)
        for key in set() if other is first else {*first.keys(True, True)} & {*other.keys(True, True)}:
            looks = [(spec.ndim, spec.dtype, spec.device) for spec in (first[key], other[key]) if spec is not None]
            if len(set(looks)) > 1:
                raise SpaceError(
                    f"Expected environments whose {name} at {key!r} has one number of dimensions, one dtype and one "
                    f"device, but environment 0 has {first[key]} and environment {row} has {other[key]}. Batch like "
                    "ones, or make them alike by a transform of each."
                )
    return stack_specs([meta.full(name) for meta in metas])


def space_of(sheets: Sequence[Mapping[Path, Look | None]]) -> spaces.Dict:
    """The space of the entries of many environments, in which all that differs is a parcel."""
    found: dict[Any, spaces.Space[Any]] = {}
    odd = False
    for path in sorted({path for sheet in sheets for path in sheet}):
        looks = {sheet.get(path) for sheet in sheets}
        look = looks.pop()
        if looks or look is None:
            odd = True
        else:
            found[path] = _box(*look)
    if odd:
        found[PARCEL] = Parcels()
    return spaces.Dict(found)


def only_objects(metas: Sequence[EnvMetaData]) -> bool:
    """Whether all that comes out in parcels are objects, and the same ones of every environment."""
    sheets = [outputs_of(meta) for meta in metas]
    for path in {path for sheet in sheets for path in sheet}:
        looks = {sheet.get(path, "missing") for sheet in sheets}
        if looks == {None}:
            found = [meta.full(name).get(path, None) for meta in metas for name in OUTPUTS]
            if any(spec is not None and (spec.dtype or isinstance(spec, Composite)) for spec in found):
                return False
        elif len(looks) > 1:
            return False
    return True


def is_by_path(space: spaces.Space[Any]) -> bool:
    """Whether a space is one that `space_of` made."""
    return isinstance(space, spaces.Dict) and all(isinstance(name, tuple) for name in space.spaces)


def _merged(composites: Iterable[Composite]) -> dict[Path, Look | None]:
    found = {path: look for composite in composites for path, look in _sheet(composite, ())}
    whole = [path for path, look in found.items() if look is None]
    return {path: look for path, look in found.items() if not any(_below(path, other) for other in whole)}


def _below(path: Path, other: Path) -> bool:
    return len(path) > len(other) and path[: len(other)] == other


def _sheet(composite: Composite, above: Path) -> Iterator[tuple[Path, Look | None]]:
    for name, spec in composite.items():
        path = (*above, str(name))
        if isinstance(spec, Composite) and not isinstance(spec, StackedComposite):
            yield from _sheet(spec, path)
        else:  # of stacked Composites some may have keys that others lack: they travel as a whole
            yield path, _look(spec)


def _look(spec: TensorSpec | None) -> Look | None:
    if spec is None or spec.dtype is None or -1 in spec.shape:
        return None
    try:
        dtype = numpy_dtype(spec.dtype)
    except SpaceError:  # such as bfloat16
        return None
    return (tuple(spec.shape), dtype.str) if dtype.kind in "biuf" else None


def _box(shape: tuple[int, ...], dtype: str) -> spaces.Box:
    kind: Any = np.dtype(dtype)
    low, high = (0, 1) if kind.kind == "b" else (-np.inf, np.inf)
    if kind.kind in "iu":
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return spaces.Box(low, high, shape, kind.type)
