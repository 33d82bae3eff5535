"""`after_import`: functions that are called when a program has imported a module."""

import importlib
import inspect
import sys
import threading
from pathlib import Path

import pytest

from vecrl.interop.peer_imports import RegistrationWarning, after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `peer_of_test` with a module `part`, which can be imported and is not."""
    folder = tmp_path / "peer_of_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("peer_of_test", "peer_of_test.part"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that they are removed afterwards
        del sys.modules[name]
    return folder


def _imported(name: str) -> object:
    return importlib.import_module(name)


def test_functions_are_called_once_after_the_import(package: Path) -> None:
    finders, calls = list(sys.meta_path), []
    after_import("peer_of_test.part", lambda: calls.append(sys.modules["peer_of_test.part"].value))
    after_import("peer_of_test.part", lambda: calls.append(_imported("peer_of_test.part").value))
    assert calls == []
    _imported("peer_of_test")
    assert calls == []
    part = _imported("peer_of_test.part")
    assert calls == [3, 3]
    assert sys.meta_path == finders
    importlib.reload(part)
    assert calls == [3, 3]
    assert inspect.getsource(part) == "value = 3\n"
    after_import("peer_of_test.part", lambda: calls.append("now"))
    assert calls == [3, 3, "now"]


def test_a_failed_import_leaves_the_functions_waiting(package: Path) -> None:
    (package / "part.py").write_text("raise OSError('broken')\n")
    calls = []
    after_import("peer_of_test.part", lambda: calls.append(1))
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            _imported("peer_of_test.part")
    assert calls == []
    (package / "part.py").write_text("longer_value = 4\n")
    importlib.invalidate_caches()
    _imported("peer_of_test.part")
    assert calls == [1]


def test_a_module_that_does_not_exist_stays_an_error(package: Path) -> None:
    finders = list(sys.meta_path)
    after_import("peer_of_test.other", lambda: None)
    with pytest.raises(ModuleNotFoundError, match=r"peer_of_test\.other"):
        _imported("peer_of_test.other")
    (package / "other.py").write_text("")
    importlib.invalidate_caches()
    _imported("peer_of_test.other")
    assert sys.meta_path == finders


def test_an_exception_of_a_function_is_a_warning(package: Path) -> None:
    calls = []
    after_import("peer_of_test.part", lambda: calls[0])
    after_import("peer_of_test.part", lambda: calls.append(1))
    with pytest.warns(RegistrationWarning, match=r"version of peer_of_test\.part that vecrl knows, got IndexError"):
        assert _imported("peer_of_test.part").value == 3
    assert calls == [1]


@pytest.mark.filterwarnings("ignore")
def test_tests_that_ignore_warnings_fail_if_a_registration_fails(package: Path) -> None:
    after_import("peer_of_test.part", lambda: [][0])
    with pytest.raises(RegistrationWarning, match="got IndexError"):
        _imported("peer_of_test.part")


def test_functions_wait_for_an_import_in_another_thread(package: Path) -> None:
    (package / "part.py").write_text("import sys\nsys.started.set()\nsys.proceed.wait(10)\nvalue = 5\n")
    sys.started, sys.proceed = threading.Event(), threading.Event()
    try:
        importing = threading.Thread(target=_imported, args=("peer_of_test.part",))
        importing.start()
        assert sys.started.wait(10)
        calls = []
        waiting = threading.Thread(
            target=after_import,
            args=("peer_of_test.part", lambda: calls.append(sys.modules["peer_of_test.part"].value)),
        )
        waiting.start()
        sys.proceed.set()
        waiting.join(10)
        importing.join(10)
        assert calls == [5]
    finally:
        del sys.started, sys.proceed
