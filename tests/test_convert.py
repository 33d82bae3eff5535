"""Conversions between the dialects keep the values of all rows."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.convert import to_tensordict, to_vector, to_venv
from vecrl.envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from vecrl.envs.transforms import StepCounter
from vecrl.errors import ClosedError, SpaceError
from vecrl.simulators.native import make_native
from vecrl.vector import AsyncVectorEnv, BatchedVectorEnv, SyncVectorEnv, VectorEnv, make_vector_env
from vecrl.venv import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv, VectorEnvWrapper

CARTPOLES = [partial(gymnasium.make, "CartPole-v1")] * 3
SEEDS = [5, 6, 7]


def batch(**kwargs: Any) -> SerialEnv:
    return SerialEnv(3, partial(GymEnv, "CartPole-v1", categorical_action_encoding=True, **kwargs))


def test_a_single_environment_becomes_the_only_one_of_a_vector_environment():
    vector = to_vector(gymnasium.make("CartPole-v1"), autoreset_mode="same_step")
    assert isinstance(vector, VectorEnv)
    assert vector.reset(seed=1)[0].shape == (1, 4)
    vector.close()


def test_vector_environments_stay_what_they_are() -> None:
    make = partial(gymnasium.make, "CartPole-v1")
    for env in (SyncVectorEnv([make]), VectorEnv([make]), BatchedVectorEnv(make_native("CartPole-v1", 2))):
        assert to_vector(env) is env
        with pytest.raises(TypeError, match=r"Expected no autoreset_mode with the vector environment.*constructor"):
            to_vector(env, autoreset_mode="disabled")
        env.close()
    wrapper = make_vector_env("native::CartPole-v1", num_envs=2)
    assert to_vector(wrapper) is wrapper.env
    single = gymnasium.vector.SyncVectorEnv([make] * 2)
    vector = to_vector(single, autoreset_mode="disabled")
    np.testing.assert_array_equal(vector.reset(seed=3)[0], single.reset(seed=3)[0])
    with pytest.raises(TypeError, match=r"Give the functions that make its environments to VectorEnv"):
        to_vector(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"))


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_an_environment_over_tensordicts_as_a_vector_environment(mode: str) -> None:
    """The values equal those of the engine's vector environment for equal seeds, in every auto-reset mode."""
    env = to_vector(batch(), autoreset_mode=mode)
    seeds, seed = [], 0
    for _ in range(3):
        seeds.append(seed)
        seed = GymEnv("CartPole-v1").set_seed(seed)
    expected = VectorEnv([partial(gymnasium.make, "CartPole-v1")] * 3, autoreset_mode=mode, backend="serial")
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs, expected.reset(seed=seeds)[0])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 2, 3)
        obs, reward, terminated, truncated, info = env.step(torch.from_numpy(actions))
        expected_result = expected.step(actions)
        np.testing.assert_array_equal(obs, expected_result[0])
        np.testing.assert_array_equal(reward, expected_result[1])
        np.testing.assert_array_equal(terminated, expected_result[2])
        np.testing.assert_array_equal(truncated, expected_result[3])
        if mode == "same_step" and "final_obs" in expected_result[4]:
            for row in np.flatnonzero(expected_result[4]["_final_obs"]):
                np.testing.assert_array_equal(info["final_obs"][row], expected_result[4]["final_obs"][row])
        if mode == "disabled" and terminated.any():
            mask = terminated.copy()
            obs, _ = env.reset(options={"reset_mask": terminated})
            np.testing.assert_array_equal(obs, expected.reset(options={"reset_mask": mask})[0])
    env.close()
    expected.close()


def test_one_hot_actions_may_be_indices() -> None:
    env = to_vector(SerialEnv(2, partial(GymEnv, "CartPole-v1")))
    env.reset(seed=0)
    assert env.action_space == gymnasium.spaces.MultiDiscrete([2, 2])
    assert env.step(torch.tensor([0, 1]))[1].tolist() == [1.0, 1.0]
    env.close()


def test_environments_without_vector_form_raise() -> None:
    with pytest.raises(SpaceError, match="one batch dimension"):
        to_vector(GymEnv("CartPole-v1"))
    several = TransformedEnv(batch(), StepCounter())
    with pytest.raises(SpaceError, match="one observation"):
        to_vector(several)
    env = to_vector(several, observation="observation")
    assert env.reset(seed=1)[0].shape == (3, 4)
    env.close()


def test_environments_of_gymnasium_over_tensordicts() -> None:
    single = to_tensordict(gymnasium.make("CartPole-v1"))
    assert isinstance(single, EnvBase)
    assert to_tensordict(single) is single
    with pytest.raises(TypeError, match="environment of gymnasium or vecrl"):
        to_tensordict(3)


def test_round_trips_keep_seeds() -> None:
    existing = to_vector(SerialEnv(2, lambda: GymEnv("CartPole-v1")))
    env, plain = to_tensordict(existing), SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    assert env.set_seed(3) == plain.set_seed(3)
    assert env.reset()["observation"].equal(plain.reset()["observation"])


@pytest.mark.parametrize("seeds", [[0, 99, 1], [3, 3, 3], [None, 1, 2], [0, None, 2]])
def test_seeds_of_single_rows_raise(seeds: Any) -> None:
    env = to_vector(batch())
    with pytest.raises(ValueError, match="Give an int"):
        env.reset(seed=seeds)
    obs = env.reset(seed=5)[0].copy()
    np.testing.assert_array_equal(env.reset(seed=[5, 6, 7])[0], obs)
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "native::CartPole-v1"])
def test_vector_environments_by_name_over_tensordicts(name: str) -> None:
    """Gives true successors at the end of episodes, and the seeds of consecutive single environments."""
    env = to_tensordict(make_vector_env(name, num_envs=3), categorical_action_encoding=True)
    assert env.batch_size == (3,)
    env.set_seed(0)
    rollout = env.rollout(60, break_when_any_done=False)
    seeds = [0]
    for _ in range(2):
        seeds.append(GymEnv("CartPole-v1").set_seed(seeds[-1]))
    complete = make_vector_env(name, num_envs=3)
    complete.reset(seed=seeds)
    torch.testing.assert_close(rollout["observation"][:, 0], complete.reset()[0])  # `set_seed` resets once too
    done = rollout["next", "done"].squeeze(-1)
    assert done.any()
    after = rollout["next", "observation"]
    assert (after[done][:, [0, 2]].abs() > torch.tensor([2.4, 0.209])).any(-1).all()  # where CartPole's episode ends
    torch.testing.assert_close(after[:, :-1][~done[:, :-1]], rollout["observation"][:, 1:][~done[:, :-1]])
    for t in range(60):
        obs, _, terminated, _, _ = complete.step(rollout["action"][:, t])
        assert terminated.equal(done[:, t])
        torch.testing.assert_close(obs[~terminated], after[:, t][~terminated])
        if t < 59:
            torch.testing.assert_close(obs, rollout["observation"][:, t + 1])


def test_batched_vector_environments_share_tensors() -> None:
    complete = make_vector_env("native::CartPole-v1", num_envs=3).env
    assert isinstance(complete, BatchedVectorEnv)
    addresses: list[int] = []
    simulate = complete.simulator.reset

    def reset(*args: Any) -> torch.Tensor:
        obs = simulate(*args)
        addresses.append(obs.data_ptr())
        return obs

    complete.simulator.reset = reset
    assert to_tensordict(complete).reset()["observation"].data_ptr() == addresses[0]


@pytest.mark.parametrize("name", ["CartPole-v1", "native::CartPole-v1"])
def test_single_environments_by_name_over_tensordicts(name: str) -> None:
    env = to_tensordict(make_vector_env(name, force_classic_api=True))
    env.set_seed(0)
    single = make_vector_env(name)
    single.reset(seed=0)
    expected = single.reset()[0]  # `set_seed` resets once too
    rollout = env.rollout(5)
    torch.testing.assert_close(rollout["observation"][0], expected)
    assert rollout["next", "reward"].tolist() == [[1.0]] * 5


def test_action_wrappers_raise() -> None:
    with pytest.raises(SpaceError, match="does not change actions"):
        to_tensordict(make_vector_env("CartPole-v1", num_envs=2, discrete_to_continuous_act=True))


def test_objects_without_tensordict_form_raise() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"\(EnvBase\), got 3\."):
        to_vector(wrong)


def chained(seed: int) -> list[int]:
    """Returns the seeds that rows over TensorDicts derive from one seed."""
    seeds = [seed]
    while len(seeds) < 3:
        seeds.append(GymEnv("CartPole-v1").set_seed(seeds[-1]))
    return seeds


def episodes(venv: BaseVectorEnv, **seeds: Any) -> list[Any]:
    """Returns the observations of full steps, partial steps and partial resets, as nested lists."""
    rng = np.random.default_rng(1)
    results: list[Any] = [venv.reset(**seeds)[0].tolist()]
    for turn in range(40):
        actions = rng.integers(0, 2, 3)
        ids = rng.permutation(3)[: 1 + turn % 3]
        result = venv.step(actions) if turn % 2 else venv.step(actions[ids], ids)
        results.append([part.tolist() for part in result[:4]] + [[info["env_id"] for info in result[4]]])
        is_over = [i for i, end in zip(results[-1][-1], result[2], strict=True) if end]
        if is_over:
            results.append(venv.reset(is_over, seed=[turn] * len(is_over))[0].tolist())
    return results


@pytest.mark.parametrize(
    "make",
    [
        lambda: VectorEnv(CARTPOLES),
        lambda: AsyncVectorEnv(CARTPOLES, num_workers=2),
        lambda: SyncVectorEnv(CARTPOLES),
        lambda: gymnasium.vector.SyncVectorEnv(CARTPOLES),
        lambda: make_vector_env("CartPole-v1", num_envs=3),
    ],
)
def test_vector_environments_with_ids(make: Any) -> None:
    """The same workers run; the episodes equal those of an environment with ids."""
    with to_venv(make()) as venv, DummyVectorEnv(CARTPOLES) as expected:
        assert episodes(venv, seed=SEEDS) == episodes(expected, seed=SEEDS)
        assert venv.seed(3) == [[3], [4], [5]]
        np.testing.assert_array_equal(venv.reset()[0], expected.reset(seed=[3, 4, 5])[0])
        assert venv.action_space == [gymnasium.spaces.Discrete(2)] * 3


def test_vector_environments_with_ids_that_do_not_wait() -> None:
    vector = AsyncVectorEnv(CARTPOLES, num_workers=3)
    pool = vector._pool
    with to_venv(vector, wait_num=1) as venv:
        assert venv._pool is pool
        venv.reset()
        seen = [info["env_id"] for info in venv.step([0, 0, 0])[4]]
        while venv.waiting_id:
            seen += [info["env_id"] for info in venv.step(None)[4]]
        assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize(
    "wrap", [lambda env: env, BatchedVectorEnv, lambda _: make_vector_env("native::CartPole-v1", num_envs=3)]
)
def test_batched_simulators_with_ids(wrap: Any) -> None:
    """Rows that are not selected do not change."""
    with to_venv(wrap(make_native("CartPole-v1", 3))) as venv, to_venv(make_native("CartPole-v1", 3)) as complete:
        obs, infos = venv.reset(seed=SEEDS)
        np.testing.assert_array_equal(obs, complete.reset(seed=SEEDS)[0])
        assert (obs.dtype, infos.tolist()) == (np.float32, [{}] * 3)
        first = venv.step([0, 1], [2, 0])
        obs, _, _, _, infos = complete.step([1, 0, 0])
        np.testing.assert_array_equal(first[0], obs[[2, 0]])
        assert (first[1].dtype, first[1].tolist(), first[2].tolist()) == (np.float64, [1, 1], [False, False])
        np.testing.assert_array_equal(venv.step([0], 1)[0], obs[[1]])
        np.testing.assert_array_equal(venv.step([1, 1, 1])[0], complete.step([1, 1, 1])[0])
        repeated, _ = venv.reset([1], seed=[9])
        np.testing.assert_array_equal(repeated[0], complete.reset(seed=9)[0][1])
        assert [info["env_id"] for info in venv.step([1, 0], [1, 0])[4]] == [1, 0]
        assert venv.get_env_attr("num_envs", [0, 1]) == [3, 3]
        assert (venv.spec, venv.reward_range) == ([None] * 3, [(-np.inf, np.inf)] * 3)
        assert venv.render() == [None] * 3
        with pytest.raises(SpaceError, match="Expected every environment once"):
            venv.step([0, 0], [1, 1])
        with pytest.raises(SpaceError, match="no keywords except seed"):
            venv.reset(further=1)
    with pytest.raises(ClosedError):
        venv.reset()


def test_batches_may_reset_some_rows_first() -> None:
    with to_venv(make_native("CartPole-v1", 3)) as venv, to_venv(make_native("CartPole-v1", 3)) as complete:
        expected = complete.reset(seed=SEEDS)[0]
        assert venv.reset([2, 0], seed=[7, 5])[0].tolist() == expected[[2, 0]].tolist()
        assert venv.reset(1, seed=6)[0].tolist() == expected[[1]].tolist()
        np.testing.assert_array_equal(venv.step([0, 1, 0])[0], complete.step([0, 1, 0])[0])


def test_batch_results_are_not_copied() -> None:
    simulator = make_native("CartPole-v1", 3)
    inputs, reset = [], simulator.reset
    simulator.reset = lambda *args: inputs.append(reset(*args)) or inputs[-1]
    assert to_venv(simulator).reset()[0].ctypes.data == inputs[0].data_ptr()


def test_environments_over_tensordicts_with_ids() -> None:
    with to_venv(batch()) as venv, DummyVectorEnv(CARTPOLES) as expected:
        venv.seed(5)
        assert venv.reset()[0].tolist() == expected.reset(seed=chained(5))[0].tolist()
        rng = np.random.default_rng(0)
        ended = np.zeros(3, bool)
        for turn in range(40):
            ids = np.arange(3) if turn % 2 else np.array([2, 0])
            action = rng.integers(0, 2, len(ids))
            actual, reference = (envs.step(action, ids) for envs in (venv, expected))
            for part in range(4):
                np.testing.assert_array_equal(actual[part], reference[part])
            ended[ids] = actual[2]
            if ended.any():
                break
        is_over = np.flatnonzero(ended)
        assert len(is_over)
        assert (np.abs(venv.reset(is_over)[0]) <= 0.05).all()
        assert venv.step([0, 0, 0])[1].tolist() == [1, 1, 1]


def test_environments_with_ids_in_the_other_dialects() -> None:
    """A round trip returns the same pool, simulator or environment."""
    venv = ShmemVectorEnv(CARTPOLES, num_workers=2)
    pool = venv._pool
    vector = to_vector(venv, autoreset_mode="same_step")
    assert isinstance(vector, VectorEnv)
    expected = VectorEnv(CARTPOLES, autoreset_mode="same_step")
    np.testing.assert_array_equal(vector.reset(seed=3)[0], expected.reset(seed=3)[0])
    for _ in range(15):
        np.testing.assert_array_equal(vector.step([0, 1, 0])[0], expected.step([0, 1, 0])[0])
    is_over = to_tensordict(to_venv(vector))
    assert is_over.rollout(3).shape == (3, 3)
    is_over.close()
    assert pool.closed

    simulator = make_native("CartPole-v1", 3)
    assert to_vector(to_venv(simulator)).simulator is simulator
    assert to_tensordict(to_venv(simulator)).rollout(4).shape == (3, 4)
    env = batch()
    assert to_tensordict(to_venv(env)) is env
    env.close()


def test_single_environments_with_ids() -> None:
    with to_venv(gymnasium.make("CartPole-v1")) as venv:
        assert (len(venv), venv.reset(seed=1)[0].shape) == (1, (1, 4))
        assert to_venv(venv) is venv


def test_objects_without_venv_form_raise() -> None:
    with pytest.raises(TypeError, match="functions that create"):
        to_venv(gymnasium.vector.VectorWrapper(gymnasium.vector.SyncVectorEnv(CARTPOLES)))
    differing = [partial(gymnasium.make, name) for name in ("CartPole-v1", "Pendulum-v1")]
    with DummyVectorEnv(differing) as venv, pytest.raises(SpaceError, match="differ"):
        to_vector(venv)
    with VectorEnvWrapper(DummyVectorEnv(CARTPOLES)) as venv, pytest.raises(SpaceError, match="without wrappers"):
        to_tensordict(venv)


@pytest.mark.parametrize("done", [False, True])
def test_rewards_of_several_numbers_have_no_vector_form(done: bool) -> None:
    class TwoRewards(gymnasium.Env[Any, Any]):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return 0, np.ones(2), done, False, {}

    with to_vector(DummyVectorEnv([TwoRewards]), autoreset_mode="same_step") as env:
        env.reset()
        with pytest.raises(SpaceError, match="Expected a number as the reward, got"):
            env.step([0])
