"""Runs the Python blocks of docs/from-sb3.md as one program."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parents[2] / "docs" / "from-sb3.md"


def test_the_page_runs() -> None:
    names: dict[str, Any] = {"__name__": "block"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL), 1):
        exec(compile(block, f"from-sb3.md, block {number}", "exec"), names)
    assert names["env"].num_envs == 16
