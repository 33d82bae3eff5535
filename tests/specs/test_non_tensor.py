"""Specs of objects that are not tensors, and of choices among a few values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import NonTensorData, NonTensorStack

from vecrl.errors import OutOfSpecError, SpaceError
from vecrl.specs import Bounded, Categorical, Choice, Composite, NonTensor, Unbounded


def test_feature_dims_and_device() -> None:
    assert [NonTensor(shape).feature_dims for shape in ((), (3, 4))] == [0, 2]
    assert NonTensor((3, 4), feature_dims=1).unsqueeze(0).feature_dims == 1
    assert NonTensor((3,)) == NonTensor(()).expand(3)
    composite = Composite(a=NonTensor(()), b=Composite(c=NonTensor(())), device="cpu")
    assert composite["a"].device == composite["b", "c"].device == torch.device("cpu")
    assert Composite(a=NonTensor(())).get("a").device is None
    assert composite.is_in(composite.zero())


def test_examples() -> None:
    spec = NonTensor((2,), example_data="k")
    for value in (spec.rand(), spec.zero(), spec.one(), spec.zero((3,))):
        assert isinstance(value, NonTensorData)
        assert value.data == "k"
        assert spec.is_in(value)
    assert spec.zero((3,)).batch_size == (3, 2)
    assert NonTensor().shape == (1,)
    assert NonTensor().device is None
    assert NonTensor().to("cpu").device == torch.device("cpu")
    assert spec != NonTensor((2,))
    assert NonTensor((2,), batched=True, feature_dims=1).rand((3,)).batch_size == (3, 2)


def test_membership() -> None:
    spec = NonTensor((2,))
    assert spec.is_in(NonTensorStack("a", "b"))
    assert spec.is_in(NonTensorData("a", batch_size=(2,)))
    assert spec.mismatch(NonTensorData("a")) == "expected a batch of shape (2,), got ()"
    assert NonTensor(()).is_in("a")
    assert NonTensor(()).project("a") == "a"
    with pytest.raises(SpaceError, match="to project"):
        spec.project(NonTensorData("a"))
    spec.type_check(NonTensorData("a"))


def test_encode_and_to_numpy() -> None:
    spec = NonTensor((2,))
    value = spec.encode(["a", {"b": 1}])
    assert spec.is_in(value)
    assert spec.to_numpy(value) == ["a", {"b": 1}]
    assert spec.encode(value) is value
    assert spec.encode("whole").data == "whole"
    assert NonTensor(()).to_numpy(NonTensor(()).encode("a"), safe=True) == "a"
    assert NonTensor(()).to_numpy("a") == "a"
    assert NonTensor((2, 2)).to_numpy(NonTensor((2, 2)).encode([["a", "b"], ["c", "d"]])) == [["a", "b"], ["c", "d"]]
    assert spec.cardinality() == float("inf")


def test_shapes() -> None:
    spec = NonTensor((2,))
    assert spec.expand(3, 2).shape == (3, 2)
    assert spec.unsqueeze(0).flatten().shape == (2,)
    assert spec[0].shape == ()
    assert NonTensor((-1,)).is_in(NonTensorStack("a", "b"))


def test_spaces_decide_membership() -> None:
    spec = NonTensor((2, 3), space=spaces.Text(4, charset="ab"))
    torch.manual_seed(0)
    value = spec.rand()
    assert value.batch_size == (2, 3)
    assert spec.is_in(value)
    assert len({text for row in value.tolist() for text in row}) > 1
    torch.manual_seed(0)
    assert spec.rand().tolist() == value.tolist()
    assert "is not in Text" in str(spec[0, 0].mismatch("cc"))
    assert spec.project(NonTensorData("cc", batch_size=(2, 3))).data is None
    with pytest.raises(OutOfSpecError):
        spec.to_numpy("cc", safe=True)
    assert "space=Text" in repr(spec)
    empty = spec[:0]
    assert empty.rand().batch_size == (0, 3)


def test_choices_of_specs() -> None:
    spec: Any = Choice([Bounded(0, 1, (2,)), Bounded(3, 4, (2,))])
    assert {int(spec.rand()[0] > 2) for _ in range(50)} == {0, 1}
    assert spec.shape == (2,)
    assert spec.expand(3, 2).rand().shape == (3, 2)
    assert spec.zero().tolist() == [0, 0]
    assert spec.one().tolist() == [1, 1]
    assert spec.project(torch.tensor([9.0, 9.0])).tolist() == [1, 1]
    assert spec.project(torch.tensor([3.5, 3.5])).tolist() == [3.5, 3.5]
    assert "in none of the choices" in str(spec.mismatch(torch.tensor([0.5, 3.5])))
    assert spec.to("meta").device == torch.device("meta")
    assert spec.to(torch.float64).dtype == torch.float64
    assert spec.clone() == spec
    assert spec.cardinality() == float("inf")
    spec.type_check(spec.rand())
    few: Any = Choice([Categorical(2), Categorical(3, min=5)])
    assert few.cardinality() == 5
    assert few.enumerate().tolist() == [0, 1, 5, 6, 7]


def test_choices_of_objects() -> None:
    spec: Any = Choice([NonTensorData("a"), NonTensorData("b")])
    assert {spec.rand().data for _ in range(50)} == {"a", "b"}
    assert spec.expand(2).rand().batch_size == (2,)
    assert spec.rand((3,)).batch_size == (3,)
    assert spec.cardinality() == 2
    assert spec.enumerate().tolist() == ["a", "b"]
    assert "is none of" in str(spec.mismatch("c"))
    assert spec.project("c").data == "a"
    assert spec.to_numpy(spec.encode("b"), safe=True) == "b"
    assert spec.expand(2).is_in(NonTensorStack("a", "b"))
    assert Composite(a=spec).is_in(Composite(a=spec).rand())
    spec.type_check("b")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "at least one"),
        ([NonTensorData("a"), Unbounded()], "one class"),
        ([Unbounded((2,)), Unbounded((3,))], "one shape"),
        ([3, 4], "specs or non-tensor data"),
    ],
)
def test_different_choices_raise(choices: list[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Choice(choices)


def test_objects_and_arrays() -> None:
    spec = Composite(t=NonTensor((3,)), x=Unbounded((3, 2)), shape=(3,))
    value = spec.encode({"t": ["a", "b", "c"], "x": np.zeros((3, 2))})
    assert spec.is_in(value)
    assert spec[1].is_in(value[1])
    assert spec.is_in(spec.rand())
