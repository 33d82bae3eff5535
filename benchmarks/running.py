"""HalfCheetah-v5 learns to run, in `mujoco::` and in gymnasium's AsyncVectorEnv: the same search, returns over minutes.

    python -m benchmarks.running    # writes docs/assets/running.svg and prints a table

Both environments give the same values for the same seeds, so a generation is the same in both; its time differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks import report
from benchmarks.harness import foreign_load
from vecrl.cores import num_cores
from vecrl.policy import Policy, PopulationSearch, RunningNorm
from vecrl.vector import make_vector_env

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "assets" / "running.svg"
NAME = "HalfCheetah-v5"
MEMBERS, STEPS, OBS, ACTIONS = 64, 1000, 17, 6  # an episode always has 1,000 steps
Curve = list[tuple[float, float]]
"""Seconds and mean returns of the populations of all generations."""


def gymnasium_async() -> Any:
    """Returns gymnasium's environments, each in a process."""
    make = partial(gymnasium.make, NAME)
    mode = gymnasium.vector.AutoresetMode.DISABLED
    return gymnasium.vector.AsyncVectorEnv([make] * MEMBERS, autoreset_mode=mode)


def vecrl_mujoco() -> Any:
    """Returns the same environments in this process."""
    return make_vector_env(f"mujoco::{NAME}", num_envs=MEMBERS)


def learn(make: Callable[[], Any], seconds: float) -> Curve:
    """Returns the curve of a search that ends after the first generation past `seconds`, from the end of `make` on."""
    with contextlib.closing(make()) as env:
        curve, start = [], time.perf_counter()
        for mean in _generations(env):
            taken = time.perf_counter() - start
            curve.append((taken, mean))
            print(f"{make.__name__}: generation {len(curve)}, {taken:.0f} s, mean return {mean:,.0f}", flush=True)
            if taken >= seconds:
                break
    return curve


def _generations(env: Any) -> Iterator[float]:
    """Yields the mean return of each generation."""
    policy, norm = Policy(f"Linear({OBS}, {ACTIONS})"), RunningNorm(shape=OBS, clip=10.0)
    search = PopulationSearch(torch.zeros(policy.parameter_length), MEMBERS, stdev=0.05, max_speed=0.3, seed=0)
    low, high = env.single_action_space.low, env.single_action_space.high
    while True:
        policy.set_parameters(search.ask())
        obs, _ = env.reset(seed=search.generation * MEMBERS)
        returns = torch.zeros(MEMBERS)
        seen = []
        for _ in range(STEPS):
            features = torch.as_tensor(obs, dtype=torch.float32)
            seen.append(features)
            outputs = policy(norm.normalize(features)) if search.generation else policy(features)
            obs, reward, *_ = env.step(np.clip(outputs.numpy(), low, high))
            returns += torch.as_tensor(reward)
        norm.update(torch.cat(seen))
        search.tell(returns)
        yield float(returns.mean())


def draw(curves: dict[str, Curve]) -> None:
    """Writes the figure."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained")
    for label, curve in curves.items():
        seconds, means = np.array(curve).T
        axes.plot(
            seconds / 60, means, label=f"{label} ({len(curve)} generations)", marker="." if len(curve) < 40 else ""
        )
    title = f"{NAME}, {MEMBERS} members, {num_cores()} cores"
    axes.set(xlabel="minutes", ylabel="mean return of the population", title=title)
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    figure.savefig(FIGURE, metadata={"Date": None})


def main(argv: Sequence[str] | None = None) -> None:
    """Runs both searches one after the other, draws them, and prints what each reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.running", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="of each search")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(report.machine(), "load average", os.getloadavg(), f"cores busy now {foreign_load():.1f}", flush=True)
    ways = {"vecrl, mujoco::": vecrl_mujoco, "gymnasium, AsyncVectorEnv": gymnasium_async}
    curves = {label: learn(make, options.minutes * 60) for label, make in ways.items()}
    common = min(map(len, curves.values())) - 1
    if len({round(curve[common][1], 3) for curve in curves.values()}) > 1:
        raise RuntimeError(f"Expected the same return in generation {common + 1} of both, got another.")
    draw(curves)
    for label, curve in curves.items():
        print(f"{label}: {len(curve)} generations, mean return {curve[-1][1]:,.0f}")
        print(f"    generation {common + 1} after {curve[common][0]:.0f} s")


if __name__ == "__main__":
    main()
