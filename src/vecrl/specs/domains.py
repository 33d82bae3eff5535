"""Domains: which values the elements of a leaf spec may have, and how they are sampled, checked and corrected."""

from __future__ import annotations

import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from .dtypes import INT64_MAX_FLOAT, UNSUPPORTED_UNSIGNED, dtype_limits, is_integral, to_comparable
from .shape_ops import concrete

Counts = Tensor | int
UNKNOWN = 2**62  # a number of options that is not known
_MAX_COMPARE_OPTIONS = 8  # up to this number of options, comparing with each is faster than `scatter_`


@dataclass(frozen=True, eq=False)
class Domain(ABC):
    """The values that an element of a tensor may have; with `event_dims`, those of its last dimensions together.

    A subclass is a frozen dataclass (`eq=False`). It implements `rand` and `violation`, `project` if there are nearest
    values, and the other methods if its values can be counted. Fields that hold tensors are parameters of the elements:
    tensors of the spec's shape (size 1 where it is dynamic), with any dimensions behind, on its device. They
    are indexed, expanded, reshaped, stacked and moved with the spec; all fields are compared by `==`.
    """

    event_dims: ClassVar[int] = 0
    """The number of last dimensions that form one value (a one-hot row) and cannot be rearranged."""

    @abstractmethod
    def rand(self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None) -> Tensor:
        """Samples a tensor of shape `sizes`, which ends with the spec's shape."""

    @abstractmethod
    def violation(self, val: Any) -> str | None:
        """Returns why `val`, of a fitting shape and dtype, has a value that is not in the domain; None if it has none.

        The parameters may be on another device than `val`.
        """

    def project(self, val: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the nearest values in the domain, of `dtype`, for `val` of a fitting shape and any dtype."""
        raise NotImplementedError(f"Expected a domain with nearest values, got {self!r:.80}. Define project.")

    def cardinality(self, shape: torch.Size) -> int | float:
        """Returns the number of values of a spec of this shape. Batch dimensions do not count."""
        return math.inf

    def enumerate(self, shape: torch.Size, dtype: torch.dtype, device: torch.device, use_mask: bool) -> Tensor | None:
        """Returns all values of a spec of this shape along a new first dimension, the same for each batch element."""
        return None

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Returns the domain with `function` applied to the tensors among its parameters."""
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        return replace(self, **{name: function(tensor) for name, tensor in tensors.items()}) if tensors else self

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        return all(values_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.compare)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def values_equal(a: Any, b: object) -> bool:
    """Whether two parameters of specs are equal: tensors with dtype and device, dicts in any order, other objects."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same_form = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        return same_form and (a.device.type == "meta" or torch.equal(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(values_equal(value, b[key]) for key, value in a.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    try:
        equal = a == b
        return equal if isinstance(equal, bool) else bool(np.all(equal))
    except ValueError:  # an object that holds arrays: the truth value of their comparison is ambiguous
        return pickle.dumps(a) == pickle.dumps(b)


@dataclass(frozen=True, eq=False)
class Anything(Domain):
    """Any number of the dtype, NaN and infinities included."""

    def rand(self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None) -> Tensor:
        """Samples floats from a normal distribution, integers uniformly from the range of the dtype."""
        if not is_integral(dtype):
            return torch.randn(sizes, dtype=dtype, device=device, generator=generator)
        low, high = (int(end) for end in dtype_limits(dtype))
        integers = torch.empty(sizes, dtype=torch.int64, device=device)
        if high - low >= 2**63:
            return integers.random_(-(2**63), None, generator=generator)  # pyright: ignore[reportCallIssue, reportArgumentType]
        if high == 2**63 - 1:
            return integers.random_(generator=generator).to(dtype)
        return integers.random_(low, high + 1, generator=generator).to(dtype)

    def violation(self, val: Tensor) -> str | None:
        return None

    def project(self, val: Tensor, dtype: torch.dtype) -> Tensor:
        if val.is_floating_point() and is_integral(dtype):
            low, high = dtype_limits(dtype)
            val = val.double().nan_to_num(nan=0.0).round().clamp(float(low), min(float(high), INT64_MAX_FLOAT))
        return val.to(dtype)


@dataclass(frozen=True, eq=False)
class Interval(Domain):
    """Numbers between two bounds, both included.

    Attributes:
        low, high: tensors of the spec's dtype; of int64 for the unsigned dtypes with which torch cannot compute. They
            are never written to, so they may be expanded views.
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, low: object, high: object, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Interval:
        """Returns the interval for a spec of this shape, dtype and device; `Bounded` documents the errors."""
        bounds = [_bound_to_dtype(bound_to_tensor(bound), dtype) for bound in (low, high)]
        bounds_dtype = torch.int64 if dtype in UNSUPPORTED_UNSIGNED else dtype
        try:
            lower, upper = (
                bound.to(device=device, dtype=bounds_dtype, copy=True).expand(concrete(shape)) for bound in bounds
            )
        except RuntimeError as error:
            raise SpaceError(f"Expected bounds that broadcast to one shape: {error}") from error
        if not lower.is_meta and bool((lower > upper).any()):
            raise SpaceError("Expected low <= high for every element, got a lower bound above its upper bound.")
        return cls(lower, upper)

    @cached_property
    def ends(self) -> tuple[Any, Any] | None:
        """The bounds as two numbers if all elements have the same."""
        low, high = self.low.reshape(-1), self.high.reshape(-1)
        if low.is_meta or not low.numel() or not bool((low == low[0]).all() and (high == high[0]).all()):
            return None
        return low[0].item(), high[0].item()

    @cached_property
    def is_finite(self) -> bool:
        """Whether all bounds are finite."""
        return self.low.is_meta or bool((self.low.isfinite() & self.high.isfinite()).all())

    def rand(self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None) -> Tensor:
        """Samples floats uniformly between two finite bounds, exponentially from a single one, normally without one."""
        if not dtype.is_floating_point:
            return self._rand_integers(sizes, dtype, device, generator)
        uniform = torch.rand(sizes, dtype=dtype, device=device, generator=generator)
        ends = self.ends
        if ends is not None and ends[1] - ends[0] <= torch.finfo(dtype).max:
            return uniform.mul_(ends[1] - ends[0]).add_(ends[0]).clamp_(*ends)
        low, high = self.low, self.high
        interior = low * (1 - uniform) + high * uniform  # since `high - low` may overflow
        if self.is_finite:
            return torch.clamp(interior, low, high)
        exponential = torch.empty_like(uniform).exponential_(generator=generator)
        normal = torch.randn(sizes, dtype=dtype, device=device, generator=generator)
        interior = torch.where(
            low.isfinite(), torch.where(high.isfinite(), interior, low + exponential), high - exponential
        )
        return torch.where(low.isfinite() | high.isfinite(), torch.maximum(torch.minimum(interior, high), low), normal)

    def _rand_integers(
        self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None
    ) -> Tensor:
        if self.ends is not None:
            first, last = (int(end) for end in self.ends)
            if last - first < 2**63 - 1:
                integers = torch.randint(0, last - first + 1, sizes, device=device, generator=generator)
                return integers.add_(first).to(dtype)
        low, high = self.low.to(torch.int64), self.high.to(torch.int64)
        uniform = torch.rand(sizes, dtype=torch.float64, device=device, generator=generator)
        interior = low.double() * (1 - uniform) + (high.double() + 1) * uniform
        interior = interior.floor().clamp(-(2.0**63), INT64_MAX_FLOAT).to(torch.int64)
        return torch.maximum(torch.minimum(interior, high), low).to(dtype)

    def violation(self, val: Tensor) -> str | None:
        val = to_comparable(val)
        in_bounds = (val >= self.low.to(val.device)) & (val <= self.high.to(val.device))
        if bool(in_bounds.all()):
            return None
        first_invalid = val[~in_bounds].reshape(-1)[0].item()
        return (
            f"{int((~in_bounds).sum())} of {val.numel()} elements are out of bounds, the first of them {first_invalid}"
        )

    def project(self, val: Tensor, dtype: torch.dtype) -> Tensor:
        low, high = self.low.to(val.device), self.high.to(val.device)
        if val.is_floating_point():
            val = torch.where(val.isnan(), 0, val)
            if not low.is_floating_point():
                val = val.double().round().clamp(-(2.0**63), INT64_MAX_FLOAT).to(torch.int64)
        val = val.to(torch.promote_types(to_comparable(val).dtype, low.dtype))
        return torch.maximum(torch.minimum(val, high), low).to(dtype)


def bound_to_tensor(bound: object) -> Tensor:
    """Converts the bound that a user gave to a tensor."""
    if isinstance(bound, Tensor):
        return bound
    try:
        return torch.as_tensor(np.array(bound))  # a copy, since the caller may change the array
    except (TypeError, ValueError) as error:
        raise SpaceError(
            f"Expected numbers as bounds, got {bound!r:.80}. Give numbers below 2**63, or infinite ones for no bound."
        ) from error


def _bound_to_dtype(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Checks a bound; for a dtype of integers, truncates it, with the limits of the dtype for infinities.

    Raises:
        SpaceError: the bound is NaN, or outside the range of a dtype of integers.
    """
    if bound.dtype == torch.uint64 and not bound.is_meta and bool((bound.view(torch.int64) < 0).any()):
        bound = bound.double()  # since int64 cannot hold it
    bound = to_comparable(bound)
    has_values = not bound.is_meta and bool(bound.numel())
    if has_values and bool(bound.isnan().any()):
        raise SpaceError("Expected numbers as bounds, got NaN. Give an infinite bound for no bound.")
    if not is_integral(dtype) or bound.is_complex():
        return bound
    lowest, highest = dtype_limits(dtype)
    finite = bound[bound.isfinite()] if has_values else bound
    if has_values and bool(((finite < lowest) | (finite > highest)).any()):
        raise SpaceError(
            f"Expected bounds of {dtype} from {int(lowest)} to {int(highest)}, got bounds from "
            f"{finite.min().item()} to {finite.max().item()}. Give others, infinite ones for no "
            "bound, or another dtype."
        )
    if not bound.is_floating_point():
        return bound
    bound = bound.double().nan_to_num(nan=0.0, posinf=float(highest), neginf=float(lowest))
    integers = torch.where(bound >= float(highest), highest, bound.clamp(max=INT64_MAX_FLOAT).to(torch.int64))
    return torch.where(bound <= float(lowest), torch.as_tensor(lowest), integers)


@dataclass(frozen=True, eq=False)
class Indices(Domain):
    """Indices of options. A subclass says how many options there are, and how they are enumerated.

    Attributes:
        counts: the number of options of each element: an int, or a tensor of the spec's shape.
        first: the index of the first option, in the same form.
        mask: which options are allowed, `[*shape, options]`; None for all.
    """

    counts: Counts
    first: Counts
    mask: Tensor | None = None

    def rand(self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None) -> Tensor:
        return (sample_index(self.counts, self.mask, sizes, device, generator) + self.first).to(dtype)

    def violation(self, val: Tensor) -> str | None:
        first, counts = _on(self.first, val.device), _on(self.counts, val.device)
        index = to_integers(val) - first
        if val.is_floating_point() and not bool((index + first == val).all()):
            return "an index is not an integer"
        in_range = (index >= 0) & (index < counts)
        if not bool(in_range.all()):
            return f"{int((~in_range).sum())} of {index.numel()} elements are not in range"
        if self.mask is not None and index.numel():
            options = self.mask.to(val.device).expand(*index.shape, self.mask.shape[-1])
            is_allowed = options.gather(-1, index.unsqueeze(-1))
            if not bool(is_allowed.all()):
                return f"{int((~is_allowed).sum())} of {index.numel()} elements are options that the mask forbids"
        return None

    def project(self, val: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the nearest allowed options; the lower one of two."""
        first, counts = _on(self.first, val.device), _on(self.counts, val.device)
        index = (to_integers(val) - first).clamp(min=0)
        index = index.clamp(max=counts - 1) if isinstance(counts, int) else torch.minimum(index, counts - 1)
        if self.mask is not None and index.numel():
            allowed = self.mask.to(val.device)
            distance = (torch.arange(allowed.shape[-1], device=val.device) - index.unsqueeze(-1)).abs()
            index = distance.masked_fill(~allowed, allowed.shape[-1]).argmin(-1)
        return (index + first).to(dtype)

    @abstractmethod
    def options(self, shape: torch.Size, device: torch.device, use_mask: bool) -> Tensor:
        """Returns the values of one batch element, counted from 0, along a first dimension."""

    def enumerate(self, shape: torch.Size, dtype: torch.dtype, device: torch.device, use_mask: bool) -> Tensor:
        options, shape = self.options(shape, device, use_mask), concrete(shape)
        num_batch_dims = len(shape) - (options.ndim - 1)
        values = options.reshape(-1, *[1] * num_batch_dims, *options.shape[1:]).expand(-1, *shape)
        return (values + self.first).to(dtype)


@dataclass(frozen=True, eq=False)
class EqualIndices(Indices):
    """An index among the same number of options in each element.

    Attributes:
        counts: the number of options; `UNKNOWN` if it is not known.
        provisional: the number of options from which values are sampled meanwhile.
    """

    counts: int
    first: int = 0
    provisional: int | None = field(default=None, compare=False)

    def rand(self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None) -> Tensor:
        counts = self.counts
        if counts == UNKNOWN:
            if self.provisional is None:
                raise SpaceError("Cannot sample from an unknown number of options. Call set_provisional_n(n) first.")
            counts = self.provisional
        if self.mask is not None:
            return super().rand(sizes, dtype, device, generator)
        return torch.randint(self.first, self.first + counts, sizes, dtype=dtype, device=device, generator=generator)

    def cardinality(self, shape: torch.Size) -> int | float:
        return math.inf if self.counts == UNKNOWN else self.counts

    def options(self, shape: torch.Size, device: torch.device, use_mask: bool) -> Tensor:
        if self.counts == UNKNOWN:
            raise SpaceError("Cannot enumerate an unknown number of options.")
        options = torch.arange(self.counts, device=device)
        return options[_common_mask(self.mask)] if use_mask and self.mask is not None else options


@dataclass(frozen=True, eq=False)
class Bits(EqualIndices):
    """Zeros and ones; those along the last dimension are counted together."""

    counts: int = 2

    def cardinality(self, shape: torch.Size) -> int | float:
        return 2 ** (shape[-1] if shape else 1)

    def options(self, shape: torch.Size, device: torch.device, use_mask: bool) -> Tensor:
        bits = _combinations([2] * (shape[-1] if shape else 1), device)
        return bits if shape else bits.squeeze(-1)


@dataclass(frozen=True, eq=False)
class UnequalIndices(Indices):
    """Indices along the last dimension, where each element has its own number of options.

    Attributes:
        counts, first: int64 `[*shape]`.
        mask: `[*shape, counts.max()]`.
    """

    counts: Tensor
    first: Tensor

    @cached_property
    def nvec(self) -> Tensor:
        """The numbers of options along the last dimension; `counts` if they differ along other ones."""
        if self.counts.ndim < 2 or not self.counts.numel():
            return self.counts
        flat = self.counts.reshape(-1, self.counts.shape[-1])
        return flat[0] if bool((flat == flat[:1]).all()) else self.counts

    def option_counts(self, purpose: str) -> list[int]:
        """Returns the numbers of options along the last dimension; of a single number, this one.

        Raises:
            SpaceError: they differ along other dimensions.
        """
        nvec = self.nvec if self.counts.ndim else self.nvec.reshape(1)
        if nvec.ndim != 1:
            raise SpaceError(f"{purpose} needs numbers of options along one dimension, got shape {tuple(nvec.shape)}.")
        return nvec.tolist()

    def rand(self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None) -> Tensor:
        """Samples one index after another, as `OneHotRows` does, if the numbers of options are the same everywhere."""
        nvec, mask = self.nvec, self.mask
        if nvec.ndim != 1 or not sizes:
            return super().rand(sizes, dtype, device, generator)
        columns = [
            sample_index(n, None if mask is None else mask[..., i, :n], sizes[:-1], device, generator)
            for i, n in enumerate(nvec.tolist())
        ]
        return (torch.stack(columns, -1) + self.first).to(dtype)

    def cardinality(self, shape: torch.Size) -> int | float:
        return math.prod(self.nvec.reshape(-1).tolist())

    def options(self, shape: torch.Size, device: torch.device, use_mask: bool) -> Tensor:
        option_counts = self.option_counts("Enumeration")
        options = _combinations(option_counts, device)
        if use_mask and self.mask is not None:
            padded = self.mask if shape else self.mask.unsqueeze(0)
            allowed = _common_mask(padded.flatten(-2)).reshape(padded.shape[-2:])
            options = options[allowed[torch.arange(len(option_counts), device=device), options].all(-1)]
        return options if shape else options.squeeze(-1)


@dataclass(frozen=True, eq=False)
class OneHotRows(Domain):
    """Choices as rows with a single 1, concatenated along the last dimension.

    Attributes:
        choices: the number of options of each choice, and the index of its first one.
        mask: which options are allowed, `[*shape]`; None for all.
        has_dim: whether indices of the choices have a last dimension for them, even if there is one choice.
    """

    event_dims = 1
    choices: tuple[tuple[int, int], ...]
    mask: Tensor | None = None
    has_dim: bool = False

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Splits rows, or a mask, into one tensor per choice."""
        return (rows,) if len(self.choices) == 1 else rows.split([n for n, _ in self.choices], -1)

    def _masks(self) -> Sequence[Tensor | None]:
        return (None,) * len(self.choices) if self.mask is None else self.split(self.mask)

    def rand(self, sizes: torch.Size, dtype: torch.dtype, device: torch.device, generator: Generator | None) -> Tensor:
        rows: list[Tensor] = []
        for (n, _), mask in zip(self.choices, self._masks(), strict=True):
            rows.append(_one_hot(sample_index(n, mask, sizes[:-1], device, generator), n, dtype))
        return _concatenate(rows)

    def violation(self, val: Tensor) -> str | None:
        """Returns why a row has not a single 1, without rounding. `rounded_ones` is the rule for converted actions."""
        for i, (part, mask) in enumerate(zip(self.split(val), self._masks(), strict=True)):
            is_set = part != 0
            if not bool((is_set.sum(-1) == 1).all()) or not bool((part == is_set).all()):
                problem = "expected a single 1 among zeros along the last dimension"
            elif mask is not None and bool((is_set & ~mask.to(val.device)).any()):
                problem = "an option is selected that the mask forbids"
            else:
                continue
            return f"in choice {i}, {problem}" if len(self.choices) > 1 else problem
        return None

    def project(self, val: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns rows that select the greatest allowed entries; the first of equal ones."""
        rows: list[Tensor] = []
        for part, mask in zip(self.split(val), self._masks(), strict=True):
            score = part.double().nan_to_num(nan=-(2.0**1000), posinf=2.0**1000, neginf=-(2.0**1000))
            if mask is not None:
                score = score.masked_fill(~mask.to(val.device), float("-inf"))
            rows.append(_one_hot(score.argmax(-1), part.shape[-1], dtype))
        return _concatenate(rows)

    def cardinality(self, shape: torch.Size) -> int | float:
        return math.prod(n for n, _ in self.choices)

    def encode(self, columns: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Converts the int64 indices of each choice to rows.

        Raises:
            SpaceError: an index is out of range.
        """
        rows: list[Tensor] = []
        for index, (n, first) in zip(columns, self.choices, strict=True):
            index = index - first
            if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < n):
                raise SpaceError(f"Expected indices in [0, {n}), got indices from {index.min()} to {index.max()}.")
            rows.append(_one_hot(index, n, dtype))
        return _concatenate(rows)

    def decode(self, rows: Tensor) -> list[Tensor]:
        """Returns the int64 index of the first 1 of each choice."""
        rows = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
        columns = [part.argmax(-1) for part in self.split(rows)]
        return [index + first if first else index for index, (_, first) in zip(columns, self.choices, strict=True)]


def _on(count: Counts, device: torch.device) -> Counts:
    return count if isinstance(count, int) else count.to(device)


def to_integers(val: Tensor) -> Tensor:
    """Rounds `val` to int64; NaN becomes 0."""
    if val.is_floating_point():
        val = val.double().nan_to_num(nan=0.0).round().clamp(-(2.0**62), 2.0**62)
    return val.to(torch.int64)


def sample_index(
    counts: Counts, allowed: Tensor | None, sizes: torch.Size, device: torch.device, generator: Generator | None
) -> Tensor:
    """Samples int64 indices of shape `sizes`, uniformly among the allowed options."""
    if allowed is not None:
        if not bool(allowed.any(-1).all()):
            raise SpaceError("Cannot sample under a mask that allows no option. Allow at least one.")
        weights = allowed.expand(*sizes, allowed.shape[-1]).reshape(-1, allowed.shape[-1]).float()
        if not weights.shape[0]:
            return torch.zeros(sizes, dtype=torch.int64, device=device)
        return torch.multinomial(weights, 1, generator=generator).reshape(sizes)
    if isinstance(counts, int):
        return torch.randint(0, counts, sizes, device=device, generator=generator)
    fraction = torch.rand(sizes, dtype=torch.float64, device=device, generator=generator)
    return torch.minimum((fraction * counts).to(torch.int64), counts - 1)


def _one_hot(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Converts each index, which must be in range, to a row of `n` entries, 1 at the index and 0 elsewhere."""
    if n <= _MAX_COMPARE_OPTIONS:
        rows = torch.empty((*index.shape, n), dtype=dtype, device=index.device)
        return torch.eq(index.unsqueeze(-1), torch.arange(n, device=index.device), out=rows)
    rows = torch.zeros((*index.shape, n), dtype=dtype, device=index.device)
    return rows.scatter_(-1, index.unsqueeze(-1), 1)


def _concatenate(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(tuple(rows), -1)


def _combinations(counts: Sequence[int], device: torch.device) -> Tensor:
    """Returns all combinations of one index below each count; the last index varies fastest."""
    grids = torch.meshgrid(*(torch.arange(n, device=device) for n in counts), indexing="ij")
    return torch.stack([grid.reshape(-1) for grid in grids], -1)


def _common_mask(mask: Tensor) -> Tensor:
    """Returns the mask that all elements of the batch share."""
    flat = mask.reshape(-1, mask.shape[-1])
    if not bool((flat == flat[:1]).all()):
        raise SpaceError("Options cannot be enumerated under a mask that differs along the batch.")
    return flat[0]
