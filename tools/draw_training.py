"""Runs the programs of docs/training.md, and draws their learning curves: docs/assets/training.svg.

.venv-peers/bin/python tools/draw_training.py  # needs the libraries of all programs, and matplotlib
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINE = re.compile(r"^([\d.]+) s  return ([\d.]+)$", re.MULTILINE)
COLORS = ("#00796b", "#f57c00", "#5e35b1", "#c62828", "#1976d2")


def programs(page: str) -> dict[str, str]:
    """Returns the block of Python of each section that has one, by the title of the section."""
    found: dict[str, str] = {}
    for section in page.split("\n## ")[1:]:
        if block := re.search(r"```python\n(.*?)```", section, re.DOTALL):
            found[section.partition("\n")[0]] = block[1]
    return found


def run(program: str, interpreter: str) -> list[tuple[float, float]]:
    """Runs a program in its own process, and returns the seconds and the mean returns that it prints."""
    done = subprocess.run([interpreter, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return [(float(seconds), float(value)) for seconds, value in LINE.findall(done.stdout)]


def draw(curves: dict[str, list[tuple[float, float]]], path: Path) -> None:
    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for (title, points), color in zip(curves.items(), COLORS, strict=True):
        axes.plot(*zip(*points, strict=True), label=title, color=color, linewidth=1.5)
    axes.set_title("CartPole-v1, mean return of an episode", loc="left", fontsize=10)
    axes.set_xlabel("seconds of training, on two shared cores")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 520)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    interpreter = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    curves: dict[str, list[tuple[float, float]]] = {}
    for title, program in programs((DOCS / "training.md").read_text()).items():
        curves[title] = run(program, interpreter)
        first = next((seconds for seconds, value in curves[title] if value >= 400), None)
        print(f"{title}: 400 after {first} s; at the end (seconds, return) {curves[title][-1]}", flush=True)
    draw(curves, DOCS / "assets" / "training.svg")


if __name__ == "__main__":
    main()
