"""Measures throughput and start time over the numbers of environments and workers, fits a model, and plots both.

    python -m benchmarks.scale            # measures, and writes docs/scale.md and its figures
    python -m benchmarks.scale --draw     # uses the latest measurements

The model of the time of a step of n environments over w workers on c cores is

    t(n, w) = a + d·w + n·(b + (e + s) / min(w, c))

where s is the time of the environment itself. a, b and d are times in the caller, e is one in the worker. These four
are fitted to the measurements, to predict the times on a machine with more cores.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypedDict

import gymnasium
import numpy as np

from benchmarks.actions import discrete
from benchmarks.busy_env import burners
from vecrl.vector import RolloutWorkers, VectorEnv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "results" / "scale.json"
PAGE = ROOT / "docs" / "scale.md"
FIGURES_FOLDER = ROOT / "docs" / "assets"
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 10_000)
WORKERS = (1, 2, 4, 8)
STARTED = (1, 2, 4, 8, 16, 32, 64)
CORES = 2
TURNS = 3
Model: TypeAlias = dict[str, float]
"""The constants a, b, d and e in seconds, and the relative errors of the fit."""


class Data(TypedDict):
    """All measurements, as they are stored: lists of numbers, the last of which is the time in seconds."""

    when: str
    load: tuple[float, float, float]
    kinds: dict[str, list[list[float]]]
    steps: list[list[float]]
    starts: list[list[float]]


class Work(NamedTuple):
    """A vector environment to time: `run` plays `steps` steps of all its environments."""

    run: Callable[[], object]
    close: Callable[[], object]
    steps: int = 1


def main() -> None:
    """Measures (unless `--draw` is given), then writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    if not parser.parse_args().draw:
        DATA.write_text(json.dumps(measure(), indent=1))
    data = json.loads(DATA.read_text())
    fitted = fit(data["steps"])
    draw_throughput(data)
    draw_model(data, fitted)
    draw_starts(data)
    write(data, fitted)


# -- measuring -------------------------------------------------------------------------------------


def measure() -> Data:
    """Returns all measurements in seconds; each is the median of `TURNS` turns."""
    kinds = {name: [[n, _print_time(name, n, per_step(build, n))] for n in COUNTS] for name, build in KINDS.items()}
    steps = [
        [n, w, _print_time(f"{w} workers", n, per_step(partial(_burning, workers=w), n))]
        for n in (8, 64, 512, 4096)
        for w in WORKERS
    ]
    starts = [[w, _print_time("start", w, _median(partial(_start, w)))] for w in STARTED]
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": os.getloadavg(),
        "kinds": kinds,
        "steps": steps,
        "starts": starts,
    }


def _cartpoles(n: int) -> list[Callable[[], gymnasium.Env]]:
    return [partial(gymnasium.make, "CartPole-v1")] * n


def _stepping(env: VectorEnv, n: int) -> Work:
    env.reset(seed=0)
    actions = discrete(n)[0]
    return Work(partial(env.step, actions), env.close)


def _serial(n: int) -> Work:
    return _stepping(VectorEnv(_cartpoles(n), autoreset_mode="same_step"), n)


def _processes(n: int) -> Work:
    env = VectorEnv(_cartpoles(n), backend="processes", num_workers=min(n, CORES), autoreset_mode="same_step")
    return _stepping(env, n)


def _native(n: int) -> Work:
    import torch

    from vecrl.vector import make_vector_env

    env = make_vector_env("native::CartPole-v1", num_envs=n, empty_info=True)
    env.reset(seed=0)
    return Work(partial(env.step, torch.zeros(n, dtype=torch.int64)), env.close)


def _rollouts(n: int) -> Work:
    def still(obs: np.ndarray) -> np.ndarray:
        return np.zeros(len(obs), np.int64)

    workers = RolloutWorkers(_cartpoles(n), still, num_workers=min(n, CORES))
    workers.reset(seed=0)
    steps = max(1, min(100, 20_000 // n))
    return Work(partial(workers.rollout, steps), workers.close, steps)


def _burning(n: int, workers: int) -> Work:
    return _stepping(VectorEnv(burners(n, 0.0, "floats"), backend="processes", num_workers=workers), n)


KINDS: dict[str, Callable[[int], Work]] = {
    "one process": _serial,
    "2 worker processes": _processes,
    "2 workers, whole rollouts": _rollouts,
    "native, one thread": _native,
}


def per_step(build: Callable[[int], Work], n: int) -> float:
    """Returns the seconds of a step of n environments."""
    work = build(n)
    work.run()
    start = time.perf_counter()
    work.run()
    calls = max(1, int(0.3 / (time.perf_counter() - start)))

    def turn() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            work.run()
        return (time.perf_counter() - start) / calls

    seconds = _median(turn) / work.steps
    work.close()
    return seconds


def _start(workers: int) -> float:
    start = time.perf_counter()
    env = VectorEnv(_cartpoles(workers), backend="processes", num_workers=workers)
    env.reset()
    seconds = time.perf_counter() - start
    env.close()
    return seconds


def _median(turn: Callable[[], float]) -> float:
    return float(np.median([turn() for _ in range(TURNS)]))


def _print_time(name: str, n: int, seconds: float) -> float:
    print(f"{name:28} {n:6,}  {seconds * 1e6:12,.1f} µs", flush=True)
    return seconds


# -- the model -------------------------------------------------------------------------------------


def fit(steps: list[list[float]]) -> Model:
    """Returns a, b, d and e in seconds, all at least 0, by least squares of the relative errors."""
    n, w, t = np.array(steps).T
    terms = np.stack([np.ones_like(n), n, w, n / np.minimum(w, CORES)], 1) / t[:, None]
    saved = list(range(4))
    while True:  # drop terms with a negative coefficient
        results = np.linalg.lstsq(terms[:, saved], np.ones_like(t), rcond=None)[0]
        if (results >= 0).all():
            break
        saved.pop(int(results.argmin()))
    values = dict.fromkeys("abde", 0.0) | {"abde"[i]: float(x) for i, x in zip(saved, results, strict=True)}
    errors = np.abs(terms[:, saved] @ results - 1)
    return values | {"error": float(np.median(errors)), "worst": float(errors.max())}


def predict(model: Model, n: np.ndarray, w: np.ndarray, cores: np.ndarray, s: float) -> np.ndarray:
    """Returns the seconds of a step."""
    return model["a"] + model["d"] * w + n * (model["b"] + (model["e"] + s) / np.minimum(w, cores))


# -- pictures --------------------------------------------------------------------------------------


def _axes(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "vecrl"
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3, which="both")
    return figure, axes


def _store(figure: Figure, axes: Axes, name: str) -> None:
    axes.legend(fontsize=8)
    figure.savefig(FIGURES_FOLDER / f"{name}.svg", metadata={"Date": None})


def draw_throughput(data: Data) -> None:
    """Plots steps per second over the number of environments."""
    figure, axes = _axes("environments", "steps of an environment a second")
    for name, points in data["kinds"].items():
        n, t = np.array(points).T
        axes.plot(n, n / t, "o-", label=f"CartPole, {name}", markersize=4)
    _store(figure, axes, "scale-envs")


def draw_model(data: Data, model: Model) -> None:
    """Plots steps per second over the number of workers, with one core and 32 environments per worker."""
    figure, axes = _axes("workers, each on a core of its own, 32 environments each", "steps of an environment a second")
    w = np.geomspace(1, 1000, 100)
    for color, s in zip(("C0", "C1", "C2"), (1e-5, 1e-4, 1e-3), strict=True):
        axes.plot(
            w, 32 * w / predict(model, 32 * w, w, w, s), "--", color=color, label=f"a step takes {s * 1e6:,.0f} µs"
        )
        axes.plot(w, w / (model["e"] + s), ":", color=color, alpha=0.6, label="the same, whole rollouts in the workers")
    _store(figure, axes, "scale-workers")


def draw_starts(data: Data) -> None:
    """Plots the seconds to start over the number of workers."""
    figure, axes = _axes("worker processes", "seconds until all have reset")
    w, t = np.array(data["starts"]).T
    axes.plot(w, t, "o-", label="CartPole, one environment per worker, fork server running", markersize=4)
    _store(figure, axes, "scale-start")


# -- the page --------------------------------------------------------------------------------------


def write(data: Data, model: Model) -> None:
    """Writes the figures into the page, between its marks."""
    head, _, remaining = PAGE.read_text().partition("<!-- figures -->\n")
    tail = remaining.partition("<!-- end of figures -->")[2]
    PAGE.write_text(f"{head}<!-- figures -->\n{_figures(data, model)}\n<!-- end of figures -->{tail}")


def _figures(data: Data, model: Model) -> str:
    names = list(data["kinds"])
    lines = [
        f"Measured on {data['when']}, {CORES} cores, one thread a process, load average {data['load'][0]:.1f}.",
        "",
    ]
    lines += ["| environments | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row, n in enumerate(COUNTS):
        cells = [f"{n / data['kinds'][name][row][1]:,.0f}" for name in names]
        lines.append(f"| {n:,} | " + " | ".join(cells) + " |")
    lines += ["", "Steps of an environment a second.", ""]
    starts = ", ".join(f"{w} in {t:.2f} s" for w, t in data["starts"])
    lines += [f"Starting worker processes: {starts}.", ""]
    micros = {name: value * 1e6 for name, value in model.items()}
    largest = 1 / (model["b"] + model["d"] / 32)
    lines.append(
        f"Fitted: a = {micros['a']:.0f} µs, b = {micros['b']:.2f} µs an environment and d = {micros['d']:.1f} µs "
        f"a worker in the caller, e = {micros['e']:.2f} µs an environment in its worker. It is off by "
        f"{model['error']:.0%} in the median, {model['worst']:.0%} at worst. However many workers there are, one "
        f"caller makes at most {largest:,.0f} steps a second of environments that come 32 to a worker."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
