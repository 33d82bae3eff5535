"""Equal seeds and actions give the recorded trajectories, in every dialect, backend and auto-reset mode."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest
import torch
from tests.frozen.cases import cases
from tests.frozen.digests import Digest, Trace, differences, digest, written
from tests.frozen.write import HOW, TRAJECTORIES

CASES = cases()
FROZEN = json.loads(TRAJECTORIES.read_text())
ALL = [
    pytest.param(key, way, marks=[pytest.mark.ray] if way.startswith("ray") else [], id=f"{key} | {way}")
    for key, case in CASES.items()
    for way in case.ways
]


@lru_cache
def first(key: str) -> Digest:
    """Returns the digest of the way that is written to the file, as recorded on this machine."""
    return digest(next(iter(CASES[key].ways.values()))())


@pytest.mark.parametrize(("key", "way"), ALL)
def test_trajectories_equal_the_frozen_ones(key: str, way: str) -> None:
    case = CASES[key]
    found = first(key) if way == next(iter(case.ways)) else digest(case.ways[way]())
    wrong = differences(FROZEN.get(key, {}), found, case.exact)
    if wrong:
        message = [f"Expected the trajectory of {key!r} by {way!r} to be the frozen one, got another:", *wrong]
        pytest.fail("\n  ".join([*message, HOW.format("trajectories")]), pytrace=False)
    assert found.exact == first(key).exact, "Expected every way of one case to give the same bits on one machine."


def test_every_frozen_trajectory_has_a_case() -> None:
    assert FROZEN.keys() <= CASES.keys()


# -- digests ---------------------------------------------------------------------------------------


def recorded(reward: float = 1.5, done: bool = False, name: str = "obs", scale: float = 1.0) -> Digest:
    trace = Trace()
    trace.add(**{name: np.linspace(0, 1, 40) * scale, "reward": reward, "done": done, "rest": {"x": torch.ones(2)}})
    return digest(trace)


@pytest.mark.parametrize("exact", [True, False])
def test_digests_differ_if_values_flags_or_streams_differ(exact: bool) -> None:
    frozen = written(recorded(), exact)
    assert differences(frozen, recorded(), exact) == []
    assert [text.split(":")[0] for text in differences(frozen, recorded(reward=1.6), exact)] == ["reward"]
    assert [text.split(":")[0] for text in differences(frozen, recorded(done=True), exact)] == ["done"]
    assert differences(frozen, recorded(name="seen"), exact) == ["obs: only frozen", "seen: new"]
    assert [text.split(":")[0] for text in differences(frozen, recorded(scale=1.001), exact)] == ["obs"]


def test_rounding_does_not_change_digests() -> None:
    """Ignored are the last bits of a float64 in hashed floats, and of a float32 in compared floats."""
    assert differences(written(recorded(), True), recorded(scale=1 + 1e-15), True) == []
    assert differences(written(recorded(), False), recorded(scale=1 + 1e-6), False) == []


def test_dtypes_and_libraries_are_part_of_a_digest() -> None:
    digests = []
    for value in (np.zeros(2, np.float32), np.zeros(2), torch.zeros(2), torch.zeros(2, 1), np.array([0, np.nan])):
        trace = Trace()
        trace.add(obs=value)
        digests += [tuple(digest(trace).exact.values())]
    assert len(set(digests)) == len(digests)
