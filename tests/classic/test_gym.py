"""`GymEnv`: spaces as dicts, conversion of actions, wrappers, and terminated and truncated episodes."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.fixtures.classic_envs import EndingEnv

from vecrl.classic import Config, GymEnv
from vecrl.errors import SpaceError
from vecrl.simulators.registry import register, unregister


def test_spaces_as_dicts() -> None:
    box = GymEnv.get_space_info(spaces.Box(np.array([-1, -2], np.float32), np.array([3, np.inf], np.float32)))
    assert (box["shape"], box["dtype"]) == ((2,), "continuous")
    assert box["low_bound"].tolist() == [-1.0, -2.0]
    assert box["high_bound"].tolist() == [3.0, np.inf]
    assert GymEnv.get_space_info(spaces.Discrete(4)) == {"shape": (4,), "dtype": "int", "n": 4}
    assert GymEnv.get_space_info(spaces.Discrete(4, start=2))["start"] == 2
    many = GymEnv.get_space_info(spaces.MultiDiscrete([2, 5]))
    assert (many["shape"], many["dtype"], many["n"].tolist()) == ((2,), "int", [2, 5])
    switches = GymEnv.get_space_info(spaces.MultiBinary(3))
    assert (switches["shape"], switches["dtype"], switches["n"].tolist()) == ((3,), "int", [2, 2, 2])
    for other in (spaces.Dict(a=spaces.Discrete(2)), spaces.Text(3)):
        with pytest.raises(SpaceError, match="FlattenObservation"):
            GymEnv.get_space_info(other)


def test_bounds_in_infos_are_copies() -> None:
    env = GymEnv("Pendulum-v1")
    env.get_action_info()["low_bound"][:] = 7
    assert env.get_action_info()["low_bound"].tolist() == [-2.0]


@pytest.mark.parametrize("action", [1, 1.0, True, np.int64(1), np.array(1), np.array([1.0]), torch.tensor(1), [1]])
def test_discrete_actions_become_ints(action: Any) -> None:
    expected, env = GymEnv("CartPole-v1", seed=0), GymEnv("CartPole-v1", seed=0)
    for item in (expected, env):
        item.reset()
    np.testing.assert_array_equal(env.step(action)[0], expected.step(1)[0])


@pytest.mark.parametrize("action", [0.5, [0.5], np.array([0.5]), np.float32(0.5), torch.tensor([0.5])])
def test_actions_are_cast_to_the_space_dtype(action: Any) -> None:
    bare, env = gymnasium.make("Pendulum-v1"), GymEnv("Pendulum-v1", seed=0)
    bare.reset(seed=0)
    env.reset()
    state, reward, done, info = env.step(action)
    expected = bare.step(np.array([0.5], np.float32))
    np.testing.assert_array_equal(state, expected[0])
    assert (reward, done, info) == (float(expected[1]), False, {})


@pytest.mark.parametrize(
    ("name", "action"), [("CartPole-v1", [0, 1]), ("Pendulum-v1", [1.0, 2.0]), ("Pendulum-v1", "a")]
)
def test_invalid_actions_raise(name: str, action: Any) -> None:
    env = GymEnv(name, seed=0)
    env.reset()
    with pytest.raises(SpaceError, match="Expected an action in"):
        env.step(action)


def test_steps_equal_gymnasium() -> None:
    bare, env = gymnasium.make("CartPole-v1"), GymEnv("CartPole-v1", seed=4)
    state = env.reset()
    np.testing.assert_array_equal(state, bare.reset(seed=4)[0])
    done = False
    while not done:
        state, reward, done, info = env.step(1)
        obs, paid, terminated, truncated, _ = bare.step(1)
        np.testing.assert_array_equal(state, obs)
        assert (type(reward), reward, type(done)) == (float, paid, bool)
        assert done == (terminated or truncated)
    assert info == {"TimeLimit.truncated": False}


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)])
def test_info_distinguishes_terminated_and_truncated(flags: tuple[bool, bool]) -> None:
    env = GymEnv("Ends-v0", flags=flags, seed=0)
    env.reset()
    assert [env.step([0, 1])[2:] for _ in range(2)] == [(False, {"steps": 1}), (False, {"steps": 2})]
    reached = {"TimeLimit.reached": True} if all(flags) else {}
    assert env.step([0, 1])[2:] == (True, {"steps": 3, "TimeLimit.truncated": not flags[0], **reached})


class Reused(EndingEnv):
    """Returns the same array and the same info every time."""

    observation_space = spaces.Box(-9, 9, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        super().__init__()
        self.x, self.info = np.zeros(2, np.float32), {"ours": 1}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.x[:] = self.steps = 0
        return self.x, {}

    def step(self, action: Any) -> Any:
        self.x += 1
        self.steps += 1
        return self.x, 0.0, self.steps == 3, False, self.info


def test_states_and_infos_are_copies() -> None:
    gymnasium.register("Reused-v0", Reused)
    env = GymEnv("Reused-v0")
    first = env.reset()
    step_td = [env.step(0) for _ in range(3)]
    assert [state.tolist() for state in (first, *(step[0] for step in step_td))] == [[i, i] for i in (0.0, 1, 2, 3)]
    assert [step[3] for step in step_td] == [{"ours": 1}] * 2 + [{"ours": 1, "TimeLimit.truncated": False}]


def test_wrappers_apply_in_order_and_appear_in_the_config() -> None:
    short = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=3)
    wrappers: Any = (gymnasium.wrappers.FlattenObservation, short)
    env = GymEnv("FrozenLake-v1", wrappers, seed=0, is_slippery=False)
    assert env.reset().tolist() == [1, *[0] * 15]
    assert [env.step(0)[2] for _ in range(3)] == [False, False, True]
    config = Config()
    env.update_config(config)
    names = ["gymnasium.wrappers.transform_observation.FlattenObservation"]
    assert config.env.wrappers == [*names, "gymnasium.wrappers.common.TimeLimit(max_episode_steps=3)"]


def test_wrappers_that_return_none_raise_with_their_name() -> None:
    with pytest.raises(TypeError, match=r"wrapper .*<lambda> to return an environment, got None"):
        GymEnv("CartPole-v1", [lambda env: None])


def test_unsupported_environments_are_closed() -> None:
    closed: list[str] = []

    class Closing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append("yes")

    class Speaking(Closing):
        action_space = spaces.Text(3)  # type: ignore[assignment]

    with pytest.raises(SpaceError, match="Convert it to one of these: wrappers"):
        GymEnv("CartPole-v1", [Speaking])
    with pytest.raises(SpaceError, match="finite bounds"):
        GymEnv("CartPole-v1", [Closing], fixed_normalize_states=True)
    assert closed == ["yes", "yes"]


def test_unknown_names_raise_gymnasiums_error() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="CartPole"):
        GymEnv("CartPol-v1")
    with pytest.raises(ModuleNotFoundError, match="no_gym"):
        GymEnv("CartPole-v1", library="no_gym")


class Old(EndingEnv):
    """Implements the old gym interface: four values per step, only an observation from a reset."""

    def reset(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().reset(seed=0)[0]

    def seed(self, seed: int) -> None: ...

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info | {"TimeLimit.truncated": truncated}


class Outdated:
    """Equals `Old`, but does not derive from a gymnasium class."""

    def __init__(self, env: Any):
        self.old = Old((False, True))
        self.observation_space, self.action_space = self.old.observation_space, self.old.action_space
        self.reset, self.step, self.seed, self.close = self.old.reset, self.old.step, self.old.seed, env.close


def test_wrappers_may_use_the_old_gym_api() -> None:
    env = GymEnv("Ends-v0", [Outdated])
    assert env.reset().shape == ()
    flags = [env.step([1, 2])[2:] for _ in range(3)]
    assert [done for done, _ in flags] == [False, False, True]
    assert flags[-1][1]["TimeLimit.truncated"]


def test_context_manager_closes_and_render_works() -> None:
    with GymEnv("CartPole-v1", render_mode="rgb_array", seed=0) as env:
        env.reset()
        assert env.render().dtype == np.uint8
    env.close()
    assert repr(env) == "GymEnv('CartPole-v1', simulator='gymnasium')"


def test_the_config_holds_all_options(tmp_path: Any) -> None:
    config = Config(seed=1)
    env = GymEnv("Pendulum-v1", fixed_normalize_states=True, scale_reward=True)
    env.update_config(config)
    env.update_config(config)  # a second time, as in a longer script
    assert config.env.name == "Pendulum-v1"
    assert config.env.simulator == "gymnasium"
    assert config.env.wrappers == []
    assert (config.env.fixed_normalize_states, config.env.running_normalize_states) == (True, False)
    assert config.env.scale_reward
    assert config.env.state_info.high_bound.tolist() == [1.0] * 3
    assert (config.env.action_info.shape, config.env.action_info.dtype) == ((1,), "continuous")
    config.save(tmp_path / "config.yaml")
    assert Config.load(tmp_path / "config.yaml") == config


def test_names_with_a_prefix_are_of_any_simulator() -> None:
    plain, prefixed = GymEnv("CartPole-v1", seed=3), GymEnv("gym::CartPole-v1", seed=3)
    np.testing.assert_array_equal(plain.reset(), prefixed.reset())
    np.testing.assert_array_equal(plain.step(1)[0], prefixed.step(1)[0])
    assert (plain.simulator, prefixed.simulator) == ("gymnasium", "gym")
    batched = GymEnv("native::Pendulum-v1", seed=3, max_episode_steps=2)
    assert batched.simulator == "native"
    assert batched.reset().dtype == np.float32
    state, reward, done, _ = batched.step([0.5])
    assert (type(state), state.shape, type(reward), done) == (np.ndarray, (3,), float, False)
    assert batched.step([0.5])[2:] == (True, {"TimeLimit.truncated": True})


def test_prefixes_with_a_maker_only_raise() -> None:
    register("only-maker", lambda name, **kwargs: None)
    try:
        with pytest.raises(SpaceError, match="'only-maker', which has only a maker"):
            GymEnv("only-maker::x")
    finally:
        unregister("only-maker")


def test_observations_in_containers_are_flattened() -> None:
    env = GymEnv("Blackjack-v1", seed=1)
    assert env.get_state_info()["shape"] == (32 + 11 + 2,)
    bare = gymnasium.make("Blackjack-v1")
    expected = spaces.flatten(bare.observation_space, bare.reset(seed=1)[0])
    np.testing.assert_array_equal(env.reset(), expected)


def test_actions_in_containers_are_one_vector() -> None:
    parts = [spaces.Discrete(2, start=5), spaces.MultiDiscrete([2, 3]), spaces.Box(-9, 9, (2, 1))]
    received: list[Any] = []

    class Taking(gymnasium.Wrapper[Any, Any, Any, Any]):
        action_space = spaces.Dict(choices=spaces.Tuple(parts[:2]), z=parts[2])  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            received.append(action)
            return self.env.step(0)

    env = GymEnv("CartPole-v1", [Taking], seed=0)
    env.reset()
    assert env.get_action_info()["shape"] == (2 + 5 + 2,)
    env.step([0.3, 0.1, 1, 2, 0, 7, 1, -40, 2.5])
    assert received[0]["choices"][0] == 5
    assert received[0]["choices"][1].tolist() == [1, 1]
    assert received[0]["z"].tolist() == [[-9.0], [2.5]]
    assert env.env.env.action_space.contains(received[0])


@pytest.mark.parametrize("name", [None, 5, gymnasium.Env])
def test_names_must_be_texts(name: Any) -> None:
    with pytest.raises(TypeError, match=r"Expected the name of an environment, such as 'CartPole-v1', got"):
        GymEnv(name)
