"""`num_cores`: the cores of this process, or the limit of its container."""

import os
from pathlib import Path

import pytest

from vecrl import cores

CORES = len(os.sched_getaffinity(0))
ALL = -1
GROUPS = {
    "no limit": ("0::/", {"cpu.max": "max 100000"}, ALL),
    "two and a half cores": ("0::/", {"cpu.max": "250000 100000"}, 3),
    "a tenth of a core": ("0::/", {"cpu.max": "10000 100000"}, 1),
    "a group above": ("0::/user/shell", {"user/cpu.max": "300000 100000", "user/shell/cpu.max": "max 100000"}, 3),
    "the lower of two": ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, 2),
    "version 1": ("4:cpu,cpuacct:/docker/1", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    "version 1, no limit": ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, ALL),
    "another controller": ("4:memory:/", {"cpu.max": "100000 100000"}, ALL),
    "an unreadable limit": ("0::/", {"cpu.max": "many"}, ALL),
    "no groups": ("", {}, ALL),
}


@pytest.mark.parametrize("case", GROUPS)
def test_limits_of_containers_count(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, files, expected = GROUPS[case]
    (tmp_path / "self").write_text(lines)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cores, "_OF_THIS_PROCESS", tmp_path / "self")
    monkeypatch.setattr(cores, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert cores.num_cores() == (8 if expected == ALL else expected)


def test_without_control_groups_all_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_OF_THIS_PROCESS", tmp_path / "missing")
    assert cores.num_cores() == CORES
