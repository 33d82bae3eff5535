"""Isaac Lab's package from the package index. Only what is below it, Isaac Sim, has stand-ins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.simulators


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process did in which Isaac Sim's application was started, which no test can undo."""
    path = tmp_path_factory.mktemp("isaac") / "results.json"
    root = Path(__file__).parents[2]
    program = [sys.executable, str(root / "tests/fixtures/isaac_lab_program.py"), str(path)]
    run = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(path.read_text())


def test_environments_are_made_by_name(results: dict[str, Any]) -> None:
    assert results["shapes"] == [[2, 3], [2], [3, 2]]
    assert results["seed_of_config"] == ["cpu"]


def test_a_process_has_one_application(results: dict[str, Any]) -> None:
    (application,) = results["applications"]
    assert application["config"]["headless"] is True
    assert application["experience"] == "isaaclab.python.headless.rendering.kit"  # with cameras


def test_names_are_those_of_the_package(results: dict[str, Any]) -> None:
    assert {"Isaac-Ant-v0", "Isaac-Cartpole-Direct-v0", "Isaac-Walk-v0"} <= set(results["names"])
    assert len(results["names"]) > 100


def test_cameras_are_added_to_configurations(results: dict[str, Any]) -> None:
    assert results["camera"] == ["TiledCameraCfg", "{ENV_REGEX_NS}/tiled_camera", ["rgb"], 40, 240]
    assert results["render_interval"] == 7


def test_the_objects_of_other_tests_have_the_methods_of_the_package(results: dict[str, Any]) -> None:
    assert len(results["same_parameters"]) == 8
    assert all(results["same_parameters"].values()), results["same_parameters"]
    assert not results["direct_has_reset_to"]
