"""`implement_for`: which of several versions of a function is called."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from vecrl._utils import ignore_modules, implement_for
from vecrl.errors import VersionError


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Simulates installed libraries with the versions that it is called with."""

    def pretend(**versions: str) -> None:
        for name, version in versions.items():
            module = ModuleType(name)
            module.__version__ = version
            monkeypatch.setitem(sys.modules, name, module)

    return pretend


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.21.0", 0), ("0.25.9", 0), ("0.26", 1), ("0.26.2", 1), ("1.0.0", 2), ("1.0.0a1", 2), ("1.10", 2)],
)
def test_ranges_include_the_first_and_exclude_the_last_version(libraries: Any, version: str, expected: int) -> None:
    @implement_for("acrolib", None, "0.26.0")
    def fun() -> int:
        return 0

    @implement_for("acrolib", "0.26.0", "1.0")
    def fun() -> int:
        return 1

    @implement_for("acrolib", "1.0.0", None)
    def fun() -> int:
        return 2

    libraries(acrolib=version)
    assert fun() == expected


def test_nothing_is_imported_before_the_call(libraries: Any) -> None:
    @implement_for("latelib", "1")
    def fun(x: int, *, y: int) -> int:
        """A docstring."""
        return x + y

    assert fun.__doc__ == "A docstring."
    with pytest.raises(
        VersionError, match=r"fun to have a variant that matches, got only latelib \[1, …\) \(here: not installed\)"
    ):
        fun(1, y=2)
    libraries(latelib="1.2")
    assert fun(1, y=2) == 3
    libraries(latelib="0.9")
    with pytest.raises(ImportError, match=r"here: 0\.9"):
        fun(1, y=2)


def test_methods_and_class_methods(libraries: Any) -> None:
    class Adapter:
        name = "mine"

        @implement_for("acrolib", None, "1")
        def method(self) -> str:
            return self.name + " of old"

        @implement_for("acrolib", "1")
        def method(self) -> str:
            return self.name

        @implement_for("acrolib", class_method=True)
        def make(cls) -> str:
            return cls.__name__

    libraries(acrolib="2")
    assert (Adapter().method(), Adapter.make()) == ("mine", "Adapter")
    libraries(acrolib="0.5")
    assert Adapter().method() == "mine of old"


def test_a_library_found_by_a_function(libraries: Any) -> None:
    def either() -> Any:
        return import_module("rightlib")

    @implement_for(either, "2")
    def fun() -> str:
        return "found"

    libraries(rightlib="2.5")
    assert fun() == "found"


def test_the_last_matching_library_that_is_not_ignored(libraries: Any) -> None:
    @implement_for("leftlib")
    def fun() -> str:
        return "left"

    @implement_for("rightlib", "2")
    def fun() -> str:
        return "right"

    libraries(leftlib="1", rightlib="2")
    assert fun() == "right"
    ignore_modules(["rightlib"])
    try:
        assert fun() == "left"
    finally:
        ignore_modules([])
    libraries(rightlib="1")
    assert fun() == "left"


def test_invalid_versions_raise() -> None:
    with pytest.raises(ValueError, match=r"version such as '0\.26\.2'"):
        implement_for.check_version("latest", "1", None)


def test_libraries_found_by_a_function_can_be_ignored(libraries: Any) -> None:
    @implement_for("leftlib")
    def fun() -> str:
        return "left"

    @implement_for(lambda: import_module("rightlib"))
    def fun() -> str:
        return "right"

    libraries(leftlib="1", rightlib="2")
    assert fun() == "right"
    ignore_modules(["rightlib"])
    try:
        assert fun() == "left"
    finally:
        ignore_modules([])
