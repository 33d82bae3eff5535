"""Bounded and Unbounded: arguments, samples, projection, encoding and casts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vecrl.errors import SpaceError
from vecrl.specs import Bounded, BoundedContinuous, Categorical, Unbounded, UnboundedContinuous, UnboundedDiscrete

INF = float("inf")


def test_arguments_of_bounded() -> None:
    assert Bounded(-1, 1, 3).shape == (3,)
    assert Bounded(low=-1, high=torch.ones(3)).shape == (3,)
    assert Bounded(np.zeros((2, 1)), np.ones(3)).shape == (2, 3)
    assert Bounded(np.zeros(2), np.ones(2)).dtype == torch.float32
    assert Bounded(0, 255, (2,), dtype="uint8").dtype == torch.uint8
    assert Bounded(0, 1, (2,), "meta").device == torch.device("meta")
    assert Bounded(0, 1, (2,)).device == torch.get_default_device()
    assert Bounded(0, 1, ()).rand().shape == ()
    spec = Bounded(0, [1, 2], dtype=torch.int64)
    assert spec.low.tolist() == [0, 0]
    assert spec.high.tolist() == [1, 2]
    assert [bound.tolist() for bound in spec.space] == [[0, 0], [1, 2]]
    assert spec.domain == "discrete"
    assert Bounded(0, 1, (2,)).domain == "continuous"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": -1, "high": 1}, "Expected a shape"),
        ({"high": 1, "shape": (2,)}, "two bounds"),
        ({"low": 1, "high": 0, "shape": (2,)}, "low <= high"),
        ({"low": [0, 0], "high": [1, 1], "shape": (3,)}, "broadcast"),
        ({"low": 0, "high": 1, "shape": (2,), "dtype": "float"}, None),
        ({"low": 0, "high": 1, "shape": (2,), "dtype": "number"}, "Expected a dtype"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert Bounded(**arguments).dtype == torch.float32
        return
    with pytest.raises(SpaceError, match=message):
        Bounded(**arguments)


def test_bounds_are_copied() -> None:
    low = np.zeros(2, np.float32)
    spec = Bounded(low, 1)
    low[:] = 9
    assert spec.low.tolist() == [0, 0]


def test_samples_cover_the_range() -> None:
    torch.manual_seed(0)
    draws = Bounded(-3, 5, ()).rand((20_000,))
    assert abs(draws.mean() - 1) < 0.1
    assert abs(draws.std() - 8 / 12**0.5) < 0.1
    complete = Bounded(-2, 2, (2,), dtype=torch.int8).rand((2_000,))
    assert complete.unique().tolist() == [-2, -1, 0, 1, 2]
    bounds = torch.tensor([-5, 0]), torch.tensor([-4, 2])
    complete = Bounded(*bounds, dtype=torch.int64).rand((2_000,))
    assert complete[:, 0].unique().tolist() == [-5, -4]
    assert complete[:, 1].unique().tolist() == [0, 1, 2]
    assert (complete[:, 1] == 2).float().mean() == pytest.approx(1 / 3, abs=0.05)


def test_samples_without_bounds() -> None:
    torch.manual_seed(0)
    spec = Bounded(torch.tensor([-INF, 0.0, -INF, -1.0]), torch.tensor([INF, INF, 1.0, 1.0]))
    draws = spec.rand((5_000,))
    assert draws.isfinite().all()
    assert abs(draws[:, 0].mean()) < 0.1
    assert abs(draws[:, 1].mean() - 1) < 0.1
    assert abs(draws[:, 2].mean()) < 0.1
    assert spec.is_in(draws)


def test_extreme_ranges() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        info = torch.finfo(dtype)
        assert Bounded(info.min, info.max, (50,), dtype=dtype).rand().isfinite().all()
    for low, high in ((-(2**63), 2**63 - 1), (0, 2**63 - 1), (2**62, 2**63 - 1), (-(2**63), 0), (5, 5)):
        spec = Bounded(torch.tensor(low), torch.tensor(high), (50,), dtype=torch.int64)
        assert spec.is_in(spec.rand())
        assert (spec.low[0], spec.high[0]) == (low, high)


def test_infinite_bounds_of_integers_are_those_of_the_dtype() -> None:
    spec = Bounded(-INF, INF, (2,), dtype=torch.int32)
    assert spec.low.tolist() == [-(2**31)] * 2
    assert spec.high.tolist() == [2**31 - 1] * 2


def test_mismatches_of_bounded() -> None:
    spec = Bounded(-1, 1, (3,))
    assert spec.mismatch(torch.tensor([0.0, 2.0, 3.0])) == "2 of 3 elements are out of bounds, the first of them 2.0"
    assert spec.mismatch(np.zeros(3)) == "expected a tensor, got ndarray"
    assert not spec.is_in(torch.full((3,), float("nan")))
    assert spec.is_in(torch.zeros(5, 3))


def test_projection() -> None:
    spec = Bounded(torch.tensor([1, -2]), torch.tensor([3, 2]), dtype=torch.int64)
    assert spec.project(torch.tensor([0.6, 7.5])).tolist() == [1, 2]
    assert spec.project([9, -9]).tolist() == [3, -2]
    assert Bounded(-1, 1, (2,)).project(torch.tensor([float("nan"), INF])).tolist() == [0, 1]
    assert Bounded(2, 3, (1,)).project(torch.tensor([float("nan")])).tolist() == [2]
    assert UnboundedDiscrete((2,)).project(torch.tensor([0.6, INF]))[0] == 1


def test_encoding() -> None:
    spec = Bounded(-1, 1, (2, 3))
    assert spec.encode([[1, 2, 3], [4, 5, 6]]).dtype == torch.float32
    assert spec.encode(np.zeros(6)).shape == (2, 3)
    assert Bounded(-1, 1, (1,)).encode(0.5).shape == (1,)
    assert Bounded(-1, 1, (3, 1)).encode(np.zeros(3)).shape == (3, 1)
    assert Unbounded((-1, 1)).encode(np.zeros(5)).shape == (5, 1)
    assert Unbounded((-1, 2)).encode(np.zeros((5, 2))).shape == (5, 2)
    for wrong in (np.zeros((2, 2, 3)), np.zeros(5), 0.5, "text", [[1], [2, 3]]):
        with pytest.raises(SpaceError, match=r"shape \(2, 3\)"):
            spec.encode(wrong)
    with pytest.raises(SpaceError, match="batch size"):
        Unbounded((-1, 2)).encode(np.zeros((5, 3)))


def test_encoded_arrays_are_copies() -> None:
    array = np.zeros(3, np.float32)
    tensor = Unbounded((3,)).encode(array)
    array[:] = 1
    assert tensor.tolist() == [0, 0, 0]


def test_encoding_moves_to_the_device() -> None:
    spec = Unbounded((3,), "meta")
    assert spec.encode(torch.zeros(3)).device == torch.device("meta")
    assert spec.encode(torch.zeros(3), ignore_device=True).device == torch.device("cpu")
    assert spec.encode(torch.zeros(3).double(), ignore_device=True).device == torch.device("cpu")


def test_kinds_of_unbounded() -> None:
    assert UnboundedContinuous() == Unbounded()
    assert UnboundedDiscrete() == Unbounded(dtype=torch.int64)
    assert BoundedContinuous(0, 1, (2,)) == Bounded(0, 1, (2,))
    assert isinstance(UnboundedDiscrete(), Unbounded)
    assert Unbounded().shape == (1,)
    assert Unbounded(3).shape == (3,)
    assert Unbounded((2,), dtype=torch.int64).space.low.tolist() == [-(2**63)] * 2
    assert Unbounded((2,), dtype=torch.bool).rand((100,)).unique().tolist() == [False, True]
    assert Unbounded((), dtype=torch.uint8).rand((5000,)).unique().numel() == 256
    assert Unbounded((2,)).is_in(torch.tensor([float("nan"), INF]))
    assert Unbounded((2,), dtype=torch.complex64).rand().dtype == torch.complex64
    assert Unbounded((2,)).cardinality() == Bounded(0, 1, (2,)).cardinality() == INF


def test_casting() -> None:
    assert Bounded(0, 3, (2,)).to(torch.int64) == Bounded(0, 3, (2,), dtype=torch.int64)
    assert Bounded(0, 3, (2,)).to(torch.int64).domain == "discrete"
    assert Unbounded((2,)).cast("int32").domain == "discrete"
    assert Categorical(3).cast(torch.int8).dtype == torch.int8


def test_cardinality_and_enumeration_raise() -> None:
    with pytest.raises(NotImplementedError, match="cannot be enumerated"):
        Bounded(0, 1, (2,)).enumerate()
    with pytest.raises(NotImplementedError, match="no indices"):
        Unbounded().index(0, torch.zeros(3))


def test_repr_shows_the_arguments() -> None:
    assert repr(Bounded(-1, 1, (2,))) == "Bounded(low=-1, high=1, shape=(2,), dtype=torch.float32, device=cpu)"
    assert "high=[1…2]" in repr(Bounded(0, [1, 2]))
    assert repr(Unbounded(2)) == "Unbounded(shape=(2,), dtype=torch.float32, device=cpu)"


def test_dynamic_bounds() -> None:
    spec = Bounded(-1, 1, (3, -1, 2))
    assert spec.low.shape == (3, 1, 2)
    assert spec.rand().shape == spec.zero().shape == (3, 1, 2)
    assert spec.numel() == 6
    assert spec.is_in(torch.zeros(3, 7, 2))
    assert not spec.is_in(torch.zeros(3, 7, 3))
    assert spec.project(torch.full((3, 7, 2), 5.0)).shape == (3, 7, 2)
    assert spec.expand(4, 3, -1, 2).shape == (4, 3, -1, 2)
    assert spec.flatten(0, 1).shape == (-1, 2)
    assert spec.reshape(-1, 2).shape == (-1, 2)
    assert spec[0].shape == (-1, 2)
    assert spec[:, 0].shape == (3, 2)
    assert spec[:, 1:].shape == (3, -1, 2)
    assert spec.unflatten(2, (2, 1)).shape == (3, -1, 2, 1)
    assert torch.stack([spec, spec]).shape == (2, 3, -1, 2)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(SpaceError, match="dynamic"):
        spec.unbind(1)
    with pytest.raises(SpaceError, match="expand"):
        spec.expand(3, 5, 2)
    uneven = Bounded(torch.zeros(3, 1, 2), torch.arange(6.0).reshape(3, 1, 2), (3, -1, 2))
    with pytest.raises(SpaceError, match="differ along it"):
        uneven.flatten(0, 1)
    assert uneven.flatten(2).shape == (3, -1, 2)
    with pytest.raises(SpaceError, match="differ along it"):
        uneven.make_neg_dim(0)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "said"),
    [
        (0, 300, torch.uint8, "^Expected bounds of torch.uint8 from 0 to 255"),
        (-1, 1, torch.uint8, "from 0 to 255"),
        (0.0, 1e10, torch.int32, "2147483647"),
        (0, 2, torch.bool, "from 0 to 1"),
        (float("nan"), 1, torch.float32, "NaN"),
        (0, [1.0, float("nan")], torch.float32, "NaN"),
        (0, torch.tensor(60000, dtype=torch.uint16), torch.int8, "from -128 to 127, got bounds from 60000 to 60000"),
        (0, torch.tensor(2**64 - 1, dtype=torch.uint64), torch.uint64, "from 0 to 9223372036854775807, got"),
        (0, np.uint64(2**64 - 1), torch.int64, "to 9223372036854775807, got"),
        (0, 1e300, torch.int64, "to 9223372036854775807, got"),
    ],
)
def test_bounds_outside_the_dtype_raise(low: Any, high: Any, dtype: torch.dtype, said: str) -> None:
    with pytest.raises(SpaceError, match=said):
        Bounded(low, high, (2,), dtype=dtype)
    assert Bounded(-INF, INF, (2,), dtype=dtype).domain in ("continuous", "discrete")  # no bound is allowed


def test_float_bounds_of_integers_are_exact_and_truncated() -> None:
    for high in (5e18, 2.0**62 + 1024, 2.0**63 - 1024):
        spec = Bounded(0, high, (1,), dtype=torch.int64)
        assert spec.high.item() == int(high)
        assert spec.is_in(torch.tensor([int(high)]))
    assert Bounded(0, 2.0**63, (1,), dtype=torch.int64).high.item() == 2**63 - 1
    truncated = Bounded(-0.5, 2.5, (1,), dtype=torch.int64)
    assert (truncated.low.item(), truncated.high.item()) == (0, 2)


def test_unsigned_bounds_keep_their_values() -> None:
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        high = torch.tensor(60000, dtype=dtype)
        assert Bounded(0, high, (1,), dtype=torch.int32).high.item() == 60000
        assert Bounded(0, high, (1,), dtype=dtype).high.item() == 60000
    assert Bounded(0, torch.tensor(2**64 - 1, dtype=torch.uint64), (1,)).high.item() == 2.0**64


def test_numbers_above_those_of_a_float_dtype_are_no_bound() -> None:
    spec = Bounded(-1e300, 1e300, (1,))
    assert (spec.low.item(), spec.high.item()) == (-INF, INF)
