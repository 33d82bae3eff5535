"""Every registered simulator in every dialect; the outcomes are the table of docs/simulators-checks.md.

With the environment variable SIMULATOR_TABLE, each test writes its outcomes to that folder, and
`tools/simulator_table.py` prints the table from them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.foreign import python_path
from tests.simulators.every_dialect import DIALECTS, run_checks

from vecrl.simulators.registry import find_entry, known_prefixes

# Without what they need besides their packages: StarCraft II, scenes, a GPU with Isaac Sim, models
UNAVAILABLE = "smac", "habitat", "isaacgym", "isaaclab", "robohive"
ALONE = ("retro",)  # one in each process; see test_gymnasium_libraries.py
UNITY_PEER = Path(__file__).parents[1] / "fixtures" / "unity_peer.py"
# For each group of tests, by its marker: its simulators, with arguments that make their episodes short.
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "": {"gym": {}, "mujoco": {"max_episode_steps": 12}, "native": {"max_episode_steps": 12}},
    "simulators": {
        "atari": {"max_num_frames_per_episode": 40},
        "atari-vector": {"max_num_frames_per_episode": 60},
        "box2d": {"max_episode_steps": 12},
        "brax": {"episode_length": 12},
        "craftax": {"max_timesteps": 12},
        "crafter": {"area": (16, 16), "length": 12},
        "dmc": {"time_limit": 0.12},
        "envpool": {},
        "gymnax": {},
        "highway": {"config": {"duration": 6, "vehicles_count": 5}},
        "jaxmarl": {"max_steps": 12},
        "jumanji": {"time_limit": 12},
        "meltingpot": {"max_steps": 12},
        "minigrid": {"max_steps": 12},
        "mo": {"max_episode_steps": 12},
        "navix": {"max_steps": 12},
        "nle": {"max_episode_steps": 12},
        "openml": {},
        "openspiel": {},
        "pettingzoo": {"max_cycles": 6},
        "pgx": {},
        "playground": {"episode_length": 12},
        "procgen": {"distribution_mode": "easy"},
        "pybullet": {},
        "vmas": {"max_steps": 12},
        "warp": {"max_episode_steps": 12},
        "xminigrid": {"max_steps": 12},
        "lbforaging": {"max_episode_steps": 12},
        "metaworld": {"max_episode_steps": 12},
        "minihack": {"max_episode_steps": 12},
        "miniworld": {"max_episode_steps": 12},
        "ogbench": {"max_episode_steps": 12},
        "robotics": {"max_episode_steps": 12},
        "rware": {"max_episode_steps": 12},
        "vizdoom": {"max_episode_steps": 12},
        "popgym": {},
        "memorygym": {"max_episode_steps": 12},
        "bsuite": {},
        "flappybird": {"max_episode_steps": 12},
        "pusht": {"max_episode_steps": 12},
        "panda": {"max_episode_steps": 12},
    },
    "genesis": {"genesis": {"max_episode_steps": 12}},
    "mjlab": {"mjlab": {"max_episode_steps": 12}},
    "brax_v1": {"brax::old": {"episode_length": 12}},
    "unity": {"unity": {"timeout": 20, "additional_args": ["--steps", "3"]}},
    "old_pythons": {"safety": {"max_episode_steps": 12}, "roboschool": {}},
}
# Resets of the entry's example compile a model for a second each; tests/simulators/test_foreign.py steps that one.
EXAMPLES = {"safety": "SafetyHopperVelocity-v1"}
INTERPRETERS = {"safety": "VECRL_PYTHON_SAFETY", "roboschool": "VECRL_PYTHON_ROBOSCHOOL"}
MARKS = {group: [getattr(pytest.mark, group)] if group else [] for group in GROUPS}
CASES = [
    pytest.param(prefix, dialect, kwargs, id=f"{prefix}-{dialect.title}", marks=MARKS[group])
    for group, prefixes in GROUPS.items()
    for prefix, kwargs in prefixes.items()
    for dialect in DIALECTS
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("prefix", "dialect", "kwargs"), CASES)
def test_simulator_in_dialect(prefix: str, dialect: Any, kwargs: dict[str, Any], tmp_path: Path) -> None:
    if prefix in INTERPRETERS:
        python_path(INTERPRETERS[prefix])
    example = EXAMPLES.get(prefix, find_entry(f"{prefix}::")[0].example)
    if prefix == "unity":
        example = _unity_build(tmp_path)
    outcomes = run_checks(dialect(f"{prefix}::{example}", kwargs, tmp_path))
    if folder := os.environ.get("SIMULATOR_TABLE"):
        record = {"prefix": prefix, "dialect": dialect.title, "outcomes": outcomes}
        path = Path(folder) / f"{prefix.replace('::', '-')}-{dialect.title}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    failures = {check: outcome for check, outcome in outcomes.items() if outcome.startswith("✗")}
    assert not failures, failures


def _unity_build(folder: Path) -> str:
    """Returns the path of a program that speaks the protocol of Unity's players."""
    path = folder / "peer.x86_64"
    path.write_text(f"#!{sys.executable}\n{UNITY_PEER.read_text()}")
    path.chmod(0o755)
    return str(path.with_suffix(""))


def test_every_prefix_is_in_one_group() -> None:
    listed = [prefix for prefixes in GROUPS.values() for prefix in prefixes]
    assert sorted([*listed, *UNAVAILABLE, *ALONE]) == sorted(known_prefixes())


def test_every_prefix_is_in_the_table_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text()
    found = re.findall(r"^\| \[?`(.+)::`(?:\]\((.*?)\))? \| .* \| (a batch|one) \| .*\|$", page, re.MULTILINE)
    rows = {prefix: steps for prefix, _, steps in found}
    expected = {
        prefix: "one" if find_entry(f"{prefix}::")[0].make_batch is None else "a batch" for prefix in known_prefixes()
    }
    assert rows == expected
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    anchors = {"#" + re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading)).lower() for heading in headings}
    assert {link for _, link, _ in found} - anchors == {"", "native.md"}
