"""`vecrl runs`: a table and a picture of past runs. `vecrl play` finds the environment of a run here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from ..policy.saved_policy import SavedPolicy
from .console import console, first_line, print_columns, print_json
from .media import draw_runs
from .options import Options
from .run_folder import RunFolder, checked_env_args

MOST_DRAWN = 20  # environments in the picture, which has a part for each


@dataclass(frozen=True, slots=True)
class Run:
    """What is known about a run.

    Attributes:
        name: the path of its folder below the given one.
        options: its options.
        rows: the lines of its metrics.csv.
    """

    name: str
    options: Options
    rows: list[dict[str, float]]

    @property
    def best_test(self) -> float | None:
        """The highest mean return in a test; None before the first test."""
        return max((row["test"] for row in self.rows if not math.isnan(row["test"])), default=None)

    def summary(self) -> dict[str, Any]:
        """Returns the columns of the table."""
        last: Mapping[str, float] = self.rows[-1] if self.rows else {"generation": 0, "steps": 0, "seconds": 0.0}
        goal, best = self.options.stop_at, self.best_test
        return {
            "run": self.name,
            "env": self.options.env,
            "algorithm": self.options.algorithm,
            "seed": self.options.seed,
            "generations": int(last["generation"]),
            "steps": int(last["steps"]),
            "seconds": last["seconds"],
            "test": best,
            "solved": None if goal is None else best is not None and best >= goal,
        }


def show_runs(folder: Path, plot: Path | None, as_json: bool = False) -> None:
    """Prints a table of the runs below a folder, and draws their test curves.

    Args:
        folder: the folder; runs may be deeper in it.
        plot: the png file; None for "runs.png" in the folder.

    Raises:
        ValueError: there is no run.
    """
    if not folder.is_dir():
        raise ValueError(f"Expected a folder with runs, got {str(folder)!r}, which is none. Give the --out of a run.")
    runs, broken = _read_runs(folder)
    for path, reason in broken.items():
        console.print(f"[yellow]{escape(path)}[/]: {escape(reason)}", soft_wrap=True)
    if not runs:
        raise ValueError(f"Expected runs of vecrl evolve in {folder}, got none. Give the --out of a run.")
    summaries = [run.summary() for run in runs]
    titles = "run", "environment", "algorithm", "seed", "generations", "steps", "seconds", "best test", "solved"
    print_columns([titles, *map(_cells, summaries)])
    if plot is None:
        plot = folder / "runs.png"
        if plot.is_symlink():  # in a folder from other people it could lead to any file
            raise ValueError(f"Expected no link in {folder}, got runs.png. Remove it, or give another file as --plot.")
    drawn = sorted({run.options.env for run in runs})[:MOST_DRAWN]
    draw_runs({run.name: (run.options.env, run.rows) for run in runs if run.options.env in drawn}, plot)
    console.print(f"plot: {plot}", soft_wrap=True, markup=False)
    if as_json:
        print_json({"runs": summaries, "plot": str(plot)})


def _cells(summary: Mapping[str, Any]) -> list[str]:
    texts = {**summary, "steps": f"{summary['steps']:,}", "seconds": f"{summary['seconds']:,.1f}"}
    texts["test"] = "–" if summary["test"] is None else f"{summary['test']:,.5g}"
    texts["solved"] = {None: "–", True: "yes", False: "no"}[summary["solved"]]
    return [str(text) for text in texts.values()]


def _read_runs(folder: Path) -> tuple[list[Run], dict[str, str]]:
    """Returns the runs below a folder, by name, and the reasons why others cannot be read."""
    runs: list[Run] = []
    broken: dict[str, str] = {}
    for state in sorted(folder.rglob("state.ckpt")):
        name = str(state.parent.relative_to(folder)) if state.parent != folder else state.parent.name
        run_folder = RunFolder(state.parent)
        try:
            options = Options.from_dict(run_folder.read_config(), run_folder.config)
            runs.append(Run(name, options, run_folder.rows()))
        except (ValueError, OSError) as error:
            broken[name] = first_line(error)
    return runs, broken


def env_of(
    run: Path, policy: SavedPolicy, env: str | None, env_args: Mapping[str, Any]
) -> tuple[str, dict[str, Any], int | None]:
    """Returns the environment of a run, its arguments and the largest number of steps.

    What names code in the files of the run is used only if it is given too, see `checked_env_args`.

    Args:
        run, policy: the folder, or the file of the policy, and its policy.
        env, env_args: those of the command line.
    """
    file, saved_env, saved_args, max_steps = run, policy.env, dict(env_args), None
    if run.is_dir():
        folder = RunFolder(run)
        options = Options.from_dict(folder.read_config(), folder.config)
        file, saved_env, saved_args, max_steps = folder.config, options.env, options.env_args, options.max_steps
    given = {"env": env, "env_args": env_args}
    return saved_env, checked_env_args(file, saved_env, saved_args, given, "--env"), max_steps
