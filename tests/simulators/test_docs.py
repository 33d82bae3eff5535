"""Runs the Python blocks of docs/simulators.md, a section at a time."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.simulators
PAGE = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text()
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
