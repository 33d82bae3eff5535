"""Finds the Python interpreters that workers may run on."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache

from ...errors import VersionError

_OLDEST = (3, 7)
_TIMEOUT_S = 60.0


def find_python(python: object) -> str:
    """Returns the path of an interpreter on which workers can run.

    Args:
        python: the path of an interpreter, of the folder of a virtual environment, or the name of a program.

    Raises:
        ValueError: it is no Python interpreter.
        VersionError: it is older than Python 3.7, or NumPy is not installed for it.
    """
    if not isinstance(python, str | os.PathLike):
        raise ValueError(f"Expected python to be the path of a Python interpreter, got {python!r}.")
    path = os.fspath(python)
    inner = os.path.join(path, "bin", "python")
    found = shutil.which(inner if os.path.isdir(path) else path)
    if found is None:
        raise ValueError(f"Expected python to be the path of a Python interpreter, got {path!r}, which is none.")
    _check_interpreter(os.path.abspath(found))
    return os.path.abspath(found)


@lru_cache(maxsize=64)
def _check_interpreter(path: str) -> None:
    code = "import sys, importlib.util as u; print(*sys.version_info[:2], u.find_spec('numpy') is not None)"
    version = run_python(path, code).split()
    if len(version) != 3 or not version[0].isdecimal():
        raise ValueError(f"Expected python to be the path of a Python interpreter, got {path!r}, which is none.")
    if tuple(map(int, version[:2])) < _OLDEST:
        raise VersionError(f"Expected Python 3.7 or newer for workers, got {'.'.join(version[:2])} ({path}).")
    if version[2] != "True":
        raise VersionError(
            f"Expected an interpreter with NumPy for workers, got {path} without it. Install it: {path} -m pip install "
            "numpy",
            name="numpy",
        )


def run_python(path: str, code: str) -> str:
    """Runs code on an interpreter and returns the last line that it prints; "" if it prints none or fails.

    Modules in the working directory are not found.
    """
    code = f"import sys; del sys.path[0]; {code}"
    try:
        done = subprocess.run(
            [path, "-E", "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip().splitlines() or [""])[-1]
