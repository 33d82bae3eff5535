"""Rules for every spec: values are in the spec, round-trip and follow its shape; specs can be compared, copied and
moved."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection
from tests.fixtures.specs import ALL, LEAVES, composites, leaves, shape_of, shapes
from torch import Tensor

from vecrl.errors import OutOfSpecError, SpaceError
from vecrl.specs import Bounded, Composite, MultiCategorical, TensorSpec

each = pytest.mark.parametrize("name", ALL)
each_leaf = pytest.mark.parametrize("name", LEAVES)


def _equal(a: Any, b: Any) -> bool:
    if is_non_tensor(a):
        return a.tolist() == b.tolist()
    if isinstance(a, TensorDictBase):
        return bool((a == b).all())
    if isinstance(a, Tensor) and a.is_nested:
        return all(map(_equal, a.unbind(), b.unbind()))
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


@each
def test_random_values_are_in_the_spec(name: str) -> None:
    spec = ALL[name]
    for _ in range(5):
        assert spec.mismatch(spec.rand()) is None
        assert spec.is_in(spec.sample())
    spec.assert_is_in(spec.rand())


@each
def test_values_have_the_shape(name: str) -> None:
    spec = ALL[name]
    for value in (spec.rand(), spec.zero(), spec.zeros(), spec.one(), spec.ones()):
        if not (isinstance(value, Tensor) and value.is_nested):
            assert all(a in (-1, b) for a, b in zip(spec.shape, shape_of(value), strict=True))
            assert len(spec.shape) == len(shape_of(value))
        if isinstance(value, Tensor):
            assert value.dtype == spec.dtype
            assert value.device == spec.device


@each_leaf
def test_batch_dimensions_come_first(name: str) -> None:
    spec = LEAVES[name]
    for value in (spec.rand((5, 2)), spec.zero((5, 2)), spec.one((5, 2))):
        assert value.shape == (5, 2, *spec.shape)
    assert spec.is_in(spec.rand((5, 2)))
    assert spec.rand(7).shape == (7, *spec.shape)


@each_leaf
def test_generators_determine_samples(name: str) -> None:
    spec = LEAVES[name]
    first, second = (spec.rand((20,), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@each
def test_the_global_generator_determines_samples(name: str) -> None:
    spec = ALL[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = spec.rand()
        torch.manual_seed(1)
        assert _equal(first, spec.rand())


@each
def test_specs_equal_their_copies_and_pickle(name: str) -> None:
    spec = ALL[name]
    for other in (spec.clone(), copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert other == spec
        assert (other != spec) is False
        assert repr(other) == repr(spec)
        assert other.is_in(spec.rand())


def test_fixture_specs_are_distinct() -> None:
    for name, spec in ALL.items():
        assert [other for other in ALL if ALL[other] == spec] == [name]


@each
def test_specs_do_not_equal_other_objects(name: str) -> None:
    assert ALL[name] != 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(ALL[name])


@each
def test_to_the_same_device_returns_self(name: str) -> None:
    spec = ALL[name]
    assert spec.to(None) is spec
    assert spec.cpu().is_in(spec.rand())
    if not isinstance(spec, Composite) and spec.dtype is not None:
        assert spec.to("cpu") is spec


@each_leaf
def test_to_another_device(name: str) -> None:
    spec = LEAVES[name].to("meta")
    assert spec.device == torch.device("meta")
    assert spec.zero().device == torch.device("meta")
    assert spec.shape == LEAVES[name].shape


@each
def test_projection_keeps_valid_values(name: str) -> None:
    spec = ALL[name]
    value = spec.rand()
    assert _equal(spec.project(value), value)


@each_leaf
@pytest.mark.parametrize("fill", [-7.6, 0.4, 9.9, 1e30, float("inf"), float("-inf"), float("nan")])
def test_projections_are_in_the_spec(name: str, fill: float) -> None:
    spec = LEAVES[name]
    for batch in ((), (3,)):
        value = spec.project(torch.full((*batch, *spec.shape), fill))
        assert spec.mismatch(value) is None
        assert torch.equal(spec.project(value), value) or fill != fill


@each_leaf
def test_another_shape_cannot_be_projected(name: str) -> None:
    spec = LEAVES[name]
    if spec.ndim:
        with pytest.raises(SpaceError, match="Expected shape"):
            spec.project(torch.zeros(*spec.shape[:-1], 17))


@each
def test_out_of_spec_errors_have_a_reason(name: str) -> None:
    spec = ALL[name]
    if name in {"non-tensor"}:
        return
    with pytest.raises(OutOfSpecError, match="not in"):
        spec.assert_is_in(object())
    with pytest.raises(AssertionError):
        spec.assert_is_in(object())


@each_leaf
def test_another_dtype_or_shape_is_not_in(name: str) -> None:
    spec = LEAVES[name]
    value = spec.zero()
    if spec.ndim:
        assert "expected shape" in str(spec.mismatch(torch.zeros(*spec.shape, 11)))
    other = torch.complex64
    assert "complex64" in str(spec.mismatch(value.to(other)))
    assert not spec.contains(value.to(other))
    spec.type_check(value)
    with pytest.raises(TypeError, match="'key'"):
        spec.type_check(value.to(other), "key")


@each
def test_to_numpy_and_encode_round_trip(name: str) -> None:
    spec = ALL[name]
    value = spec.rand()
    back = spec.encode(spec.to_numpy(value))
    assert spec.is_in(back)
    assert _equal(back, value)
    assert _equal(spec.encode(value), value)


@each
def test_memoization_is_accepted(name: str) -> None:
    ALL[name].memoize_encode(True)
    ALL[name].erase_memoize_cache()


@each_leaf
def test_enumeration_agrees_with_cardinality(name: str) -> None:
    spec = LEAVES[name]
    count = spec.cardinality()
    if count == float("inf") or name == "multi-categorical matrix":
        return
    values = spec.enumerate()
    assert values.shape == (count, *spec.shape)
    assert len({tuple(row.reshape(-1).tolist()) for row in values}) == count
    if getattr(spec, "mask", None) is None:
        assert spec.is_in(values)


# -- shapes


def _indices(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    slices = st.slices(5).filter(lambda s: (s.step or 1) > 0)

    def item(size: int) -> st.SearchStrategy[Any]:
        subset = st.lists(st.integers(-size, size - 1), min_size=1, max_size=3)
        flags = st.lists(st.booleans(), min_size=size, max_size=size)
        return st.integers(-size, size - 1) | slices | subset | flags.map(torch.tensor)

    def items(k: int) -> st.SearchStrategy[tuple[Any, ...]]:
        new = st.lists(st.none(), max_size=1)
        pieces = st.tuples(*[piece for size in shape[:k] for piece in (new, item(size).map(lambda i: [i]))], new)
        return pieces.map(lambda found: tuple(i for piece in found for i in piece))

    tuples = st.integers(0, len(shape)).flatmap(items)
    return tuples | st.just(...) | tuples.map(lambda t: (*t, ...))


def _same_shape(spec: TensorSpec, value: Any) -> None:
    assert spec.shape == shape_of(value)
    assert spec.is_in(value), spec.mismatch(value)
    assert spec.is_in(spec.rand())
    if is_tensor_collection(value):
        for key, entry in spec.items(True, True):  # pyright: ignore[reportAttributeAccessIssue]
            assert entry.shape == shape_of(value.get(key))


def _batch(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(spec.shape[: spec._num_movable()])


@given(st.data(), leaves() | composites())
def test_indexing_agrees_with_values(data: st.DataObject, spec: TensorSpec) -> None:
    index = data.draw(_indices(_batch(spec)))
    value = spec.rand()
    try:
        expected = value[index]
    except (IndexError, RuntimeError):  # masks with different numbers of true values
        with pytest.raises((IndexError, SpaceError)):
            spec[index]
        return
    if is_tensor_collection(value) and torch.empty(value.batch_size)[index].shape != shape_of(expected):
        return  # tensordict 0.13.0 puts the dimension of several lists into the wrong place
    if shape_of(expected).numel() or not is_tensor_collection(value):
        _same_shape(spec[index], expected)


@given(st.data(), leaves() | composites())
def test_rearranging_agrees_with_values(data: st.DataObject, spec: TensorSpec) -> None:
    value = spec.rand()
    lead = _batch(spec)
    tail = tuple(spec.shape[len(lead) :])
    front = data.draw(shapes(2))
    _same_shape(spec.expand(*front, *spec.shape), value.expand((*front, *spec.shape)))
    _same_shape(spec.expand((*front, *spec.shape)), value.expand((*front, *spec.shape)))
    dim = data.draw(st.integers(0, len(lead)))
    _same_shape(spec.unsqueeze(dim), value.unsqueeze(dim))
    _same_shape(torch.unsqueeze(spec, dim), value.unsqueeze(dim))  # pyright: ignore[reportArgumentType]
    _same_shape(spec.reshape(-1, *tail), value.reshape((-1, *tail)))
    if lead:
        dim = data.draw(st.integers(0, len(lead) - 1))
        end = data.draw(st.integers(dim, len(lead) - 1))
        _same_shape(spec.squeeze(dim), value.squeeze(dim))
        _same_shape(spec.flatten(dim, end), value.flatten(dim, end))
        order = (*data.draw(st.permutations(range(len(lead)))), *range(len(lead), len(spec.shape)))
        _same_shape(spec.permute(*order), value.permute(*order))
        _same_shape(spec.unflatten(dim, (1, -1)), value.unflatten(dim, (1, lead[dim])))
        for row, own in zip(spec.unbind(dim), value.unbind(dim), strict=True):
            _same_shape(row, own)
    complete = spec.squeeze()
    assert complete.is_in(complete.rand())


@given(st.data(), leaves() | composites(), st.integers(1, 3))
def test_stacking_agrees_with_values(data: st.DataObject, spec: TensorSpec, count: int) -> None:
    dim = data.draw(st.integers(0, len(_batch(spec))))
    stacked = torch.stack([spec] * count, dim)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert type(stacked) is type(spec)
    _same_shape(stacked, torch.stack([spec.rand() for _ in range(count)], dim))
    assert all(row == spec for row in stacked.unbind(dim))


@given(st.data(), leaves())
def test_a_dynamic_dimension_takes_any_size(data: st.DataObject, spec: TensorSpec) -> None:
    own = isinstance(spec, MultiCategorical)  # the numbers of options differ along its last dimension
    if len(_batch(spec)) <= own or (isinstance(spec, Bounded) and not _uniform(spec)):
        return
    dim = data.draw(st.integers(0, len(_batch(spec)) - 1 - own))
    dynamic = spec.make_neg_dim(dim)
    assert dynamic.shape[dim] == -1
    sizes = list(spec.shape)
    sizes[dim] = 7
    row = spec[(slice(None),) * dim + (0,)]
    value = torch.stack([row.rand() for _ in range(7)], dim)
    assert list(value.shape) == sizes
    assert dynamic.is_in(value)
    assert dynamic.is_in(dynamic.rand())
    assert dynamic.unsqueeze(0).is_in(value.unsqueeze(0))
    assert dynamic.expand(2, *dynamic.shape).is_in(value.expand(2, *value.shape))
    assert dynamic.flatten(0, 0) == dynamic
    assert torch.equal(dynamic.encode(value), value)
    assert pickle.loads(pickle.dumps(dynamic)) == dynamic


def _uniform(spec: Any) -> bool:
    return bool((spec.high == spec.high.reshape(-1)[0]).all())


@given(composites())
def test_composites_round_trip_through_arrays(spec: Composite) -> None:
    value = spec.rand()
    assert spec.is_in(value)
    assert spec.is_in(spec.encode(spec.to_numpy(value)))
    assert _equal(spec.project(value), value)
    assert spec == pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec)
    assert set(value.keys(True, True)) == set(spec.keys(True, True))


@pytest.mark.parametrize("method", ["expand", "reshape"])
def test_invalid_values_raise(method: str) -> None:
    for name, spec in LEAVES.items():
        if spec.ndim and spec.shape[-1] not in (0, 1):
            with pytest.raises(SpaceError, match=method):
                getattr(spec, method)(3, 13, 17)
            assert name


def test_indices_out_of_range_are_index_errors() -> None:
    for spec in LEAVES.values():
        with pytest.raises(IndexError):
            spec[(0,) * (spec.ndim + 1)]
        if _batch(spec):
            with pytest.raises(IndexError):
                spec[99]
            with pytest.raises(IndexError):
                spec[[99]]
        with pytest.raises(IndexError, match="ellipsis"):
            spec[..., ...]


def test_unsupported_torch_functions_raise() -> None:
    with pytest.raises(SpaceError, match=r"exp does not take specs.*stack"):
        torch.exp(LEAVES["bounded"])  # pyright: ignore[reportArgumentType]


def test_torch_functions() -> None:
    spec: Any = LEAVES["bounded"]
    assert torch.squeeze(spec.unsqueeze(0)) == spec
    assert torch.squeeze(spec.unsqueeze(0), 0) == spec
    assert torch.flatten(spec).shape == (6,)
    assert torch.unflatten(spec, 1, (3, 1)).shape == (2, 3, 1)
    assert torch.reshape(spec, (3, 2)).shape == (3, 2)
    assert torch.broadcast_to(spec, (4, 2, 3)).shape == (4, 2, 3)
    assert torch.unbind(spec)[0] == spec[0]
    assert torch.clone(spec) == spec
    assert torch.squeeze(input=spec) == spec
    with pytest.raises(SpaceError, match="out"):
        torch.stack([spec], out=torch.zeros(1))
