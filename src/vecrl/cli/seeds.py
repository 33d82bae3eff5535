"""`vecrl evolve --seeds N`: the same search with N seeds, and a picture of the mean with its band."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..seeding import random_seed
from .console import console
from .evolve import Evolution
from .media import draw_seeds
from .options import Options
from .run_folder import RunFolder

CURVES = "learning-curves.png"


def evolve_seeds(options: Options, count: int, parent: Path) -> int:
    """Runs a search with `count` seeds, one after another, each in a run folder of its own in a new folder.

    Args:
        options: the options; the seeds are its seed and the next ones.
        count: the number of seeds.
        parent: the folder for the new folder.

    Returns:
        The exit code of the command: that of the first run that is interrupted, else 0.
    """
    first = random_seed() if options.seed is None else options.seed
    folder: Path | None = None
    runs: list[RunFolder] = []
    complete, code = 0, 0
    for seed in range(first, first + count):
        if folder is None:
            Evolution.check(replace(options, seed=seed))  # so that wrong options leave no folder
            folder = RunFolder.new(parent, f"{options.env}-seeds").path
        run = Evolution.start(replace(options, seed=seed), folder)
        code = run.show()
        runs.append(run.folder)
        draw_seeds([one.rows() for one in runs], folder / CURVES, options.env, options.stop_at)
        if code:
            break
        complete += 1
    console.print(f"{complete} of {count} seeds are complete: {folder}", soft_wrap=True, markup=False)
    console.print(f"  curves   {folder and folder / CURVES}", soft_wrap=True, markup=False)
    if (missing := count - len(runs)) > 0:
        console.print(f"The other seeds: the same command with --seed {first + len(runs)} --seeds {missing}")
    return code
