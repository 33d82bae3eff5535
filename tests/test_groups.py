"""Groups of tests (`make test-GROUP`): each has all files with tests that are marked for it."""

import re
import subprocess
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from tools import test_times

from tests.conftest import GROUPS, MARKED_FILES

ROOT = Path(__file__).parents[1]
TARGETS = {"torchrl": "old-tensordict", **dict.fromkeys(("loggers", "language", "vision"), "peers")}


@cache
def _printed(targets: tuple[str, ...]) -> str:
    """Returns the commands of `make test-TARGET`, of all targets: `make` asks interpreters for their settings once."""
    command = ["make", "-n", "-C", ROOT, *(f"test-{target}" for target in targets)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return printed.replace("\\\n", " ").replace("\n", " ")


def _paths(target: str) -> list[str]:
    """Returns the files and folders that `make test-TARGET` gives to pytest."""
    printed = _printed(tuple(dict.fromkeys(map(_target, GROUPS))))
    command = re.search(rf"-m pytest \S+ --junitxml=\S+/{target}\.xml.* -m .*?(?= \S+ -m pytest|\Z)", printed)
    assert command is not None, printed
    return re.findall(r"\s(tests(?:/\S+)?)", command[0])


def _target(group: str) -> str:
    return TARGETS.get(group, group.replace("_", "-"))


@pytest.mark.parametrize("group", GROUPS)
def test_each_marked_file_is_in_the_command_of_its_group(group: str, request: pytest.FixtureRequest) -> None:
    """Of the files that this run has collected."""
    paths = _paths(_target(group))
    assert paths
    marked = request.config.stash[MARKED_FILES][group]
    assert {file for file in marked if not any(f"{file}/".startswith(f"{path}/") for path in paths)} == set()


def test_no_folder_is_skipped(request: pytest.FixtureRequest) -> None:
    """Pytest's default skips "venv", as the folder of an environment."""
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/**/*.py")]
    names = {name for file in files for name in file.relative_to(ROOT).parts[:-1]}
    patterns = request.config.getini("norecursedirs")
    assert not {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}


def test_times_are_summed_by_group(tmp_path: Path) -> None:
    case = '<testcase classname="c" name="n" time="{}"/>'
    suite = f'<testsuites><testsuite time="{{}}" tests="1" failures="{{}}">{case}</testsuite></testsuites>'
    (tmp_path / "main.xml").write_text(suite.format(2, 0, 1.5))
    (tmp_path / "main-part2.xml").write_text(suite.format(3, 1, 2.5))
    (tmp_path / "old-pythons.xml").write_text(suite.format(4, 0, 0.5))
    groups, tests = test_times.read(tmp_path)
    assert groups == {"main": [5, 2, 1], "old-pythons": [4, 1, 0]}
    assert [seconds for seconds, _, _ in tests] == [2.5, 1.5, 0.5]
    test_times.main(tmp_path)
    assert "5      2       1  main" in (tmp_path / "times.txt").read_text()
