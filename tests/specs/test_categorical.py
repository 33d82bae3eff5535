"""Choices: as indices, one-hot rows, several at once, and bits; masks, offsets, encodings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from tensordict import TensorDict
from tests.fixtures.specs import leaves

from vecrl.errors import OutOfSpecError, SpaceError
from vecrl.specs import Binary, BoxList, Categorical, CategoricalBox, MultiCategorical, MultiOneHot, OneHot

MASK = torch.tensor([True, False, True, False])


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values).bool()


# -- Categorical


def test_categorical() -> None:
    spec = Categorical(4)
    assert (spec.shape, spec.dtype, spec.n, spec.space) == ((), torch.int64, 4, CategoricalBox(4))
    assert spec.rand((200,)).unique().tolist() == [0, 1, 2, 3]
    assert spec.mismatch(torch.tensor(4)) == "1 of 1 elements are not in range"
    assert Categorical(4, dtype=torch.float32).mismatch(torch.tensor(1.5)) == "an index is not an integer"
    assert spec.project(torch.tensor(2.6)) == 3
    assert spec.project(torch.tensor(-5)) == 0
    assert not Categorical(4, (1,)).is_in(torch.tensor(2))
    assert spec.enumerate().tolist() == [0, 1, 2, 3]
    assert Categorical(2, (2,)).enumerate().tolist() == [[0, 0], [1, 1]]
    assert Categorical(4, (2,)).cardinality() == 4
    with pytest.raises(SpaceError, match="at least one option"):
        Categorical(0)


def test_indices_on_other_devices_and_dtypes() -> None:
    spec = Categorical(3, min=5)
    assert spec.rand((200,)).unique().tolist() == [5, 6, 7] == spec.enumerate().tolist()
    assert spec.project(torch.tensor(0)) == 5
    assert spec.to_one_hot(torch.tensor(6)).tolist() == [False, True, False]
    rows = spec.to_one_hot_spec()
    assert rows.to_categorical(rows.encode(7)) == 7
    assert rows.to_categorical_spec() == spec
    assert spec.index(torch.tensor(6), torch.arange(3)) == 1


def test_masks() -> None:
    spec = Categorical(4, (2,), mask=torch.stack([MASK, ~MASK]))
    draws = spec.rand((200,))
    assert draws[:, 0].unique().tolist() == [0, 2]
    assert draws[:, 1].unique().tolist() == [1, 3]
    assert spec.mismatch(torch.tensor([1, 1])) == "1 of 2 elements are options that the mask forbids"
    assert spec.project(torch.tensor([3, 0])).tolist() == [2, 1]
    assert spec[1].mask.tolist() == (~MASK).tolist()
    assert spec.expand(3, 2).mask.shape == (3, 2, 4)
    assert spec.unsqueeze(-1).mask.shape == (2, 1, 4)
    assert spec[0].enumerate(use_mask=True).tolist() == [0, 2]
    assert spec[0].enumerate().tolist() == [0, 1, 2, 3]
    with pytest.raises(SpaceError, match="differs along the batch"):
        spec.enumerate(use_mask=True)
    spec.update_mask(MASK)
    assert spec.enumerate(use_mask=True).tolist() == [[0, 0], [2, 2]]
    spec.update_mask(None)
    assert spec.is_in(torch.tensor([1, 1]))
    assert "mask=2 of 4" in repr(Categorical(4, mask=MASK))
    assert Categorical(4, mask=MASK) != Categorical(4)


def test_invalid_masks_raise() -> None:
    for make in (lambda m: Categorical(4, mask=m), lambda m: OneHot(4, mask=m), lambda m: MultiOneHot((2, 2), mask=m)):
        with pytest.raises(SpaceError, match="mask that expands"):
            make(torch.ones(3))
    with pytest.raises(SpaceError, match="no mask"):
        Binary(3).update_mask(torch.ones(3))
    Binary(3).update_mask(None)
    with pytest.raises(SpaceError, match="allows no option"):
        Categorical(4, mask=torch.zeros(4)).rand()


def test_clones_copy_masks() -> None:
    spec = Categorical(4, mask=MASK)
    other = spec.clone()
    other.update_mask(~MASK)
    assert spec.mask.tolist() == MASK.tolist()


def test_an_unknown_number_of_options() -> None:
    spec = Categorical(-1)
    assert spec.is_in(torch.tensor(10**9))
    assert not spec.is_in(torch.tensor(-1))
    assert spec.cardinality() == float("inf")
    with pytest.raises(SpaceError, match="set_provisional_n"):
        spec.rand()
    with pytest.raises(SpaceError, match="unknown"):
        spec.enumerate()
    spec.set_provisional_n(3)
    assert spec.expand(5).rand().max() < 3
    assert spec.clone() == Categorical(-1)


# -- OneHot


def test_one_hot() -> None:
    spec = OneHot(4, (2, 4))
    assert spec.rand((3,)).sum(-1).tolist() == [[1, 1]] * 3
    assert spec.space == CategoricalBox(4)
    assert OneHot(4).mismatch(flags(1, 1, 0, 0)) == "expected a single 1 among zeros along the last dimension"
    assert not OneHot(4, dtype=torch.float32).is_in(torch.tensor([0.5, 0, 0, 0]))
    assert OneHot(4).project(torch.tensor([0.1, 0.3, 0.2, -1])).tolist() == [False, True, False, False]
    assert OneHot(4).project(flags(0, 1, 1, 0)).tolist() == [False, True, False, False]
    assert OneHot(4).zero().sum() == 0
    assert spec.cardinality() == 4
    assert spec.enumerate().shape == (4, 2, 4)
    with pytest.raises(SpaceError, match="ends with n=4"):
        OneHot(4, (2, 3))


@pytest.mark.parametrize("n", [1, 3, 32, 33, 100])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_to_numpy_does_not_depend_on_the_number_of_options(n: int, dtype: torch.dtype) -> None:
    spec = OneHot(n, dtype=dtype, min=2)
    ones = torch.ones(n, dtype=dtype)
    first = spec.zero().index_fill(0, torch.tensor(0), 1)
    for row in (spec.rand(), first, ones):
        number = spec.to_numpy(row)
        assert isinstance(number, np.ndarray)
        assert number.shape == ()
        assert number.dtype == np.int64
        assert number == row.numpy().argmax() + 2
    invalid = [spec.zero(), ones[:-1], torch.cat([ones, ones])]
    if dtype != torch.bool:
        invalid += [first * 2, first * -1] if dtype.is_signed else [first * 2]
    if dtype.is_floating_point:
        invalid += [first * 0.5, first * math.nan, first * math.inf]
    for row in invalid:
        with pytest.raises(SpaceError, match="one-hot rows"):
            spec.to_numpy(row)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_the_first_of_several_ones_counts(dtype: torch.dtype) -> None:
    rows = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]], dtype=dtype)
    assert OneHot(4, (2, 4), dtype=dtype).to_numpy(rows).tolist() == [1, 0]
    assert OneHot(4, (2, 4), dtype=dtype).to_categorical(rows).tolist() == [1, 0]
    choices = MultiOneHot((2, 2), (2, 4), dtype=dtype)
    assert choices.to_numpy(torch.tensor([[0, 1, 1, 1], [1, 1, 0, 1]], dtype=dtype)).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(SpaceError, match=r"one-hot row for each of \(2, 2\) options"):
        choices.to_numpy(torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]], dtype=dtype))


def test_one_hot_rows_with_straight_through_gradients_may_be_rounded() -> None:
    probabilities = torch.rand(1000, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    rows = OneHot(4, (1000, 4), dtype=torch.float32).rand()
    rounded = rows + probabilities - probabilities.clone()
    assert not torch.equal(rounded, rows)
    assert torch.equal(torch.as_tensor(OneHot(4, (1000, 4)).to_numpy(rounded)), rows.argmax(-1))


def test_encoding_one_hot() -> None:
    spec = OneHot(4)
    row = flags(0, 1, 0, 0)
    for value in (
        1,
        np.int64(1),
        np.array(1),
        torch.tensor(1),
        row,
        row.numpy(),
        row.int(),
        [0, 1, 0, 0],
    ):
        assert torch.equal(spec.encode(value), row)
    assert spec.encode([1, 2, 3]).shape == (3, 4)
    assert OneHot(4, (2, 4)).encode([1, 2]).shape == (2, 4)
    assert OneHot(4, (1, 4)).encode(2).shape == (1, 4)
    assert OneHot(3, min=5).encode(6).tolist() == [False, True, False]
    assert OneHot(3, min=5).to_numpy(flags(0, 1, 0)) == 6
    for wrong in (4, -1):
        with pytest.raises(SpaceError, match=r"in \[0, 4\)"):
            spec.encode(wrong)
    with pytest.raises(SpaceError, match="Expected indices of shape"):
        OneHot(4, (2, 4)).encode([1, 2, 3])
    with pytest.raises(OutOfSpecError):
        spec.to_categorical(flags(1, 1, 0, 0), safe=True)


def test_registers() -> None:
    spec = OneHot(2, use_register=True)
    assert spec.encode("a").tolist() == [True, False]
    assert spec.expand(3, 2)[0].encode("b").tolist() == [False, True]
    assert spec.to_numpy(spec.encode("b")) == "b"
    assert OneHot(2, (2, 2), use_register=True).shape == (2, 2)
    with pytest.raises(SpaceError, match="at most 2 objects"):
        spec.encode("c")
    with pytest.raises(SpaceError, match="register"):
        MultiOneHot((2, 2), use_register=True)


def test_masks_of_rows() -> None:
    spec = OneHot(4, (2, 4), mask=MASK)
    assert spec.mask.shape == (2, 4)
    assert spec.project(flags(0, 1, 0, 0).expand(2, 4)).int().argmax(-1).tolist() == [0, 0]
    assert spec.mismatch(flags(0, 1, 0, 0).expand(2, 4)) == "an option is selected that the mask forbids"
    assert spec.enumerate(use_mask=True).shape == (2, 2, 4)
    assert spec[0].mask.tolist() == MASK.tolist()
    assert spec.to_categorical_spec().mask.shape == (2, 4)


def test_the_number_of_options_is_an_attribute_of_the_class_too() -> None:
    assert hasattr(OneHot, "n")
    assert OneHot(4).n == 4


def test_the_last_dimension_is_one_choice() -> None:
    spec = OneHot(3, (2, 1, 3))
    assert spec.squeeze().shape == (2, 3)
    assert spec.squeeze(-1) == spec
    assert spec[:, 0].shape == (2, 3)
    assert spec[:, 0, :].shape == (2, 3)
    assert spec[..., 0].shape == (2, 3)
    assert spec.flatten(0, 1).shape == (2, 3)
    for refused in (
        lambda: spec.flatten(0, 2),
        lambda: spec.reshape(6),
        lambda: spec.unsqueeze(-1),
        lambda: spec.expand(5),
        lambda: spec.unflatten(2, (3, 1)),
        lambda: spec.make_neg_dim(-1),
        lambda: spec.unbind(-1),
    ):
        with pytest.raises(SpaceError, match="one choice"):
            refused()
    with pytest.raises(IndexError):
        spec[0, 0, 1]


def test_choosing_from_a_tensor() -> None:
    values = torch.arange(8.0).reshape(2, 4)
    assert OneHot(4, (2, 4)).index(OneHot(4, (2, 4)).encode([1, 3]), values).tolist() == [[1], [7]]
    assert Categorical(4, (2,)).index(torch.tensor([1, 3]), values).tolist() == [[1], [7]]
    nested = TensorDict(q=values, batch_size=2)
    assert Categorical(4, (2,)).index(torch.tensor([1, 3]), nested)["q"].tolist() == [[1], [7]]


# -- Binary


def test_binary() -> None:
    assert Binary(3).shape == (3,)
    assert Binary(shape=(2, 3)).shape == (2, 3)
    assert Binary(3).dtype == torch.int8
    assert Binary(3).n == 2
    assert isinstance(Binary(3), Categorical)
    assert Binary(3)[0] == Binary(shape=())
    assert Binary(3)[:2] == Binary(2)
    assert Binary(3).cardinality() == 8
    assert len({tuple(row) for row in Binary(3).enumerate().tolist()}) == 8
    assert Binary(2, (4, 2)).enumerate().shape == (4, 4, 2)
    assert Binary(shape=()).enumerate().tolist() == [0, 1]
    assert Binary(3).to_one_hot(torch.tensor([0, 1, 1])).shape == (3, 2)
    assert Binary(3).to_one_hot_spec().shape == (3, 2)
    with pytest.raises(SpaceError, match="number of bits"):
        Binary()
    with pytest.raises(SpaceError, match="ends with n=3"):
        Binary(3, (2, 4))


# -- several


def test_multi_categorical() -> None:
    spec = MultiCategorical((3, 2), (4, 2))
    assert spec.nvec.tolist() == [3, 2]
    assert spec.space == BoxList((CategoricalBox(3), CategoricalBox(2)))
    assert len(spec.space) == 2
    assert spec.space[0].n == 3
    assert spec.rand((500,)).flatten(0, -2).amax(0).tolist() == [2, 1]
    assert spec.project(torch.full((4, 2), 7)).tolist() == [[2, 1]] * 4
    assert spec.cardinality() == 6
    assert spec.enumerate().shape == (6, 4, 2)
    assert spec[0].enumerate().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert spec[:, 0].nvec.tolist() == [3] * 4
    assert spec[0, 1].shape == ()
    assert spec[0, 1].enumerate().tolist() == [0, 1]
    assert MultiCategorical(3).shape == MultiCategorical([3]).rand().shape == (1,)
    assert MultiCategorical(torch.tensor([[3, 2], [4, 5]])).nvec.tolist() == [[3, 2], [4, 5]]
    assert spec.unsqueeze(-1).shape == (4, 2, 1)
    with pytest.raises(SpaceError, match="ends with that of nvec"):
        MultiCategorical((3, 2), (4, 3))
    with pytest.raises(SpaceError, match="at least one option for each"):
        MultiCategorical((3, 0))
    with pytest.raises(SpaceError, match="One-hot encoding needs"):
        MultiCategorical(torch.tensor([[3, 2], [4, 5]])).to_one_hot_spec()


def test_masks_of_multi_categorical() -> None:
    flat = flags(1, 0, 1, 1, 0)
    spec = MultiCategorical((3, 2), mask=flat)
    assert spec.mask.tolist() == flat.tolist()
    assert {tuple(row) for row in spec.rand((200,)).tolist()} == {(0, 0), (2, 0)}
    assert not spec.is_in(torch.tensor([1, 0]))
    assert spec.project(torch.tensor([1, 1])).tolist() == [0, 0]
    assert spec.enumerate(use_mask=True).tolist() == [[0, 0], [2, 0]]
    assert spec.expand(4, 2).mask.shape == (4, 5)
    assert spec[0].mask.tolist() == [True, False, True]
    assert spec[0].enumerate(use_mask=True).tolist() == [0, 2]
    assert spec[0].to_one_hot(torch.tensor(2)).tolist() == [False, False, True]
    assert spec[0].to_one_hot_spec().mask.tolist() == [True, False, True]
    single = spec[0]
    single.update_mask(flags(0, 1, 0))
    assert single.rand() == 1
    rows = spec.to_one_hot_spec()
    assert rows.mask.tolist() == flat.tolist()
    assert rows.enumerate(use_mask=True).shape == (2, 5)
    assert rows.to_categorical_spec() == spec
    assert rows.mismatch(flags(0, 1, 0, 1, 0)) == "in choice 0, an option is selected that the mask forbids"
    spec.update_mask(None)
    assert spec.mask is None


def test_multi_one_hot() -> None:
    spec = MultiOneHot((3, 2), (2, 5))
    assert spec.nvec == (3, 2)
    assert spec.space == BoxList((CategoricalBox(3), CategoricalBox(2)))
    assert spec.encode([[2, 1], [0, 0]]).int().tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]
    assert spec.encode([2, 1, 0, 0]).shape == (2, 5)
    assert spec.to_numpy(spec.encode([[2, 1], [0, 0]])).tolist() == [[2, 1], [0, 0]]
    assert spec[0].project(torch.tensor([0.1, 0.2, 0.3, 1, 0.3])).int().tolist() == [0, 0, 1, 1, 0]
    assert not spec[0].is_in(flags(1, 1, 0, 1, 0))
    assert spec.cardinality() == 6
    assert MultiOneHot((3, 2)).enumerate().shape == (6, 5)
    assert MultiOneHot(torch.tensor([3, 2]), min=torch.tensor([5, 0])).encode([6, 1]).int().tolist() == [0, 1, 0, 0, 1]
    with pytest.raises(SpaceError, match="their sum, 5"):
        MultiOneHot((3, 2), (4, 4))
    with pytest.raises(SpaceError, match="Expected indices of shape"):
        spec.encode([1, 2, 3])


@given(leaves())
def test_one_hot_and_back(spec: Any) -> None:
    if not isinstance(spec, Categorical | OneHot | MultiCategorical | MultiOneHot):
        return
    rows, indices = spec.to_one_hot_spec(), spec.to_categorical_spec()
    value = spec.rand((3,))
    assert rows.is_in(spec.to_one_hot(value, safe=True))
    assert indices.is_in(spec.to_categorical(value, safe=True).to(indices.dtype))
    assert torch.equal(rows.to_categorical(spec.to_one_hot(value)), indices.to_categorical(spec.to_categorical(value)))
    if not isinstance(spec, Binary):
        assert rows.to_categorical_spec() == indices
        assert indices.to_one_hot_spec() == rows
