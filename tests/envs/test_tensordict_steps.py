"""docs/tensordict-steps.md lists the calls of each operation in their order."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tensordict-steps.md").read_text()
_SECTIONS = re.findall(r"^## `([^\n]+)`\n(.*?)(?=^## )", PAGE, re.M | re.S)
SECTIONS = {call: re.findall(r"^\| `([\w.]+)` \|", text, re.M) for call, text in _SECTIONS}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    names: dict[str, Any] = {}
    block = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert block is not None
    exec(block[1], names)
    return names


def _calls(call: str, names: dict[str, Any]) -> list[str]:
    """Returns the functions that an expression calls: methods with the name or the class of their object before."""
    objects = {id(names[name]): name for name in ("env", "base", "transform")}
    calls: list[str] = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            owner, name = frame.f_locals.get("self"), frame.f_code.co_name
            calls.append(name if owner is None else f"{objects.get(id(owner), type(owner).__name__)}.{name}")

    sys.setprofile(on_event)
    try:
        eval(call, names)
    finally:
        sys.setprofile(None)
    return calls


def test_each_operation_has_a_section() -> None:
    operations = {call.partition("(")[0] for call in SECTIONS}
    assert operations == {"env.reset", "env.step", "env.step_and_maybe_reset", "env.rollout"}


@pytest.mark.parametrize("call", SECTIONS)
def test_calls_are_in_the_order_of_the_page(call: str, names: dict[str, Any]) -> None:
    remaining: Iterator[str] = iter(_calls(call, names))
    missing = [name for name in SECTIONS[call] if name not in remaining]
    assert len(SECTIONS[call]) > 5
    assert missing == [], "in this order"
