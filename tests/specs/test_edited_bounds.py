"""`space.low` and `space.high` of a Bounded can be written to or set: the spec is then that of the new bounds."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, Unbounded
from vecrl.specs.convert import space_from_spec


def write_one_element(spec: Bounded) -> None:
    spec.space.low[0] = -5


def write_through_low(spec: Bounded) -> None:
    spec.low[0] = -5


def write_through_numpy(spec: Bounded) -> None:
    spec.space.low.numpy()[0] = -5


def write_in_inference_mode(spec: Bounded) -> None:
    with torch.inference_mode():
        spec.space.low[0] = -5


def set_tensor(spec: Bounded) -> None:
    spec.space.low = spec.space.low - torch.tensor([5, 0]).to(spec.dtype)


def set_in_place(spec: Bounded) -> None:
    spec.space.low -= torch.tensor([5, 0]).to(spec.dtype)


def set_kept_record(spec: Bounded) -> None:
    space = spec.space
    spec.is_in(spec.zero())
    space.low = torch.tensor([-5, 0])  # of another dtype


EDITS = [
    write_one_element,
    write_through_low,
    write_through_numpy,
    write_in_inference_mode,
    set_tensor,
    set_in_place,
    set_kept_record,
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
def test_an_edited_spec_is_that_of_its_bounds(edit: Callable[[Bounded], None], dtype: torch.dtype) -> None:
    spec, low = Bounded(0, 4, (2,), dtype=dtype), torch.tensor([-5, 0], dtype=dtype)
    spec.rand()
    edit(spec)
    expected = Bounded(low, 4, (2,), dtype=dtype)
    values = [torch.tensor(value, dtype=dtype) for value in ([-4, 0], [0, -4], [-9, 9])]

    def draw(drawn: Bounded) -> Tensor:
        return drawn.rand((100,), generator=torch.Generator().manual_seed(0))

    assert spec == expected
    assert spec != Bounded(0, 4, (2,), dtype=dtype)
    assert [spec.is_in(value) for value in values] == [True, False, False]
    assert torch.equal(draw(spec), draw(expected))
    assert all(torch.equal(spec.project(value), expected.project(value)) for value in values)
    assert space_from_spec(spec) == space_from_spec(expected)
    assert str(spec) == str(expected)
    assert torch.equal(spec.space.low, low)
    assert spec.space.low.dtype == dtype
    for derived in (spec.clone(), copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert derived == expected
    assert spec.expand(3, 2)[1] == expected
    assert spec.to(torch.float64) == expected.to(torch.float64)


def test_bounds_that_become_equal_again_are_drawn_as_such() -> None:
    spec = Bounded([0.0, 1.0], 2.0)
    spec.space.low[0] = 1
    draws = [drawn.rand((9,), generator=torch.Generator().manual_seed(0)) for drawn in (spec, Bounded(1.0, 2.0, (2,)))]
    assert torch.equal(*draws)


@pytest.mark.parametrize(
    "derive",
    [
        lambda spec: spec.clone(),
        lambda spec: spec.expand(3, 2),
        lambda spec: spec.unsqueeze(0),
        lambda spec: spec[:1],
        lambda spec: spec.to(torch.float64),
        copy.copy,
        copy.deepcopy,
        lambda spec: pickle.loads(pickle.dumps(spec)),
        lambda spec: Bounded(spec.low, spec.high),
    ],
)
@pytest.mark.parametrize("read_before", [False, True])
def test_edits_change_one_spec(derive: Callable[[Bounded], Bounded], read_before: bool) -> None:
    spec = Bounded(0.0, 1.0, (2,))
    if read_before:
        assert spec.space.low.tolist() == [0, 0]
    derived = derive(spec)
    unchanged = derived.clone()
    spec.space.low[0] = -5
    assert derived == unchanged
    derived.space.high.view(-1)[0] = 7
    assert derived.space.high.sum() == unchanged.high.sum() + 6
    assert spec == Bounded(torch.tensor([-5.0, 0.0]), 1.0)


def test_the_tensors_of_the_constructor_stay_the_callers() -> None:
    low = torch.zeros(2)
    spec = Bounded(low, torch.ones(2))
    low[0] = -5
    assert spec == Bounded(0.0, 1.0, (2,))
    spec.space.low[0] = -7
    assert low.tolist() == [-5, 0]


def test_specs_of_a_locked_composite_can_be_edited() -> None:
    composite = Composite(a=Bounded(0.0, 1.0, (2,))).lock_()
    composite["a"].space.low[0] = -5
    assert composite.is_in({"a": torch.tensor([-4.0, 0.5])})


def test_both_bounds_can_move_one_after_the_other() -> None:
    spec = Bounded(0.0, 1.0, (2,))
    spec.space.low += 7
    with pytest.raises(SpaceError, match="Expected low <= high"):
        spec.rand()
    spec.space.high += 7
    assert spec == Bounded(7.0, 8.0, (2,))


@pytest.mark.parametrize(
    ("low", "message"),
    [(torch.zeros(3), "broadcast"), (torch.tensor(torch.nan), "got NaN"), ("x", "Expected numbers as bounds")],
)
def test_bad_bounds(low: object, message: str) -> None:
    spec = Bounded(0.0, 1.0, (2,))
    spec.space.low = low
    with pytest.raises(SpaceError, match=message):
        spec.rand()


def test_a_number_as_a_bound() -> None:
    spec = Bounded(0, 255, (2,), dtype=torch.uint8)
    spec.space.low = 7
    assert spec == Bounded(7, 255, (2,), dtype=torch.uint8)
    assert spec.space.low.tolist() == [7, 7]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32])
def test_dtypes_that_torch_cannot_compare(dtype: torch.dtype) -> None:
    spec = Bounded(0, 3, (2,), dtype=dtype)
    spec.space.low[1] = 2
    assert spec == Bounded(torch.tensor([0, 2]), 3, dtype=dtype)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_an_unbounded_spec_has_no_bounds_to_set() -> None:
    spec = Unbounded((2,))
    with pytest.raises(SpaceError, match="Make a Bounded"):
        spec.space.low = torch.zeros(2)
    spec.space.low[0] = 0  # a copy
    assert spec.is_in(torch.full((2,), -9.0))
