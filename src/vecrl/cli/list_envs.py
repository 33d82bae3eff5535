"""`vecrl envs`: what can be made here, and what is missing."""

from __future__ import annotations

from rich.columns import Columns
from rich.markup import escape
from rich.table import Table

from vecrl.cli.console import console
from vecrl.vector import factory  # noqa: F401 -- it fills the registry
from vecrl.vector.registry import available, known_prefixes

MAX_SAMPLES = 6  # names a prefix in the overview


def show_envs(prefix: str | None) -> None:
    """Print an overview of all prefixes, or every name of one."""
    if prefix is not None:
        _show_names(prefix.removesuffix("::"))
        return
    table = Table("prefix", "what it is", "environments", title="What can be made here")
    for name in known_prefixes():
        availability = available(name)
        if availability.missing is None:
            samples_text = ", ".join(_samples(availability.names))
            table.add_row(
                f"{name}::", escape(availability.summary), escape(f"{len(availability.names)}: {samples_text}")
            )
        else:
            table.add_row(
                f"{name}::", escape(availability.summary), f"[yellow]missing[/]; {escape(availability.install or '')}"
            )
    console.print(table)
    console.print("A name without a prefix is gymnasium's. [bold]vecrl envs --prefix NAME[/] lists them all.")


def _samples(names: tuple[str, ...]) -> list[str]:
    step = max(1, len(names) // MAX_SAMPLES)
    return [*names[::step][:MAX_SAMPLES], *(["…"] if len(names) > MAX_SAMPLES else [])]


def _show_names(prefix: str) -> None:
    availability = available(prefix)
    if availability.missing is not None:
        raise ImportError(availability.missing)
    names = [name if prefix == "gym" else f"{prefix}::{name}" for name in availability.names]
    if console.is_terminal:
        console.print(Columns(map(escape, names)))
    else:
        console.print("\n".join(map(escape, names)), soft_wrap=True)
