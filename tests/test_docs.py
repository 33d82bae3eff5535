"""Runs every Python block of the pages on dialects 2 to 4 and on checkpoints by itself."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCKS = [
    (page, number, block)
    for page in ("tensordict.md", "transforms.md", "venv.md", "classic.md", "checkpoints.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL), 1)
]


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_block_runs(page: str, number: int, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some blocks write files
    exec(compile(block, f"{page}, block {number}", "exec"), {"__name__": "block"})
