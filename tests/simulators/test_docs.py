"""Runs the Python blocks of docs/simulators.md, section by section, docs/brax.md, and in JAX of docs/extending.md."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vecrl.simulators.jax_simulator import JaxSimulator
from vecrl.testing import BatchSimulatorConformance
from vecrl.vector import unregister

pytestmark = pytest.mark.simulators
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "simulators.md").read_text()
# Their blocks need other environments, or models
OTHER_GROUPS = "Unity ML-Agents", "SMACv2", "Genesis", "Habitat", "RoboHive"
SECTIONS = {
    section.partition("\n")[0]: blocks
    for section in re.split(r"^##? ", PAGE, flags=re.MULTILINE)
    if (blocks := re.findall(r"```python\n(.*?)```", section, re.DOTALL))
}


@pytest.mark.parametrize("section", [name for name in SECTIONS if name not in OTHER_GROUPS])
def test_section_runs(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some blocks write files
    names = {"__name__": "block"}
    for number, block in enumerate(SECTIONS[section], 1):
        exec(compile(block, f"simulators.md, {section}, block {number}", "exec"), names)


def test_brax_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "brax.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "block"}
    exec(compile(block, "brax.md", "exec"), names)
    assert names["obs"].shape == (1024, 27)


@cache
def extending() -> dict[str, Any]:
    """Runs the block in JAX of extending.md and returns the names that it defines."""
    names: dict[str, Any] = {"__name__": "block"}
    (block,) = re.findall(r"```python {\.jax}\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    exec(compile(block, "extending.md", "exec"), names)
    unregister("wind")
    return names


class TestTheTaskOfExtending(BatchSimulatorConformance):
    def make(self, num_envs: int) -> JaxSimulator:
        return extending()["TestWind"]().make(num_envs)


def test_the_name_of_extending() -> None:
    """The block makes four environments of the prefix that it registers, and passes an argument."""
    env = extending()["env"]
    assert extending()["obs"].shape == (4, 1)
    assert env.reset(seed=3)[0].tolist() == extending()["obs"].tolist()
    for _ in range(2):
        env.step(env.action_space.high)
    assert (env.step(env.action_space.high)[4]["distance"] > 2).any()
