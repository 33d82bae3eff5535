"""`vecrl bench`: times backends, numbers of workers and of environments, and prints the fastest call to copy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
import typer
from rich.table import Table

from ..engine.backends.registry import backend_entry
from ..engine.space_layout import Tree
from ..engine.trees import map_tree
from ..policy.population import creation_errors
from ..simulators.faster import faster_name
from ..simulators.registry import BARE, find_entry
from ..vector.factory import make_vector_env
from ..vector.vector_env import EnvFn, VectorEnv
from .console import INTERRUPTED, console, print_json, status

AnyVectorEnv = gymnasium.vector.VectorEnv[Tree, Tree, np.ndarray]
NUM_ACTION_BATCHES = 64  # batches of actions, sampled before the measurement
WARM_UP_FRACTION = 0.2  # of the duration of each measurement
BATCH_SIZES = [1, 64, 1024, 4096]
GROWTH = 4  # the factor between sizes while the largest one is the fastest
LEAST_GAIN = 1.05  # of the rate, for the next size
LARGEST_BATCH, LARGEST_POOL = 2**20, 2**10  # environments


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    backend: str
    workers: int
    num_envs: int
    rate: float  # environment steps per second
    call: str


class Bench:
    """One call of the command.

    Args:
        env: the environment's name.
        kwargs: keyword arguments of the environment.
        backends, workers, envs: values to try for Python environments; empty lists try the defaults. For a batched
            simulator, `envs` are batch sizes. Without `envs`, larger sizes are tried while the largest is the fastest.
        seconds: duration of each measurement.
    """

    def __init__(
        self,
        env: str,
        kwargs: dict[str, Any],
        backends: Sequence[str],
        workers: Sequence[int],
        envs: Sequence[int],
        seconds: float,
        device: str | None,
        threads: int,
    ):
        torch.set_num_threads(threads)
        self.env, self.kwargs, self.seconds, self.device = env, kwargs, seconds, device
        self.backends, self.workers, self.envs = backends, workers, envs

    def show(self, as_json: bool = False) -> None:
        """Measures and prints the table, or JSON; after an interrupt, the results so far."""
        results: list[Result] = []
        interrupted = False
        try:
            with status("timing") as line:
                for result in self._results():
                    results.append(result)
                    line.update(f"{result.backend}, {result.workers} workers, {result.num_envs} environments")
        except KeyboardInterrupt:
            interrupted = True
        if results:
            self._print(results)
        if as_json:
            print_json({"env": self.env, "results": [asdict(result) for result in results]})
        if interrupted:
            console.print("[yellow]Interrupted[/]; these are the results so far.")
            raise typer.Exit(INTERRUPTED)

    def _results(self) -> Iterator[Result]:
        if find_entry(self.env)[0].is_batched:
            yield from self._batches(self.env, self.envs or BATCH_SIZES)
            return
        yield from self._pools()
        if (name := faster_name(self.env)) is not None:
            yield from self._batches(name, self.envs or [1, 8, 64])

    def _pools(self) -> Iterator[Result]:
        cores = os.cpu_count() or 1
        entry, name = find_entry(self.env)
        assert entry.env_fn is not None
        make = entry.env_fn(name, **self.kwargs)
        for backend in self.backends:
            runs_inline = backend_entry(backend).runs_inline
            counts = [1] if runs_inline else self.workers or sorted({1, max(1, cores // 2), cores})
            for workers in counts:

                def measure(size: int, backend: str = backend, workers: int = workers) -> Result:
                    return self._time_pool(make, backend, workers, size)

                yield from self._growing(self.envs or [1, 4, 16], LARGEST_POOL // workers, measure)

    def _time_pool(self, make: EnvFn, backend: str, workers: int, envs_per_worker: int) -> Result:
        num_envs = envs_per_worker * workers
        runs_inline = backend_entry(backend).runs_inline
        call = self._call(num_envs, f"backend={backend!r}" + ("" if runs_inline else f", num_workers={workers}"))
        options: dict[str, Any] = {"backend": backend, "num_workers": workers, "empty_info": True}
        with VectorEnv([make] * num_envs, autoreset_mode="same_step", **options) as env:
            return Result(backend, workers, num_envs, self._time(env), call)

    def _growing(self, sizes: Sequence[int], largest: int, measure: Callable[[int], Result]) -> Iterator[Result]:
        """Yields the results for these sizes and then, if the user gave none, for larger ones while they are faster."""
        rates = [0.0]
        for size in sizes:
            rates.append((result := measure(size)).rate)
            yield result
        size = sizes[-1]
        while not self.envs and rates[-1] >= LEAST_GAIN * max(rates[:-1]) and (size := size * GROWTH) <= largest:
            rates.append((result := measure(size)).rate)
            yield result

    def _batches(self, name: str, sizes: Sequence[int]) -> Iterator[Result]:
        yield from self._growing(sizes, LARGEST_BATCH, partial(self._time_batch, name))

    def _time_batch(self, name: str, num_envs: int) -> Result:
        kwargs: dict[str, Any] = self.kwargs | ({} if self.device is None else {"device": self.device})
        kwargs_text = "".join(f", {key}={value!r}" for key, value in kwargs.items())
        call = f"make_vector_env({name!r}, num_envs={num_envs}{kwargs_text})"
        with creation_errors(name, kwargs):
            env = make_vector_env(name, num_envs=num_envs, empty_info=True, **kwargs)
        try:
            label = self.device or ("batched" if name == self.env else name)
            return Result(label, 1, num_envs, self._time(env.env, tensors=True), call)
        finally:
            env.close()

    def _call(self, num_envs: int, backend_options: str) -> str:
        """Returns the call that makes these environments, as a user types it."""
        entry, name = find_entry(self.env)
        kwargs_text = "".join(f", {key}={value!r}" for key, value in self.kwargs.items())
        if entry.prefix != BARE:
            return f"make_vector_env({self.env!r}, num_envs={num_envs}, {backend_options}{kwargs_text})"
        return f"VectorEnv([lambda: gymnasium.make({name!r}{kwargs_text})] * {num_envs}, {backend_options})"

    def _time(self, env: AnyVectorEnv, tensors: bool = False) -> float:
        """Returns environment steps per second."""
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(NUM_ACTION_BATCHES)]
        if tensors:
            actions = [map_tree(partial(torch.as_tensor, device=self.device), batch) for batch in actions]
        env.reset(seed=0)
        _run(env, actions, self.seconds * WARM_UP_FRACTION)
        return env.num_envs * _run(env, actions, self.seconds)

    def _print(self, results: Sequence[Result]) -> None:
        fastest = max(results, key=lambda result: result.rate)
        table = Table("backend", title=f"{self.env}, same-step auto-reset, random actions")
        for name in ("workers", "environments", "steps/s", "µs per batch step"):
            table.add_column(name, justify="right")
        for result in results:
            numbers = str(result.workers), str(result.num_envs), f"{result.rate:,.0f}"
            style = "bold green" if result is fastest else None
            table.add_row(result.backend, *numbers, f"{1e6 * result.num_envs / result.rate:,.1f}", style=style)
        console.print(table)
        console.print("The fastest:")
        console.print(f"  {fastest.call}", markup=False, soft_wrap=True)


def _run(env: AnyVectorEnv, actions: Sequence[Tree], seconds: float) -> float:
    """Returns batch steps per second."""
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or not steps:
        for batch in actions[steps % NUM_ACTION_BATCHES :][:8]:
            env.step(batch)
            steps += 1
    _synchronize(env)
    return steps / (time.perf_counter() - start)


def _synchronize(env: AnyVectorEnv) -> None:
    device = getattr(env, "device", None)
    if device is not None and torch.device(device).type == "cuda":
        torch.cuda.synchronize()
