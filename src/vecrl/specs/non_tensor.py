"""Specs of values that are no tensors (`NonTensor`), and of values from a list of specs or objects (`Choice`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeGuard

import numpy as np
import tensordict
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_non_tensor
from torch import Generator

from ..errors import SpaceError
from .base import Device, TensorSpec, as_device
from .domains import Domain
from .shape_methods import num_movable, rearrange
from .shape_ops import ShapeLike, ShapeOp, as_size, concrete, shape_matches


class Sampler(Protocol):
    """The methods of a gymnasium space that `NonTensor` uses."""

    def sample(self) -> object: ...
    def seed(self, seed: int) -> object: ...
    def contains(self, obj: object) -> bool: ...


@dataclass(frozen=True, eq=False)
class Objects(Domain):
    """The objects of a space; any objects without one."""

    space: Sampler | None

    def rand(self, sizes: torch.Size, dtype: object, device: torch.device | None, generator: Generator | None) -> Any:
        """Samples objects of the space, as non-tensor data."""
        assert self.space is not None
        self.space.seed(int(torch.randint(0, 2**31, (), generator=generator)))
        return _nest_objects([self.space.sample() for _ in range(sizes.numel())], sizes, device)

    def violation(self, val: Sequence[object]) -> str | None:
        """Returns which of the objects is not in the space."""
        space = self.space
        invalid = None if space is None else next((obj for obj in val if not space.contains(obj)), None)
        return None if invalid is None else f"{invalid!r:.80} is not in {space}"


class NonTensor(TensorSpec):
    """Any object: a text, a graph, a sequence. Values are tensordict's `NonTensorData` and `NonTensorStack`.

    Args:
        shape: of the batch of objects, (1,) by default; () for a single one.
        device: of the values; None if it is not declared.
        dtype: has no effect; the attribute is always None.
        example_data: the value of `zero`, `one` and, without a `space`, `rand`.
        batched: whether one object represents a whole batch; kept, but without effect.
        feature_dims: how many of the last dimensions belong to the object; kept, but without effect.
        space: the set of objects: a gymnasium space, or anything that has `sample`, `seed` and `contains`. If it is
            given, `rand` samples objects from it and `is_in` checks them.

    >>> spec = NonTensor((), example_data="hello")
    >>> spec.zero().data, spec.is_in("anything"), spec.to_numpy(spec.encode("x"))
    ('hello', True, 'x')
    """

    _fields = ("example_data", "batched", "feature_dims")
    _domain: Objects
    dtype = None

    def __init__(
        self,
        shape: ShapeLike = torch.Size([1]),  # noqa: B008
        device: Device = None,
        dtype: object = None,
        example_data: object = None,
        batched: bool | None = None,
        feature_dims: int | None = None,
        *,
        space: Sampler | None = None,
    ):
        self.shape = as_size(shape)
        self.device = None if device is None else as_device(device)
        self.example_data = example_data
        self.batched = bool(batched)
        self._feature_dims = feature_dims
        self._domain = Objects(space)

    @property
    def feature_dims(self) -> int:
        """How many of the last dimensions belong to the object; all by default."""
        return self.ndim if self._feature_dims is None else self._feature_dims

    @property
    def space(self) -> Sampler | None:
        return self._domain.space

    def _example(self, shape: ShapeLike | None) -> NonTensorData:
        return NonTensorData(self.example_data, batch_size=self._sizes(shape), device=self.device)

    def zero(self, shape: ShapeLike | None = None) -> NonTensorData:
        """Returns the example for the whole batch."""
        return self._example(shape)

    def one(self, shape: ShapeLike | None = None) -> NonTensorData:
        """Returns the example for the whole batch."""
        return self._example(shape)

    def rand(self, shape: ShapeLike | None = None, *, generator: Generator | None = None) -> Any:
        return self._example(shape) if self.space is None else super().rand(shape, generator=generator)

    def mismatch(self, val: object) -> str | None:
        if _is_data(val):
            if not shape_matches(val.batch_size, self.shape):
                return f"expected a batch of shape {tuple(self.shape)}, got {tuple(val.batch_size)}"
            objects = _flat_objects(val)
        else:
            objects = [val]
        return self._domain.violation(objects)

    def project(self, val: object) -> Any:
        """Returns `val` itself if it is in the spec, else the example."""
        if self.is_in(val):
            return val
        if _is_data(val) and not shape_matches(val.batch_size, self.shape):
            raise SpaceError(f"Expected shape {tuple(self.shape)} to project, got {tuple(val.batch_size)}.")
        return self._example(val.batch_size[: len(val.batch_size) - self.ndim] if _is_data(val) else ())

    def type_check(self, value: object, key: object = None) -> None:
        """Has no effect, since objects have no dtype."""

    def encode(self, val: object, *, ignore_device: bool = False) -> TensorDictBase | NonTensorData | NonTensorStack:
        """Converts an object to `NonTensorData`, and a list or array as long as the first dimension to a stack."""
        if _is_data(val):
            return val
        shape = concrete(self.shape)
        if shape and isinstance(val, list | tuple | np.ndarray) and len(val) == shape[0]:  # pyright: ignore[reportUnknownArgumentType]
            return NonTensorStack(*(self[0].encode(item) for item in val))  # pyright: ignore[reportUnknownVariableType]
        return NonTensorData(val, batch_size=shape, device=self.device)

    def to_numpy(self, val: object, safe: bool | None = None) -> Any:
        """Returns the object itself; for a batch, nested lists of objects."""
        if safe:
            self.assert_is_in(val)
        if not _is_data(val):
            return val
        return val.data if isinstance(val, NonTensorData) else val.tolist()

    def _repr_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"shape": tuple(self.shape)}
        if self.space is not None:
            fields["space"] = self.space
        return {**fields, "example_data": repr(self.example_data)}


def _is_data(val: object) -> TypeGuard[TensorDictBase]:
    """Whether a value is tensordict's data of an object, or a stack of such."""
    return is_non_tensor(val)


def _nest_objects(
    objects: Sequence[object], sizes: torch.Size, device: torch.device | None
) -> NonTensorData | NonTensorStack:
    """Builds non-tensor data of shape `sizes` from objects in row-major order."""
    if not sizes:
        return NonTensorData(objects[0], device=device)
    if not sizes.numel():
        return NonTensorData(None, batch_size=sizes, device=device)
    step = len(objects) // sizes[0]
    rows = [objects[i * step : (i + 1) * step] for i in range(sizes[0])]
    return NonTensorStack(*(_nest_objects(row, sizes[1:], device) for row in rows))


def _flat_objects(val: TensorDictBase) -> list[object]:
    """Returns all objects of non-tensor data, in row-major order."""
    if isinstance(val, NonTensorData):
        return [val.data]
    return [obj for item in val.unbind(0) for obj in _flat_objects(item)]


class Choice(TensorSpec):
    """A value of one of several specs, or one of several objects.

    Args:
        choices: specs of one class, shape, dtype and device; or non-tensor data of one class and batch shape.

    Raises:
        SpaceError: there are no choices, or their classes, shapes, dtypes or devices differ.

    >>> from vecrl.specs import Bounded
    >>> spec = Choice([Bounded(0, 1, (2,)), Bounded(3, 4, (2,))])
    >>> spec.is_in(torch.tensor([3.5, 4.0])), spec.is_in(torch.tensor([0.5, 4.0]))
    (True, False)
    """

    def __init__(self, choices: Sequence[Any]):
        given: Any = choices
        if not isinstance(given, Iterable):
            raise SpaceError(f"Expected a list of choices, got {given!r:.80}.")
        self.choices: list[Any] = list(given)
        if not self.choices:
            raise SpaceError("Expected at least one choice.")
        if len({type(choice) for choice in self.choices}) > 1:
            raise SpaceError(f"Expected choices of one class, got {[type(c).__name__ for c in self.choices]}.")
        first = self.choices[0]
        self._has_specs = isinstance(first, TensorSpec)
        if not self._has_specs and not _is_data(first):
            raise SpaceError(f"Expected specs or non-tensor data to choose among, got {first!r:.80}.")
        properties = {(tuple(c.shape), getattr(c, "dtype", None), str(c.device)) for c in self.choices}
        if len(properties) > 1:
            raise SpaceError(f"Expected choices of one shape, dtype and device, got {sorted(map(str, properties))}.")
        self.shape = torch.Size(first.shape)
        self.dtype = first.dtype if self._has_specs else None
        self.device = first.device

    def _state(self) -> Sequence[object]:
        return Choice, self.choices if self._has_specs else [_flat_objects(choice) for choice in self.choices]

    def _map(self, function: Callable[[Any], object]) -> Self:
        return type(self)([function(choice) for choice in self.choices])

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        return self._map(lambda choice: choice.to(dest))

    def _num_movable(self) -> int:
        return num_movable(self.choices[0]) if self._has_specs else self.ndim

    def _rearrange(self, op: ShapeOp) -> Self:
        if self._has_specs:
            return self._map(lambda spec: rearrange(spec, op))
        sizes = op.out_shape
        return self._map(lambda data: _nest_objects([_flat_objects(data)[0]] * sizes.numel(), sizes, data.device))

    def clone(self) -> Self:
        return self._map(lambda choice: choice.clone())

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.clone()  # since tensordict 0.13 warns when its data are deep-copied

    def rand(self, shape: ShapeLike | None = None, *, generator: Generator | None = None) -> Any:
        """Samples values of one random choice, which is the same for the whole batch."""
        return self._choice_value(int(torch.randint(0, len(self.choices), (), generator=generator)), "rand", shape)

    def zero(self, shape: ShapeLike | None = None) -> Any:
        """Returns the zero of the first choice, or the first object."""
        return self._choice_value(0, "zero", shape)

    def one(self, shape: ShapeLike | None = None) -> Any:
        """Returns the one of the first choice, or the first object."""
        return self._choice_value(0, "one", shape)

    def _choice_value(self, choice_index: int, method_name: str, shape: ShapeLike | None) -> Any:
        choice = self.choices[choice_index]
        if self._has_specs:
            return getattr(choice, method_name)(shape)
        return choice.expand(self._sizes(shape))

    def mismatch(self, val: object) -> str | None:
        if self._has_specs:
            problems = [choice.mismatch(val) for choice in self.choices]
            return None if None in problems else f"in none of the choices: {problems[0]}, …"
        objects = _flat_objects(val) if _is_data(val) else [val]
        valid = [_flat_objects(choice) for choice in self.choices]
        if all(len({*map(id, choice)}) == 1 for choice in valid):  # expanded choices: each row may have another one
            valid = [choice[:1] for choice in valid]
        size = len(valid[0])
        values = [objects[start : start + size] for start in range(0, len(objects), size)]
        invalid = next((value for value in values if value not in valid), None)
        return None if invalid is None else f"{invalid!r:.80} is none of {valid}"

    def project(self, val: object) -> Any:
        """Returns `val` itself if it is in the spec, else the nearest value of the first choice or the first object."""
        if self.is_in(val):
            return val
        return self.choices[0].project(val) if self._has_specs else self.zero()

    def type_check(self, value: object, key: object = None) -> None:
        if self._has_specs:
            self.choices[0].type_check(value, key)

    def encode(self, val: object, *, ignore_device: bool = False) -> Any:
        """Encodes a value with the first choice, or converts an object to `NonTensorData`."""
        if self._has_specs:
            return self.choices[0].encode(val, ignore_device=ignore_device)
        return val if _is_data(val) else NonTensorData(val, batch_size=concrete(self.shape))

    def to_numpy(self, val: object, safe: bool | None = None) -> Any:
        if safe:
            self.assert_is_in(val)
        if self._has_specs:
            return self.choices[0].to_numpy(val)
        return NonTensor(self.shape).to_numpy(val)

    def cardinality(self) -> int | float:
        """Returns the sum over the choices; for objects, their number."""
        return sum(choice.cardinality() for choice in self.choices) if self._has_specs else len(self.choices)

    def enumerate(self, use_mask: bool = False) -> Any:
        """Returns the values of all choices, concatenated."""
        if self._has_specs:
            return torch.cat([choice.enumerate(use_mask) for choice in self.choices])
        return tensordict.lazy_stack(self.choices)

    def __repr__(self) -> str:
        return f"Choice({self.choices})"
