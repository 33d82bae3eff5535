"""Times the example of each simulator by `vecrl bench`, and draws steps per second, docs/assets/simulators-speed.svg.

.venv-simulators/bin/python tools/draw_speeds.py   # times what is installed there into .scratch/speeds, and draws
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from vecrl.simulators.registry import find_entry, known_prefixes

ROOT = Path(__file__).parents[1]
SPEEDS = ROOT / ".scratch" / "speeds"
PICTURE = ROOT / "docs" / "assets" / "simulators-speed.svg"
OTHERS = {"gym": "HalfCheetah-v5", "mujoco": "HalfCheetah-v5", "warp": "HalfCheetah-v5", "dmc": "cheetah-run"}
"""Names other than the entries' examples."""
OF_ONE = ("--workers", "2", "--envs", "4", "--envs", "16")
OF_A_BATCH = ("--envs", "64", "--envs", "1024")
COLORS = {"processes": "tab:blue", "serial": "tab:cyan"}
BATCH_COLOR = "tab:orange"


def main() -> None:
    """Times what this environment has and what was not timed yet, and draws all results that there are."""
    SPEEDS.mkdir(parents=True, exist_ok=True)
    for prefix in known_prefixes():
        entry, path = find_entry(f"{prefix}::")[0], SPEEDS / f"{prefix.replace('::', '-')}.json"
        if entry.example is None or path.exists():
            continue
        name = f"{prefix}::{OTHERS.get(prefix, entry.example)}"
        options = OF_A_BATCH if entry.is_batched else OF_ONE
        command = (sys.executable, "-W", "ignore", "-m", "vecrl", "bench", name, *options, "--seconds", "0.5", "--json")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            print(f"{prefix}: not within 300 s")
            continue
        if done.returncode:  # not installed here, mostly
            print(f"{prefix}: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
            continue
        path.write_text(done.stdout[done.stdout.index("{\n") :])  # some libraries print to stdout
        print(f"{prefix}: {fastest(path)['rate']:,.0f} steps/s", flush=True)
    draw({path.stem.replace("brax-old", "brax::old"): fastest(path) for path in SPEEDS.glob("*.json")})


def fastest(path: Path) -> dict[str, Any]:
    """Returns the fastest of the results in a file; of single environments only, if there are such."""
    results = json.loads(path.read_text())["results"]
    single = [result for result in results if result["backend"] in COLORS]
    return max(single or results, key=lambda result: result["rate"])


def draw(results: dict[str, dict[str, Any]]) -> None:
    """Draws a bar for each simulator, the slowest at the bottom."""
    names = sorted(results, key=lambda name: results[name]["rate"])
    rates = [results[name]["rate"] for name in names]
    colors = [COLORS.get(results[name]["backend"], BATCH_COLOR) for name in names]
    figure, plot = plt.subplots(figsize=(9, 0.21 * len(names) + 1))
    plot.barh([f"{name}::" for name in names], rates, color=colors)
    for row, rate in enumerate(rates):
        plot.text(rate * 1.05, row, f"{rate:,.0f}", va="center", fontsize=7)
    plot.set_xscale("log")
    plot.set_xlabel("environment steps per second, the fastest of `vecrl bench`")
    plot.tick_params(labelsize=7)
    plot.margins(y=0.01)
    legend = {"a batch": BATCH_COLOR, "two worker processes": COLORS["processes"], "one process": COLORS["serial"]}
    plot.legend([plt.Rectangle((0, 0), 1, 1, color=color) for color in legend.values()], legend, loc="lower right")
    plot.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "vecrl"
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    for variable, value in (("MUJOCO_GL", "egl"), ("SDL_VIDEODRIVER", "dummy"), ("PYGLET_HEADLESS", "1")):
        os.environ.setdefault(variable, value)
    main()
