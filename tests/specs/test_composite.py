"""Composite as a mapping: its keys, batch shape, device, names and lock."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from tests.fixtures.specs import batched_composite, small_composite

from vecrl.errors import LockedError, SpaceError
from vecrl.specs import Binary, Categorical, Composite, OneHot, Unbounded

# -- the mapping


def test_keys_nested_and_leaves() -> None:
    spec = small_composite()
    assert list(spec.keys()) == ["a", "n"] == list(spec)
    assert list(spec.keys(True)) == ["a", ("n", "x"), ("n", "y"), "n"]
    assert list(spec.keys(True, True)) == ["a", ("n", "x"), ("n", "y")]
    assert list(spec.keys(leaves_only=True)) == ["a"]
    assert len(spec) == 2
    assert len(spec.keys(True, True)) == 3
    assert [key for key, _ in spec.items(True, True)] == list(spec.keys(True, True))
    assert list(spec.values()) == [spec["a"], spec["n"]]
    assert repr(spec.keys()) == "SpecKeys(['a', 'n'])"
    assert spec.keys(True, True) == {"a", ("n", "x"), ("n", "y")}


def test_keys_with_custom_is_leaf() -> None:
    spec = small_composite()
    assert list(spec.keys(True, True, is_leaf=lambda cls: True)) == ["a", "n"]


def test_static_keys_only() -> None:
    spec = Composite(a=Unbounded(), s=Composite(b=Unbounded(), step_mdp_static=True), n=Composite(c=Unbounded()))
    assert list(spec.keys(True, True, step_mdp_static_only=True)) == ["a", "s", ("n", "c")]
    assert list(spec["s"].keys(step_mdp_static_only=True)) == []
    assert spec["s"].step_mdp_static
    assert spec.expand(3)["s"].step_mdp_static


def test_membership() -> None:
    spec = small_composite()
    assert "a" in spec
    assert ("n", "x") in spec
    assert ("n", "zz") not in spec
    assert "zz" not in spec
    assert ("n", "x") in spec.keys(True)
    assert ("a",) in spec.keys()  # noqa: SIM118


def test_getting() -> None:
    spec = small_composite()
    assert spec["n", "x"] == spec[("n", "x")] == spec.get(("n", "x")) == spec["n"]["x"] == Unbounded((2,))
    assert spec.get("zz", None) is None
    for key in ("zz", ("n", "zz"), ("a", "b")):
        with pytest.raises(KeyError, match="Expected a key of the Composite"):
            spec[key]
        with pytest.raises(KeyError, match="Expected a key of the Composite"):
            spec.get(key)


def test_setting() -> None:
    spec = small_composite()
    assert spec.set(("n", "z"), Unbounded()) is spec
    spec["q", "r", "s"] = Binary(2)
    spec["d"] = {"e": Unbounded((7,))}
    assert spec["q", "r"].shape == ()
    assert isinstance(spec["d"], Composite)
    assert ("n", "z") in spec
    with pytest.raises(SpaceError, match=r"a spec, a mapping of specs or None at 'k'"):
        spec["k"] = 3
    with pytest.raises(SpaceError, match="Expected a key"):
        spec.set(3, Unbounded())


def test_keys_of_tuples_and_keywords_together() -> None:
    spec = Composite({("a", "b"): Unbounded(), "c": Unbounded()}, d=Unbounded())
    assert list(spec.keys(True, True)) == [("a", "b"), "c", "d"]


def test_updating_merges() -> None:
    spec = small_composite()
    assert spec.update({"n": {"k": Unbounded()}, "a": Unbounded((7,))}) is spec
    assert list(spec["n"].keys()) == ["x", "y", "k"]
    assert spec["a"].shape == (7,)
    assert list(spec.update(Composite(n=Composite(k=Binary(1))))["n"].keys()) == ["x", "y", "k"]
    assert spec["n", "k"] == Binary(1)


def test_popping() -> None:
    spec = small_composite()
    assert spec.pop("a") == Unbounded((3,))
    assert spec.pop(("n", "x")) == Unbounded((2,))
    assert spec.pop("zz", None) is None
    with pytest.raises(KeyError):
        spec.pop("zz")
    del spec["n", "y"]
    assert spec.is_empty(recurse=True)
    assert not spec.is_empty()
    assert Composite().is_empty()


def test_separating() -> None:
    spec = small_composite()
    out = spec.separates("a", ("n", "x"), "zz")
    assert list(out.keys(True, True)) == ["a", ("n", "x")]
    assert list(spec.keys(True, True)) == [("n", "y")]
    assert spec.separates("zz") is None
    assert spec.separates("zz", default=3) == 3
    spec.separates(("n", "y"))
    assert spec.is_empty()


def test_selecting_and_excluding() -> None:
    spec = batched_composite()
    chosen = spec.select(("b", "c"))
    assert list(chosen.keys(True, True)) == [("b", "c")]
    assert chosen.shape == chosen["b"].shape == (4,)
    assert list(spec.exclude("a").keys()) == ["b"]
    assert list(spec.exclude(("b", "c"), "zz").keys(True)) == ["a", "b"]
    assert list(spec.keys()) == ["a", "b"]
    with pytest.raises(KeyError):
        spec.select("zz")
    assert spec.select("zz", strict=False).is_empty()
    assert spec.empty() == Composite(shape=(4,))


def test_flat_keys() -> None:
    spec = batched_composite()
    assert list(spec.flatten_keys().keys()) == ["a", "b.c"]
    assert spec.flatten_keys("/").unflatten_keys("/") == spec
    assert spec.flatten_keys().shape == (4,)
    spec["b.c"] = None
    with pytest.raises(SpaceError, match="for two entries"):
        spec.flatten_keys()


def test_unknown_keys() -> None:
    spec = Composite(a=None, b=Unbounded())
    assert list(spec.rand().keys()) == ["b"]
    assert spec.is_in(spec.rand())
    assert spec.expand(3)["a"] is None
    assert "a" in spec
    assert spec.encode({"a": torch.ones(2)})["a"].shape == (2,)
    assert "a: None" in repr(spec)


def test_equality_ignores_key_order() -> None:
    item = Composite(a=Unbounded((3, 2)), b=Unbounded((3,)), shape=(3,))
    assert item == Composite(b=Unbounded((3,)), a=Unbounded((3, 2)), shape=(3,))
    assert item != Composite(a=Unbounded((3, 2)), b=Unbounded((3,)))
    assert item != item.exclude("a")


# -- shape, device and names


def test_entries_must_start_with_the_batch_shape() -> None:
    with pytest.raises(SpaceError, match=r"begins with \(4,\) at 'a'.*\(3,\)"):
        Composite(a=Unbounded((3,)), shape=(4,))
    with pytest.raises(ValueError, match="at 'x'"):
        Composite(n=Composite(x=Unbounded((3,))), shape=(4,))


def test_nested_composites_adopt_the_batch_shape() -> None:
    inner = Composite(b=Unbounded((3, 2)))
    spec = Composite(n=inner, m={"c": Unbounded((3,))}, shape=(3,))
    assert spec["n"].shape == spec["m"].shape == (3,)
    assert inner.shape == ()


def test_the_batch_can_be_set() -> None:
    spec = Composite(a=Unbounded((3, 2)), n=Composite(b=Unbounded((3, 2))))
    spec.shape = (3,)
    assert spec.shape == spec.batch_size == spec["n"].shape == (3,)
    with pytest.raises(SpaceError, match="at 'a'"):
        spec.shape = (4,)
    assert spec.shape == (3,)


def test_shapes_reach_every_entry() -> None:
    spec = batched_composite()
    assert spec.expand(2, 4)["b", "c"].shape == (2, 4)
    assert spec.expand(2, 4)["b"].shape == (2, 4)
    assert spec.unsqueeze(-1)["a"].shape == (4, 1, 3)
    assert spec[None]["a"].shape == (1, 4, 3)
    assert spec.reshape(2, 2)["a"].shape == (2, 2, 3)
    assert spec.view(2, 2) == spec.reshape(2, 2) == spec.unflatten(0, (2, 2))
    assert spec[[0, 2]]["b", "c"].shape == (2,)
    assert spec[torch.tensor([True, False, True, True])].shape == (3,)
    assert [row.shape for row in spec.unbind()] == [()] * 4
    assert spec.ndim == spec.ndimension() == 1
    with pytest.raises(SpaceError, match="expand"):
        spec.expand(2, 5)
    with pytest.raises(IndexError):
        spec[0, 0]
    with pytest.raises(SpaceError, match="one of its dimensions is one choice"):
        Composite(a=OneHot(4), shape=(4,)).unsqueeze(0)


def test_devices() -> None:
    spec = small_composite(device="cpu")
    assert spec.device == spec["n"].device == torch.device("cpu")
    assert spec.rand().device == torch.device("cpu")
    assert small_composite().device is None
    assert small_composite().rand().device is None
    changed = small_composite().to("meta")
    assert changed.device == changed["n", "x"].device == torch.device("meta")
    with pytest.raises(SpaceError, match=r"on cpu at 'a'.*on meta.*spec.to\('cpu'\)"):
        Composite(a=Unbounded(device="meta"), device="cpu")
    mixed = Composite(a=Unbounded(device="meta"), b=Unbounded())
    assert mixed.device is None
    assert mixed.zero()["a"].device == torch.device("meta")
    assert spec.clear_device_() is spec
    assert spec.device is None
    assert spec["n"].device is None


def test_dtypes() -> None:
    spec = batched_composite().to(torch.float64)
    assert spec["a"].dtype == spec["b", "c"].dtype == torch.float64
    assert batched_composite().cast("float64") == spec


def test_names() -> None:
    spec = Composite(a=Unbounded((3, 4)), shape=(3,), names=["time"])
    assert spec.zero().names == ["time"]
    assert spec.rand((2,)).names == [None, "time"]
    assert spec.unsqueeze(0).names == [None, "time"] == spec.expand(2, 3).names
    assert spec[0].names == []
    assert spec[None, 1:].names == [None, "time"]
    assert spec[[0, 1]].names == [None]
    assert spec.unsqueeze(1).flatten(0, 1).names == [None]
    assert spec.unsqueeze(0).squeeze().names == ["time"]
    assert spec.clone().names == ["time"]
    assert small_composite().refine_names() == small_composite()
    plain = Composite(shape=(3, 2))
    assert plain.names == [None, None]
    assert plain.refine_names(..., "k") is plain
    assert plain.names == [None, "k"]
    with pytest.raises(SpaceError, match="refine"):
        plain.refine_names("a", "b")
    with pytest.raises(SpaceError, match="a name"):
        Composite(shape=(3,), names=["a", "b"])
    plain.names = None
    assert plain.names == [None, None]
    assert "names=['time']" in repr(spec)


# -- the lock


def test_locked_composites_raise_on_changes() -> None:
    spec = small_composite().lock_()
    assert spec.is_locked
    assert spec.locked
    assert spec["n"].is_locked
    changes = [
        lambda: spec.set("a", Unbounded()),
        lambda: spec.__setitem__("z", Unbounded()),
        lambda: spec.set(("n", "x"), Unbounded()),
        lambda: spec["n"].set("x", Unbounded()),
        lambda: spec.update({"a": Unbounded()}),
        lambda: spec.update({"n": {"x": Unbounded()}}),
        lambda: spec.pop("a"),
        lambda: spec.pop(("n", "x")),
        lambda: spec.__delitem__("a"),
        lambda: spec.separates("a"),
        lambda: setattr(spec, "shape", ()),
    ]
    for change in changes:
        with pytest.raises(LockedError, match="unlock_"):
            change()
    assert spec == small_composite()


def test_unlocking() -> None:
    spec = small_composite().lock_(recurse=True).unlock_()
    spec["n", "x"] = Unbounded((9,))
    assert spec["n", "x"].shape == (9,)
    spec.is_locked = True
    assert spec["n"].is_locked
    spec.is_locked = False
    assert not spec["n"].is_locked


def test_derived_composites_are_unlocked() -> None:
    spec = small_composite().lock_()
    for other in (spec.expand(3), spec.clone(), spec.to("cpu"), spec.select("a"), spec.exclude("a"), spec.empty()):
        assert not other.is_locked


def test_nested_composites_are_not_copied() -> None:
    inner = Composite(x=Unbounded((2,)))
    outer = Composite(n=inner)
    assert outer["n"] is inner
    inner["y"] = Unbounded((3,))
    assert outer["n", "y"].shape == (3,)
    outer["n", "z"] = None
    assert "z" in inner
    outer.update({"m": inner})
    assert outer["m"] is inner
    outer.lock_(recurse=True)
    assert inner.is_locked
    with pytest.raises(LockedError):
        inner.pop("y")
    outer.unlock_()
    del inner["y"]
    assert ("n", "y") not in outer


def test_a_batch_shape_set_outside_reaches_nested_composites() -> None:
    inner = Composite(x=Unbounded((2, 3)))
    outer = Composite(n=inner)
    outer.shape = (2,)
    assert outer["n"] is inner
    assert inner.shape == (2,)


def test_a_nested_composite_of_another_batch_shape_or_device_is_copied() -> None:
    inner = Composite(x=Unbounded((2, 3)))
    assert Composite(n=inner, shape=(2,))["n"].shape == (2,)
    assert Composite(n=inner, device="cpu")["n"].device == torch.device("cpu")
    assert inner.shape == ()
    assert inner.device is None


def test_derived_composites_share_no_nested_composites() -> None:
    spec = small_composite()
    for other in (spec.clone(), spec.to("cpu"), spec.expand(2), spec.select("n"), spec.exclude("a")):
        other["n"].pop("x")
    spec.unflatten_keys()["n"].pop("x")
    assert spec == small_composite()


def test_unlock_keeps_entries_locked_that_were_locked_before() -> None:
    inner = Composite(x=Unbounded()).lock_()
    outer = Composite(n=inner).unlock_()
    assert outer["n"].is_locked
    assert outer.lock_().unlock_()["n"] is inner
    assert not inner.is_locked


def test_composites_cannot_contain_themselves() -> None:
    inner = Composite(x=Unbounded())
    outer = Composite(n=inner)
    for spec in (outer, inner):
        with pytest.raises(SpaceError, match="would contain itself"):
            spec["me"] = outer


def test_masks_can_be_updated_while_locked() -> None:
    leaf = Categorical(3)
    spec = Composite(n=Composite(a=leaf)).lock_()
    leaf.update_mask(torch.tensor([False, True, False]))
    assert spec.rand()["n", "a"] == 1


def test_nested_composites_cannot_be_unlocked_alone() -> None:
    inner = Composite(x=Unbounded((2,)))
    outer, other = Composite(n=inner), Composite(m=inner)
    outer.lock_()
    with pytest.raises(LockedError, match="part of a locked one"):
        inner.unlock_()
    for copied in (inner.clone(), copy.copy(inner)):
        copied.unlock_()["y"] = Unbounded()
    restored = pickle.loads(pickle.dumps(outer))
    with pytest.raises(LockedError):
        restored["n"].unlock_()
    other.lock_()
    assert not outer.unlock_().is_locked
    assert inner.is_locked
    del other
    gc.collect()
    assert not inner.unlock_().is_locked


def test_elements_of_a_locked_stack_cannot_be_unlocked_alone() -> None:
    parts = [Composite(x=Unbounded((n,))) for n in (1, 2)]
    stack = torch.stack(parts).lock_()
    with pytest.raises(LockedError):
        parts[0].unlock_()
    stack.unlock_()
    parts[0]["y"] = Unbounded()
    assert "y" in stack[0]


def test_selected_groups_keep_their_batch_shape() -> None:
    spec = Composite(n=Composite(x=Unbounded((2, 3)), y=Unbounded((2,)), shape=(2,)))
    assert spec.select(("n", "x")) == Composite(n=Composite(x=Unbounded((2, 3)), shape=(2,)))
    parts = [Composite(x=Unbounded((size,)), y=Unbounded()) for size in (1, 2)]
    assert Composite(n=torch.stack(parts)).select(("n", "x"))["n"].unbind(0)[1].shape == ()
    assert list(Composite(n=torch.stack(parts)).select(("n", "x"))["n"][1].keys()) == ["x"]
