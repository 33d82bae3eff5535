"""Runs the Python blocks of the pages for users of other libraries, which need these libraries."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    (page, number, block)
    for page in ("from-evotorch.md", "from-tianshou.md", "from-torchrl.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL), 1)
]


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_block_runs(page: str, number: int, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some blocks write files
    if page == "from-evotorch.md":  # `activate` is undone
        from evotorch.neuroevolution import vecgymne

        monkeypatch.setattr(vecgymne, "make_vector_env", vecgymne.make_vector_env)
    exec(compile(block, f"{page}, block {number}", "exec"), {"__name__": "block"})
