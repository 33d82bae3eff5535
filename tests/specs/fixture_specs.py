"""Specs of every kind and Hypothesis strategies for them, for the tests of rules that hold for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tensordict import NonTensorData
from torch import Tensor

from vecrl.specs import (
    Binary,
    Bounded,
    Categorical,
    Choice,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Stacked,
    TensorSpec,
    Unbounded,
    UnboundedDiscrete,
)

MASK = torch.tensor([True, False, True, False])
INF = float("inf")

LEAVES: dict[str, TensorSpec] = {
    "bounded": Bounded(-1, 1, (2, 3)),
    "bounds that differ": Bounded(torch.tensor([-3.0, 0.0, 2.0]), torch.tensor([-1.0, 0.0, 9.0]), (2, 3)),
    "half bounded": Bounded(torch.tensor([-INF, 0.0, -INF]), torch.tensor([INF, INF, 1.0]), (2, 3)),
    "all floats": Bounded(torch.finfo(torch.float32).min, torch.finfo(torch.float32).max, (3,)),
    "half precision": Bounded(-2, 3, (4,), dtype=torch.float16),
    "integers": Bounded(-2, 5, (3, 2), dtype=torch.int64),
    "bytes": Bounded(0, 255, (4,), dtype=torch.uint8),
    "all integers": Bounded(-(2**63), 2**63 - 1, (2,), dtype=torch.int64),
    "wide integers": Bounded(0, 60000, (2,), dtype=torch.uint16),
    "scalar": Bounded(0, 1, ()),
    "unbounded": Unbounded((2, 3)),
    "unbounded double": Unbounded((3,), dtype=torch.float64),
    "unbounded int": UnboundedDiscrete((3,)),
    "unbounded bool": Unbounded((2,), dtype=torch.bool),
    "unbounded byte": Unbounded((2,), dtype=torch.uint8),
    "empty": Unbounded((0, 3)),
    "binary": Binary(3, (2, 3)),
    "flag": Binary(1, dtype=torch.bool),
    "categorical": Categorical(4, (2, 3)),
    "categorical scalar": Categorical(5),
    "categorical from 3": Categorical(4, (2,), min=3),
    "categorical masked": Categorical(4, (2,), mask=MASK),
    "categorical bool": Categorical(2, (1,), dtype=torch.bool),
    "one-hot": OneHot(4, (2, 3, 4)),
    "one-hot row": OneHot(4),
    "one-hot int": OneHot(4, (2, 4), dtype=torch.int64),
    "one-hot masked": OneHot(4, (2, 4), mask=torch.stack([MASK, ~MASK])),
    "multi-categorical": MultiCategorical((3, 2)),
    "multi-categorical batch": MultiCategorical((3, 2), (4, 2)),
    "multi-categorical matrix": MultiCategorical(torch.tensor([[3, 2], [4, 5]])),
    "multi-categorical masked": MultiCategorical((3, 2), (4, 2), mask=torch.tensor([1, 0, 1, 1, 0]).bool()),
    "multi-categorical from": MultiCategorical((3, 2), min=torch.tensor([5, -1])),
    "multi-one-hot": MultiOneHot((3, 2), (2, 5)),
    "multi-one-hot masked": MultiOneHot((3, 2), mask=torch.tensor([1, 0, 1, 1, 0]).bool()),
}

OTHERS: dict[str, TensorSpec] = {
    "dynamic": Bounded(-1, 1, (3, -1, 2)),
    "dynamic categorical": Categorical(4, (-1, 2)),
    "non-tensor": NonTensor((2,), example_data="a"),
    "choice of specs": Choice([Bounded(0, 1, (2,)), Bounded(3, 4, (2,))]),
    "choice of objects": Choice([NonTensorData("a"), NonTensorData("b")]),
    "stack of bounds": Stacked(Bounded(0, 1, (3,)), Bounded(2, 3, (3,)), dim=0),
    "ragged stack": Stacked(Unbounded((3,)), Unbounded((4,)), dim=0),
    "composite": Composite(
        {"x": Bounded(-1, 1, (4, 3)), "n": Composite({"c": Categorical(3, (4,)), "t": NonTensor((4,))})}, shape=(4,)
    ),
    "named": Composite(x=Unbounded((4, 2)), shape=(4,), names=["time"]),
    "stack of composites": torch.stack(  # pyright: ignore[reportCallIssue, reportArgumentType]
        [Composite(a=Unbounded((3,)), c=OneHot(3)), Composite(a=Unbounded((4,)), c=OneHot(3), b=Binary(2))]
    ),
}

ALL = {**LEAVES, **OTHERS}


def shapes(max_dims: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, 4), max_size=max_dims).map(tuple)


@st.composite
def leaves(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> TensorSpec:
    """Draws a leaf of any class, with the batch shape `shape` (all dimensions except that of a choice)."""
    if shape is None:
        shape = draw(shapes())
    n = draw(st.integers(1, 4))
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    mask[draw(st.integers(0, n - 1))] = True
    masked = mask if draw(st.booleans()) else None
    low = draw(st.integers(-5, 5))
    high = low + draw(st.integers(0, 9))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int8]))
    spread = torch.arange(int(np.prod(shape, dtype=int))).reshape(shape) if draw(st.booleans()) else 0
    kinds = {
        "bounded": lambda: Bounded(low, spread + high, shape, dtype=dtype),
        "unbounded": lambda: Unbounded(shape, dtype=dtype),
        "binary": lambda: Binary(shape=shape),
        "categorical": lambda: Categorical(n, shape, mask=masked, min=low),
        "one-hot": lambda: OneHot(n, (*shape, n), mask=masked, min=low),
        "multi-categorical": lambda: MultiCategorical((n, 2), (*shape, 2), min=low),
        "multi-one-hot": lambda: MultiOneHot((n, 3), (*shape, n + 3)),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]()


@st.composite
def composites(draw: st.DrawFn, shape: tuple[int, ...] | None = None, depth: int = 2) -> Composite:
    """Draws a Composite of batch shape `shape`, nested up to `depth`."""
    if shape is None:
        shape = draw(shapes(2))
    spec = Composite(shape=shape)
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=3)):
        if depth and draw(st.booleans()):
            spec[name] = draw(composites(shape, depth - 1))
        else:
            spec[name] = draw(leaves((*shape, *draw(shapes(1)))))
    return spec


def shape_of(value: Any) -> torch.Size:
    return value.shape if isinstance(value, Tensor) else value.batch_size
