"""Times whole trainings: the same algorithm, network, seeds and numbers on the environments of several libraries.

    .venv-peers/bin/python -m benchmarks.training            # measures what is missing, and writes the page
    .venv-peers/bin/python -m benchmarks.training --draw     # measures nothing

Each run is a process of its own, on one thread. The ways of a row take turns, seed by seed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.environments import python_of
from benchmarks.trainings.log import Log

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "results" / "training.json"
PAGE = ROOT / "docs" / "benchmarks-training.md"
FIGURE = ROOT / "docs" / "assets" / "time-to-train.svg"
Run = dict[str, Any]
"""`seconds` and, of these, `stepping`; `curve`: steps, seconds and mean return after each update; `busy`: the load of
the machine before the run."""


@dataclass(frozen=True, slots=True)
class Row:
    """A training: its program in `benchmarks.trainings`, the arguments of that, and the ways; the first is the peer.

    `environment` is one of `benchmarks.environments`; "main" is the one of this process.
    """

    name: str
    title: str
    program: str
    options: dict[str, Any]
    ways: tuple[str, ...]
    environment: str = "main"


_PPO = (
    *("gymnasium Sync", "gymnasium Async", "vecrl, import changed", "vecrl, mujoco::", "vecrl, RolloutWorkers"),
    "vecrl, rollouts of a worker",
)
_SB3 = ("SB3 DummyVecEnv", "SB3 SubprocVecEnv", "vecrl, import changed", "vecrl, mujoco::")
_TIANSHOU = (
    *("Tianshou DummyVectorEnv", "Tianshou SubprocVectorEnv"),
    *("vecrl DummyVectorEnv", "vecrl SubprocVectorEnv, 2 workers"),
)
_TORCHRL = (
    *("TorchRL ParallelEnv", "TorchRL SerialEnv", "vecrl ParallelEnv", "vecrl SerialEnv"),
    "vecrl, RolloutWorkers",
)
_CHEETAH = "HalfCheetah-v5"
ROWS = (
    Row(
        "ppo-cartpole-4",
        "PPO in PyTorch, CartPole-v1, 4 environments, 51,200 steps",
        "ppo",
        {"env": "CartPole-v1", "envs": 4, "total": 51_200, "batch": 512, "epochs": 4, "minibatches": 4},
        (*_PPO[:3], *_PPO[4:]),
    ),
    Row(
        "ppo-halfcheetah-1",
        "PPO in PyTorch, HalfCheetah-v5, 1 environment, 20,480 steps",
        "ppo",
        {"env": _CHEETAH, "envs": 1, "total": 20_480},
        _PPO,
    ),
    Row(
        "ppo-halfcheetah-8",
        "PPO in PyTorch, HalfCheetah-v5, 8 environments, 40,960 steps",
        "ppo",
        {"env": _CHEETAH, "envs": 8, "total": 40_960},
        _PPO,
    ),
    Row(
        "sb3-ppo-8",
        "PPO of Stable-Baselines3, HalfCheetah-v5, 8 environments, 40,960 steps",
        "sb3",
        {"env": _CHEETAH, "envs": 8, "total": 40_960, "algorithm": "PPO", "n_steps": 256},
        _SB3,
    ),
    Row(
        "sb3-sac-8",
        "SAC of Stable-Baselines3, HalfCheetah-v5, 8 environments, 9,600 steps, an update for each step of all",
        "sb3",
        {"env": _CHEETAH, "envs": 8, "total": 9_600, "algorithm": "SAC", "learning_starts": 800},
        _SB3,
    ),
    Row(
        "tianshou-dqn",
        "DQN of Tianshou, CartPole-v1, 10 environments, 10,000 steps and 5 tests",
        "tianshou",
        {"env": "CartPole-v1", "envs": 10, "total": 10_000, "epochs": 5},
        _TIANSHOU,
    ),
    Row(
        "tianshou-sac",
        "SAC of Tianshou, HalfCheetah-v5, 8 environments, 4,800 steps, an update for each step of all",
        "tianshou",
        {"env": _CHEETAH, "envs": 8, "total": 4_800, "epochs": 1, "tests": 1, "updates": 0.125},
        _TIANSHOU,
    ),
    Row(
        "torchrl-ppo-8",
        "PPO of TorchRL's parts, HalfCheetah-v5, 8 environments, 16,384 frames",
        "torchrl",
        {"env": _CHEETAH, "envs": 8, "total": 16_384},
        _TORCHRL,
    ),
    Row(
        "torchrl-pong-8",
        "PPO of TorchRL's parts, frames of Pong, 8 environments, 4,096 frames",
        "pong",
        {"env": "ALE/Pong-v5", "envs": 8, "total": 4_096},
        _TORCHRL,
        "simulators",
    ),
    Row(
        "evotorch-cartpole",
        "PGPE of EvoTorch, CartPole-v1, 200 members, 15 generations",
        "evotorch",
        {"env": "CartPole-v1", "popsize": 200, "generations": 15},
        ("EvoTorch VecGymNE", "vecrl, environments", "vecrl, PopulationEvaluator"),
    ),
    Row(
        "mappo-vmas",
        "MAPPO of TorchRL's parts, balance of VMAS, 64 rows, 25,600 frames",
        "mappo",
        {"scenario": "balance", "rows": 64, "total": 25_600, "steps": 50},
        ("TorchRL VmasEnv", "vecrl VmasEnv"),
        "simulators",
    ),
    Row(
        "ppo-pixels",
        "PPO in PyTorch, Breakout in frames of 84 x 84, 8 environments, 8,192 steps",
        "pixels",
        {"game": "breakout", "envs": 8, "total": 8_192},
        ("ale-py AtariVectorEnv", "EnvPool", "vecrl, atari-vector::", "vecrl, envpool::"),
        "simulators",
    ),
)


def main() -> None:
    """Measures, unless `--draw` is given, and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows with this in their names")
    parser.add_argument("--run", nargs=3, metavar=("ROW", "WAY", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        _train(*arguments.run)
        return
    if not arguments.draw:
        measure(arguments.seeds, arguments.only)
    data = json.loads(DATA.read_text())
    draw(data["runs"])
    PAGE.write_text(page(data))


def _train(name: str, way: str, seed: str) -> None:
    """Runs one training in this process, and prints its result as the last line."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    row = next(row for row in ROWS if row.name == name)
    log = Log()
    importlib.import_module(f"benchmarks.trainings.{row.program}").train(way, int(seed), log, **row.options)
    print(json.dumps(log.result()), flush=True)


def measure(seeds: int, only: str) -> None:
    """Runs the trainings that have no result yet. Each result is written as it comes."""
    data: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {"runs": {}}
    DATA.parent.mkdir(exist_ok=True)
    for seed, row, way in _missing(data["runs"], seeds, only):
        busy = os.getloadavg()[0]
        command = [str(python_of(row.environment)), "-m", "benchmarks.training", "--run", row.name, way, str(seed)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        run = json.loads(done.stdout.splitlines()[-1]) | {"busy": busy}
        data["runs"].setdefault(f"{row.name} / {way}", {})[str(seed)] = run
        data["machine"], data["when"] = report.machine(), datetime.now(UTC).date().isoformat()
        DATA.write_text(json.dumps(data))
        print(f"{row.name} / {way} / seed {seed}: {run['seconds']:.1f} s, return {run['curve'][-1][2]:.1f}", flush=True)


def _missing(runs: dict[str, dict[str, Run]], seeds: int, only: str) -> Iterator[tuple[int, Row, str]]:
    for seed in range(1, seeds + 1):
        for row in ROWS:
            for way in row.ways:
                if only in row.name and str(seed) not in runs.get(f"{row.name} / {way}", {}):
                    yield seed, row, way


def draw(runs: dict[str, dict[str, Run]]) -> None:
    """Draws the returns over seconds, both as means over the seeds after the same number of steps."""
    import matplotlib.pyplot as plt

    columns = 2
    figure, axes = plt.subplots(-(-len(ROWS) // columns), columns, figsize=(11, 2.6 * len(ROWS) / columns + 1))
    for row, plot in zip(ROWS, axes.flat, strict=False):
        for way in row.ways:
            if made := runs.get(f"{row.name} / {way}", {}):
                plot.plot(*_means(made), label=way, linewidth=1.2, linestyle="-" if way.startswith("vecrl") else "--")
        plot.set_title(row.title, fontsize=7)
        plot.tick_params(labelsize=7)
        plot.grid(alpha=0.3)
        plot.legend(fontsize=6)
    for plot in axes[-1]:
        plot.set_xlabel("seconds of training", fontsize=8)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "vecrl"
    figure.savefig(FIGURE, metadata={"Date": None})
    plt.close(figure)


def _means(made: dict[str, Run]) -> tuple[list[float], list[float]]:
    """Returns the mean seconds and returns after each number of steps that all seeds have."""
    curves = [{steps: (seconds, value) for steps, seconds, value in run["curve"]} for run in made.values()]
    common = sorted(set.intersection(*map(set, curves)))
    return tuple([statistics.mean(curve[steps][i] for curve in curves) for steps in common] for i in range(2))


def page(data: dict[str, Any]) -> str:
    """Returns the page."""
    text = (PAGE.read_text() if PAGE.exists() else _START).partition("<!-- results -->")[0]
    tables = "\n\n".join(_table(row, data["runs"]) for row in ROWS)
    count = min(len(runs) for runs in data["runs"].values())
    loads = [run["busy"] for runs in data["runs"].values() for run in runs.values()]
    machine = data["machine"].rstrip(".")
    return f"""{text}<!-- results -->

Made by `python -m benchmarks.training` on {data["when"]}, {machine}; {count} seeds. The load average before a run was
{statistics.median(loads):.1f} in the median, at most {max(loads):.1f}.

![Returns over the seconds of training, for each row and way](assets/time-to-train.svg)

{tables}
"""


def _table(row: Row, runs: dict[str, dict[str, Run]]) -> str:
    of_ways = {way: runs.get(f"{row.name} / {way}", {}) for way in row.ways}
    peer = of_ways[row.ways[0]]
    lines = [f"## {row.name}\n\n{row.title}.\n", "| way | seconds | times as fast | stepping | last return |"]
    lines.append("|---|---|---|---|---|")
    for way, made in of_ways.items():
        if not made:
            continue
        seconds = [run["seconds"] for run in made.values()]
        ratios = [peer[seed]["seconds"] / run["seconds"] for seed, run in made.items() if seed in peer]
        shares = [run["stepping"] / run["seconds"] for run in made.values()]
        lines.append(
            f"| {way} | {statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f}) | "
            f"{statistics.median(ratios):.2f} | {statistics.median(shares):.0%} | {_returns(made, peer)} |"
        )
    return "\n".join(lines)


def _returns(made: dict[str, Run], peer: dict[str, Run]) -> str:
    """Returns the last returns of all seeds, and whether all curves are equal to those of the peer, digit by digit."""
    last: Sequence[float] = [run["curve"][-1][2] for run in made.values()]
    equal = made is not peer and all(
        [point[::2] for point in run["curve"]] == [point[::2] for point in peer[seed]["curve"]]
        for seed, run in made.items()
        if seed in peer
    )
    return f"{statistics.mean(last):,.0f} ({min(last):,.0f} to {max(last):,.0f})" + (", equal curves" if equal else "")


_START = """# Time to train

What users wait for is the training. In each row, the same algorithm learns with the same network, seeds and numbers,
on the environments of another library and on vecrl's. "Times as fast" is the time of the first way divided by that of
the row with the same seed, as the median over the seeds. "Stepping" is the share of the time within the steps of the
environments; with `RolloutWorkers` and collectors, the policy is part of it. "Equal curves" means that all returns of
all updates are equal to those of the first way, to the last digit.

**Differences.** With `RolloutWorkers`, copies of the agent draw the actions in the workers, so the numbers are others.
Returns of SB3 on `mujoco::` differ in the seventh digit: `VecMonitor` adds rewards in float32. Native CartPole, which
EvoTorch's rows use, has start states of its own.

"""

if __name__ == "__main__":
    main()
