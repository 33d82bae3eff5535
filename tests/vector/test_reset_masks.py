"""`reset(options={"reset_mask": mask})` of every vector environment resets exactly the rows of the mask."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector import SyncVectorEnv as GymnasiumSyncVectorEnv
from tests.fixtures.faulty_envs import FaultyEnv, raises
from tests.fixtures.gym_envs import counting

from vecrl.errors import PendingError, SpaceError, WorkerError
from vecrl.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, make_vector_env

N = 4
MODES = [mode.value for mode in AutoresetMode]
SEEDS = [3, 14, 15, 92]
MASK = np.array([False, True, True, False])


def pendulums() -> list[Callable[[], Any]]:
    return [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=5)] * N


def named(name: str, mode: str, **kwargs: Any) -> Any:
    return make_vector_env(name, num_envs=N, autoreset_mode=mode, **kwargs)


MAKERS: dict[str, Callable[[str], Any]] = {
    "gymnasium": lambda mode: GymnasiumSyncVectorEnv(pendulums(), autoreset_mode=AutoresetMode(mode)),
    "VectorEnv": lambda mode: VectorEnv(pendulums(), autoreset_mode=mode),
    "VectorEnv, threads": lambda mode: VectorEnv(pendulums(), autoreset_mode=mode, backend="threads", num_workers=3),
    "AsyncVectorEnv": lambda mode: AsyncVectorEnv(pendulums(), autoreset_mode=mode, num_workers=2),
    "SyncVectorEnv": lambda _: SyncVectorEnv(pendulums()),
    "SyncVectorEnv, processes": lambda _: SyncVectorEnv(pendulums(), backend="processes", num_workers=2),
    "gym::": lambda mode: named("gym::Pendulum-v1", mode, max_episode_steps=5),
    "bare name": lambda mode: named("Pendulum-v1", mode, max_episode_steps=5, episode_stats=True),
    "native::": lambda mode: named("native::Pendulum-v1", mode, max_episode_steps=5),
    "mujoco::": lambda mode: named("mujoco::InvertedPendulum-v5", mode, max_episode_steps=5),
}


def cases() -> list[Any]:
    return [
        pytest.param(make, mode, id=f"{name} {mode}")
        for name, make in MAKERS.items()
        for mode in (["SameStep"] if name.startswith("Sync") else MODES)
    ]


def step(env: Any, t: int) -> list[np.ndarray]:
    actions = np.random.default_rng(t).uniform(-1, 1, (N, 1)).astype(np.float32)
    obs, reward, terminated, truncated, _ = env.step(actions)
    return [np.asarray(values) for values in (obs, reward, terminated, truncated)]


@pytest.mark.parametrize(("make", "mode"), cases())
def test_exactly_the_rows_of_the_mask_are_reset(make, mode):
    env, reference, other = make(mode), make(mode), make(mode)
    env.reset(seed=SEEDS)
    reference.reset(seed=SEEDS)
    for t in range(3):
        step(env, t)
        latest = step(reference, t)[0]
    seeds = [seed + 1 for seed in SEEDS]
    fresh = np.asarray(other.reset(seed=seeds)[0])
    obs = np.asarray(env.reset(seed=seeds, options={"reset_mask": MASK.copy()})[0])
    assert np.array_equal(obs, np.where(MASK[:, None], fresh, latest))
    for t in range(2):  # up to the end of the episodes of the rows that were not reset
        for values, old, new in zip(step(env, t), step(reference, t), step(other, t), strict=True):
            rows = MASK.reshape(N, *[1] * (values.ndim - 1))
            assert np.array_equal(values, np.where(rows, new, old))
    for each in (env, reference, other):
        each.close()


@pytest.mark.parametrize(("make", "mode"), [case for case in cases() if not case.id.startswith("gymnasium")])
def test_wrong_masks_and_options_raise(make, mode):
    env = make(mode)
    with pytest.raises((SpaceError, PendingError), match="reset all"):
        env.reset(options={"reset_mask": MASK})
    env.reset(seed=SEEDS)
    before = np.asarray(env.reset(options={"reset_mask": MASK})[0])
    wrong = [
        [True],
        [1, 0, 1, 0],
        np.ones((N, 1), bool),
        np.ones(N + 1, bool),
        torch.ones(N),
        "x",
        [[True], [], [], []],
    ]
    for mask in wrong:
        with pytest.raises(SpaceError, match="Expected reset_mask to be 4 bools"):
            env.reset(options={"reset_mask": mask})
    for options in ("x", [("reset_mask", MASK)], 3):
        with pytest.raises(SpaceError, match="Expected options to be a dict or None"):
            env.reset(options=options)
    after = np.asarray(env.reset(options={"reset_mask": MASK.tolist()})[0])
    assert np.array_equal(after[~MASK], before[~MASK])
    env.close()


@pytest.mark.parametrize("mask", [np.zeros(2, bool), torch.zeros(2, dtype=torch.bool)])
@pytest.mark.parametrize("kind", [VectorEnv, SyncVectorEnv])
def test_a_mask_without_rows_raises(kind, mask):
    with kind(counting(2)) as env:
        env.reset()
        with pytest.raises(SpaceError, match="without a True"):
            env.reset(options={"reset_mask": mask})


def test_a_mask_without_rows_resets_no_row_of_a_batched_simulator():
    with named("native::Pendulum-v1", "disabled") as env:
        before, _ = env.reset(seed=0)
        obs, _ = env.reset(options={"reset_mask": np.zeros(N, bool)})
        assert torch.equal(obs, before)


def test_edits_of_results_do_not_change_what_a_masked_reset_returns():
    with SyncVectorEnv(counting(2)) as env:
        env.reset()[0][:] = 77
        expected = env.step([0, 0])[0].copy()
        env.step([0, 0])[0][:] = 77
        obs, _ = env.reset(options={"reset_mask": np.array([True, False])})
        assert obs[1, 2] == expected[1, 2] + 1


def test_a_masked_reset_gives_its_rows_all_episodes_again():
    """The rows of the mask run `num_episodes` episodes; a row that has run its own stays finished."""
    with SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=2)] * 3, num_episodes=1) as env:
        env.reset(seed=1)
        for _ in range(2):
            env.step(np.zeros((3, 1)))
        obs, _ = env.reset(options={"reset_mask": np.array([True, False, False])})
        assert np.isnan(obs).all(1).tolist() == [False, True, True]
        rewards = np.stack([env.step(np.zeros((3, 1)))[1] for _ in range(3)])
        assert np.isnan(rewards).tolist() == [[False, True, True], [False, True, True], [True, True, True]]


def test_other_options_reach_only_the_rows_of_the_mask():
    options = {"reset_mask": np.array([True, False]), "level": 2}
    with SyncVectorEnv(counting(2)) as env:
        env.reset()
        env.reset(options=options)
        assert env._pool.invoke("get", "options") == [[None, {"level": 2}], [None]]
    assert set(options) == {"reset_mask", "level"}


@pytest.mark.parametrize(("backend", "num_workers"), [("serial", 1), ("serial", 2), ("threads", 2), ("processes", 2)])
@pytest.mark.parametrize("cls", [VectorEnv, SyncVectorEnv])
def test_an_environment_that_failed_keeps_its_latest_observation(cls, backend, num_workers):
    """A failed step has no observation, so a reset of others returns the one before, on every backend."""
    makers = [partial(FaultyEnv, 1), partial(FaultyEnv, 2, "step", raises, at=2)]
    with cls(makers, backend=backend, num_workers=num_workers) as envs:
        envs.reset()
        envs.step(np.array([0, 0]))
        with pytest.raises(WorkerError) as caught:
            envs.step(np.array([0, 0]))
        assert caught.value.transition.obs.tolist() == [[1, 0, 2], [2, 0, 1]]
        obs, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert obs.tolist() == [[1, 1, 0], [2, 0, 1]]


class SecondResetFails(FaultyEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.episode == 0:
            self.episode = 1
            raise ArithmeticError
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("ids", [[0, 1], [0, 1, 2]])
@pytest.mark.parametrize(("backend", "num_workers"), [("serial", 1), ("serial", 2), ("threads", 2), ("processes", 2)])
def test_an_environment_that_failed_in_a_reset_keeps_its_latest_observation(backend, num_workers, ids):
    makers = [partial(FaultyEnv, 1), partial(SecondResetFails, 2), partial(FaultyEnv, 3)]
    with VectorEnv(makers, backend=backend, num_workers=num_workers) as envs:
        envs.reset()
        for _ in range(3):
            envs.step(np.zeros(3, int))
        mask = np.isin(np.arange(3), ids)
        with pytest.raises(WorkerError, match="environment 1"):
            envs.reset(options={"reset_mask": mask})
        obs, _ = envs.reset(options={"reset_mask": np.array([True, False, False])})
        assert obs.tolist() == [[1, 2, 0], [2, 0, 3], [3, 0, 3] if 2 not in ids else [3, 1, 0]]
