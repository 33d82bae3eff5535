"""`vecrl envs`: lists the available environments, and what is missing for the others."""

from __future__ import annotations

from rich.columns import Columns
from rich.markup import escape
from rich.table import Table

from ..simulators.registry import available, known_prefixes
from ..vector import factory  # noqa: F401 -- fills the registry on import
from .console import console

MAX_SAMPLES = 6  # names per prefix in the overview


def show_envs(prefix: str | None) -> None:
    """Prints an overview of all prefixes, or all names of one."""
    if prefix is not None:
        _show_names(prefix.removesuffix("::"))
        return
    table = Table("prefix", "description", "environments", title="Available environments")
    for name in known_prefixes():
        availability = available(name)
        if availability.missing is None:
            samples_text = ", ".join(_samples(availability.names))
            table.add_row(
                f"{name}::", escape(availability.summary), escape(f"{len(availability.names)}: {samples_text}")
            )
        else:
            status = "[red]error[/]" if availability.install is None else "[yellow]missing[/]"
            reason = escape(availability.install or availability.missing)
            table.add_row(f"{name}::", escape(availability.summary), f"{status}; {reason}")
    console.print(table)
    console.print("Names without a prefix are gymnasium's. [bold]vecrl envs --prefix NAME[/] lists all of a prefix.")


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
