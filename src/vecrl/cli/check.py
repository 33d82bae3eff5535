"""`vecrl check`: whether an environment does what it says, as a table of what was expected and what came.

The checks run in a worker process, so that an environment may end it or keep it for ever, and still be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table

from vecrl.cli.checks import BASIC, CHECKS, RENDERING, WORKER, Checks, Finding
from vecrl.cli.console import console
from vecrl.errors import StepTimeout, WorkerCrash
from vecrl.policy.population import gymnasium_maker
from vecrl.vector.registry import find
from vecrl.vector.vector_env import VectorEnv

ENDED = "Raise an exception rather than end the process (os._exit, abort, a crash in native code)."
LATE = "It hangs, or is slow: --timeout gives each check more seconds."


def check_env(env: str, kwargs: Mapping[str, Any], *, seed: int, render: bool, timeout: float) -> bool:
    """Print the table; True if nothing was wrong.

    Args:
        timeout: seconds that each check may take.
    """
    findings = list(_findings(env, kwargs, seed, render, timeout))
    table = Table("", "what", "expected", "came", title=f"{env}")
    marks = {True: "[green]ok[/]", False: "[bold red]no[/]", None: "[yellow]–[/]"}
    for finding in findings:
        table.add_row(marks[finding.ok], finding.what, escape(finding.expected), escape(finding.came))
    console.print(table)
    wrong = [finding for finding in findings if finding.ok is False]
    for finding in wrong:
        if finding.advice:
            console.print(f"[red]{finding.what}[/]: {escape(finding.advice)}")
    console.print("[green]Nothing wrong was found.[/]" if not wrong else f"[red]Mismatches: {len(wrong)}.[/]")
    return not wrong


def _findings(env: str, kwargs: Mapping[str, Any], seed: int, render: bool, timeout: float) -> Iterator[Finding]:
    entry, name = find(env)
    batched = entry.prefix != "gym"
    make_one = None if batched else gymnasium_maker(name, {**kwargs, "disable_env_checker": True})
    left_out = {WORKER} if batched else set()
    left_out |= set() if render else {RENDERING}
    checks = partial(Checks, env, make_one, kwargs, seed)
    with VectorEnv([checks], backend="processes", num_workers=1, step_timeout=timeout) as worker:
        for what in CHECKS:
            if what in left_out:
                continue
            console.print(f"[dim]looking at: {what} …[/]")
            try:
                finding = worker.call("look", what)[0]
            except WorkerCrash as error:
                yield Finding(what, False, "a process that lives on", error.failures[0].error, ENDED)
                return
            except StepTimeout:
                yield Finding(what, False, f"an answer within {timeout:g} s", "none", LATE)
                return
            yield finding
            if what in BASIC and not finding.ok:
                return
