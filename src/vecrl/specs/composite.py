"""`Composite`: specs under keys, as a TensorDict holds values under keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import SpaceError
from .base import Device, TensorSpec, as_device, foreign_spec_hint
from .composite_mapping import Entries, SpecMapping, copy_with_shape, entries_of, key_path
from .composite_values import get_entry, has_entry, is_tensordict, put
from .shape_methods import rearrange_batch
from .shape_ops import Names, ShapeLike, ShapeOp, as_size, concrete, shape_matches


class Composite(SpecMapping):
    """Specs under keys; the spec of a TensorDict.

    The shapes of all entries begin with the batch shape. Entries are not copied: `outer["inner"]` is the same object as
    the Composite that was set, so changes, masks and locks apply to both. A nested Composite is copied only if it has a
    shorter batch shape or another device; the copy has those of the outer one. An entry of None declares a key with an
    unknown spec: it is neither drawn nor checked.

    Args:
        specs: a mapping of names (or tuples of names) to specs; also as keywords.
        shape: the batch shape; () by default.
        device: of all entries; None if it is not declared, so that entries may have different devices.
        data_cls: the class of the values, for instance a tensorclass; TensorDict by default.
        step_mdp_static: whether the entries stay the same from step to step.
        names: of the batch dimensions.

    Raises:
        SpaceError: the shape of an entry does not begin with the batch shape, or an entry has another device.
        LockedError: an entry or the shape is changed while the Composite is locked.

    >>> from vecrl.specs import Binary, Bounded
    >>> spec = Composite({"obs": Bounded(-1, 1, (4, 3)), ("agent", "alive"): Binary(shape=(4,))}, shape=(4,))
    >>> spec["agent", "alive"].shape, list(spec.keys(include_nested=True, leaves_only=True))
    (torch.Size([4]), ['obs', ('agent', 'alive')])
    >>> row = spec[0]
    >>> row.get("obs").shape, row.rand().batch_size, spec.is_in(spec.zero())
    (torch.Size([3]), torch.Size([]), True)
    """

    _kind = "Composite"
    _fields = ("_specs", "_shape", "_device", "data_cls")
    dtype = None

    def __init__(
        self,
        specs: Entries | None = None,
        /,
        *,
        shape: ShapeLike | None = None,
        device: Device = None,
        data_cls: type | None = None,
        step_mdp_static: bool = False,
        names: Sequence[str | None] | None = None,
        **kwargs: TensorSpec | Entries | None,
    ):
        if not isinstance(specs, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            actual = type(specs).__name__ if foreign_spec_hint(specs) else f"{specs!r:.80}"
            raise SpaceError(f"Expected a mapping of keys to specs, got {actual}{foreign_spec_hint(specs)}.")
        self._shape = as_size(() if shape is None else shape)
        self._device = None if device is None else as_device(device)
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        self._names: Names = _validate_names(names, self.ndim)
        self._specs: dict[str, TensorSpec | None] = {}
        for key, spec in {**(specs or {}), **kwargs}.items():
            self.set(key, spec)

    def _set_entry(self, name: str, spec: TensorSpec | None) -> None:
        super()._set_entry(name, spec)
        _pass_names(self._names, spec)

    # -- shape, device and names

    @property
    def shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The batch shape. Setting it checks that the shapes of all entries begin with it."""
        return self._shape

    @shape.setter
    def shape(self, shape: ShapeLike) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._require_unlocked("its shape")
        shape = as_size(shape)
        fitting = entries_of(Composite(self._entries(), shape=shape, device=self.device))
        for name, spec in self._specs.items():
            if spec is not fitting[name] and type(spec) is Composite:
                spec.shape = shape
            else:
                self._specs[name] = fitting[name]
        self._shape = shape
        self._names = [*self._names, *[None] * len(shape)][: len(shape)]

    @property
    def batch_size(self) -> torch.Size:
        """The same as `shape`."""
        return self.shape

    @property
    def device(self) -> torch.device | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._device

    @property
    def names(self) -> Names:
        """The names of the batch dimensions, None for one without a name. Nested Composites get them too."""
        return list(self._names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        self._names = _validate_names(names, self.ndim)
        for spec in self._entries().values():
            _pass_names(self._names, spec)

    def refine_names(self, *names: str | EllipsisType | None) -> Self:
        """Names dimensions that have no name and returns self; `...` stands for dimensions that do not change."""
        num_missing = self.ndim - (len(names) - 1)
        refined: Names = []
        for name in names:
            start = len(refined)
            refined += self._names[start : start + num_missing] if isinstance(name, EllipsisType) else [name]
        if len(refined) != self.ndim or any(
            old not in (None, new) for old, new in zip(self._names, refined, strict=True)
        ):
            raise SpaceError(f"Cannot refine the names {self._names} to {refined}: only None can be replaced.")
        self.names = refined
        return self

    # -- copies, devices and shapes

    def empty(self) -> Self:
        """Returns a Composite without entries, of the same batch shape, device and names."""
        return self._replace(_specs={}, _locked=False, step_mdp_static=False)

    def _copy_with_shape(self, shape: torch.Size, device: torch.device | None = None) -> Self:
        device = device or self.device
        entries = {
            name: copy_with_shape(spec, spec.shape if spec.shape[: len(shape)] == shape else shape, device)
            if isinstance(spec, SpecMapping)
            else spec
            for name, spec in self._entries().items()
        }
        names = self._names if len(self._names) == len(shape) else None
        return type(self)(
            entries,
            shape=shape,
            device=device,
            data_cls=self.data_cls,
            step_mdp_static=self.step_mdp_static,
            names=names,
        )

    def _empty_like(self, specs: Entries) -> Composite:
        return Composite(specs, shape=self.shape, device=self.device)

    def _map(self, function: Callable[[TensorSpec], TensorSpec], **changes: object) -> Self:
        """Returns an unlocked copy with `function` applied to each entry, and with other values of attributes."""
        entries = {name: None if spec is None else function(spec) for name, spec in self._entries().items()}
        return self._replace(_specs=entries, _locked=False, **changes)

    def _rearrange(self, op: ShapeOp) -> Self:
        return self._map(lambda spec: rearrange_batch(spec, op), _shape=op.out_shape, _names=op.names(self._names))

    def to(self, dest: Device | torch.dtype) -> Self:
        """Returns the Composite with all entries on another device, or with another dtype."""
        if dest is None:
            return self
        if isinstance(dest, torch.dtype):
            return self._map(lambda spec: spec.to(dest))
        device = as_device(dest)
        return self._map(lambda spec: spec.to(device), _device=device)

    def clear_device_(self) -> Self:
        """Removes the common device, here and in nested Composites, and returns self."""
        self._device = None
        for spec in self._entries().values():
            if spec is not None:
                spec.clear_device_()
        return self

    def clone(self) -> Self:
        return self._map(lambda spec: spec.clone())

    # -- values

    def _present_entries(self) -> dict[str, TensorSpec]:
        """The entries that have a spec."""
        return {name: spec for name, spec in self._entries().items() if spec is not None}

    def _pack(self, values: dict[str, object], batch: torch.Size) -> Any:
        """Builds a TensorDict, or an instance of `data_cls`, from values under keys."""
        names: Any = [*[None] * (len(batch) - self.ndim), *self._names] if any(self._names) else None
        td = TensorDict(values, batch_size=batch, device=self.device, names=names)
        if self.data_cls is None or self.data_cls is TensorDict:
            return td
        return self.data_cls.from_tensordict(td)  # pyright: ignore[reportAttributeAccessIssue]

    def _build(self, shape: ShapeLike | None, value_of: Callable[[TensorSpec], object]) -> Any:
        """Builds a value from `value_of` of each entry, with the batch dimensions `shape` in front."""
        batch = torch.Size([*as_size(() if shape is None else shape), *concrete(self.shape)])
        return self._pack({name: value_of(spec) for name, spec in self._present_entries().items()}, batch)

    def rand(self, shape: ShapeLike | None = None, *, generator: torch.Generator | None = None) -> Any:
        return self._build(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: ShapeLike | None = None) -> Any:
        return self._build(shape, lambda spec: spec.zero(shape))

    def one(self, shape: ShapeLike | None = None) -> Any:
        return self._build(shape, lambda spec: spec.one(shape))

    def _extra_batch_shape(self, val: TensorDictBase) -> torch.Size:
        """Returns the batch dimensions of `val` in front of this Composite's."""
        batch = val.batch_size
        if not shape_matches(batch, self.shape):
            raise SpaceError(f"Expected a batch shape that ends with {tuple(self.shape)}, got {tuple(batch)}.")
        return batch[: len(batch) - self.ndim]

    def rand_update(self, val: TensorDictBase) -> TensorDictBase:
        """Fills `val`, a TensorDict with a batch shape that ends with this one, with random values of all entries."""
        return val.update(self.rand(self._extra_batch_shape(val)))

    def zeros_update(self, val: TensorDictBase) -> TensorDictBase:
        """Fills `val`, a TensorDict with a batch shape that ends with this one, with zeros of all entries."""
        return val.update(self.zero(self._extra_batch_shape(val)))

    def ones_update(self, val: TensorDictBase) -> TensorDictBase:
        """Fills `val`, a TensorDict with a batch shape that ends with this one, with ones of all entries."""
        return val.update(self.one(self._extra_batch_shape(val)))

    def mismatch(self, val: object) -> str | None:
        if not isinstance(val, Mapping) and not is_tensordict(val):
            return f"expected a TensorDict, got {type(val).__name__}"
        for name, spec in self._present_entries().items():
            if not has_entry(val, name):
                return f"{name!r} is missing among {sorted(map(str, val.keys()))}"  # pyright: ignore[reportUnknownArgumentType]
            problem = spec.mismatch(get_entry(val, name))
            if problem is not None:
                return f"at {name!r}: {problem}"
        return None

    def project(self, val: Any) -> Any:
        """Replaces the entries of the TensorDict `val` that are not in their specs by the nearest values that are.

        Other entries keep their tensors. `val` may have batch dimensions in front of the spec's shape.

        Args:
            val: a TensorDict, which is changed in place; if it is locked, values are written into its tensors. Or a
                plain mapping, which is not changed.

        Returns:
            `val` itself; for a plain mapping, a new TensorDict.

        Raises:
            SpaceError: an entry is missing or has another shape.
            LockedError: an entry of a locked TensorDict has another dtype.
        """
        if not is_tensordict(val):
            val = TensorDict(dict(val), batch_size=concrete(self.shape))
        for name, spec in self._present_entries().items():
            if not has_entry(val, name):
                raise SpaceError(f"Expected {name!r} to project, got only {list(val.keys())}.")
            entry_value = get_entry(val, name)
            put(val, name, entry_value, spec.project(entry_value))
        return val

    def encode(self, val: object, *, ignore_device: bool = False) -> Any:
        """Encodes the entries of `val`, a mapping or TensorDict that may lack some, and returns a TensorDict.

        Raises:
            KeyError: `val` has an entry that the spec does not have.
            SpaceError: an entry does not fit its spec.
        """
        if is_tensordict(val):
            val = {name: get_entry(val, name) for name in val.keys()}  # noqa: SIM118
        if not isinstance(val, Mapping):
            raise SpaceError(f"Expected a mapping with keys of {list(self.keys())}, got {val!r:.80}.")
        specs = self._entries()
        values: dict[str, Any] = {}
        for name, item in val.items():  # pyright: ignore[reportUnknownVariableType]
            if name not in specs:
                raise KeyError(f"Expected keys of the spec, {list(self.keys())}, got {name!r}.")
            spec = specs[name]  # pyright: ignore[reportUnknownArgumentType]
            try:
                values[name] = item if spec is None else spec.encode(item, ignore_device=ignore_device)
            except SpaceError as error:
                raise type(error)(f"At {name!r}: {error}") from error
        return self._pack(values, concrete(self.shape))

    def to_numpy(self, val: object, safe: bool | None = None) -> dict[str, Any]:
        """Converts the entries with `to_numpy` of their specs and returns a nested dict."""
        entries = self._present_entries().items()
        return {name: spec.to_numpy(get_entry(val, name), safe) for name, spec in entries if has_entry(val, name)}

    def type_check(self, value: object, key: object = None) -> None:
        """Raises a `SpaceError` (a TypeError) unless the entries have the dtypes of their specs.

        Args:
            value: a TensorDict or mapping, or a single value of the entry `key`.
            key: the key that is checked, or a list of keys; None for all keys of `value`.
        """
        if isinstance(value, Tensor):
            self.get(key).type_check(value, key)
            return
        names = None if key is None else {key_path(k)[0] for k in (key if isinstance(key, list) else [key])}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        for name, spec in self._present_entries().items():
            if has_entry(value, name) and (names is None or name in names):
                item = get_entry(value, name)
                spec.type_check(item, name if isinstance(item, Tensor) else None)

    def cardinality(self) -> int | float:
        return math.prod(spec.cardinality() for spec in self._present_entries().values())

    def enumerate(self, use_mask: bool = False) -> Any:
        """Returns every combination of the entries' values; the last entry varies fastest.

        The elements of a batch have the same values, and share their memory.
        """
        columns = {name: spec.enumerate(use_mask) for name, spec in self._present_entries().items()}
        counts = [column.shape[0] for column in columns.values()]
        total = math.prod(counts)
        rows = torch.unravel_index(torch.arange(total), counts)
        first = (slice(None), *[slice(0, 1)] * self.ndim)  # of the batch
        values = {
            name: column[first][row.to(column.device) if isinstance(column, Tensor) else row].expand(
                total, *column.shape[1:]
            )
            for (name, column), row in zip(columns.items(), rows, strict=True)
        }
        return self._pack(values, torch.Size([total, *concrete(self.shape)]))

    def __repr__(self) -> str:
        lines = [f"    {name}: {_indent(spec)}," for name, spec in self._entries().items()]
        last = f"shape={tuple(self.shape)}, device={self.device}"
        if any(self._names):
            last += f", names={self._names}"
        return f"{type(self).__name__}(\n" + "\n".join([*lines, f"    {last})"])


def _indent(spec: object) -> str:
    return repr(spec).replace("\n", "\n    ")


def _pass_names(names: Names, spec: TensorSpec | None) -> None:
    """Gives a nested Composite the names of the batch dimensions that it shares with its parent."""
    if any(names) and type(spec) is Composite:
        spec.names = [*names, *spec.names[len(names) :]]


def _validate_names(names: Sequence[str | None] | None, ndim: int) -> Names:
    if names is None:
        return [None] * ndim
    if len(names) != ndim:
        raise SpaceError(f"Expected a name (or None) for each of {ndim} batch dimensions, got {list(names)}.")
    return list(names)
