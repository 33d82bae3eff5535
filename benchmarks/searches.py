"""Compares the algorithms of `vecrl evolve` on six tasks: the returns that they reach, with defaults and five seeds.

    python -m benchmarks.searches            # measures what is missing, and writes docs/benchmarks-searches.md
    python -m benchmarks.searches --draw     # measures nothing

Every run is the command that a user would call. Returns do not depend on the machine's load; times are not compared.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib.pyplot as plt

from vecrl.policy.search_algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "results" / "searches.json"
PAGE = ROOT / "docs" / "benchmarks-searches.md"
FIGURE = ROOT / "docs" / "assets" / "searches.svg"
SEEDS = 5
GENERATIONS = 50
TASKS = {  # with what a random policy and a very good one get, between which returns are compared
    "native::CartPole-v1": (20.0, 500.0),
    "native::Acrobot-v1": (-500.0, -70.0),
    "native::Pendulum-v1": (-1250.0, -150.0),
    "native::MountainCarContinuous-v0": (-33.0, 95.0),
    "mujoco::Reacher-v5": (-43.0, -4.0),
    "mujoco::InvertedDoublePendulum-v5": (57.0, 9350.0),
}
Run = dict[str, Any]
"""`final`: the mean return of the best policy in 100 test episodes. `centers`: the return of the center in training,
one number per generation."""


def main() -> None:
    """Measures, unless `--draw` is given, and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.searches", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--processes", type=int, default=2, help="searches at the same time")
    arguments = parser.parse_args()
    if not arguments.draw:
        measure(arguments.processes)
    data = json.loads(DATA.read_text())
    draw(data)
    PAGE.write_text(page(data))


def measure(processes: int) -> None:
    """Runs the searches that have no result yet. Each result is written as it comes."""
    data: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {"runs": {}}
    DATA.parent.mkdir(exist_ok=True)
    missing = [(task, name) for task in TASKS for name in ALGORITHMS if f"{task} {name}" not in data["runs"]]
    with ThreadPoolExecutor(processes) as pool:
        for done, ((task, name), runs) in enumerate(zip(missing, pool.map(search, missing), strict=True), 1):
            data["runs"][f"{task} {name}"] = runs
            data["when"] = datetime.now(UTC).date().isoformat()
            DATA.write_text(json.dumps(data))
            finals = ", ".join(f"{run['final']:.0f}" for run in runs)
            print(f"{done}/{len(missing)} {task} {name}: {finals}", flush=True)


def search(what: tuple[str, str]) -> list[Run]:
    """Runs the searches of a task by an algorithm, one for each seed."""
    task, algorithm = what
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vecrl", "evolve", task, "--algorithm", algorithm, "--seeds", str(SEEDS)]
        options = ["--seed", "1", "--generations", str(GENERATIONS), "--test-every", str(GENERATIONS), "--no-video"]
        subprocess.run([*command, *options, "--out", folder], check=True, capture_output=True)
        return [_read(path.parent) for path in sorted(Path(folder).glob("*/*/metrics.csv"))]


def _read(folder: Path) -> Run:
    with (folder / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    return {"final": float(lines[-1]["test"]), "centers": [float(line["center"]) for line in lines]}


def share(task: str, value: float) -> float:
    """Returns where a return is between those of a random policy (0) and of a very good one (1)."""
    low, high = TASKS[task]
    return (value - low) / (high - low)


def draw(data: dict[str, Any]) -> None:
    """Draws the return of the center in training: the mean over the seeds, and over five generations."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for plot, task in zip(axes.flat, TASKS, strict=True):
        for name in ALGORITHMS:
            centers = [run["centers"] for run in data["runs"][f"{task} {name}"]]
            means = [statistics.mean(values) for values in zip(*centers, strict=True)]
            smooth = [statistics.mean(means[max(0, i - 4) : i + 1]) for i in range(len(means))]
            plot.plot(range(1, len(smooth) + 1), smooth, label=name)
        plot.set_title(task, fontsize=10)
        plot.grid(alpha=0.3)
        plot.set_xlabel("generation")
    axes[0, 0].set_ylabel("return of the center")
    axes[1, 0].set_ylabel("return of the center")
    axes[0, 0].legend()
    plt.rcParams["svg.hashsalt"] = "vecrl"
    figure.savefig(FIGURE, metadata={"Date": None})
    plt.close(figure)


def page(data: dict[str, Any]) -> str:
    """Returns the page."""
    names = list(ALGORITHMS)
    rows = [_row(task, [_finals(data, task, name) for name in names]) for task in TASKS]
    shares = [[share(task, statistics.mean(_finals(data, task, name))) for task in TASKS] for name in names]
    means = " | ".join(f"{statistics.mean(values):.2f}" for values in shares)
    worst = " | ".join(f"{min(values):.2f}" for values in shares)
    text = (PAGE.read_text() if PAGE.exists() else _START).partition("<!-- results -->")
    return f"""{text[0]}<!-- results -->

Made by `python -m benchmarks.searches` on {data["when"]}: {GENERATIONS} generations, seeds 1 to {SEEDS}.

| task | {" | ".join(f"`{name}`" for name in names)} |
|---|{"---|" * len(names)}
{chr(10).join(rows)}
| mean share | {means} |
| lowest share | {worst} |

![The return of the center over generations, for each task and algorithm](assets/searches.svg)
"""


def _finals(data: dict[str, Any], task: str, name: str) -> list[float]:
    return [run["final"] for run in data["runs"][f"{task} {name}"]]


def _row(task: str, finals: Sequence[Sequence[float]]) -> str:
    best = max(statistics.mean(values) for values in finals)
    cells = [f"{statistics.mean(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})" for values in finals]
    marked = [
        f"**{cell}**" if statistics.mean(values) == best else cell for cell, values in zip(cells, finals, strict=True)
    ]
    return f"| `{task}` | {' | '.join(marked)} |"


_START = """# Searches

The five algorithms of `vecrl evolve` on six tasks, all with their defaults: 64 members, the default network, 0.3 as the
first deviation. A cell has the mean return of the best policy in 100 test episodes, as the mean over the seeds and, in
brackets, from the lowest seed to the highest. A share is where this mean is between the return of a random policy (0)
and that of a very good one (1).

`cem` is the default: its mean share is the highest, its lowest is as high as that of `pgpe`, and it solves CartPole in
five generations (`snes` in six, `pgpe` in seven, `cma-es` in eight, `pgpe-clipup` in seventeen). `pgpe` is as good
except on MountainCarContinuous, where it found nothing with two of five seeds. `snes` and `cma-es` end with the
policies of the least spread there and on Reacher. The steps of `pgpe-clipup` have a limited length (`--max-speed`),
which is slow at first, and steady on tasks that take longer: on HalfCheetah-v5 with a linear policy (`--stdev 0.05`, 30
generations, two seeds) the tests were 1,925 and 2,464 (`pgpe-clipup --max-speed 0.3`), 2,159 and 2,214 (`cem`), 2,059
and 2,739 (`snes`), 1,874 and 3,513 (`pgpe`), 1,119 and 3,379 (`cma-es`), which is no order.

"""

if __name__ == "__main__":
    main()
