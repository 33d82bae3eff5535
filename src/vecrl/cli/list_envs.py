"""`vecrl envs`: lists the available environments, and what is missing for the others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

import typer
from rich.columns import Columns
from rich.markup import escape
from rich.table import Table

from ..simulators.availability import Availability, available
from ..simulators.registry import BARE, SEPARATOR, known_prefixes
from .console import console, error_console, first_line

EXAMPLE_WIDTH = 34  # fits the commands that install what is missing
COUNT_WIDTH = 6
WRONG_USAGE = 2  # exit code


def show_envs(prefix: str | None, installed: bool = False) -> None:
    """Prints an overview of all prefixes, one row after another, or all names of one prefix.

    Args:
        prefix: lists the names of this prefix; None for the overview.
        installed: whether the overview has only the simulators that are installed.
    """
    if prefix is not None:
        _show_names(prefix.removesuffix(SEPARATOR))
        return
    prefixes = known_prefixes()
    width = max(map(len, prefixes)) + len(SEPARATOR)
    _print_row(width, "prefix", "names", "example, or how to install it", "description", "bold")
    for name in prefixes:
        with _silent_imports():
            availability = available(name)
        if not (installed and availability.missing is not None):
            _show_overview(width, availability)
    console.print("Names without a prefix are gymnasium's. [bold]vecrl envs --prefix NAME[/] lists all of a prefix.")


def require_env(env: str | None, command: str) -> str:
    """Returns the name of an environment; without one, prints examples that can be made here.

    Raises:
        typer.Exit: there is no name.
    """
    if env is not None:
        return env
    error_console.print("[bold red]Error:[/] Expected an environment, got none. Give one, for example:")
    for prefix in known_prefixes():
        with suppress(ImportError):  # of a distribution that has an entry point
            found = available(prefix)
            if found.example is not None and found.missing is None:
                name = _full_name(prefix, found.example)
                error_console.print(f"  vecrl {command} {name}", markup=False, soft_wrap=True)
    raise typer.Exit(WRONG_USAGE)


def _show_overview(width: int, found: Availability) -> None:
    prefix, summary = found.prefix + SEPARATOR, escape(found.summary)
    if found.missing is None:
        example = "" if found.example is None else escape(_full_name(found.prefix, found.example))
        _print_row(width, prefix, str(len(found.names)), example, summary)
    elif found.install is not None:
        _print_row(width, prefix, "–", f"[yellow]{escape(found.install)}[/]", summary)
    else:
        reason = first_line(ImportError(found.missing), " …")
        _print_row(width, prefix, "–", "[red]error[/]", ": ".join(filter(None, [summary, escape(reason)])))


def _print_row(width: int, prefix: str, count: str, example: str, description: str, style: str = "") -> None:
    """Prints one row, which is a table of its own so that it appears at once."""
    row = Table.grid(padding=(0, 2))
    row.add_column(width=width, no_wrap=True)
    row.add_column(width=COUNT_WIDTH, justify="right")
    row.add_column(width=EXAMPLE_WIDTH, overflow="fold")
    row.add_column()
    row.add_row(prefix, count, example, description, style=style)
    console.print(row)


def _full_name(prefix: str, name: str) -> str:
    return name if prefix == BARE else prefix + SEPARATOR + name


def _show_names(prefix: str) -> None:
    availability = available(prefix)
    if availability.missing is not None:
        raise ImportError(availability.missing)
    names = [_full_name(prefix, name) for name in availability.names]
    if console.is_terminal:
        console.print(Columns(map(escape, names)))
    else:
        console.print("\n".join(map(escape, names)), soft_wrap=True)


@contextmanager
def _silent_imports() -> Iterator[None]:
    """Hides what libraries print when they are imported."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
