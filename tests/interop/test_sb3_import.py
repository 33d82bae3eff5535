"""`vecrl.interop.sb3` without Stable-Baselines3."""

import importlib
import sys

import pytest


def test_import_without_stable_baselines3_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    monkeypatch.delitem(sys.modules, "vecrl.interop.sb3", raising=False)
    with pytest.raises(ImportError, match="Install it: pip install stable-baselines3"):
        importlib.import_module("vecrl.interop.sb3")
