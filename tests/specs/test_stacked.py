"""Lazy stacks of specs: shapes, values, and changes of their dimensions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack

from vecrl.errors import LockedError, SpaceError
from vecrl.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    Stacked,
    StackedComposite,
    Unbounded,
)


def stack(*specs: Any, dim: int = 0) -> Any:
    return torch.stack(list(specs), dim)


def ragged() -> Any:
    return stack(Unbounded((2, 3)), Unbounded((2, 4)))


def bounds() -> Any:
    return stack(Bounded(0, 1, (2, 3)), Bounded(2, 3, (2, 3)))


def agents() -> StackedComposite:
    item = Composite(obs=Unbounded((5, 3)), act=Categorical(3, (5,)), shape=(5,))
    other = Composite(obs=Unbounded((5, 4)), act=Categorical(3, (5,)), more=Binary(2, (5, 2)), shape=(5,))
    return stack(item, other, dim=1)


def test_equal_specs_stack_to_an_ordinary_one() -> None:
    spec = stack(Bounded(-1, 1, (3,)), Bounded(-1, 1, (3,)), dim=1)
    assert spec == Bounded(-1, 1, (3, 2))
    assert stack(OneHot(4), OneHot(4)) == OneHot(4, (2, 4))
    assert stack(NonTensor(()), NonTensor(())) == NonTensor((2,))


def test_choice_dimensions_cannot_be_stacked() -> None:
    with pytest.raises(SpaceError, match="one choice"):
        OneHot(4).unsqueeze(1)
    assert isinstance(stack(OneHot(4), OneHot(4), dim=1), Stacked)


def test_shapes() -> None:
    assert ragged().shape == (2, 2, -1)
    assert bounds().shape == (2, 2, 3)
    assert stack(Unbounded((3,)), Unbounded((4,)), dim=-1).shape == (-1, 2)
    assert ragged().dim == ragged().stack_dim == 0
    assert ragged().domain == "continuous"
    assert stack(Unbounded((2,)), Bounded(0, 1, (2,))).shape == (2, 2)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "at least one"),
        ([Unbounded((3,)), Unbounded((3, 4))], "number of dimensions"),
        ([Unbounded((3,)), Unbounded((3,), dtype=torch.float64)], "dtype"),
        ([Unbounded((3,)), Unbounded((3,), device="meta")], "device"),
        ([Unbounded((3,)), 3], "only specs"),
        ([Composite(), Unbounded(())], "dtype|Composites"),
        ([Unbounded(()), Composite()], "dtype|Composites"),
    ],
)
def test_invalid_stacks_raise(specs: list[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Unbounded(()).__torch_function__(torch.stack, (), (specs,))
    with pytest.raises(IndexError):
        stack(Unbounded(()), Unbounded(()), dim=5)


def test_values_of_equal_shapes_are_ordinary() -> None:
    spec = bounds()
    value = spec.rand((7,))
    assert value.shape == (7, 2, 2, 3)
    assert spec.is_in(value)
    assert value[:, 0].max() <= 1 < 2 <= value[:, 1].min()
    assert spec.mismatch(value.flip(1)).startswith("in element 0 of the stack:")
    repaired = spec.project(torch.full((7, 2, 2, 3), 9.0))
    assert (repaired[0, :, 0, 0]).tolist() == [1, 3]
    assert spec.zero().shape == spec.one().shape == (2, 2, 3)


def test_values_of_unequal_shapes_are_nested() -> None:
    spec = ragged()
    value = spec.rand()
    assert [row.shape for row in value.unbind()] == [(2, 3), (2, 4)]
    assert spec.is_in(value)
    assert spec.is_in([torch.zeros(2, 3), torch.zeros(2, 4)])
    assert not spec.is_in([torch.zeros(2, 3)])
    assert not spec.is_in(torch.zeros(2, 2, 3))
    assert not spec.is_in(3)
    assert [row.shape for row in spec.to_numpy(value)] == [(2, 3), (2, 4)]
    assert spec.is_in(spec.encode([np.zeros((2, 3)), np.zeros((2, 4))]))
    with pytest.raises(SpaceError, match="Stack Composites instead"):
        spec.rand((7,))


def test_encoding_along_another_dimension() -> None:
    spec = stack(Bounded(0, 1, (3,)), Bounded(2, 3, (3,)), dim=1)
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    value = spec.encode(array)
    assert torch.equal(value, torch.from_numpy(array))
    assert np.array_equal(spec.to_numpy(value), array)
    with pytest.raises(SpaceError, match="Expected 2 values"):
        spec.encode([np.zeros(3)] * 3)


def test_to_numpy_stacks_along_the_stacked_dimension() -> None:
    mask = torch.tensor([True, False, True])
    spec = stack(OneHot(3, (5, 3)), OneHot(3, (5, 3), mask=mask), dim=1)
    value = spec.rand((2,))
    assert spec.to_numpy(value).shape == (2, 5, 2)
    assert spec.to_numpy(value[0]).shape == (5, 2)
    assert spec.to_numpy(value)[..., 1].max() <= 2
    assert set(spec.to_numpy(value)[..., 1].ravel()) <= {0, 2}
    assert torch.equal(spec.encode([row.to_numpy(v) for row, v in zip(spec.specs, value[0].unbind(1))]), value[0])  # noqa: B905


@pytest.mark.parametrize("spec", [bounds(), agents()], ids=["leaves", "composites"])
def test_shapes_follow_values(spec: Any) -> None:
    value = spec.rand()

    def agree(changed: Any, expected: Any) -> None:
        shape = expected.shape if isinstance(expected, torch.Tensor) else expected.batch_size
        assert changed.shape == shape
        assert changed.is_in(expected), changed.mismatch(expected)
        assert changed.is_in(changed.rand())

    agree(spec.unsqueeze(0), value.unsqueeze(0))
    agree(spec.unsqueeze(-1), value.unsqueeze(-1))
    agree(spec.unsqueeze(0).squeeze(0), value)
    agree(spec.unsqueeze(1).squeeze(), value)
    agree(spec.expand(4, *spec.shape), value.expand(4, *value.shape))
    agree(spec[0], value[0])
    agree(spec[:, 0], value[:, 0])
    agree(spec[None], value[None])
    agree(spec[..., 1], value[..., 1])
    agree(spec[:1], value[:1])
    agree(spec[:, :1], value[:, :1])
    agree(spec[:, [1, 0]], value[:, [1, 0]])
    agree(spec[[1, 0]], value[[1, 0]])
    order = (1, 0, *range(2, spec.ndim))
    agree(spec.permute(*order), value.permute(*order))
    for dim in range(2):
        for row, own in zip(spec.unbind(dim), value.unbind(dim), strict=True):
            agree(row, own)


def test_other_dimensions_than_the_stacked_one() -> None:
    spec = agents().unsqueeze(0)
    assert spec.shape == (1, 5, 2)
    assert spec.flatten(0, 1).shape == (5, 2)
    assert spec.flatten(0, 1).dim == 1
    assert spec.unflatten(1, (5, 1)).shape == (1, 5, 1, 2)
    assert ragged().unsqueeze(-1).flatten(1, 1).dim == 0
    assert bounds().flatten(1, 2).shape == (2, 6)
    assert bounds().unflatten(2, (3, 1)).shape == (2, 2, 3, 1)
    assert bounds().make_neg_dim(1).shape == (2, -1, 3)
    assert bounds().reshape(2, 2, 3) == bounds()
    for refused in (
        lambda: bounds().flatten(0, 1),
        lambda: bounds().unflatten(0, (2, 1)),
        lambda: bounds().reshape(-1),
        lambda: bounds().make_neg_dim(0),
    ):
        with pytest.raises(SpaceError, match="lazy stack"):
            refused()


def test_indices_of_the_stacked_dimension() -> None:
    spec = stack(Unbounded((3,)), Unbounded((4,)), Unbounded((3,)))
    assert spec[[0, 2]] == Unbounded((2, 3))
    assert spec[torch.tensor([True, True, False])].shape == (2, -1)
    assert spec[::2] == Unbounded((2, 3))
    assert spec[1] == Unbounded((4,))
    assert spec[-1] == Unbounded((3,))
    with pytest.raises(SpaceError, match="selects at least one spec"):
        spec[3:]
    with pytest.raises(SpaceError, match="a vector"):
        spec[[[0, 1]]]
    with pytest.raises(IndexError):
        spec[3]


def test_expanding_the_stacked_dimension() -> None:
    spec = Stacked(Bounded(0, 1, (2,)), dim=0)
    assert spec.expand(3, 2).shape == (3, 2)
    with pytest.raises(SpaceError, match="expand"):
        bounds().expand(5, 2, 3)


def test_squeezing_the_stacked_dimension() -> None:
    assert Stacked(Bounded(0, 1, (2, 1)), dim=0).squeeze() == Bounded(0, 1, (2,))


# -- Composites


def test_common_keys() -> None:
    spec = agents()
    assert isinstance(spec, Composite)
    assert spec.shape == spec.batch_size == (5, 2)
    assert list(spec.keys(True, True)) == ["obs", "act"]
    assert spec["obs"].shape == (5, 2, -1)
    assert spec["act"] == Categorical(3, (5, 2))
    assert "more" not in spec
    assert list(spec[:, 1].keys()) == ["obs", "act", "more"]
    with pytest.raises(KeyError):
        spec["more"]


def test_values_are_lazy_stacks() -> None:
    spec = agents()
    for value in (spec.rand(), spec.zero(), spec.one(), spec.rand((7,))):
        assert isinstance(value, LazyStackedTensorDict)
        assert value.batch_size[-2:] == (5, 2)
        assert spec.is_in(value)
    value = spec.rand().set("act", torch.full((5, 2), 9))
    assert "in element 0" in str(spec.mismatch(value))
    assert spec.project(value) is value
    assert spec.is_in(value)
    rows = spec.to_numpy(spec.rand())
    assert spec.is_in(spec.encode(rows))
    spec.type_check(spec.rand())
    with pytest.raises(SpaceError, match="Expected 2 values"):
        spec.encode([{}])
    dense = TensorDict(obs=torch.zeros(5, 2, 3), act=torch.zeros(5, 2).long(), batch_size=(5, 2))
    assert not spec.is_in(dense)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("batch", [(), (5,)])
def test_project_writes_into_dense_and_into_lazy_stacks(batch: tuple[int, ...], locked: bool) -> None:
    spec = stack(Composite(a=Bounded(0, 1, (3,))), Composite(a=Bounded(0, 2, (3,))))
    dense = TensorDict(a=torch.full((*batch, 2, 3), 9.0), batch_size=(*batch, 2))
    along = lazy_stack([TensorDict(a=torch.full((*batch, 3), 9.0), batch_size=batch) for _ in range(2)], len(batch))
    across = lazy_stack([TensorDict(a=torch.full((2, 3), 9.0), batch_size=2)] * 1, 0)
    for value in (dense, along, across):
        if locked:
            value.lock_()
        assert spec.project(value) is value
        assert value["a"][..., 0, :].eq(1).all()
        assert value["a"][..., 1, :].eq(2).all()
        assert value.is_locked == locked


def test_setting_and_popping() -> None:
    spec = agents()
    spec["k"] = Unbounded((5, 2, 7))
    assert spec.specs[0]["k"] == Unbounded((5, 7))
    spec.set(("deep", "er"), Binary(shape=(5, 2)))
    assert spec["deep", "er"] == Binary(shape=(5, 2))
    assert spec.pop("k") == Unbounded((5, 2, 7))
    assert "k" not in spec
    assert spec.pop("zz", 3) == 3
    assert list(spec.separates("act").keys()) == ["act"]
    assert "act" not in spec.specs[1]
    with pytest.raises(SpaceError, match="begins with"):
        spec["k"] = Unbounded((5, 3))
    assert spec.empty().shape == (5, 2)
    assert spec.select("obs")["obs"].shape == (5, 2, -1)
    assert list(spec.exclude("obs").keys(True, True)) == [("deep", "er")]


def test_elements_are_what_was_stacked_and_edits_reach_both() -> None:
    parts = [Composite(n=Composite(x=Unbounded((3,)))), Composite(n=Composite(x=Unbounded((3,))), b=Binary(2))]
    spec = stack(*parts)
    assert spec[0] is parts[0]
    assert spec[-1] is parts[1]
    assert spec.unbind()[1] is parts[1]
    assert stack(*[part.expand(2) for part in parts], dim=1)[0].shape == (2,)
    spec["n"]["y"] = Binary(shape=(2,))
    assert parts[0]["n", "y"] == Binary(shape=())
    del spec[0]["n"]
    assert list(spec.keys()) == []
    spec[1].lock_()
    with pytest.raises(LockedError):
        spec["n"] = None
    outer = Composite(stack=spec)
    outer.lock_()
    assert parts[0].is_locked


def test_locks() -> None:
    spec = agents().lock_()
    assert spec.is_locked
    assert spec.specs[0].is_locked
    for change in (lambda: spec.set("k", None), lambda: spec.pop("obs"), lambda: spec.specs[0].pop("obs")):
        with pytest.raises(LockedError):
            change()
    assert not spec.clone().is_locked
    spec.unlock_()["k"] = None
    assert spec["k"] is None


def test_devices_and_names() -> None:
    spec = agents()
    assert spec.device is None
    assert spec.to("meta").device == torch.device("meta")
    assert spec.to(torch.float64)["obs"].dtype == torch.float64
    assert spec.to(None) is spec
    assert spec.to("cpu").clear_device_().device is None
    assert spec.names == [None, None]
    assert spec.cardinality() == float("inf")
    assert repr(spec).startswith("StackedComposite(\n    Composite(")
    with pytest.raises(NotImplementedError, match="Enumerate those of its specs"):
        spec.enumerate()


def test_inside_a_composite() -> None:
    spec = Composite(agents=agents(), state=Unbounded((5, 2)), shape=(5,))
    assert spec.is_in(spec.rand())
    assert spec.expand(3, 5)["agents"].shape == (3, 5, 2)
    assert spec[0]["agents"].shape == (2,)
    assert list(spec.keys(True, True)) == [("agents", "obs"), ("agents", "act"), "state"]
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    assert spec.clone() == spec
    assert spec.lock_()["agents"].is_locked


def test_stacks_of_stacks() -> None:
    spec = stack(agents(), agents())
    assert spec.shape == (2, 5, 2)
    assert spec.dim == 2
    assert spec.is_in(spec.rand())
    other = agents()
    other["k"] = Binary(shape=(5, 2))
    both = stack(agents(), other)
    assert both.shape == (2, 5, 2)
    assert both.is_in(both.rand())
    assert both.is_in(lazy_stack([agents().rand(), other.rand()]))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 1))
def test_stacking_specs_is_stacking_values(sizes: list[int], dim: int) -> None:
    specs = [Composite(a=Unbounded((2, size)), shape=(2,)) for size in sizes]
    spec = stack(*specs, dim=dim)
    assert isinstance(spec, StackedComposite) == (len(set(sizes)) > 1)
    value = lazy_stack([item.rand() for item in specs], dim)
    assert spec.shape == value.batch_size
    assert spec.is_in(value)
    assert all(a == b for a, b in zip(spec.unbind(dim), specs, strict=True))
