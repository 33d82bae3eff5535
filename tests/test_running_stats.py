"""`RunningStats`: results equal one pass over all rows, for every batch size, mask and array type."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vecrl.errors import SpaceError
from vecrl.running_stats import RunningStats

HOMES = [None, "cpu"]
finite = st.floats(-1e3, 1e3, width=32)
batches = st.lists(hnp.arrays(np.float64, st.tuples(st.integers(0, 6), st.just(3)), elements=finite), max_size=5)


def as_home(x, device):
    return x if device is None else torch.as_tensor(x, device=device)


def check(stats, rows):
    """Asserts that `stats` equals one pass over `rows`."""
    assert stats.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(np.asarray(stats.mean), rows.mean(0), atol=1e-9)
        np.testing.assert_allclose(np.asarray(stats.var), rows.var(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", HOMES)
@settings(max_examples=60, deadline=None)
@given(parts=batches)
def test_updates_equal_one_pass(device, parts):
    stats = RunningStats((3,), device=device)
    for part in parts:
        stats.update(as_home(part, device))
    check(stats, np.concatenate([np.zeros((0, 3)), *parts]))


@pytest.mark.parametrize("device", HOMES)
@settings(max_examples=60, deadline=None)
@given(parts=batches)
def test_merge_equals_one_pass(device, parts):
    """Covers merging of two statistics, as workers and Ray do."""
    total = RunningStats((3,), device=device)
    for part in parts:
        worker = RunningStats((3,))
        worker.update(part)
        assert total.merge(worker) is total
    check(total, np.concatenate([np.zeros((0, 3)), *parts]))


@pytest.mark.parametrize("device", HOMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mask_equals_subset(device, data):
    """The values of masked rows have no effect, not even nan."""
    rows = data.draw(hnp.arrays(np.float64, (6, 3), elements=finite))
    mask = data.draw(hnp.arrays(bool, 6))
    first = data.draw(hnp.arrays(np.float64, (2, 3), elements=finite))
    stats = RunningStats((3,), device=device)
    stats.update(first)
    stats.update(as_home(np.where(mask[:, None], rows, np.nan), device), as_home(mask, device))
    check(stats, np.concatenate([first, rows[mask]]))


@pytest.mark.parametrize("device", HOMES)
def test_long_run_with_large_mean_and_tiny_variance_stays_exact(device):
    """Covers a large mean with a small variance."""
    rng = np.random.default_rng(0)
    stats = RunningStats((2,), device=device)
    rows = 1e6 + 1e-3 * rng.standard_normal((20_000, 8, 2))
    for batch in rows:
        stats.update(batch)
    exact = rows.reshape(-1, 2)
    np.testing.assert_allclose(np.asarray(stats.mean), exact.mean(0), rtol=1e-13)
    np.testing.assert_allclose(np.asarray(stats.std), exact.std(0), rtol=1e-6)
    normal = np.asarray(stats.normalize(as_home(exact, device)))
    np.testing.assert_allclose(normal.std(0), 1.0, rtol=0.01)


@pytest.mark.parametrize("device", HOMES)
def test_large_mean_costs_no_digits_of_a_float32_observation(device):
    stats = RunningStats((), device=device, epsilon=0.0)
    values = np.float32(2**20) + np.arange(8, dtype=np.float32) / 8 + np.float32(0.5)
    stats.update(values)
    expected = (values.astype(np.float64) - values.mean(dtype=np.float64)) / values.std(dtype=np.float64)
    np.testing.assert_allclose(np.asarray(stats.normalize(as_home(values, device))), expected, rtol=1e-6)


@pytest.mark.parametrize("device", HOMES)
@pytest.mark.parametrize("given_as", ["numpy", "torch"])
@pytest.mark.parametrize(("dtype", "result"), [("float32", "float32"), ("float64", "float64"), ("uint8", "float32")])
def test_normalize_keeps_array_type_and_dtype(device, given_as, dtype, result):
    stats = RunningStats((2,), device=device, epsilon=0.0)
    stats.update(np.array([[0, 4], [2, 8]]))
    x = np.array([[1, 8], [4, 2]], dtype=dtype)
    actual = stats.normalize(x if given_as == "numpy" else torch.from_numpy(x))
    assert type(actual) is (np.ndarray if given_as == "numpy" else torch.Tensor)
    assert str(actual.dtype).removeprefix("torch.") == result
    np.testing.assert_allclose(np.asarray(actual), [[0, 1], [3, -2]])


@pytest.mark.parametrize("device", HOMES)
def test_clip_of_constructor_and_of_call(device):
    stats = RunningStats((), device=device, clip=(-1, 2), epsilon=0.0)
    stats.update(np.array([-1.0, 1.0]))
    x = as_home(np.array([-9.0, 0.5, 9.0]), device)
    assert stats.normalize(x).tolist() == [-1.0, 0.5, 2.0]
    assert stats.normalize(x, clip=3).tolist() == [-3.0, 0.5, 3.0]
    with pytest.raises(ValueError, match="low < high"):
        RunningStats(clip=-1)


@pytest.mark.parametrize("device", HOMES)
def test_min_variance_is_a_floor(device):
    stats = RunningStats((), device=device, min_variance=4.0, epsilon=0.0)
    stats.update(np.zeros(3))
    assert stats.normalize(as_home(np.array([6.0]), device)).tolist() == [3.0]


@pytest.mark.parametrize("device", HOMES)
def test_normalizing_before_the_first_row_changes_nothing(device):
    stats = RunningStats((2,), device=device, epsilon=0.0)
    assert (stats.count, stats.mean.tolist(), stats.var.tolist()) == (0, [0.0, 0.0], [1.0, 1.0])
    assert stats.normalize(as_home(np.array([3.0, 4.0]), device)).tolist() == [3.0, 4.0]


@pytest.mark.parametrize("device", HOMES)
def test_frozen_statistics_never_change(device):
    stats = RunningStats((), device=device)
    stats.update(np.array([1.0, 3.0]))
    for freeze in (stats.freeze, stats.eval):
        freeze()
        stats.update(np.array([100.0]))
        assert (stats.count, float(stats.mean), stats.training) == (2, 2.0, False)
        with pytest.raises(ValueError, match="frozen"):
            stats.merge(RunningStats(()))
        stats.train()
    stats.update(np.array([5.0]))
    assert (stats.count, float(stats.mean)) == (3, 3.0)


@pytest.mark.parametrize("device", HOMES)
def test_returned_arrays_do_not_change(device):
    stats = RunningStats((1,), device=device)
    batch = as_home(np.array([[1.0], [3.0]]), device)
    stats.update(batch)
    mean, state = stats.mean, stats.state_dict()
    stats.update(batch + 10)
    assert (mean.item(), state["mean"].item(), float(state["count"])) == (2.0, 2.0, 2.0)
    assert batch.tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("source", HOMES)
@pytest.mark.parametrize("target", HOMES)
def test_state_dict_pickle_and_to_are_exact(source, target):
    """Covers state_dict, pickle and moves between devices."""
    stats = RunningStats((3,), device=source, clip=5)
    stats.update(np.random.default_rng(1).normal(size=(7, 3)))
    loaded = RunningStats((3,), device=target)
    loaded.load_state_dict(stats.state_dict())
    for other in (loaded, stats.to(target), pickle.loads(pickle.dumps(stats))):
        assert other.count == 7
        np.testing.assert_array_equal(np.asarray(other.mean), np.asarray(stats.mean))
        np.testing.assert_array_equal(np.asarray(other.var), np.asarray(stats.var))
    loaded.update(np.ones((2, 3)))
    assert (loaded.count, stats.count) == (9, 7)
    with pytest.raises(SpaceError, match="mean"):
        RunningStats((4,)).load_state_dict(stats.state_dict())


@pytest.mark.parametrize("device", HOMES)
def test_any_number_of_leading_dimensions(device):
    rows = np.arange(24.0).reshape(2, 4, 3)
    stats = RunningStats(3, device=device)
    stats.update(as_home(rows, device), np.ones((2, 4), bool))
    stats.update(as_home(rows[0, 0], device))
    check(stats, np.concatenate([rows.reshape(-1, 3), rows[0, :1]]))
    scalar = RunningStats((), device=device)
    scalar.update(as_home(rows, device))
    assert scalar.count == 24


@pytest.mark.parametrize("device", HOMES)
def test_wrong_shapes_raise(device):
    stats = RunningStats((3,), device=device)
    with pytest.raises(SpaceError, match=r"ends in \(3,\).*\(5, 2\)"):
        stats.update(np.zeros((5, 2)))
    with pytest.raises(SpaceError, match=r"mask of shape \(5,\)"):
        stats.update(np.zeros((5, 3)), np.ones(4, bool))
    with pytest.raises(SpaceError, match=r"\(2, 4\)"):
        stats.normalize(as_home(np.zeros((2, 4)), device))
    with pytest.raises(SpaceError, match="statistics of rows of shape"):
        stats.merge(RunningStats((2,)))


def test_gradients_reach_inputs_but_not_statistics():
    stats = RunningStats((2,), device="cpu", epsilon=0.0)
    x = torch.tensor([[0.0, 0.0], [2.0, 4.0]], requires_grad=True)
    stats.update(x)
    stats.normalize(x).sum().backward()
    assert not stats.mean.requires_grad
    torch.testing.assert_close(x.grad, torch.tensor([[1.0, 0.5]]).expand(2, 2))


def test_tensor_statistics_compile_without_breaks_or_recompiles():
    """Fused rollouts include the statistics in one compiled graph."""
    stats = RunningStats((2,), device="cpu")

    def learn(x, mask):
        stats.update(x, mask)
        return stats.normalize(x)

    torch.compiler.reset()
    compiled = torch.compile(learn, backend="eager", fullgraph=True)
    reference = RunningStats((2,), device="cpu")
    for seed in range(4):
        x = torch.randn(5, 2, generator=torch.Generator().manual_seed(seed))
        mask = torch.tensor([True, True, False, True, False])
        reference.update(x, mask)
        with torch.compiler.set_stance("fail_on_recompile" if seed else "default"):
            torch.testing.assert_close(compiled(x, mask), reference.normalize(x))
    assert stats.count == reference.count == 12


def test_importing_the_statistics_imports_no_torch():
    code = "import sys, numpy as np; from vecrl.running_stats import RunningStats; s = RunningStats((2,))\n"
    code += "s.update(np.ones((3, 2))); s.normalize(np.ones(2)); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("device", [None, "cpu"])
def test_decay_forgets_earlier_data(device):
    stats = RunningStats((2,), decay=0.9, epsilon=0.0, device=device)
    batches = np.random.default_rng(0).normal(3, 2, (5, 4, 2))
    for batch in batches:
        stats.update(batch)
        stats.update(batch, np.zeros(4, bool))
    weights = np.repeat(0.9 ** np.arange(4, -1, -1), 4)[:, None]
    rows = batches.reshape(20, 2)
    mean = (weights * rows).sum(0) / weights.sum()
    np.testing.assert_allclose(stats.mean, mean)
    np.testing.assert_allclose(stats.var, (weights * (rows - mean) ** 2).sum(0) / weights.sum())
    assert float(stats.weight) == pytest.approx(weights.sum())
    assert stats.count == int(weights.sum())
    other = stats.to(None if device else "cpu")
    other.update(batches[0])
    stats.update(batches[0])
    np.testing.assert_allclose(other.mean, stats.mean)
    with pytest.raises(ValueError, match="decay"):
        RunningStats((2,), decay=0.0)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_masks_exclude_single_elements(device):
    rng = np.random.default_rng(1)
    stats = RunningStats((3,), device=device)
    rows, masks = rng.normal(5, 2, (4, 6, 3)), rng.random((4, 6, 3)) < 0.5
    masks[..., 2] = False
    for part, mask in zip(rows, masks, strict=True):
        stats.update(np.where(mask, part, np.nan), mask)
    for i in range(2):
        saved = rows[..., i][masks[..., i]]
        assert stats.weight[i] == len(saved)
        assert float(stats.mean[i]) == pytest.approx(saved.mean())
        assert float(stats.var[i]) == pytest.approx(saved.var())
    assert (float(stats.mean[2]), float(stats.var[2]), stats.empty) == (0, 1, False)
    assert stats.count == masks.sum((0, 1)).max()
    repeated = RunningStats((3,)).merge(stats)
    repeated.load_state_dict(stats.state_dict())
    stats.update(rows[0])
    repeated.update(rows[0])
    np.testing.assert_allclose(repeated.var, stats.var)
    assert repeated.empty is False
    repeated.load_state_dict(RunningStats((3,)).state_dict())
    assert repeated.empty
    with pytest.raises(SpaceError, match="count"):
        repeated.load_state_dict({**stats.state_dict(), "count": np.zeros(2)})
