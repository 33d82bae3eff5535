"""Locks of one Composite without those nested in it, keys in nested tuples, and values of a batch that share memory."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from vecrl.errors import LockedError
from vecrl.specs import Binary, Categorical, Composite, Unbounded


def nested() -> Composite:
    return Composite(a=Composite(b=Unbounded(())), c=Unbounded(()))


def test_a_lock_without_nested_ones() -> None:
    spec = nested().lock_(recurse=False)
    assert (spec.locked, spec["a"].locked) == (True, False)
    for each in (spec, copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        each["a", "new"] = Unbounded(())
        each.update({"a": {"other": Unbounded(())}})
        del each["a", "b"]
        assert list(each["a"].keys()) == ["new", "other"]
        with pytest.raises(LockedError):
            each["d"] = Unbounded(())
        with pytest.raises(LockedError):
            each["d", "e"] = Unbounded(())
        with pytest.raises(LockedError):
            del each["c"]
    spec["a"].lock_().unlock_()
    assert not spec.unlock_(recurse=False).locked


def test_nested_ones_stay_locked() -> None:
    spec = nested().lock_().unlock_(recurse=False)
    assert (spec.locked, spec["a"].locked) == (False, True)
    spec.lock_(recurse=False)
    spec["a"].unlock_()
    spec["a"].lock_()
    spec.lock_()
    with pytest.raises(LockedError, match="part of a locked one"):
        spec["a"].unlock_()


def test_locks_of_a_stack_without_nested_ones() -> None:
    stack = torch.stack([nested(), Composite(a=Composite(b=Unbounded((2,))))])
    stack.lock_(recurse=False)
    assert stack.is_locked
    assert not stack[0]["a"].locked
    assert not stack.unlock_(recurse=False).is_locked


def test_deletion_of_a_key_that_some_composites_of_a_stack_have() -> None:
    stack = torch.stack([Composite(a=Unbounded((1,))), Composite(b=Unbounded((1,)))])
    del stack["a"]
    assert [list(stack[i].keys()) for i in range(2)] == [[], ["b"]]
    with pytest.raises(KeyError, match="'a'"):
        del stack["a"]
    with pytest.raises(LockedError):
        del stack.lock_()["b"]


def test_keys_in_nested_tuples() -> None:
    spec = Composite(a=Composite(b=Composite(c=Unbounded(()))))
    for key in (("a", ("b", "c")), (("a", "b"), "c"), (("a",), "b", ("c",))):
        assert key in spec.keys(True)
        assert key in spec.keys(True, True)
    assert (("a",),) in spec.keys(leaves_only=False)
    for key in (3, (), ("a", 3), ("a", ("b", "d"))):
        assert key not in spec.keys(True)


def test_enumerated_values_of_a_batch_share_memory() -> None:
    rows = Composite(a=Binary(4, (6, 4)), n=Composite(b=Categorical(3, (6, 2)), shape=(6,)), shape=(6,))
    values, row = rows.enumerate(), rows[0].enumerate()
    assert values.shape == (rows.cardinality(), 6)
    assert row.shape == (row.numel(),)
    for index in range(6):
        assert (values[:, index] == row).all()
    for key in ("a", ("n", "b")):
        assert values[key].untyped_storage().nbytes() == row[key].untyped_storage().nbytes()
    empty = Composite(a=Binary(4, (0, 4)), shape=(0,)).enumerate()
    assert empty["a"].shape == (16, 0, 4)
