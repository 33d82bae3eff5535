"""The number of cores."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

_OF_THIS_PROCESS = Path("/proc/self/cgroup")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Returns the number of cores that this process may use.

    These are the cores to which it is pinned, or as many as it may use the time of, if its container has a limit
    (`docker run --cpus`). A part of a core counts as one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_time_limits()]))


def _time_limits() -> list[int]:
    """Returns of how many cores each control group of this process allows the time, rounded up.

    See the kernel's documentation of `cpu.max` (version 2), and of `cpu.cfs_quota_us` (version 1).
    """
    limits: list[int] = []
    with contextlib.suppress(OSError):  # not Linux
        for line in _OF_THIS_PROCESS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            root = _CONTROL_GROUPS / "cpu" if controllers else _CONTROL_GROUPS
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):  # a container sees its own group as the root
                if folder.is_relative_to(root):
                    limits += _limit_of(folder, "cpu.max" if not controllers else "cpu.cfs_quota_us")
    return limits


def _limit_of(folder: Path, name: str) -> list[int]:
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no such file, "max", or -1
        numbers = (folder / name).read_text().split()
        if len(numbers) == 1:
            numbers.append((folder / "cpu.cfs_period_us").read_text())
        limit = int(numbers[0]) / int(numbers[1])
        return [math.ceil(limit)] if limit > 0 else []
    return []
