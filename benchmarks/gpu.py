"""Steps per second on a GPU: vecrl's batches beside the libraries' own, and beside the CPU.

`python -m benchmarks.gpu` needs `vecrl[brax,gymnax]` and builds of torch and JAX for the GPU.

All turns are in this process, one after another, and are repeated; a time is the median of the repetitions. Each turn
waits for the GPU at its end only.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from vecrl.vector import make_vector_env

Turn = Callable[[int], None]  # takes a number of steps
SECONDS, REPETITIONS = 0.3, 5


def vecrl(name: str, n: int, device: str, **options: Any) -> Turn:
    """Steps with auto-reset; the actions are the same in each step."""
    envs = make_vector_env(name, num_envs=n, device=device, **options)
    envs.reset(seed=0)
    envs.single_action_space.seed(0)
    action = torch.as_tensor(envs.single_action_space.sample(), device=device)
    actions = action.expand(n, *action.shape).contiguous()

    def turn(steps: int) -> None:
        for _ in range(steps):
            envs.step(actions)
        torch.cuda.synchronize()

    return turn


def gymnax(name: str, n: int) -> Turn:
    """gymnax's own step with its auto-reset, jitted."""
    import gymnax
    import jax

    env, params = gymnax.make(name)
    actions = jax.numpy.zeros(n, int)

    @partial(jax.jit, donate_argnums=(0, 1))
    def advance(key: Any, state: Any) -> Any:
        key, sub = jax.random.split(key)
        obs, state, *rest = jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(sub, n), state, actions, params)
        return key, state, (obs, *rest)

    key = jax.random.key(0)
    _, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, n), params)
    return _jax_turn(advance, key, state)


def brax(name: str, n: int) -> Turn:
    """Brax's own training environment with its auto-reset, which returns to the first states, jitted."""
    import jax
    from brax import envs

    env = envs.create(name, batch_size=n)
    actions = jax.numpy.zeros((n, env.action_size))
    step = jax.jit(lambda key, state: (key, (state := env.step(state, actions)), state.obs))
    return _jax_turn(step, None, jax.jit(env.reset)(jax.random.PRNGKey(0)))


def _jax_turn(advance: Any, key: Any, state: Any) -> Turn:
    import jax

    def turn(steps: int) -> None:
        nonlocal key, state
        out = None
        for _ in range(steps):
            key, state, out = advance(key, state)
        jax.block_until_ready(out)

    return turn


def rows(sizes: Sequence[int]) -> Iterator[tuple[str, int, dict[str, Callable[[], Turn]]]]:
    """Yields for each row a label, the number of environments, and the makers of its turns."""
    for n in sizes:
        for name in ("CartPole-v1", "Pendulum-v1"):
            entry = f"native::{name}"
            turns = {
                "vecrl": partial(vecrl, entry, n, "cuda"),
                "vecrl, compiled": partial(vecrl, entry, n, "cuda", compile=True),
                "vecrl, CPU": partial(vecrl, entry, n, "cpu"),
                "gymnax": partial(gymnax, name, n),
            }
            yield entry, n, turns
    for n in sizes:
        entry = "gymnax::CartPole-v1"
        yield entry, n, {"vecrl": partial(vecrl, entry, n, "cuda"), "gymnax": partial(gymnax, "CartPole-v1", n)}
    yield "brax::ant", 4096, {"vecrl": partial(vecrl, "brax::ant", 4096, "cuda"), "Brax": partial(brax, "ant", 4096)}


def times(turns: dict[str, Turn]) -> dict[str, float]:
    """Returns the seconds per step of each turn: the median of several turns, which alternate."""
    counts, found = {}, {name: [] for name in turns}
    for name, turn in turns.items():
        turn(5)
        start = time.perf_counter()
        turn(10)
        counts[name] = max(3, int(10 * SECONDS / (time.perf_counter() - start)))
    for _ in range(REPETITIONS):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn(counts[name])
            found[name].append((time.perf_counter() - start) / counts[name])
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Prints a table, row by row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--sizes", type=int, nargs="+", default=(4096, 65536, 1048576))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| tasks | environments | | microseconds a step | million steps a second |\n|---|---|---|---|---|")
    for label, n, makers in rows(options.sizes):
        if options.only in label:
            turns = {name: make() for name, make in makers.items()}
            for name, seconds in times(turns).items():
                print(f"| {label} | {n:,} | {name} | {1e6 * seconds:,.0f} | {n / seconds / 1e6:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
