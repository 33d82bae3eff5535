"""Every worker draws from its own random streams, which a seed makes reproducible."""

import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.fixtures.random_draws import Draws, NoiseInTurns, OwnGenerator, all_noise, cartpole, draw
from vecrl.envs import EnvBase, ParallelEnv
from vecrl.random_streams import RandomStreams, seed_streams
from vecrl.specs import Composite, Unbounded
from vecrl.vector import RolloutWorkers, VectorEnv

RAY = pytest.param("ray", marks=pytest.mark.ray)
BACKENDS = ["serial", "threads", "processes", RAY]


def test_equal_seeds_give_equal_numbers_and_other_seeds_others() -> None:
    samples = []
    for seed in (1, 2, 1, 2**64 - 1):
        seed_streams(seed)
        samples.append(draw() + draw())
    assert samples[0] == samples[2]
    assert len({number for numbers in samples for number in numbers}) == 3 * 6


def test_streams_continue_and_do_not_change_process_generators() -> None:
    seed_streams(5)
    expected_inside = draw() + draw()
    seed_streams(6)
    expected_outside = draw() + draw()
    streams = RandomStreams(5)
    seed_streams(6)
    outside = draw()
    with streams:
        inside = draw()
    outside += draw()
    with suppress(ZeroDivisionError), streams:
        inside += draw()
        raise ZeroDivisionError
    assert inside == expected_inside
    assert outside == expected_outside


def test_streams_can_be_nested() -> None:
    inner, outer = RandomStreams(1), RandomStreams(2)
    with outer:
        first = draw()
        with inner:
            draw()
        second = draw()
    seed_streams(2)
    assert [first, second] == [draw(), draw()]


def _observed(**options: Any) -> list[float]:
    with VectorEnv([Draws] * 2, num_workers=2, **options) as envs:
        return envs.reset()[0].ravel().tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "serial"},
        {"backend": "threads"},
        {"backend": "processes"},
        {"backend": "processes", "start_method": "spawn"},
        pytest.param({"backend": "ray"}, marks=pytest.mark.ray),
    ],
    ids=str,
)
def test_no_two_workers_nor_pools_draw_equal_numbers(options: Any) -> None:
    samples = _observed(**options) + _observed(**options)
    assert len(set(samples)) == len(samples) == 24


@pytest.mark.parametrize("backend", ["processes", RAY])
def test_a_restarted_worker_does_not_repeat_random_numbers(backend: Any) -> None:
    with VectorEnv([Draws] * 2, num_workers=2, backend=backend, on_failure="restart") as envs:
        samples = [envs.reset()[0][0]]
        for _ in range(2):
            envs.step([1, 0])
            samples.append(envs.reset()[0][0])
    assert len(set(np.ravel(samples))) == 18


class DrawingEnv(EnvBase):
    """A TensorDict environment that draws from torch's global generator and ignores seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: Any = None, **_: Any) -> TensorDict:
        return TensorDict({"observation": torch.rand(2)})

    def _step(self, tensordict: Any) -> TensorDict:
        return TensorDict({"observation": torch.rand(2), "reward": torch.zeros(1), "done": torch.zeros(1).bool()})

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)


def test_unseeded_tensordict_environments_differ_between_workers_and_batches() -> None:
    samples = []
    for _ in range(2):
        env = ParallelEnv(4, DrawingEnv)
        samples += env.reset()["observation"].ravel().tolist()
        env.close()
    assert len(set(samples)) == 16


# -- policies in workers ---------------------------------------------------------------------------


def _workers(backend: str) -> int:
    return 2 if backend == "ray" else 4  # an actor takes seconds to start


def _played(policy: Any = all_noise, *, resets: tuple[Any, ...] = (3,), steps: int = 40, **options: Any) -> np.ndarray:
    with RolloutWorkers([cartpole] * 4, policy, **{"num_workers": 4, **options}) as workers:
        actions = []
        for seed in resets:
            workers.reset(seed=seed)
            actions += [workers.rollout(steps // 2).action, workers.rollout(steps - steps // 2).action]
    return np.concatenate(actions)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_policies_act_differently_in_each_worker(backend: Any) -> None:
    options = {"backend": backend, "num_workers": _workers(backend), "steps": 300}
    rollouts = [_played(NoiseInTurns(), resets=(seed,), **options) for seed in (None, None, 5)]
    for generator in range(3):
        columns = {actions[generator::3, i].tobytes() for actions in rollouts for i in range(4)}
        assert len(columns) == 12


@pytest.mark.parametrize(
    ("backend", "workers"),
    [(backend, workers) for backend in ("threads", "processes") for workers in (2, 4)]
    + [pytest.param("ray", 2, marks=pytest.mark.ray)],
)
def test_a_seed_gives_the_same_actions_on_every_backend(backend: Any, workers: int) -> None:
    serial = _played(num_workers=workers, backend="serial", resets=(3, [1, 2, 3, 4]))
    np.testing.assert_array_equal(serial, _played(num_workers=workers, backend=backend, resets=(3, [1, 2, 3, 4])))
    assert (serial[:40] != serial[40:]).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_seeds_do_not_depend_on_the_number_of_workers(backend: Any) -> None:
    alone = _played(num_workers=1, backend="serial", row_by_row=True)
    for workers in (3,) if backend == "ray" else (1, 3, 4):
        np.testing.assert_array_equal(alone, _played(num_workers=workers, backend=backend, row_by_row=True))
    assert len({alone[:, i].tobytes() for i in range(4)}) == 4


def test_constructor_seed_applies_to_the_first_reset() -> None:
    def play(**options: Any) -> tuple[np.ndarray, np.ndarray]:
        with RolloutWorkers([cartpole] * 3, all_noise, backend="serial", **options) as workers:
            first = workers.rollout(30)
            workers.reset()
            return first.action, np.concatenate([first.obs, workers.rollout(30).obs])

    repeated = [play(seed=7), play(seed=7), play(seed=8), play()]
    np.testing.assert_array_equal(repeated[0][1], repeated[1][1])
    assert len({actions.tobytes() for actions, _ in repeated}) == 3


@pytest.mark.parametrize("seed", ["seven", [1, 2]])
def test_invalid_seeds_raise_before_workers_start(seed: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape("Expected")):
        RolloutWorkers([cartpole] * 3, all_noise, seed=seed)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_seeded_policies_do_not_change_the_callers_generators(backend: Any) -> None:
    seed_streams(9)
    expected = draw()
    with RolloutWorkers([cartpole] * 2, all_noise, backend=backend, num_workers=2, seed=1) as workers:
        seed_streams(9)
        workers.rollout(10)
        assert draw() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_policies_with_own_generators_are_seeded_by_their_method(backend: Any) -> None:
    options = {"backend": backend, "num_workers": _workers(backend)}
    unseeded = _played(OwnGenerator(), resets=(None,), **options)
    seeded = [_played(OwnGenerator(), **options) for _ in range(2)]
    np.testing.assert_array_equal(*seeded)
    columns = {actions[:, i].tobytes() for actions in (unseeded, seeded[0]) for i in range(4)}
    assert len(columns) == 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_generators_are_part_of_the_streams() -> None:
    def on_device() -> float:
        return float(torch.rand((), device="cuda"))

    outside = on_device(), torch.cuda.get_rng_state()
    with RandomStreams(1):
        first = on_device()
    assert torch.equal(torch.cuda.get_rng_state(), outside[1])
    with RandomStreams(1):
        assert on_device() == first


def test_streams_do_not_import_torch() -> None:
    code = "import sys; from vecrl.random_streams import *; seed_streams(1); RandomStreams(2).__enter__()"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
