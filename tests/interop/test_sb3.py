"""`vecrl.interop.sb3.VecEnv` returns what Stable-Baselines3's `DummyVecEnv` returns, on every backend."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.batch_simulators import CountingBatch, SeededCountingEnv
from tests.fixtures.gym_envs import SPACES, FailingEnv, FailsOnceEnv, NoiseEnv, counting
from tests.fixtures.venv_envs import ReturnedObsEnv

from vecrl.envs import GymEnv, SerialEnv
from vecrl.errors import ClosedError, PendingError, SpaceError, WorkerError
from vecrl.vector import AsyncVectorEnv, BatchedVectorEnv, SyncVectorEnv, VectorEnv, make_vector_env
from vecrl.venv import DummyVectorEnv, SubprocVectorEnv

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "threads": {"backend": "threads", "num_workers": 2},
    "processes": {"backend": "processes", "num_workers": 2},
}
OBSERVATIONS = {name: SPACES[name] for name in ("box", "box_scalar", "image", "discrete", "multi_binary", "tuple")}
OBSERVATIONS["dict"] = spaces.Dict(vector=SPACES["box"], number=SPACES["discrete"])
ACTIONS = ("discrete", "box", "multi_discrete", "multi_binary")


def cartpoles(count: int = 3, limit: int = 30) -> list[Callable[[], Any]]:
    return [partial(gymnasium.make, "CartPole-v1", max_episode_steps=limit)] * count


def vec_env(env: Any, **options: Any) -> Any:
    from vecrl.interop.sb3 import VecEnv

    return VecEnv(env, **options)


def dummy(env_fns: Any) -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda env_fn=env_fn: env_fn() for env_fn in env_fns])


def assert_equal_rollouts(env: Any, expected: Any, steps: int = 40, seed: int | None = 5) -> None:
    """Compares all results of two `VecEnv`s, types and dtypes of arrays included."""
    assert (env.num_envs, env.render_mode, env.metadata) == (expected.num_envs, expected.render_mode, expected.metadata)
    assert (env.observation_space, env.action_space) == (expected.observation_space, expected.action_space)
    if seed is not None:
        assert env.seed(seed) == expected.seed(seed)
    assert_equal_obs(env.reset(), expected.reset())
    np.testing.assert_equal(env.reset_infos, expected.reset_infos)
    env.action_space.seed(0)
    episodes = 0
    for _ in range(steps):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        (obs, *results, infos), (expected_obs, *expected_results, expected_infos) = (
            env.step(actions),
            expected.step(actions),
        )
        assert_equal_obs(obs, expected_obs)
        for actual, value in zip(results, expected_results, strict=True):
            np.testing.assert_array_equal(actual, value, strict=True)
        np.testing.assert_equal(infos, expected_infos)
        np.testing.assert_equal(env.reset_infos, expected.reset_infos)
        episodes += sum(results[1])
    assert episodes


def assert_equal_obs(obs: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert isinstance(obs, dict)
        assert obs.keys() == expected.keys()
        expected, obs = tuple(expected.values()), tuple(obs[key] for key in expected)
    if isinstance(expected, tuple):
        assert isinstance(obs, tuple)
        for pair in zip(obs, expected, strict=True):
            assert_equal_obs(*pair)
        return
    np.testing.assert_array_equal(obs, expected, strict=True)


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_equals_dummy_vec_env_for_all_observations(name: str, backend: str) -> None:
    env_fns = [partial(NoiseEnv, OBSERVATIONS[name])] * 3
    env = vec_env(env_fns, **BACKENDS[backend])
    assert_equal_rollouts(env, dummy(env_fns))
    env.close()


@pytest.mark.parametrize("action", ACTIONS)
def test_equals_dummy_vec_env_for_all_actions(action: str) -> None:
    env_fns = [partial(NoiseEnv, SPACES["box"], SPACES[action])] * 2
    assert_equal_rollouts(vec_env(env_fns), dummy(env_fns))


@pytest.mark.parametrize(
    "make",
    [
        partial(VectorEnv, backend="processes", num_workers=2),  # in next-step mode
        partial(VectorEnv, autoreset_mode="disabled"),
        AsyncVectorEnv,
        SyncVectorEnv,
        DummyVectorEnv,
        SubprocVectorEnv,
    ],
    ids=["next-step", "disabled", "async", "sync", "venv", "venv-processes"],
)
def test_equals_dummy_vec_env_over_every_vector_env(make: Callable[..., Any]) -> None:
    env = vec_env(make(cartpoles()))
    assert_equal_rollouts(env, dummy(cartpoles()))
    env.close()


def test_takes_what_make_vector_env_returns() -> None:
    env = vec_env(make_vector_env("CartPole-v1", num_envs=3, max_episode_steps=30))
    assert_equal_rollouts(env, dummy(cartpoles()))


def test_takes_tensordict_envs() -> None:
    env = vec_env(SerialEnv(2, lambda: GymEnv("CartPole-v1", max_episode_steps=9)))
    obs = env.reset()
    assert (obs.shape, obs.dtype, env.action_space) == ((2, 4), np.dtype(np.float32), spaces.Discrete(2))
    steps = [env.step(np.array([step % 2] * 2)) for step in range(9)]
    assert steps[-1][2].tolist() == [True, True]
    assert steps[-1][3][0]["TimeLimit.truncated"]
    assert steps[-1][3][0]["terminal_observation"].shape == (4,)


def test_native_tasks_equal_their_vector_env() -> None:
    batched: Any = make_vector_env("native::CartPole-v1", num_envs=8).env
    assert isinstance(batched, BatchedVectorEnv)
    env = vec_env(make_vector_env("native::CartPole-v1", num_envs=8))
    env.seed(3)
    expected_obs, _ = batched.reset(seed=3)
    assert_equal_obs(env.reset(), expected_obs)
    ended = 0
    for step in range(60):
        actions = np.full(8, step % 3 == 0).astype(np.int64)
        obs, rewards, dones, infos = env.step(actions)
        expected_obs, reward, terminated, truncated, info = batched.step(actions)
        assert_equal_obs(obs, expected_obs)
        assert (rewards.dtype, rewards.tolist()) == (np.float32, reward.tolist())
        assert dones.tolist() == (terminated | truncated).tolist()
        for row in np.flatnonzero(dones):
            np.testing.assert_array_equal(infos[row]["terminal_observation"], info["final_obs"][row], strict=True)
        ended += dones.sum()
        assert [i["TimeLimit.truncated"] for i in infos] == (truncated & ~terminated).tolist()
        assert all(("terminal_observation" in i) == done for i, done in zip(infos, dones, strict=True))
    assert ended > 3


def test_batched_simulators_equal_single_environments() -> None:
    env, expected = vec_env(BatchedVectorEnv(CountingBatch(4))), dummy([SeededCountingEnv] * 4)
    assert env.seed(0) == expected.seed(0)
    env.set_options([{"time": time} for time in (0, 1, 0, -2)])
    expected.set_options([{"time": time} for time in (0, 1, 0, -2)])
    assert_equal_obs(env.reset(), expected.reset())
    for _ in range(12):
        (obs, rewards, dones, infos), (*expected_results, expected_infos) = env.step([0] * 4), expected.step([0] * 4)
        assert_equal_obs((obs, rewards, dones), tuple(expected_results))
        times = [info.pop("time") for info in infos]  # that of the step, also if the row was reset
        final_times = [info["terminal_observation"][2] if "terminal_observation" in info else None for info in infos]
        assert times == [row[2] if time is None else time for row, time in zip(obs, final_times, strict=True)]
        np.testing.assert_equal(infos, expected_infos)
    assert env.reset_infos == [{}] * 4


def test_final_observations_do_not_need_infos() -> None:
    env = vec_env(VectorEnv(cartpoles(1, 3), empty_info=True))
    env.reset()
    infos = [env.step([step % 2])[3][0] for step in range(3)]
    assert infos[:2] == [{"TimeLimit.truncated": False}] * 2
    assert infos[2]["TimeLimit.truncated"]
    assert infos[2]["terminal_observation"].shape == (4,)


class BothFlagsEnv(gymnasium.Env):
    """Ends by both flags at each step; its info is one dict that it changes."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)
    info: dict[str, Any] = {"nested": {"count": 0}}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {"options": options, "seed": seed}

    def step(self, action: Any) -> Any:
        self.info["nested"]["count"] += 1
        return np.ones(1, np.float32), 1.0, True, True, self.info


def test_a_terminated_episode_is_not_truncated() -> None:
    env = vec_env([BothFlagsEnv])
    env.reset()
    assert env.step([0])[3][0]["TimeLimit.truncated"] is False


def test_results_are_not_overwritten() -> None:
    env = vec_env([BothFlagsEnv])
    env.reset()
    first = env.step([0])
    count = first[3][0]["nested"]["count"]
    for _ in range(20):
        env.step([0])
    assert (first[0].tolist(), first[3][0]["nested"]["count"]) == ([[0.0]], count)
    assert first[3][0]["terminal_observation"].tolist() == [1.0]


def test_a_restarted_environment_ends_its_episode(tmp_path: Any) -> None:
    env = vec_env(VectorEnv([partial(FailsOnceEnv, str(tmp_path / "mark"))], on_failure="restart"))
    env.reset()
    steps = [env.step([0]) for _ in range(4)]
    assert [bool(dones[0]) for _, _, dones, _ in steps] == [False, False, True, False]
    info = steps[2][3][0]
    assert info["failed"]
    assert info["TimeLimit.truncated"]
    assert info["terminal_observation"].tolist() == [2.0]
    assert steps[2][0].tolist() == [[0.0]]


# -- seeds and options -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_and_options_are_used_once(backend: str) -> None:
    env = vec_env([BothFlagsEnv] * 2, **BACKENDS[backend])
    assert env.seed(7) == [7, 8]
    env.set_options({"level": 1})
    env.reset()
    assert env.reset_infos == [{"options": {"level": 1}, "seed": 7}, {"options": {"level": 1}, "seed": 8}]
    env.reset()
    assert env.reset_infos == [{"options": None, "seed": None}] * 2
    env.close()


def test_options_of_each_environment() -> None:
    env = vec_env([BothFlagsEnv] * 3)
    env.seed(1)
    env.set_options([{"level": 1}, {}, {"level": 3}])
    obs = env.reset()
    assert obs.shape == (3, 1)
    expected = [
        {"options": {"level": 1}, "seed": 1},
        {"options": None, "seed": 2},
        {"options": {"level": 3}, "seed": 3},
    ]
    assert env.reset_infos == expected
    with pytest.raises(SpaceError, match="Expected one dict of options or 3, one per environment, got 2"):
        env.set_options([{}, {}])
    env.reset()
    assert env.reset_infos == [{"options": None, "seed": None}] * 3


def test_without_a_seed_streams_continue() -> None:
    env_fns = [partial(NoiseEnv, SPACES["box"])] * 2
    env, expected = vec_env(env_fns), dummy(env_fns)
    assert_equal_rollouts(env, expected)
    assert_equal_rollouts(env, expected, seed=None)


# -- attributes and methods ------------------------------------------------------------------------


class Doubled(gymnasium.Wrapper):
    """A wrapper of this module, which worker processes get by value."""

    own = "attribute of the wrapper"


class DoubledTwice(Doubled):
    pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_access_to_the_environments_equals_dummy_vec_env(backend: str) -> None:
    env_fns = [lambda i=i, make=make: DoubledTwice(make()) if i else make() for i, make in enumerate(counting(3))]
    env, expected = vec_env(env_fns, **BACKENDS[backend]), dummy(env_fns)
    for indices in (None, 0, 2, -1, [1], [2, 0], np.array([0, 1]), np.int64(1), range(2), []):
        if not isinstance(indices, np.int64):  # which DummyVecEnv does not take
            assert env.get_attr("env_id", indices) == expected.get_attr("env_id", indices)
            assert env.env_method("twice", 4, plus=1, indices=indices) == expected.env_method(
                "twice", 4, plus=1, indices=indices
            )
            wrapped = expected.env_is_wrapped(Doubled, indices)
            assert env.env_is_wrapped(Doubled, indices) == wrapped
        else:
            assert env.get_attr("env_id", indices) == [1]
    assert env.env_is_wrapped(type(expected.envs[0])) == expected.env_is_wrapped(type(expected.envs[0]))
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False, True, True]
    assert [env.has_attr(name) for name in ("env_id", "own", "nothing")] == [True, False, False]
    assert env.get_attr("own", [1, 2]) == ["attribute of the wrapper"] * 2
    for wrong in (AttributeError, WorkerError):
        with pytest.raises(wrong, match="no attribute 'nothing'"):
            env.get_attr("nothing")
    with pytest.raises(IndexError):
        env.get_attr("env_id", 3)
    env.set_attr("env_id", [8, 9], indices=1)  # a list is one value
    assert env.get_attr("env_id") == [0, [8, 9], 2]
    env.set_attr("env_id", [8, 9])
    assert env.get_attr("env_id") == [[8, 9]] * 3
    env.close()


def test_an_attribute_is_set_where_it_is() -> None:
    """`DummyVecEnv` sets it on the outermost wrapper, where the physics do not read it."""
    env, expected = (make([lambda: Doubled(gymnasium.make("CartPole-v1"))]) for make in (vec_env, dummy))
    for either in (env, expected):
        either.set_attr("gravity", 3.0)
        assert either.get_attr("gravity") == [3.0]
    assert env.get_attr("unwrapped")[0].gravity == 3.0
    assert expected.get_attr("unwrapped")[0].gravity == 9.8


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_has_the_class_of_its_cause(backend: str) -> None:
    env = vec_env([FailingEnv] * 2, **BACKENDS[backend])
    env.reset()
    env.step([0, 0]), env.step([0, 0])
    with pytest.raises(ArithmeticError, match="went wrong on purpose") as caught:
        env.step([0, 0])
    assert isinstance(caught.value, WorkerError)
    assert env.reset().tolist() == [[0.0], [0.0]]
    env.close()


def test_batched_simulators_share_their_attributes() -> None:
    env = vec_env(make_vector_env("native::CartPole-v1", num_envs=3))
    assert env.get_attr("num_envs", [0, 2]) == [3, 3]
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False] * 3
    assert (env.has_attr("num_envs"), env.has_attr("nothing")) == (True, False)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_images(backend: str) -> None:
    env = vec_env([partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")] * 2, **BACKENDS[backend])
    env.reset()
    assert [image.shape for image in env.get_images()] == [(400, 600, 3)] * 2
    assert env.render().shape == (800, 600, 3)
    env.close()


def test_images_of_native_tasks_and_without_a_render_mode() -> None:
    env = vec_env(make_vector_env("native::CartPole-v1", num_envs=2, render_mode="rgb_array"))
    env.reset()
    frames = env.get_images()
    assert len(frames) == 2
    assert frames[0].dtype == np.uint8
    assert frames[0].ndim == 3
    silent = vec_env(cartpoles(2))
    assert (silent.get_images(), silent.render()) == ([None, None], None)


# -- calls in any order ----------------------------------------------------------------------------


@pytest.mark.parametrize("env_fns", ["CartPole-v1", "native::CartPole-v1"])
def test_calls_in_any_order(env_fns: str) -> None:
    env = vec_env(make_vector_env(env_fns, num_envs=2))
    env.reset()
    env.step_async(np.zeros(2, np.int64))
    assert env.reset().shape == (2, 4)  # drops the step
    with pytest.raises(PendingError):
        env.step_wait()
    assert env.step([0, 1])[0].shape == (2, 4)
    with pytest.raises(SpaceError):
        env.step(np.zeros(3, np.int64))
    env.close()
    env.close()
    with pytest.raises(ClosedError):
        env.reset()


def test_a_name_makes_its_environments() -> None:
    for name, options in (("native::CartPole-v1", {}), ("CartPole-v1", {"backend": "processes", "num_workers": 1})):
        env = vec_env(name, num_envs=3, **options)
        assert env.reset().shape == (3, 4)
        assert env.step(np.zeros(3, np.int64))[1].tolist() == [1.0] * 3
        env.close()
    env = vec_env("native::CartPole-v1")
    assert env.num_envs == 1
    env.close()


def test_what_it_cannot_take() -> None:
    with pytest.raises(TypeError, match=r"got <.*CartPole.*>. Give \[lambda: gymnasium.make"):
        vec_env(gymnasium.make("CartPole-v1"))
    with pytest.raises(TypeError, match="functions that make environments only, got VectorEnv"):
        vec_env(VectorEnv(cartpoles(1)), backend="threads")
    with pytest.raises(SpaceError, match="Expected a TorchWrapper that does not change actions"):
        vec_env(make_vector_env("Pendulum-v1", num_envs=2, clip_actions=True))
    unlike = [partial(NoiseEnv, SPACES[name]) for name in ("box", "image")]
    with pytest.raises(SpaceError, match="Expected environments with equal spaces"):
        vec_env(DummyVectorEnv(unlike))


def test_outputs_that_do_not_fit_raise() -> None:
    """`vecrl.venv` accepts them, but Stable-Baselines3 needs arrays of the declared space, and numbers as rewards."""
    for shape, reward, message in (((3,), 1.0, "observations of Box"), ((2, 3), np.ones(2), "a number as the reward")):
        make = partial(ReturnedObsEnv, np.ones(shape, np.float32), SPACES["box"], reward)
        env = vec_env(DummyVectorEnv([make] * 2))
        with pytest.raises(SpaceError, match=f"Expected {message}"):  # noqa: PT012 - the first fails in reset
            env.reset()
            env.step([0, 0])
