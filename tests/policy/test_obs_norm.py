"""Observation normalization: RunningNorm, RunningStat and their layers."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vecrl.errors import SpaceError
from vecrl.policy import MultiLayered, ObsNormLayer, RunningNorm, RunningStat


def observations(n=8, seed=0):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)) * 2 + 5


def expected(rows, x, clip=None):
    rows, x = rows.double(), x.double()
    y = (x - rows.mean(0)) / rows.var(0, correction=0).clamp(min=1e-2).sqrt()
    return y if clip is None else y.clamp(-clip, clip)


def test_running_norm_updates_and_normalizes():
    norm, x = RunningNorm(shape=3, clip=1.0), observations()
    torch.testing.assert_close(norm.update_and_normalize(x[:5]), expected(x[:5], x[:5], 1).float())
    norm.update(x[5:])
    assert (norm.count, norm.shape, norm.low, norm.high, norm.min_variance) == (8, (3,), -1.0, 1.0, 1e-2)
    torch.testing.assert_close(norm.normalize(x), expected(x, x, 1).float())
    torch.testing.assert_close(norm.normalize(x[0]), expected(x, x[0], 1).float())
    torch.testing.assert_close(norm.mean, x.mean(0))
    torch.testing.assert_close(norm.stdev, x.std(0, correction=0))
    torch.testing.assert_close(norm.sum, x.double().sum(0))
    torch.testing.assert_close(norm.sum_of_squares, x.double().square().sum(0))
    norm.reset()
    assert norm.count == 0


@settings(max_examples=30, deadline=None)
@given(mask=st.lists(st.booleans(), min_size=8, max_size=8), cut=st.integers(0, 8))
def test_masks_and_merging_equal_one_pass(mask, cut):
    """Covers masks and merging of two statistics, as workers and Ray do."""
    x, keep = observations(), torch.tensor(mask)
    remaining, right = RunningNorm(shape=3), RunningNorm(shape=3)
    remaining.update(x[:cut], keep[:cut])
    right.update(x[cut:], mask[cut:])
    remaining.update(pickle.loads(pickle.dumps(right)))
    assert remaining.count == sum(mask)
    if any(mask):
        torch.testing.assert_close(remaining.mean, x[keep].mean(0))
        torch.testing.assert_close(remaining.normalize(x), expected(x[keep], x).float())


def test_update_and_normalize_respects_masks():
    norm, x = RunningNorm(shape=3), observations()
    mask = torch.arange(8) < 4
    torch.testing.assert_close(norm.update_and_normalize(x, mask), expected(x[:4], x).float())


@pytest.mark.parametrize("dtype", ["float32", torch.float64])
def test_dtype_and_kind_of_results(dtype):
    norm = RunningNorm(shape=(3,), dtype=dtype)
    x = observations()
    norm.update(x.numpy())
    tensor, array = norm.normalize(x), norm.normalize(x.double().numpy())
    assert isinstance(array, np.ndarray)
    assert tensor.dtype == norm.dtype == norm.mean.dtype == norm.stdev.dtype == torch.from_numpy(array).dtype
    np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-5)


def test_small_variances_are_clamped():
    norm = RunningNorm(shape=1, min_variance=0.25)
    norm.update(torch.ones(4, 1))
    assert (norm.stdev.item(), norm.normalize(torch.tensor([2.0])).item()) == (0.5, 2.0)


@pytest.mark.parametrize("make", [lambda: RunningNorm(shape=3), RunningStat])
def test_normalizing_without_data_raises(make):
    for use in (lambda n: n.normalize(torch.zeros(3)), lambda n: n.to_layer()):
        with pytest.raises(ValueError, match="call update first"):
            use(make())


def test_errors_of_running_norm():
    norm = RunningNorm(shape=3)
    with pytest.raises(SpaceError, match=r"\(3,\)"):
        norm.update(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="merged as a whole"):
        norm.update(RunningNorm(shape=3), torch.ones(3, dtype=torch.bool))


def test_freezing_stops_updates():
    norm, x = RunningNorm(shape=3), observations()
    norm.update(x)
    norm.stats.freeze()
    before = norm.update_and_normalize(x + 100)
    torch.testing.assert_close(before, expected(x, x + 100).float())
    assert norm.count == 8


@pytest.mark.parametrize("clip", [None, 0.5, (-0.1, 2.0)])
def test_to_layer_is_a_module_for_deployment(clip):
    norm, x = RunningNorm(shape=3, clip=clip), observations()
    norm.update(x)
    layer = norm.to_layer()
    seen = norm.normalize(x)
    norm.update(x + 50)
    torch.testing.assert_close(layer(x), seen)
    restored = ObsNormLayer(torch.zeros(3), torch.ones(3), layer.low, layer.high)
    restored.load_state_dict(layer.state_dict())
    torch.testing.assert_close(restored(x), seen)
    net = MultiLayered(layer, nn.Linear(3, 2))
    assert not list(layer.parameters())
    assert net(x).dtype == torch.float32
    assert layer.to("meta").mean.device.type == "meta"


def test_state_dict_and_moves():
    """Covers state_dict and moves between devices."""
    norm, x = RunningNorm(shape=3, clip=2.0), observations()
    norm.update(x)
    other = RunningNorm(shape=3, clip=2.0)
    other.load_state_dict(norm.state_dict())
    torch.testing.assert_close(other.normalize(x), norm.normalize(x))
    other.update(x)
    assert (other.count, norm.count) == (16, 8)
    assert norm.to("cpu") is norm
    assert norm.device == torch.device("cpu")


def test_running_stat_accepts_single_observations():
    """Covers single observations, masks, merging and state_dict."""
    stat, x = RunningStat(), observations().numpy()
    for row in x[:3]:
        stat.update(row)
    stat.update(x[3:6])
    stat.update(x[6:], [True, False])
    rows = torch.from_numpy(x[:7])
    assert stat.count == 7
    assert stat.mean.dtype == stat.stdev.dtype == stat.normalize(x).dtype == np.float32
    np.testing.assert_allclose(stat.normalize(x), expected(rows, torch.from_numpy(x)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stat.stdev, x[:7].std(0), rtol=1e-5)
    np.testing.assert_allclose(stat.sum, x[:7].sum(0), rtol=1e-5)
    torch.testing.assert_close(stat.to_layer()(rows), torch.from_numpy(stat.normalize(x[:7])))

    merged = RunningStat()
    merged.update(RunningStat())
    merged.update(pickle.loads(pickle.dumps(stat)))
    merged.update(stat)
    assert merged.count == 14
    np.testing.assert_allclose(merged.mean, stat.mean)
    loaded = RunningStat()
    loaded.load_state_dict(stat.state_dict())
    np.testing.assert_array_equal(loaded.normalize(x), stat.normalize(x))
    loaded.reset()
    loaded.update(np.zeros(2))
    assert (loaded.count, loaded.mean.shape) == (1, (2,))
    with pytest.raises(SpaceError, match=r"\(2,\)"):
        loaded.update(np.zeros(3))


def test_masks_mark_the_first_batch():
    stat, x = RunningStat(clip=1.0), observations().numpy()
    stat.update(x, np.ones(8, bool))
    assert (stat.count, stat.mean.shape) == (8, (3,))
    assert np.abs(stat.normalize(x * 100)).max() == 1.0


@pytest.mark.parametrize("make", [lambda **o: RunningNorm(shape=2, dtype="float64", **o), RunningStat])
def test_long_runs_with_a_large_mean_and_a_small_variance(make):
    """Covers numerical stability on long runs, also after merging and as a layer."""
    x = 1e6 + 1e-3 * np.random.default_rng(0).standard_normal((4000, 16, 2))
    parts = [make(min_variance=1e-12) for _ in range(2)]
    for part, batches in zip(parts, np.split(x, 2), strict=True):
        for batch in batches:
            part.update(batch, np.ones(16, bool))
    total = parts[0]
    total.update(parts[1])
    rows = x.reshape(-1, 2)
    exact = (rows - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(total.normalize(rows), exact, atol=1e-3)
    np.testing.assert_allclose(total.to_layer()(torch.from_numpy(rows)), exact, atol=1e-3)
