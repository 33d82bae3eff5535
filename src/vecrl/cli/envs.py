"""`vecrl envs`: what can be made here, and what is missing."""

from __future__ import annotations

from rich.columns import Columns
from rich.markup import escape
from rich.table import Table

from vecrl.cli.console import console
from vecrl.vector import makers  # noqa: F401 -- it fills the registry
from vecrl.vector.registry import available, known_prefixes

SHOWN = 6  # names a prefix in the overview


def show_envs(prefix: str | None) -> None:
    """Print an overview of all prefixes, or every name of one."""
    if prefix is not None:
        _show_names(prefix.removesuffix("::"))
        return
    table = Table("prefix", "what it is", "environments", title="What can be made here")
    for name in known_prefixes():
        found = available(name)
        if found.missing is None:
            listed = ", ".join(_samples(found.names))
            table.add_row(f"{name}::", escape(found.summary), escape(f"{len(found.names)}: {listed}"))
        else:
            table.add_row(f"{name}::", escape(found.summary), f"[yellow]missing[/]; {escape(found.install or '')}")
    console.print(table)
    console.print("A name without a prefix is gymnasium's. [bold]vecrl envs --prefix NAME[/] lists them all.")


def _samples(names: tuple[str, ...]) -> list[str]:
    step = max(1, len(names) // SHOWN)
    return [*names[::step][:SHOWN], *(["…"] if len(names) > SHOWN else [])]


def _show_names(prefix: str) -> None:
    found = available(prefix)
    if found.missing is not None:
        raise ImportError(found.missing)
    names = [name if prefix == "gym" else f"{prefix}::{name}" for name in found.names]
    if console.is_terminal:
        console.print(Columns(map(escape, names)))
    else:
        console.print("\n".join(map(escape, names)), soft_wrap=True)
