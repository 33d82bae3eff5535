"""Infos: columns where all environments report the same numeric keys, dicts otherwise, and gymnasium's form of both."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.engine.infos import InfoBatch, InfoPacker, Infos, merge

NUMBERS = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.booleans(),
    st.integers(0, 9).map(np.int32),
    st.floats(0, 1, width=32).map(np.float32),
    st.booleans().map(np.bool_),
)
INFOS = st.dictionaries(st.text("ab", min_size=1, max_size=2), NUMBERS | st.text(max_size=2) | st.none(), max_size=3)


def _pack(*infos: Any) -> np.ndarray | None:
    return InfoPacker().pack(list(enumerate(infos)))


@given(st.lists(INFOS, min_size=1, max_size=4))
def test_packing_round_trips_or_returns_none(infos: list[dict[str, Any]]) -> None:
    packed = _pack(*infos)
    if packed is None:
        return
    assert all(info.keys() == infos[0].keys() for info in infos)
    for row, info in zip(packed, infos, strict=True):
        for name, value in info.items():
            assert row[name] == value
            assert type(row[name].item()) is type(value) or row[name].dtype == np.asarray(value).dtype


@pytest.mark.parametrize(
    "odd",
    [{"x": 1, "y": 2}, {"y": 1}, {"x": 1.0}, {"x": "1"}, {"x": [1]}, {"x": None}, {"x": 2**70}, {}, [("x", 1)], {1: 1}],
    ids=str,
)
def test_differing_infos_are_not_packed(odd: Any) -> None:
    assert _pack({"x": 1}, {"x": 2}) is not None
    assert _pack({"x": 1}, odd) is None


def test_packer_layout_follows_changed_infos() -> None:
    columns = InfoPacker()
    for info in ({"a": 1}, {"b": 2.0, "a": 1}, {"a": 1}, {"n\x00": 1}, {"a": True}):
        packed = columns.pack([(0, info)])
        assert packed is not None
        assert packed.dtype.names == tuple(info)


def test_batches_and_dicts_merge_equally() -> None:
    rows = [{"x": i, "y": i / 2} for i in range(4)]
    first, second = _pack(*rows[:2]), _pack(*rows[2:])
    assert first is not None
    assert second is not None
    blocks = Infos(batches=[InfoBatch(2, second), InfoBatch(0, first)])
    dicts = Infos(dicts=list(enumerate(rows)))
    assert dict(blocks.items()) == dict(dicts.items()) == dict(enumerate(rows))
    for item, other in ((blocks, dicts), (dicts, blocks)):
        a, b = item.merge(4), other.merge(4)
        assert a.keys() == b.keys() == {"x", "_x", "y", "_y"}
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
            assert a[key].dtype == b[key].dtype
    both = Infos(batches=[InfoBatch(0, first)])
    both.extend(Infos(dicts=[(3, rows[3])]))
    np.testing.assert_array_equal(both.merge(4)["x"], [0, 1, 0, 3])
    np.testing.assert_array_equal(both.merge(4)["_x"], [True, True, False, True])


@pytest.mark.parametrize(
    ("infos", "column", "dtype"),
    [
        ([(0, 1), (1, 2)], [1, 2], "int64"),
        ([(1, 2.5)], [0.0, 2.5], "float64"),
        ([(0, 1), (1, 2.5)], [1.0, 2.5], "float64"),
        ([(0, 1), (1, "a")], [1, "a"], "object"),
        ([(0, "a")], ["a", None], "object"),
        ([(0, 2**70), (1, 1)], [2**70, 1], "object"),
        ([(0, np.float32(1)), (1, np.float32(2))], [1, 2], "float32"),
        ([(1, np.array([1, 2]))], [[0, 0], [1, 2]], "int64"),
    ],
    ids=str,
)
def test_merging_one_key(infos: list[tuple[int, Any]], column: list[Any], dtype: str) -> None:
    merged = merge(((i, {"k": value}) for i, value in infos), 2)
    assert merged["k"].tolist() == column
    assert merged["k"].dtype == dtype
    assert merged["_k"].tolist() == [any(i == j for j, _ in infos) for i in range(2)]


def test_ragged_arrays_become_objects() -> None:
    merged = merge(iter([(0, {"k": np.zeros(2)}), (1, {"k": np.zeros(3)})]), 3)
    assert merged["k"].dtype == object
    assert [None if v is None else v.shape for v in merged["k"]] == [(2,), (3,), None]


def test_nested_dicts_keep_their_masks() -> None:
    merged = merge(iter([(0, {"e": {"r": 1.0}}), (2, {"e": {"r": 3.0, "l": 2}})]), 3)
    np.testing.assert_array_equal(merged["e"]["r"], [1.0, 0.0, 3.0])
    np.testing.assert_array_equal(merged["e"]["_l"], [False, False, True])
    np.testing.assert_array_equal(merged["_e"], [True, False, True])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", [True, False])
def test_infos_are_sent_only_if_requested(wanted: bool, backend: str) -> None:
    class Talking(FaultyEnv):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            if self.env_id == 1 and self.count == 2:
                info = {"word": "two", "deep": {"count": 2}}
            return obs, reward, terminated, truncated, info

    pool = make_pool([lambda i=i: Talking(i) for i in range(3)], backend, infos=wanted)
    assert dict(pool.reset().infos.items()) == ({i: {"env_id": i} for i in range(3)} if wanted else {})
    for count in (1, 2, 3):
        infos = dict(pool.step(np.zeros(3, int)).infos.items())
        expected: dict[int, Any] = {i: {"count": count} for i in range(3)}
        if count == 2:
            expected[1] = {"word": "two", "deep": {"count": 2}}
        assert infos == (expected if wanted else {})
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gymnasium_episode_statistics_are_preserved(backend: str) -> None:
    make = [lambda: gymnasium.wrappers.RecordEpisodeStatistics(FaultyEnv(length=3))] * 3
    pool = make_pool(make, backend)
    pool.reset()
    for _ in range(2):
        pool.step(np.zeros(3, int), reset_done=True)
    last = pool.step(np.zeros(3, int), reset_done=True)
    episode = last.final_infos.merge(3)["episode"]
    np.testing.assert_array_equal(episode["r"], last.episodes.returns)
    np.testing.assert_array_equal(episode["l"], last.episodes.lengths)
    pool.close()
