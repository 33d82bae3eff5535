"""Dialect 3 is a projection of the same record as `VectorEnv`: "next" and the next root hold its values bit for bit, on
every backend, for every number of workers and every finishing order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.gym_envs import counting, noise

from vecrl.envs import EnvBase, GymWrapper, ParallelEnv
from vecrl.envs.seed_chain import next_seed
from vecrl.vector import VectorEnv

N = 5
PLACES = [(backend, workers) for backend in ("serial", "threads", "processes") for workers in (1, 3, N)]


class Stepwise(GymWrapper):
    """Steps through TensorDicts within the worker."""

    def read_action(self, action: Any) -> Any:
        return super().read_action(action)


def made(kind: str, wrapper: type[GymWrapper], backend: str, num_workers: int) -> ParallelEnv:
    fns = counting(N, delay=0.002) if kind == "slow" else noise("dict", N, infos=False)
    makers = [lambda fn=fn: wrapper(fn(), categorical_action_encoding=True) for fn in fns]
    return ParallelEnv(N, makers, backend=backend, envs_per_worker=-(-N // num_workers))


def expected(kind: str, seeds: list[int], actions: np.ndarray) -> list[tuple[Any, ...]]:
    """Returns the true successors, rewards, flags and next observations of each step."""
    fns = counting(N) if kind == "slow" else noise("dict", N, infos=False)
    results: list[tuple[Any, ...]] = []
    with VectorEnv(fns, autoreset_mode="same_step") as envs:
        envs.reset(seed=seeds)
        obs, _ = envs.reset()  # `set_seed` resets once too
        for action in actions:
            root, (obs, reward, terminated, truncated, info) = obs, envs.step(action)
            next_td = {key: value.copy() for key, value in leaves(obs).items()}
            for row in np.flatnonzero(terminated | truncated):
                for key, value in leaves(info["final_obs"][row]).items():
                    next_td[key][row] = value
            results.append((leaves(root), next_td, reward.astype(np.float32), terminated, truncated))
    return results


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[Any, Any]:
    """Returns the arrays of nested dicts and tuples under the keys of dialect 3."""
    if isinstance(tree, dict | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {key: leaf for name, part in parts for key, leaf in leaves(part, (*path, str(name))).items()}
    return {path or "observation": tree}


def assert_equal(tensor: torch.Tensor, array: np.ndarray, what: str) -> None:
    assert tensor.shape == array.shape, what
    assert tensor.numpy().tobytes() == array.tobytes(), what


def rolled(env: EnvBase, actions: np.ndarray) -> Any:
    return env.rollout(len(actions), actions=torch.from_numpy(actions).T, break_when_any_done=False)


@pytest.mark.parametrize("wrapper", [GymWrapper, Stepwise], ids=["bare", "through TensorDicts"])
@pytest.mark.parametrize(("backend", "num_workers"), PLACES)
@pytest.mark.parametrize("kind", ["slow", "noise"])
def test_next_and_root_equal_the_transition(
    kind: str, backend: str, num_workers: int, wrapper: type[GymWrapper]
) -> None:
    actions = np.random.default_rng(4).integers(0, 3, (20, N))
    with made(kind, wrapper, backend, num_workers) as env:
        seeds = [2]
        while len(seeds) < N:
            seeds.append(next_seed(seeds[-1]))
        env.set_seed(2)
        rollout = rolled(env, actions)
    for t, (root, next_td, reward, terminated, truncated) in enumerate(expected(kind, seeds, actions)):
        step = rollout[:, t]
        for key, value in root.items():
            assert_equal(step.get(key), value, f"{t}: {key}")
        for key, value in next_td.items():
            assert_equal(step.get("next").get(key), value, f"{t}: next {key}")
        assert_equal(step["next", "reward"].squeeze(-1), reward, f"{t}: reward")
        assert_equal(step["next", "terminated"].squeeze(-1), terminated, f"{t}: terminated")
        assert_equal(step["next", "truncated"].squeeze(-1), truncated, f"{t}: truncated")
        assert_equal(step["next", "done"].squeeze(-1), terminated | truncated, f"{t}: done")


@pytest.mark.ray
@pytest.mark.parametrize("wrapper", [GymWrapper, Stepwise], ids=["bare", "through TensorDicts"])
def test_next_and_root_equal_the_transition_on_ray(wrapper: type[GymWrapper]) -> None:
    test_next_and_root_equal_the_transition("noise", "ray", 2, wrapper)
