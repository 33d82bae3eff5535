"""Settings of tests of simulators."""

import gc
import re
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

GROUPS = "simulators", "unity", "genesis", "brax_v1", "old_pythons"
# Each function that JAX compiles takes a few mappings of memory, and each simulator up to a gigabyte. Linux allows a
# process 65,530 mappings.
MOST_MAPPINGS = 6_000


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Omits modules of groups that `-m` does not select, since they import libraries that only these groups have."""
    selected = config.option.markexpr or ""
    excluded = [group for group in GROUPS if selected and not re.search(rf"(?<!not )\b{group}\b", selected)]
    if not excluded or collection_path.suffix != ".py":
        return None
    marks = re.search(r"^pytestmark = (\[.*?^\]|.*?$)", collection_path.read_text(), re.MULTILINE | re.DOTALL)
    return True if marks and any(f"pytest.mark.{group}" in marks[1] for group in excluded) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignores warnings of the simulators' own code, of which vecrl can change nothing."""
    for item in items:
        if any(item.get_closest_marker(group) for group in GROUPS):
            item.add_marker(pytest.mark.filterwarnings("ignore"), append=False)


@pytest.fixture(autouse=True)
def _compiled_code() -> Iterator[None]:
    """Frees what JAX has compiled when it takes much memory. What a later test uses again is read from JAX's cache."""
    yield
    if "jax" in sys.modules and _mappings() > MOST_MAPPINGS:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Adds the memory and the limits of the process to the report of a failed allocation."""
    report = yield
    if call.excinfo is not None and "bad_alloc" in str(call.excinfo.value):
        facts = [Path("/proc", name).read_text() for name in ("self/limits", "self/status", "meminfo")]
        report.longrepr.addsection("memory", "\n".join((f"{_mappings()} mappings", *facts)))
    return report


def _mappings() -> int:
    """The number of mappings of memory of this process; 0 where the system does not tell."""
    path = Path("/proc/self/maps")
    return path.read_bytes().count(b"\n") if path.exists() else 0
