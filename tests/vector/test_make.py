"""`vecrl.make`: any simulator by name, with gymnasium's interface, arrays and defaults."""

import gymnasium
import numpy as np
import pytest

import vecrl
from vecrl.vector import BatchedVectorEnv, VectorEnv

NAMES = pytest.mark.parametrize("name", ["CartPole-v1", "native::CartPole-v1", "gym::CartPole-v1"])


def is_array(tree):
    return all(map(is_array, tree.values())) if isinstance(tree, dict) else isinstance(tree, np.ndarray)


@NAMES
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_results_are_arrays_in_every_mode(name, mode):
    with vecrl.make(name, num_envs=3, autoreset_mode=mode) as envs:
        assert isinstance(envs, gymnasium.vector.VectorEnv)
        assert envs.metadata["autoreset_mode"].value.lower() == mode.replace("_", "")
        obs, _ = envs.reset(seed=1)
        assert is_array(obs)
        assert obs.shape == (3, 4)
        obs, *results, _ = envs.step(envs.action_space.sample())
        assert all(map(is_array, (obs, *results)))
        assert results[0].dtype == np.float64


def test_values_are_those_of_gymnasium():
    ours = vecrl.make("CartPole-v1", num_envs=4)
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
    for one, other in zip(ours.reset(seed=3), theirs.reset(seed=3), strict=True):
        np.testing.assert_equal(one, other)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 2, 4)
        np.testing.assert_equal(ours.step(actions), theirs.step(actions))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("backend", ["auto", "serial", "threads", "processes"])
def test_wrappers_are_applied_in_every_worker(backend):
    wrappers = [gymnasium.wrappers.FlattenObservation, lambda env: gymnasium.wrappers.TimeLimit(env, 5)]
    workers = {} if backend == "auto" else {"num_workers": 2 if backend != "serial" else 1}
    with vecrl.make("Blackjack-v1", 4, backend=backend, wrappers=wrappers, sab=True, **workers) as envs:
        assert isinstance(envs, VectorEnv)
        assert envs.reset(seed=0)[0].shape == (4, 32 + 11 + 2)
        assert envs.get_attr("_max_episode_steps") == (5,) * 4
        assert envs.get_attr("sab") == (True,) * 4


def test_batches_take_arguments_of_their_simulator():
    envs = vecrl.make("native::CartPole-v1", 2, max_episode_steps=3, empty_info=True)
    assert isinstance(envs, BatchedVectorEnv)
    envs.reset(seed=0)
    steps = [envs.step(np.array([0, 1])) for _ in range(3)]
    assert steps[-1][3].tolist() == [True, True]
    envs.close()


@pytest.mark.parametrize(
    ("name", "options", "error", "text"),
    [
        ("native::CartPole-v1", {"backend": "processes"}, ValueError, "Expected no backend for 'native::CartPole-v1'"),
        ("native::CartPole-v1", {"num_workers": 2}, ValueError, "Expected no num_workers"),
        ("native::CartPole-v1", {"wrappers": [gymnasium.Wrapper]}, ValueError, "by gymnasium.wrappers.vector"),
        ("CartPole-v1", {"wrappers": [5]}, ValueError, "Expected wrappers of an environment, got int as item 0"),
        ("CartPole-v1", {"num_envs": 0}, ValueError, "num_envs"),
        ("CartPole-v1", {"foo": 1}, TypeError, "got 'foo'"),
        ("nowhere::x", {}, ValueError, "Expected one of the prefixes"),
        ("CartPole-v1", {"backend": "proceses"}, ValueError, "Expected backend to be"),
        ("CartPole-v1", {"autoreset_mode": "now"}, ValueError, "autoreset_mode"),
    ],
)
def test_wrong_arguments_are_named(name, options, error, text):
    with pytest.raises(error) as caught:
        vecrl.make(name, **options)
    assert text in str(caught.value)


def test_gymnasium_finds_it_by_an_id():
    with gymnasium.make_vec("vecrl:vecrl/make", num_envs=3, name="native::CartPole-v1") as envs:
        assert isinstance(envs, BatchedVectorEnv)
        assert envs.num_envs == 3


def test_names_of_other_libraries_are_explained() -> None:
    with pytest.raises(TypeError, match=r"got 'n_envs'.*Did you mean num_envs\?"):
        vecrl.make("CartPole-v1", n_envs=8)
