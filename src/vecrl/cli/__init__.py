"""The command line: `vecrl envs | check | rollout | evolve | runs | play | export | bench`, also `python -m vecrl`.

Each command's module is imported when the command runs, so that `--help` starts quickly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..imports import require_extra

HEADLESS = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}  # rendering without a screen


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line with `argv` (default: the process's arguments), and exits.

    Raises:
        SystemExit: always; code 0, 1 for an error, 2 for wrong usage, 130 after an interrupt.
    """
    try:
        require_extra("cli", "the command line")
    except ImportError as error:
        sys.exit(str(error))
    from .app import app

    if "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ:
        for name, value in HEADLESS.items():
            os.environ.setdefault(name, value)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--traceback" in arguments:  # allowed at any position, since it is usually added to a command that failed
        arguments.remove("--traceback")
        arguments.insert(0, "--traceback")
    app(arguments, prog_name="vecrl")
