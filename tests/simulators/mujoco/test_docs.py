"""Runs the Python blocks of docs/mujoco.md, one after another."""

import re
from pathlib import Path

from vecrl.simulators.registry import unregister

PAGE = Path(__file__).parents[3] / "docs" / "mujoco.md"


def test_the_page_runs():
    names = {"__name__": "block"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL), 1):
        exec(compile(block, f"mujoco.md, block {number}", "exec"), names)
        names["env"].close()
    unregister("crane")
