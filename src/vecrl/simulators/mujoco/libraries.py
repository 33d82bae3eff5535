"""Imports of MuJoCo and Numba, which may be missing."""

from __future__ import annotations

from typing import Any

from ...imports import import_library

_HINT = 'is not installed: pip install "vecrl[mujoco]"'


def mujoco_library() -> Any:
    """Imports MuJoCo.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    return import_library("mujoco", f"MuJoCo {_HINT}")


def numba_library() -> Any:
    """Imports Numba.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
        RuntimeError: its compiler is disabled.
    """
    numba = import_library("numba", f"Numba {_HINT}")
    if numba.config.DISABLE_JIT:
        raise RuntimeError(
            "Numba does not compile, since NUMBA_DISABLE_JIT is set; the loops of mujoco:: only run compiled: unset it."
        )
    return numba
