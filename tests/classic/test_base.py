"""`BaseEnv`: normalized states, scaled rewards, seeds, and copies of arrays."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from tests.fixtures.classic_envs import WalkEnv

from vecrl.classic import BaseEnv, GymEnv
from vecrl.errors import SpaceError
from vecrl.running_stats import RunningStats


def play(env: BaseEnv, actions: list[Any]) -> tuple[list[np.ndarray], list[float]]:
    """Returns all states (the first included) and rewards. Resets the environment when an episode ends."""
    states, rewards = [env.reset()], []
    for action in actions:
        state, reward, done, _ = env.step(action)
        states.append(state)
        rewards.append(reward)
        if done:
            states.append(env.reset())
    return states, rewards


def test_abstract_methods_match_the_contract() -> None:
    expected = {"_create_env", "reset", "step", "get_state_info", "get_action_info", "simulator"}
    assert BaseEnv.__abstractmethods__ == expected
    with pytest.raises(TypeError, match="abstract"):
        BaseEnv("nothing")  # pyright: ignore[reportAbstractUsage]


def test_fixed_normalization_maps_bounds_to_one() -> None:
    plain, env = GymEnv("Pendulum-v1", seed=1), GymEnv("Pendulum-v1", seed=1, fixed_normalize_states=True)
    high = plain.get_state_info()["high_bound"]
    states, scaled = (play(e, [0.5] * 30)[0] for e in (plain, env))
    np.testing.assert_allclose(np.array(scaled), np.array(states) / high, rtol=1e-6)
    info = env.get_state_info()
    assert (info["shape"], info["dtype"]) == ((3,), "continuous")
    assert info["low_bound"].tolist() == [-1.0] * 3
    assert info["high_bound"].tolist() == [1.0] * 3
    assert info["low_bound"].dtype == scaled[0].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_fixed_normalization_of_other_dtypes(dtype: Any) -> None:
    class Bytes(WalkEnv):
        def get_state_info(self) -> dict[str, Any]:
            low, high = (np.array([value, 7], dtype) for value in (0, 255))
            return {"shape": (2,), "dtype": "continuous", "low_bound": low, "high_bound": high}

        def reset(self) -> np.ndarray:
            return np.array([51, 7], dtype)

    state = Bytes("bytes", fixed_normalize_states=True).reset()
    assert state.dtype == (np.float32 if dtype == np.uint8 else np.float64)
    np.testing.assert_allclose(state, [-0.6, 0.0], rtol=1e-6)  # the bounds 7 and 7 enclose no range


def test_infinite_bounds_raise_with_the_dimension() -> None:
    with pytest.raises(SpaceError, match=r"dimension 1 \(from -inf to inf\), 3 \(from -inf to inf\) of the state"):
        GymEnv("CartPole-v1", fixed_normalize_states=True)
    with pytest.raises(SpaceError, match=r"0 \(.*1 \("):
        WalkEnv("walk", fixed_normalize_states=True)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_dtype_maximum_does_not_count_as_a_bound(dtype: str) -> None:
    most = np.finfo(dtype).max if dtype == "float32" else np.iinfo(dtype).max

    class Vast(WalkEnv):
        def get_state_info(self) -> dict[str, Any]:
            return {"shape": (2,), "dtype": dtype, "low_bound": [-1, -1], "high_bound": [1, most]}

    with pytest.raises(SpaceError, match="dimension 1 "):
        Vast("vast", fixed_normalize_states=True)


def test_running_normalization_uses_running_stats() -> None:
    actions = [0, 1, 1, 0] * 40
    states, _ = play(GymEnv("CartPole-v1", seed=2), actions)
    scaled, _ = play(GymEnv("CartPole-v1", seed=2, running_normalize_states=True), actions)
    stats = RunningStats((4,))
    for state, received in zip(states, scaled, strict=True):
        stats.update(state)
        np.testing.assert_array_equal(received, stats.normalize(state))


def test_frozen_statistics_do_not_change_and_can_be_shared() -> None:
    env = GymEnv("CartPole-v1", seed=2, running_normalize_states=True, scale_reward=True)
    play(env, [0, 1] * 20)
    assert env.state_stats is not None
    assert env.return_stats is not None
    assert env.return_stats.count == 40
    count = env.state_stats.freeze().count
    test = GymEnv("CartPole-v1", seed=2, running_normalize_states=True)
    test.state_stats = env.state_stats
    play(test, [0, 1] * 20)
    assert env.state_stats.count == count


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    actions = [0.3, -1.0, 2.0] * 90  # past the end of the episode, at 200
    _, rewards = play(GymEnv("Pendulum-v1", seed=3), actions)
    _, scaled = play(GymEnv("Pendulum-v1", seed=3, scale_reward=True, gamma=0.9), actions)
    returns: list[float] = []
    for number, reward in enumerate(rewards):
        begins = number in (0, 200)
        returns.append(reward if begins else 0.9 * returns[-1] + reward)
    expected = [r / (np.std(returns[: n + 1]) if n else 1.0) for n, r in enumerate(rewards)]
    np.testing.assert_allclose(scaled, expected, rtol=1e-9)
    assert all(type(reward) is float for reward in scaled)


def test_constant_rewards_are_not_scaled() -> None:
    env = GymEnv("CartPole-v1", seed=0, scale_reward=True, gamma=0.0)
    assert play(env, [0, 1] * 5)[1] == [1.0] * 10


@pytest.mark.parametrize("own", [WalkEnv, GymEnv])
def test_options_apply_to_nested_subclasses(own: Any) -> None:
    """A state is normalized once if `reset` and `step` of a class call those of its base class."""

    class Deeper(own):
        def reset(self) -> np.ndarray:
            return super().reset() + 1

        def step(self, action: Any) -> Any:
            state, *remaining = super().step(action)
            return (state + 1, *remaining)

    states, _ = play(Deeper("CartPole-v1"), [0, 1])
    scaled, _ = play(Deeper("CartPole-v1", running_normalize_states=True), [0, 1])
    assert scaled[0].tolist() == [0.0] * len(states[0])
    assert not np.array_equal(scaled[1], states[1])


def test_conflicting_normalization_and_bad_discounts_raise() -> None:
    with pytest.raises(ValueError, match="Choose one"):
        GymEnv("Pendulum-v1", fixed_normalize_states=True, running_normalize_states=True)
    with pytest.raises(ValueError, match="gamma to be a number from 0 to 1, got"):
        GymEnv("Pendulum-v1", scale_reward=True, gamma=1.5)


@pytest.mark.parametrize("option", ["fixed_normalize_states", "running_normalize_states"])
def test_discrete_states_cannot_be_normalized(option: str) -> None:
    options: Any = {option: True}
    with pytest.raises(SpaceError, match=r"got Discrete\(16\) for FrozenLake-v1"):
        GymEnv("FrozenLake-v1", **options)


def test_seeds_determine_all_later_episodes() -> None:
    first, second = GymEnv("CartPole-v1", seed=5), GymEnv("CartPole-v1")
    assert second.seed(5) == [5]
    for _ in range(3):
        np.testing.assert_array_equal(first.reset(), second.reset())
    assert not np.array_equal(first.reset(), GymEnv("CartPole-v1", seed=5).reset())


def test_missing_seed_method_raises() -> None:
    with pytest.raises(NotImplementedError, match="Expected WalkEnv to have seeds"):
        WalkEnv("walk").seed(3)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_are_independent(again: Any) -> None:
    env = GymEnv("CartPole-v1", seed=0, running_normalize_states=True, scale_reward=True)
    play(env, [0, 1, 0])
    other = again(env)
    for action in (1, 0, 1):
        actual, reference = env.step(action), other.step(action)
        np.testing.assert_array_equal(actual[0], reference[0])
        assert actual[1:] == reference[1:]
    other.step(1)
    assert env.state_stats.count + 1 == other.state_stats.count
