"""`vecrl check`: whether an environment does what it says, as a table of what was expected and what came.

The checks run in a worker process, so that an environment may end it or keep it for ever, and still be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table

from vecrl.cli.console import console
from vecrl.cli.env_checks import BASIC, CHECKS, RENDERING, WORKER, EnvChecks, Finding
from vecrl.errors import StepTimeout, WorkerCrash
from vecrl.policy.population import gymnasium_maker
from vecrl.vector.registry import find_entry
from vecrl.vector.vector_env import VectorEnv

EXIT_ADVICE = "Raise an exception rather than end the process (os._exit, abort, a crash in native code)."
TIMEOUT_ADVICE = "It hangs, or is slow: --timeout gives each check more seconds."


def check_env(env: str, kwargs: Mapping[str, Any], *, seed: int, render: bool, timeout: float) -> bool:
    """Print the table; True if nothing was wrong.

    Args:
        timeout: seconds that each check may take.
    """
    findings = list(_findings(env, kwargs, seed, render, timeout))
    table = Table("", "what", "expected", "came", title=f"{env}")
    symbols = {True: "[green]ok[/]", False: "[bold red]no[/]", None: "[yellow]–[/]"}
    for finding in findings:
        table.add_row(symbols[finding.ok], finding.check_name, escape(finding.expected), escape(finding.actual))
    console.print(table)
    mismatches = [finding for finding in findings if finding.ok is False]
    for finding in mismatches:
        if finding.advice:
            console.print(f"[red]{finding.check_name}[/]: {escape(finding.advice)}")
    console.print("[green]Nothing wrong was found.[/]" if not mismatches else f"[red]Mismatches: {len(mismatches)}.[/]")
    return not mismatches


def _findings(env: str, kwargs: Mapping[str, Any], seed: int, render: bool, timeout: float) -> Iterator[Finding]:
    entry, name = find_entry(env)
    batched = entry.prefix != "gym"
    make_one = None if batched else gymnasium_maker(name, {**kwargs, "disable_env_checker": True})
    skipped = {WORKER} if batched else set()
    skipped |= set() if render else {RENDERING}
    checks = partial(EnvChecks, env, make_one, kwargs, seed)
    with VectorEnv([checks], backend="processes", num_workers=1, step_timeout=timeout) as worker:
        for check_name in CHECKS:
            if check_name in skipped:
                continue
            console.print(f"[dim]looking at: {check_name} …[/]")
            try:
                finding = worker.call("run_check", check_name)[0]
            except WorkerCrash as error:
                yield Finding(check_name, False, "a process that lives on", error.failures[0].error, EXIT_ADVICE)
                return
            except StepTimeout:
                yield Finding(check_name, False, f"an answer within {timeout:g} s", "none", TIMEOUT_ADVICE)
                return
            yield finding
            if check_name in BASIC and not finding.ok:
                return
