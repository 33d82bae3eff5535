"""`consolidate_spec`: the same keys in all specs of a lazy stack. The expected shapes are those of TorchRL 0.13.3."""

from __future__ import annotations

import torch

from vecrl.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    StackedComposite,
    Unbounded,
    consolidate_spec,
)


def _unequal() -> StackedComposite:
    first = Composite(a=Unbounded((3,)), n=Composite(x=Unbounded((2,), dtype=torch.int64)))
    return torch.stack([first, Composite(a=Unbounded((4,)), b=Bounded(0, 1, (2, 2)))])


def test_missing_entries_have_sizes_of_zero() -> None:
    spec = _unequal()
    result = consolidate_spec(spec)
    assert set(result.keys(True, True)) == {"a", "b", ("n", "x")}
    assert (result[0]["b"].shape, result[1]["n", "x"].shape) == ((0, 0), (0,))
    assert (type(result[0]["b"]), result[1]["n", "x"].dtype) == (type(spec[1]["b"]), torch.int64)
    assert (result["a"].shape, result["b"].shape, result["n", "x"].shape) == ((2, -1), (2, -1, -1), (2, -1))
    assert set(spec.keys(True, True)) == {"a"}, "the argument is not changed"
    value = result.rand()
    assert result.is_in(value)
    assert [row["b"].shape for row in value.unbind(0)] == [(0, 0), (2, 2)]
    assert consolidate_spec(result) == result


def test_nested_stacks() -> None:
    nested = Composite(agents=_unequal())
    assert set(consolidate_spec(nested)["agents"].keys()) == {"a", "b", "n"}
    assert set(consolidate_spec(nested, recurse_through_entries=False)["agents"].keys()) == {"a"}
    inner = torch.stack([Composite(g=_unequal()), Composite(g=_unequal(), c=Unbounded((1,)))])
    assert set(consolidate_spec(inner)[0]["g"].keys()) == {"a", "b", "n"}
    shallow = consolidate_spec(inner, recurse_through_stack=False)
    assert shallow[0]["c"].shape == (0,)
    assert set(shallow[0]["g"][0].keys()) == {"a", "n"}


def test_all_kinds_of_entries() -> None:
    kinds = {
        "categorical": (Categorical(3, (2,)), (0,)),
        "scalar": (Categorical(3), ()),
        "one_hot": (OneHot(3), (0,)),
        "binary": (Binary(3), (0,)),
        "text": (NonTensor(()), ()),
    }
    spec = torch.stack([Composite({name: kind for name, (kind, _) in kinds.items()}), Composite(z=Unbounded((1,)))])
    empty = consolidate_spec(spec)[1]
    assert {name: tuple(empty[name].shape) for name in kinds} == {name: shape for name, (_, shape) in kinds.items()}
    assert all(empty[name].dtype == kind.dtype for name, (kind, _) in kinds.items())


def test_batch_dimensions_stay() -> None:
    spec = torch.stack([Composite(a=Unbounded((5, 2)), shape=[5]), Composite(b=Unbounded((5, 3)), shape=[5])])
    result = consolidate_spec(spec)
    assert (result[0]["b"].shape, result[1]["a"].shape, result.shape) == ((5, 0), (5, 0), (2, 5))


def test_other_specs_are_copied() -> None:
    for spec in (Unbounded((3,)), Composite(a=Unbounded((3,)))):
        assert consolidate_spec(spec) == spec
        assert consolidate_spec(spec) is not spec
