"""`RunningMeanStd`: Tianshou's names over vecrl's implementation of running statistics."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from vecrl.errors import SpaceError
from vecrl.venv import RunningMeanStd

X = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_values_before_any_data():
    rms = RunningMeanStd()
    assert (rms.mean, rms.var, rms.count, rms.clip_max, rms.eps) == (0.0, 1.0, 0, 10.0, np.finfo(np.float32).eps)
    assert rms.norm(np.array([20.0, 1.0], np.float32)).tolist() == pytest.approx([10, 1])
    assert float(rms.norm(3.5)) == pytest.approx(3.5)
    inputs = RunningMeanStd(mean=np.array([1.0, 2.0]), std=np.array([2.0, 4.0]))
    assert inputs.norm(X).tolist() == [pytest.approx(row) for row in ((X - [1, 2]) / [2, 4]).tolist()]
    assert inputs.norm(X).dtype == np.float32


def test_data_replace_the_initial_values():
    rms = RunningMeanStd(mean=5.0, std=7.0)
    rms.update(X)
    assert (rms.mean.tolist(), rms.count) == ([2, 3], 3)
    assert rms.var.tolist() == [8 / 3, 8 / 3]
    normed = rms.norm(X)
    assert normed.dtype == np.float32
    np.testing.assert_allclose(normed, (X - X.mean(0)) / X.std(0), rtol=1e-6)


def test_batches_equal_one_pass():
    rows = np.random.default_rng(0).normal(1e6, 1e-2, (1000, 3))
    rms = RunningMeanStd(clip_max=None)
    for start, stop in ((0, 1), (1, 400), (400, 400), (400, 420), (420, 1000)):
        rms.update(rows[start:stop])
    assert rms.count == 1000
    np.testing.assert_allclose(rms.mean, rows.mean(0), rtol=1e-13)
    np.testing.assert_allclose(rms.var, rows.var(0), rtol=1e-6)
    assert np.abs(rms.norm(rows + 1)).min() > 50


def test_scalars_clip_and_integers():
    rms = RunningMeanStd(clip_max=2.0)
    rms.update(np.array([1, 2, 3]))
    assert (rms.mean, rms.count) == (2.0, 3)
    assert rms.norm(np.array([100.0, -100.0])).tolist() == [2, -2]
    assert rms.norm(np.array([2])).dtype == np.float32


def test_rows_of_another_shape():
    rms = RunningMeanStd()
    rms.update(X)
    with pytest.raises(SpaceError, match="shape"):
        rms.update(np.zeros((2, 3)))


def test_frozen_statistics_do_not_change():
    rms = RunningMeanStd().freeze()
    rms.update(X)
    assert rms.count == 0
    rms.train().update(X)
    rms.freeze().update(X)
    assert rms.count == 3


@pytest.mark.parametrize("batches", [0, 2])
def test_state_dict_round_trips(batches):
    rms, other = RunningMeanStd(), RunningMeanStd()
    for _ in range(batches):
        rms.update(X)
    other.update(100 * X)
    other.load_state_dict(rms.state_dict())
    for copy in (other, pickle.loads(pickle.dumps(rms))):
        copy.update(X)
        assert copy.count == 3 * (batches + 1)
        assert copy.mean.tolist() == [2, 3]
