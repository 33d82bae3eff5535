"""Draws the bars of the README, docs/assets/bars.svg, from the tables of docs/benchmarks.md.

python tools/draw_bars.py
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
# workload: the title of its bars, and the implementations beside vecrl
CHOSEN = {
    "burn-floats-64-0us": (
        "64 environments over 2 processes, empty steps",
        ("floor", "gymnasium Async", "Tianshou Shmem", "SB3 Subproc", "PufferLib"),
    ),
    "serial-cartpole-64": (
        "64 × CartPole-v1 in one process",
        ("bare loop", "EvoTorch Sync", "gymnasium Sync", "SB3 Dummy", "PufferLib Serial"),
    ),
    "mujoco-halfcheetah-64": (
        "64 × HalfCheetah-v5, 2 threads or processes",
        ("mujoco.rollout", "EnvPool async", "gymnasium Sync", "gymnasium Async"),
    ),
    "serialenv-64": ("64 × CartPole-v1 as TensorDicts", ("gymnasium Sync", "TorchRL")),
}
OURS, LOOP, OTHER = "#00796b", "#90a4ae", "#cfd8dc"
LOOPS = {"floor": "by hand, pipes", "bare loop": "by hand, a loop", "mujoco.rollout": "mujoco.rollout"}
"""The implementations that are written by hand for this work, and their labels."""


def times_of(page: str, workload: str) -> dict[str, float]:
    """Returns the median time in microseconds of each implementation of a workload."""
    section = page.split(f"\n### {workload}\n", 1)[1].split("\n### ", 1)[0]
    rows = re.findall(r"^\| ([^|]+?) \| ([\d,.]+) \|", section, re.MULTILINE)
    return {name: float(time.replace(",", "")) for name, time in rows}


def draw(path: Path) -> None:
    page = (DOCS / "benchmarks.md").read_text()
    sizes = [1 + len(others) for _, others in CHOSEN.values()]
    figure = Figure(figsize=(8.6, 0.3 * sum(sizes) + 1.2), layout="constrained")
    parts = figure.subplots(len(CHOSEN), height_ratios=sizes, sharex=True)
    for axes, (workload, (title, others)) in zip(parts, CHOSEN.items(), strict=True):
        times = times_of(page, workload)
        names = ["vecrl", *others]
        ratios = [times[name] / times["vecrl"] for name in names]
        colors = [OURS if name == "vecrl" else LOOP if name in LOOPS else OTHER for name in names]
        labels = [LOOPS.get(name, name) for name in names]
        bars = axes.barh(labels, ratios, color=colors, left=0)
        axes.bar_label(bars, [f"{ratio:.3g} ×" for ratio in ratios], padding=3, fontsize=9)
        axes.set_title(title, loc="left", fontsize=10)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(0.5, 150)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(length=0, labelsize=9)
    parts[-1].set_xticks([])
    parts[-1].set_xticks([], minor=True)
    parts[-1].set_xlabel("time of a step, relative to vecrl (logarithmic; shorter is faster)")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(DOCS / "assets" / "bars.svg")
