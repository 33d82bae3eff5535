"""Run folders from elsewhere: `vecrl evolve --resume` and `vecrl rollout --policy` end with an error of one line."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.security.limited_calls import LimitedCalls, Outcome
from tests.security.test_checkpoints import POLICIES, inflated

from vecrl import checkpoint

MOST_SECONDS, MOST_MB = 2.0, 300.0
HUGE = 10**400
COUNT = 2**31 - 1
NUMBERS_OR_WORSE: list[Any] = ["text", "../../x", [], {}, True, math.nan, math.inf]
COUNTS: list[Any] = [*NUMBERS_OR_WORSE, 1.5, -1, HUGE, b"\x01"]
FLOATS: list[Any] = [*NUMBERS_OR_WORSE, b"\x01"]
TEXTS: list[Any] = [None, 1, 1.5, True, [], ["text"], {}, b"text", "", "../../x", "mine:Evil", "a\0b", "x" * 100_000]
FLAGS: list[Any] = [None, 0, 1, "yes", [], {}, 1.5]
WRONG: dict[str, list[Any]] = {
    **dict.fromkeys(("env", "network", "backend"), TEXTS),
    **{
        name: [None, 0, *COUNTS]
        for name in ("generations", "popsize", "subbatch_size", "episodes", "test_episodes", "threads")
    },
    **{name: [0, *COUNTS] for name in ("max_steps", "workers", "test_every")},
    "seed": COUNTS,
    **{name: [None, *FLOATS] for name in ("stdev", "action_noise", "decrease_rewards_by")},
    **dict.fromkeys(("max_speed", "stop_at"), FLOATS),
    "alive_bonus": [1, "text", [], [1, 2], [1, 2, 3, 4], [1, 2, "text"], [1, 2, math.nan], {"a": 1}],
    **dict.fromkeys(("obs_norm", "compile", "video"), FLAGS),
    "device": [1, True, [], {}, "", "../../x", "mine", "cpu:-1", "cuda:99999999999"],
    "logger": [1, True, [], {}, "../../x", "mine"],
    "algorithm": [1, True, [], {}, "", "../../x", "mine", "os"],
    "env_args": [None, 1, "text", [], {1: 2}, {"path": "../../x"}, {"g": "../../x"}, {"a": {"b": ["mine:Evil"]}}],
}
HUGE_NUMBERS: list[tuple[str, Any]] = [
    ("popsize", COUNT - 1),
    ("workers", COUNT),
    ("threads", COUNT),
    ("subbatch_size", COUNT),
    ("seed", 2**64),
    ("seed", HUGE),
    *((name, HUGE) for name in ("stdev", "max_speed", "action_noise", "decrease_rewards_by", "stop_at")),
    ("alive_bonus", [HUGE, HUGE, HUGE]),
]
YAML_TEXTS: dict[str, str] = {
    "tag of a call": "!!python/object/apply:os.system ['touch marker']\n",
    "tag of a module": "!!python/module:mine\n",
    "tag of a new object": "!!python/object/new:mine.Evil {}\n",
    "own tag": "!Evil {a: 1}\n",
    "anchors that grow": "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)),
    "merged anchors that grow": "a0: &a0 {k: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
    "anchor of itself": "&a {a: *a}\n",
    "list": "[1, 2]\n",
    "number": "5\n",
    "nothing": "",
    "two documents": "a: 1\n---\nb: 2\n",
    "control characters": "a: \x00\x01\n",
    "unknown escape": 'a: "\\q"\n',
    "deep mappings": "{a: " * 3000 + "1" + "}" * 3000,
    "deep lists": "- " * 3000 + "1\n",
    "list as a key": "? [1, 2]\n: 3\n",
    "date": "a: 2020-99-99\n",
    "long number": "a: " + "9" * 5000 + "\n",
    "long number in base 60": "a: 1" + ":59" * 3000 + "\n",
    "binary that is none": "a: !!binary '%%%'\n",
}


@pytest.fixture(scope="module")
def finished(limited: LimitedCalls, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one generation."""
    parent = tmp_path_factory.mktemp("runs")
    command = ["evolve", "CartPole-v1", "--popsize", "2", "--generations", "1", "--max-steps", "3", "--seed", "0"]
    command += [
        "--no-video",
        "--test-episodes",
        "1",
        "--network",
        "Linear(obs_length, act_length)",
        "--out",
        str(parent),
    ]
    (outcome,) = limited("command", [[str(parent), *command]], memory_mb=4000, cpu_s=60, wall_s=90)
    assert outcome.message == "0", outcome.output
    return parent / "CartPole-v1-1"


class Folders:
    """Copies of a run with changes.

    Args:
        source: the run.
        parent: the folder of the copies.
    """

    def __init__(self, source: Path, parent: Path):
        self._source, self.parent = source, parent
        self.config = yaml.safe_load((source / "config.yaml").read_text())
        self.paths: dict[str, Path] = {}

    def add(self, name: str, file: str, content: bytes | str) -> None:
        """Makes a copy with another content of a file."""
        path = self.parent / "runs" / str(len(self.paths))
        shutil.copytree(self._source, path, ignore=shutil.ignore_patterns("*.png"))
        (path / file).write_bytes(content.encode() if isinstance(content, str) else content)
        self.paths[name] = path

    def add_config(self, name: str, **changes: Any) -> None:
        text = yaml.safe_dump({**self.config, "generations": 2, **changes}, sort_keys=False)
        self.add(name, "config.yaml", text)


@pytest.fixture
def folders(finished: Path, tmp_path: Path) -> Folders:
    return Folders(finished, tmp_path)


def refusal_problem(outcome: Outcome) -> str:
    """Returns what is wrong with an outcome that must be an error of one line; "" if nothing is.

    Lines of a run that has started may precede it.
    """
    lines = outcome.output.splitlines()
    is_error = bool(lines) and lines[-1].startswith("Error: ") and not any("Warning" in line for line in lines)
    is_exit = outcome.error[:1] == ["SystemExit"] and outcome.message in ("1", "2")
    in_limits = outcome.seconds <= MOST_SECONDS and outcome.memory_mb <= MOST_MB and not outcome.status
    if is_exit and in_limits and is_error and "Traceback" not in outcome.output:
        return ""
    return f"{outcome}; {len(lines)} lines, {lines[-1] if lines else 'no output':.150}"


def check_refused(limited: LimitedCalls, folders: Folders, *command: str) -> None:
    """Checks that a command in each folder ends with an error, runs no code, and changes no file outside."""
    before = sorted(folders.parent.rglob("*"))
    cases = [[str(path), *command] for path in folders.paths.values()]
    outcomes = limited("command", cases, memory_mb=1000, cpu_s=4)
    problems = [
        f"{name}: {problem}"
        for name, outcome in zip(folders.paths, outcomes, strict=True)
        if (problem := refusal_problem(outcome))
    ]
    assert not problems, "\n".join(["", *problems])
    assert not limited.marker.exists()
    assert sorted(folders.parent.rglob("*")) == before


RESUME = "evolve", "--resume", "."


@pytest.mark.parametrize("fields", [list(WRONG)[start::3] for start in range(3)], ids=["first", "second", "third"])
def test_wrong_values_in_every_field_are_refused(limited: LimitedCalls, folders: Folders, fields: list[str]) -> None:
    for field in fields:
        for value in WRONG[field]:
            folders.add_config(f"{field}: {value!r:.40}", **{field: value})
    check_refused(limited, folders, *RESUME)


def test_the_table_has_every_field(folders: Folders) -> None:
    assert WRONG.keys() | {"vecrl"} == folders.config.keys() | {"logger"}


def test_huge_numbers_end_with_a_result_or_an_error(limited: LimitedCalls, folders: Folders) -> None:
    for field, value in HUGE_NUMBERS:
        folders.add_config(f"{field}: {value!r:.40}", **{field: value, "video": False})
    outcomes = limited("command", [[str(path), *RESUME] for path in folders.paths.values()], memory_mb=1000, cpu_s=4)
    problems = [
        f"{name}: {problem}"
        for name, outcome in zip(folders.paths, outcomes, strict=True)
        if (problem := refusal_problem(outcome)) and outcome.message != "0"
    ]
    assert not problems, "\n".join(["", *problems])


def test_hostile_yaml_is_refused(limited: LimitedCalls, folders: Folders) -> None:
    for name, text in YAML_TEXTS.items():
        folders.add(name, "config.yaml", text)
        folders.add(f"{name}, as a value", "config.yaml", yaml.safe_dump(folders.config) + f"\nadded: {text}")
    folders.add("no UTF-8", "config.yaml", b"a: \xff\xfe\n")
    folders.add("UTF-16", "config.yaml", "a: 1\n".encode("utf-16"))
    check_refused(limited, folders, *RESUME)


def state_changes() -> dict[str, Callable[[dict[str, Any]], object]]:
    """Returns changes of the state of a run, by what is wrong."""
    import torch

    def set_item(*path: str, value: Any) -> Callable[[dict[str, Any]], object]:
        def change(run: dict[str, Any]) -> None:
            for name in path[:-1]:
                run = run[name]
            run[path[-1]] = value

        return change

    best = "selection", "best"
    return {
        "format of another": set_item("format", value="2"),
        "format is an array": set_item("format", value=torch.zeros(2)),
        "search is a list": set_item("search", value=[1]),
        "center is a text": set_item("search", "center", value="text"),
        "center of another shape": set_item("search", "center", value=torch.zeros(10, 1)),
        "generator is empty": set_item("search", "generator", value=torch.zeros(0, dtype=torch.uint8)),
        "generator of ones": set_item("search", "generator", value=torch.full((5056,), 255, dtype=torch.uint8)),
        "generation is nan": set_item("search", "generation", value=math.nan),
        "generation is a text": set_item("search", "generation", value="x"),
        "steps are infinite": set_item("steps", value=math.inf),
        "seconds are a text": set_item("seconds", value="long"),
        "evaluator is a text": set_item("evaluator", value="text"),
        "selection is empty": set_item("selection", value={}),
        "best is a list": set_item(*best, value=[1]),
        "import in the best network": set_item(*best, "network", value="__import__('mine')"),
        "large best network": set_item(*best, "network", value="Linear(10**6, 10**6)"),
        "large best network on a device": set_item(*best, "network", value="Linear(10000, 10000, device='cpu')"),
        "list as a key in the best network": set_item(*best, "network", value="Linear({[1]: 2}, 3)"),
        "constant is a text": set_item(*best, "constants", value={"obs_length": "4"}),
        "parameters of another number": set_item(*best, "parameters", value=torch.zeros(3)),
        "tested at nan": set_item("selection", "tested_at", value=math.nan),
    }


def test_hostile_states_are_refused(limited: LimitedCalls, folders: Folders, finished: Path, tmp_path: Path) -> None:
    for name, change in state_changes().items():
        run = checkpoint.load(finished / "state.ckpt")["run"]
        change(run)
        checkpoint.save(tmp_path / "changed.ckpt", run=run)
        folders.add(name, "state.ckpt", (tmp_path / "changed.ckpt").read_bytes())
    checkpoint.save(tmp_path / "changed.ckpt", run=5)
    folders.add("run is a number", "state.ckpt", (tmp_path / "changed.ckpt").read_bytes())
    checkpoint.save(tmp_path / "changed.ckpt", other={})
    folders.add("no run", "state.ckpt", (tmp_path / "changed.ckpt").read_bytes())
    check_refused(limited, folders, *RESUME)


METRICS: dict[str, str | bytes] = {
    "other names": "a,b,c\n",
    "too few cells": "HEAD\n1,2\n",
    "too many cells": "HEAD\n" + "1," * 20 + "1\n",
    "expression": "HEAD\n" + "1,1,1,1,1,1,1,1,1,__import__('mine')\n",
    "formula": "HEAD\n" + "=1+1,1,1,1,1,1,1,1,1,1\n",
    "no text": b"HEAD\n\xff\xfe\x00,1,1,1,1,1,1,1,1,1\n",
    "long line": "HEAD\n" + "1" * 1_000_000 + "\n",
}


def test_hostile_metrics_are_refused(limited: LimitedCalls, folders: Folders, finished: Path) -> None:
    head = (finished / "metrics.csv").read_text().splitlines()[0]
    for name, content in METRICS.items():
        raw = content.encode() if isinstance(content, str) else content
        folders.add(name, "metrics.csv", raw.replace(b"HEAD", head.encode()))
    before = {name: (path / "metrics.csv").read_bytes() for name, path in folders.paths.items()}
    check_refused(limited, folders, *RESUME)
    assert {name: (path / "metrics.csv").read_bytes() for name, path in folders.paths.items()} == before


@pytest.mark.parametrize("file", ["config.yaml", "state.ckpt", "metrics.csv"])
def test_files_with_holes_do_not_fill_the_memory(limited: LimitedCalls, folders: Folders, file: str) -> None:
    """A file of 500 MB that takes no space on the disk."""
    folders.add(file, file, b"")
    os.truncate(folders.paths[file] / file, 500 * 2**20)
    check_refused(limited, folders, *RESUME)


def test_hostile_policies_are_refused(limited: LimitedCalls, folders: Folders, finished: Path) -> None:
    for name, make in POLICIES.items():
        folders.add(name, "best.pt", make())
    for entry in ("data.pkl", "data/0"):
        folders.add(f"compressed {entry}", "best.pt", inflated((finished / "best.pt").read_bytes(), entry, 600))
    folders.add("name of another file", "best.pt", b"../../x")
    check_refused(limited, folders, "rollout", "CartPole-v1", "--policy", "best.pt", "--episodes", "1")


@pytest.mark.parametrize("path", ["../../x", "/proc/self", "/dev/null", "config.yaml", "a\nb", "-", "~", "x" * 5000])
def test_paths_without_a_run_are_refused(limited: LimitedCalls, folders: Folders, path: str) -> None:
    folders.add_config("run")
    check_refused(limited, folders, "evolve", "--resume", path)
    check_refused(limited, folders, "rollout", "CartPole-v1", "--policy", path)
