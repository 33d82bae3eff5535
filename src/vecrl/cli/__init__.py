"""The command line: `vecrl envs | check | rollout | evolve | bench`, also `python -m vecrl`.

Each command's module is imported when the command runs, so that help is at hand at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

HEADLESS = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}  # how to draw without a screen


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line with `argv` (default: the process's own arguments), and exit.

    Raises:
        SystemExit: always; code 0, 1 for an error, 2 for wrong usage, 130 after an interrupt.
    """
    try:
        from vecrl.cli.app import app
    except ImportError as error:
        sys.exit(f'{error}. The command line needs its extra: pip install "vecrl[cli]"')
    if argv is None and not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it: "myenv:My-v0" is found beside whoever calls
    if "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ:
        for name, value in HEADLESS.items():
            os.environ.setdefault(name, value)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--traceback" in arguments:  # welcome anywhere, as nobody thinks of it beforehand
        arguments.remove("--traceback")
        arguments.insert(0, "--traceback")
    app(arguments, prog_name="vecrl")
