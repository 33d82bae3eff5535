"""`vecrl check`: checks an environment and prints a table of expected and actual results.

The checks run in a worker process, so that crashes and timeouts of an environment are reported, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..errors import StepTimeout, WorkerCrash
from ..simulators.registry import BARE, find_entry
from ..vector.vector_env import VectorEnv
from .console import console, name_hint
from .env_checks import BASIC, CHECKS, LIMITED_CHECKS, RENDERING, WORKER, EnvChecks, Finding

EXIT_ADVICE = "Raise an exception instead of ending the process (os._exit, abort, a crash in native code)."
TIMEOUT_ADVICE = "It hangs or is slow. --timeout gives each check more seconds."


def check_env(env: str, kwargs: Mapping[str, Any], *, seed: int, render: bool, timeout: float) -> bool:
    """Prints the table; returns whether all checks passed.

    Args:
        timeout: timeout of each check in seconds.
    """
    findings = list(_findings(env, kwargs, seed, render, timeout))
    table = Table("", "check", "expected", "actual", title=f"{env}")
    symbols = {True: "[green]ok[/]", False: "[bold red]no[/]", None: "[yellow]–[/]"}
    for finding in findings:
        table.add_row(symbols[finding.ok], finding.check_name, escape(finding.expected), escape(finding.actual))
    console.print(table)
    mismatches = [finding for finding in findings if finding.ok is False]
    for finding in mismatches:
        if finding.advice:
            console.print(f"[red]{finding.check_name}[/]: {escape(finding.advice)}")
    if findings and findings[0].ok is False and (hint := name_hint(env)):
        console.print(escape(hint), soft_wrap=True)
    console.print("[green]All checks passed.[/]" if not mismatches else f"[red]Mismatches: {len(mismatches)}.[/]")
    return not mismatches


def _findings(env: str, kwargs: Mapping[str, Any], seed: int, render: bool, timeout: float) -> Iterator[Finding]:
    entry, name = find_entry(env)
    make_env = make_rendering = None
    if entry.env_fn is not None:  # called here, since names may not be registered in the worker
        options = {**kwargs, "disable_env_checker": True} if entry.prefix == BARE else kwargs
        make_env = entry.env_fn(name, **options)
        make_rendering = entry.env_fn(name, **options, render_mode="rgb_array") if render else None
    skipped = {WORKER} if entry.is_batched else set()
    skipped |= set() if render else {RENDERING}
    checks = partial(EnvChecks, env, make_env, kwargs, seed, entry, make_rendering)
    with VectorEnv([checks], backend="processes", num_workers=1, step_timeout=timeout) as worker:
        for check_name in CHECKS:
            if check_name in skipped:
                continue
            if limit := next((word for word in entry.limits if check_name in LIMITED_CHECKS.get(word, ())), None):
                yield Finding(check_name, None, f"no check ({limit})", entry.limits[limit])
                continue
            console.print(f"[dim]checking: {check_name} …[/]")
            try:
                finding = worker.call("run_check", check_name)[0]
            except WorkerCrash as error:
                yield Finding(
                    check_name, False, "a worker process that keeps running", error.failures[0].error, EXIT_ADVICE
                )
                return
            except StepTimeout:
                yield Finding(check_name, False, f"a result within {timeout:g} s", "none", TIMEOUT_ADVICE)
                return
            yield finding
            if check_name in BASIC and not finding.ok:
                return
