"""Public names and signatures of all dialects change only on purpose."""

from __future__ import annotations

from difflib import unified_diff

import pytest
from tests.frozen.public import described
from tests.frozen.write import HOW, SIGNATURES

from vecrl import seeding


def differences() -> list[str]:
    lines = (SIGNATURES.read_text().splitlines(), described().splitlines())
    return list(unified_diff(*lines, "frozen", "found", lineterm="", n=2))


def test_public_signatures_equal_the_frozen_ones() -> None:
    if found := differences():
        message = ["Expected the public names and signatures of signatures.txt, got others.", *found]
        pytest.fail("\n".join([*message, HOW.format("signatures")]), pytrace=False)


def test_changed_defaults_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding.seed_for, "__defaults__", (1,))
    assert "+seeding.seed_for(root, env_id, episode=1)" in differences()
