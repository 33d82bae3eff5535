"""How commands speak: one console, errors on one line, interrupts that end cleanly. It knows no command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

P = ParamSpec("P")
R = TypeVar("R")

console = Console(highlight=False)
error_console = Console(stderr=True, highlight=False)
INTERRUPTED = 130


class Settings:
    """What holds for all commands.

    Attributes:
        traceback: let errors through with their tracebacks.
    """

    traceback = False


def handle_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command end on errors of the user's making with one line and code 1, on an interrupt with code 130."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            error_console.print("[yellow]Interrupted.[/]")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if Settings.traceback or not _is_expected(error):
                raise
            error_console.print(f"[bold red]Error:[/] {escape(first_line(error))}", soft_wrap=True)
            raise typer.Exit(1) from None

    return run


def first_line(error: BaseException, suffix: str = " (--traceback shows the rest)") -> str:
    """What an error says, on one line; `suffix` follows where there are others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    suffix = suffix if len(lines) > 1 else ""
    return (lines[0] if lines else type(error).__name__) + suffix


def _is_expected(error: Exception) -> bool:
    """Whether an error is the user's to mend: of vecrl's tree, a wrong value, something missing, gymnasium's own."""
    from gymnasium.error import Error as GymnasiumError

    from vecrl.errors import VecrlError

    return isinstance(error, VecrlError | GymnasiumError | ValueError | ImportError | OSError)


def parse_pairs(pairs: list[str]) -> dict[str, Any]:
    """`["a=1", "b=[2, 3]"]` as a dictionary; values are YAML.

    >>> parse_pairs(["gravity=-9.5", "name=x"])
    {'gravity': -9.5, 'name': 'x'}
    """
    import yaml

    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.isidentifier():
            raise ValueError(f"Expected KEY=VALUE, but {pair!r} came.")
        parsed[key] = yaml.safe_load(value)
    return parsed
