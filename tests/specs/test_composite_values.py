"""The TensorDicts of a Composite: sampling, checking, projecting, encoding and counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorClass, TensorDict
from tests.fixtures.specs import batched_composite, small_composite

from vecrl.errors import LockedError, OutOfSpecError, SpaceError
from vecrl.specs import Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded


def test_mismatches_name_the_path() -> None:
    spec = small_composite()
    value = spec.rand()
    assert spec.mismatch(value.exclude("a")) == "'a' is missing among ['n']"
    assert spec.mismatch(value.clone().set(("n", "x"), torch.zeros(5))) == (
        "at 'n': at 'x': expected shape (2,), got (5,)"
    )
    assert spec.is_in(value.set("more", torch.zeros(1)))
    assert spec.is_in(value.to_dict())
    assert spec.mismatch(3) == "expected a TensorDict, got int"
    with pytest.raises(OutOfSpecError, match=r"at 'a': expected torch.float32, got torch.float64"):
        spec.assert_is_in(value.set("a", torch.zeros(3).double()))


def test_project_writes_into_the_tensordict_and_returns_it() -> None:
    spec = small_composite()
    wrong, more = torch.tensor(9), torch.ones(1)
    value = TensorDict(a=torch.zeros(3), n={"x": torch.zeros(2), "y": wrong}, more=more)
    assert spec.project(value) is value
    assert value["n", "y"] == 1
    assert value["more"] is more
    assert wrong == 9  # the entry is replaced: other references to the tensor keep its values
    plain = value.set(("n", "y"), wrong).to_dict()
    assert spec.is_in(spec.project(plain))
    assert plain["n"]["y"] == 9
    with pytest.raises(SpaceError, match="Expected 'n' to project"):
        spec.project(value.exclude("n"))


def test_project_keeps_a_larger_batch_and_what_the_tensordict_is() -> None:
    spec = Composite(a=Bounded(0, 1, (2, 3)), n=Composite(b=Bounded(0, 1, (2,)), shape=(2,)), shape=(2,))
    entries = {"a": torch.full((5, 2, 3), 7), "n": {"b": torch.full((5, 2), 7.0)}}
    value = TensorDict(entries, batch_size=(5, 2), device="cpu", names=["time", "row"])
    inner = value["n"]
    assert spec.project(value) is value
    assert value["n"] is inner
    assert value["a"].dtype == torch.float32
    assert value["a"].eq(1).all()
    assert inner["b"].eq(1).all()
    assert (value.batch_size, value.names, value.device) == ((5, 2), ["time", "row"], torch.device("cpu"))


def test_project_writes_into_the_tensors_of_a_locked_tensordict() -> None:
    spec = Composite(a=Bounded(0, 1, (3,)))
    value = TensorDict(a=torch.full((3,), 7.0)).lock_()
    tensor = value["a"]
    assert spec.project(value) is value
    assert value["a"] is tensor
    assert tensor.eq(1).all()
    assert value.is_locked
    with pytest.raises(LockedError, match="Unlock"):
        spec.project(TensorDict(a=torch.full((3,), 7)).lock_())


def test_encoding() -> None:
    spec = small_composite()
    value = spec.encode({"a": [1, 2, 3], "n": {"y": np.int64(1), "x": (1, 2)}})
    assert spec.is_in(value)
    assert list(spec.encode({"a": np.zeros(3)}).keys()) == ["a"]
    assert spec.is_in(spec.encode(value))
    with pytest.raises(KeyError, match="got 'zz'"):
        spec.encode({"zz": 1})
    with pytest.raises(SpaceError, match=r"At 'n': At 'x': .*\(2,\).*\(4,\)"):
        spec.encode({"n": {"x": np.zeros(4)}})
    with pytest.raises(SpaceError, match="mapping"):
        spec.encode(3)


def test_to_numpy() -> None:
    spec = Composite(a=OneHot(3), t=NonTensor(()))
    assert spec.to_numpy(spec.encode({"a": 2, "t": "text"})) == {"a": 2, "t": "text"}
    with pytest.raises(OutOfSpecError):
        spec.to_numpy(spec.encode({"a": 2}).set("a", torch.zeros(3).bool()), safe=True)


def test_updates_in_place() -> None:
    spec = batched_composite()
    value = TensorDict(z=torch.zeros(2, 4), a=torch.full((2, 4, 3), 9.0), batch_size=(2, 4))
    assert spec.zeros_update(value) is value
    assert spec.is_in(value)
    assert value["a"].abs().sum() == 0
    assert spec.ones_update(value)["a"].min() == 1
    assert spec.is_in(spec.rand_update(value))
    assert "z" in value
    with pytest.raises(SpaceError, match="batch shape"):
        spec.zeros_update(TensorDict(batch_size=(5,)))


def test_counting_and_listing() -> None:
    spec = Composite(a=Categorical(2), n=Composite(b=OneHot(3)))
    assert spec.cardinality() == 6
    values = spec.enumerate()
    assert values.batch_size == (6,)
    assert spec.is_in(values)
    assert values["a"].tolist() == [0, 0, 0, 1, 1, 1]
    assert values["n", "b"].int().argmax(-1).tolist() == [0, 1, 2, 0, 1, 2]
    spec["a"].update_mask(torch.tensor([False, True]))
    assert spec.enumerate(use_mask=True)["a"].tolist() == [1, 1, 1]
    assert small_composite().cardinality() == float("inf")
    assert spec.expand(4).enumerate().batch_size == (6, 4)


def test_type_checks() -> None:
    spec = small_composite()
    spec.type_check(spec.rand())
    spec.type_check(torch.zeros(3), "a")
    with pytest.raises(TypeError, match=r"float32 at 'a'"):
        spec.type_check(torch.zeros(3).double(), "a")
    wrong = spec.rand().set(("n", "x"), torch.zeros(2).double())
    with pytest.raises(TypeError, match="at 'x'"):
        spec.type_check(wrong)
    spec.type_check(wrong, ["a"])


class Pair(TensorClass):
    a: torch.Tensor
    b: torch.Tensor


def test_values_of_a_class() -> None:
    spec = Composite(a=Unbounded((4, 3)), b=Categorical(2, (4,)), shape=(4,), data_cls=Pair)
    for value in (spec.rand(), spec.zero(), spec.encode(spec.to_numpy(spec.rand()))):
        assert isinstance(value, Pair)
        assert value.batch_size == (4,)
        assert spec.is_in(value)
    assert spec.expand(2, 4).data_cls is Pair
    assert spec[0].rand().batch_size == ()


def test_a_dynamic_batch() -> None:
    spec = Composite(a=Unbounded((-1, 2)), n=Composite(b=Categorical(3, (-1,))), shape=(-1,))
    assert spec.rand().batch_size == (1,)
    assert spec["n"].shape == (-1,)
    assert spec.is_in(TensorDict(a=torch.zeros(5, 2), n={"b": torch.zeros(5).long()}, batch_size=5))
    assert spec.unsqueeze(0).shape == (1, -1)
    assert batched_composite().make_neg_dim(0)["b", "c"].shape == (-1,)
