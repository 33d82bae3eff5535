"""`vecrl envs`: lists the available environments, and what is missing for the others."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import typer
from rich.columns import Columns
from rich.markup import escape

from ..simulators.availability import Availability, available, overview
from ..simulators.registry import BARE, SEPARATOR, find_entry
from .console import console, error_console, first_line, print_columns, print_json

WRONG_USAGE = 2  # exit code
EXTRA_COMMAND = 'pip install "vecrl['


def show_envs(prefix: str | None, installed: bool = False, as_json: bool = False) -> None:
    """Prints an overview of all prefixes, a line each, or all names of one prefix.

    Args:
        prefix: lists the names of this prefix; None for the overview.
        installed: whether the overview has only the simulators that are installed.
        as_json: whether to print JSON: an object for each prefix, or the names.
    """
    if prefix is not None:
        _show_names(prefix.removesuffix(SEPARATOR), as_json)
        return
    with _silent_imports():
        found = list(overview())
    missing = [] if installed else [one for one in found if one.missing is not None]
    found = [one for one in found if one.missing is None]
    if as_json:
        print_json([_as_object(one) for one in (*found, *missing)])
        return
    _print_installed(found)
    if missing:
        _print_missing(missing)
    console.print(
        "Names without a prefix are gymnasium's. [bold]vecrl envs --prefix NAME[/] lists all of a prefix.",
        soft_wrap=True,
    )


def require_env(env: str | None, command: str) -> str:
    """Returns the name of an environment; without one, prints examples that can be made here.

    Raises:
        typer.Exit: there is no name.
    """
    if env is not None:
        return env
    error_console.print("[bold red]Error:[/] Expected an environment, got none. Give one, for example:")
    with _silent_imports():
        found = list(overview())
    for one in found:
        if one.example is not None and one.missing is None:
            name = _full_name(one.prefix, one.example)
            error_console.print(f"  vecrl {command} {name}", markup=False, soft_wrap=True)
    raise typer.Exit(WRONG_USAGE)


def refuse_unused(env: str, given: Collection[str]) -> None:
    """Raises a ValueError if one of the given options has no effect for an environment.

    Args:
        env: the name of the environment.
        given: the names of the options that the user has given.
    """
    if find_entry(env)[0].is_batched:
        unused, reason = ("backend", "backends", "workers"), "steps as one batch in this process"
    else:
        unused, reason = ("device",), "is made of Python environments, which run on the CPU"
    for option in unused:
        if option in given:
            flag = option.removesuffix("s") if option == "backends" else option
            raise ValueError(f"Expected no --{flag} for {env!r}, which {reason}, got one. Omit it.")


def _as_object(found: Availability) -> dict[str, object]:
    example = None if found.example is None else _full_name(found.prefix, found.example)
    return {
        "prefix": found.prefix + SEPARATOR,
        "description": found.summary,
        "example": example,
        "installed": found.missing is None,
        "missing": found.missing,
        "install": found.install,
    }


def _print_installed(found: Sequence[Availability]) -> None:
    """Prints a line for each prefix."""
    rows = [("prefix", "example", "description")]
    for one in found:
        example = "" if one.example is None else _full_name(one.prefix, one.example)
        rows.append((one.prefix + SEPARATOR, example, one.summary))
    print_columns(rows)


def _print_missing(missing: Sequence[Availability]) -> None:
    """Prints which simulators are not installed: those with an extra, and how to install one, then the others."""
    if with_extra := [one for one in missing if one.install is not None]:
        console.print(f"\nNot installed: {', '.join(map(_with_extra, with_extra))}.", soft_wrap=True)
        command = escape(f'{EXTRA_COMMAND}EXTRA]"')
        console.print(
            f"  [yellow]{command}[/]  an extra has the name of the prefix, or the one in parentheses", soft_wrap=True
        )
    broken = [one for one in missing if str(one.missing).startswith("Expected the entry point")]
    for one in broken:
        reason = first_line(ImportError(one.missing), " …")
        console.print(f"{one.prefix + SEPARATOR}  [red]error[/] {escape(reason)}", soft_wrap=True)
    if others := [one.prefix for one in missing if one.install is None and one not in broken]:
        console.print(
            f"Without an extra: {', '.join(others)}. [bold]--prefix NAME[/] says what is missing.", soft_wrap=True
        )
    console.print()


def _with_extra(found: Availability) -> str:
    """Returns the prefix, with the name of its extra if that is another one."""
    extra = (found.install or "").removeprefix(EXTRA_COMMAND).removesuffix(']"')
    return found.prefix if extra == found.prefix else f"{found.prefix} ({extra})"


def _full_name(prefix: str, name: str) -> str:
    return name if prefix == BARE else prefix + SEPARATOR + name


def _show_names(prefix: str, as_json: bool) -> None:
    with _silent_imports():
        availability = available(prefix)
    if availability.missing is not None:
        raise ImportError(availability.missing)
    names = [_full_name(prefix, name) for name in availability.names]
    if as_json:
        print_json(names)
    elif console.is_terminal:
        console.print(Columns(map(escape, names)))
    else:
        console.print("\n".join(map(escape, names)), soft_wrap=True)


@contextmanager
def _silent_imports() -> Iterator[None]:
    """Hides what libraries print when they are imported."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
