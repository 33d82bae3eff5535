"""gymnasium environments that violate their declaration, on every way of stepping them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.envs import GymEnv, GymWrapper, SerialEnv, StepCounter, TransformedEnv, check_env_specs, make_env
from vecrl.envs.libs.gym import default_info_dict_reader
from vecrl.errors import SpaceError, WorkerError

GOOD = np.zeros(2, np.float32)
BOX = spaces.Box(-9, 9, (2,))


class Plain(gymnasium.Env[Any, Any]):
    """Returns the configured values, whatever its spaces are, and keeps the last action."""

    def __init__(self, outcome: Any = None, reset_output: Any = None, obs: Any = BOX, act: Any = None):
        self.observation_space = obs
        self.action_space = spaces.Discrete(2) if act is None else act
        self.outcome = (GOOD, 1.0, False, False, {}) if outcome is None else outcome
        self.reset_output: Any = (GOOD, {}) if reset_output is None else reset_output
        self.last: Any = None

    def reset(self, **kwargs: Any) -> Any:
        return self.reset_output

    def step(self, action: Any) -> Any:
        self.last = action
        return self.outcome


def outcome(obs: Any = GOOD, reward: Any = 1.0) -> Any:
    return obs, reward, False, False, {}


WAYS: dict[str, Callable[[Any], Any]] = {
    "random": lambda env: env.rollout(3),
    "transformed": lambda env: TransformedEnv(env, StepCounter()).rollout(3),
    "policy": lambda env: env.rollout(3, lambda td: td.set("action", torch.tensor([1, 0]))),
    "infos": lambda env: env.set_info_dict_reader().rollout(3),
    "check": check_env_specs,
}
ONE = spaces.Box(-9, 9, (1,))
INTS, BYTES = spaces.Box(0, 9, (2,), np.int64), spaces.Box(0, 255, (2,), np.uint8)
PAIR = spaces.Dict(a=BOX, n=spaces.Discrete(3))
WRONG = {
    "a number": (BOX, 5.0, "float '5.0'"),
    "a text": (ONE, "5", "str '5'"),
    "numbers for one": (ONE, np.ones(2), r"shape \(2,\)"),
    "one number": (BOX, np.array([5.0]), r"shape \(1,\)"),
    "a row more": (BOX, np.full((1, 2), 7.0), r"shape \(1, 2\)"),
    "nothing": (BOX, None, "NoneType"),
    "text": (BOX, "3", "str '3'"),
    "ragged": (BOX, [[1.0], 2.0], "list"),
    "fractions": (INTS, np.array([1.7, 2.2]), "dtype float64"),
    "beyond bytes": (BYTES, np.array([300, -1]), "dtype int64"),
    "deep": (PAIR, {"a": np.zeros(3), "n": 1}, r"\['a'\].*shape \(3,\)"),
    "no index": (PAIR, {"a": GOOD, "n": 1.5}, r"\['n'\].*float '1.5'"),
    "a key less": (PAIR, {"a": GOOD}, r"\['n'\], got a dict"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_observations_raise(wrong: str, way: str) -> None:
    space, obs, said = WRONG[wrong]
    fine = space.sample()
    for made in (Plain(outcome(obs), (fine, {}), space), Plain(outcome(fine), (obs, {}), space)):
        with pytest.raises(SpaceError, match=f"(?s)Expected.*{said}"):
            WAYS[way](GymWrapper(made))
    with pytest.raises(WorkerError), SerialEnv(2, lambda: GymWrapper(Plain(outcome(obs), (fine, {}), space))) as env:
        env.rollout(3)


@pytest.mark.parametrize("way", WAYS)
def test_same_kind_casts_are_accepted(way: str) -> None:
    for space, obs in ((BOX, [1.0, 2.0]), (BOX, np.ones(2)), (INTS, np.ones(2, np.int32)), (PAIR, {"a": GOOD, "n": 2})):
        WAYS[way](GymWrapper(Plain(outcome(obs), (obs, {}), space)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [0.5, 1, np.float32(0.5), np.array(0.5)])
def test_a_number_stands_for_an_array_of_one(number: Any, way: str) -> None:
    space = spaces.Dict(a=ONE, b=BOX)
    obs = {"a": number, "b": GOOD}
    for each_space, each_obs, key in ((ONE, number, "observation"), (space, obs, "a")):
        WAYS[way](GymWrapper(Plain(outcome(each_obs), (each_obs, {}), each_space)))
        make = partial(Plain, outcome(each_obs), (each_obs, {}), each_space)
        expected = GymWrapper(make()).rollout(2)["next", key]
        assert expected.tolist() == [[float(number)]] * 2
        with SerialEnv(2, lambda make=make: GymWrapper(make())) as env:
            assert torch.equal(env.rollout(2)["next", key], torch.stack([expected] * 2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Plain(reset_output=GOOD), r"reset\(\) of Plain to return \(obs, info\).*an array of shape \(2,\)"),
        (lambda: Plain((GOOD, 1.0, False, {})), r"got 4 values.*LegacyGymAdapter"),
        (lambda: Plain(5), "got (a value of type int|int '5')"),
    ],
)
def test_old_gym_outputs_raise(made: Any, said: str, way: str) -> None:
    with pytest.raises(SpaceError, match=said):
        WAYS[way](GymWrapper(made()))


@pytest.mark.parametrize("way", WAYS)
def test_rewards_may_be_arrays_of_one_element(way: str) -> None:
    for reward in (np.full(1, 2.5), [2.5], np.float64(2.5), torch.tensor([2.5])):
        rollout = WAYS[way](GymWrapper(Plain(outcome(reward=reward))))
        assert rollout is None or rollout["next", "reward"].flatten().tolist() == [2.5] * 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reward", [None, "3", np.ones(2), [[1.0], 2.0]])
def test_invalid_rewards_raise(reward: Any, way: str) -> None:
    with pytest.raises(SpaceError, match="Expected"):
        WAYS[way](GymWrapper(Plain(outcome(reward=reward))))


ACTIONS = [
    spaces.Dict(move=spaces.Discrete(2)),
    spaces.Tuple((spaces.Discrete(2),)),
    spaces.Dict(m=spaces.Dict(k=spaces.Box(-1, 1, (2,)))),
    spaces.Dict(action=spaces.Box(-1, 1, (2,))),
    spaces.Dict(move=spaces.Discrete(2), x=spaces.Discrete(3, start=1)),
]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
@pytest.mark.parametrize("categorical", [False, True])
def test_nested_actions_follow_their_space(space: Any, categorical: bool) -> None:
    env = GymWrapper(Plain(act=space), categorical)
    for play in (env.rollout, lambda n: TransformedEnv(env, StepCounter()).rollout(n)):
        play(2)
        assert space.contains(env._env.last)
    batch = SerialEnv(2, lambda: GymWrapper(Plain(act=space), categorical))
    batch.rollout(2)
    assert all(map(space.contains, batch.last))
    vector: Any = gymnasium.vector.SyncVectorEnv([lambda: Plain(act=space)] * 2)
    GymWrapper(vector, categorical).rollout(2)
    assert all(space.contains(each.last) for each in vector.envs)


def test_actions_of_a_wrong_shape_raise() -> None:
    env, pendulum = GymEnv("MountainCar-v0"), GymEnv("Pendulum-v1")
    with pytest.raises(SpaceError, match=r"shape \(3,\) at 'action', got \(\).*encode\(2\)"):
        env.rollout(20, actions=[2] * 20)
    with pytest.raises(SpaceError, match=r"shape \[time, 3\].*\(5,\)"):
        env.rollout(5, actions=torch.zeros(5, dtype=torch.int64))
    with pytest.raises(SpaceError, match=r"\(3,\) at 'action', got \(\)"):
        env.rollout(5, lambda td: td.set("action", torch.tensor(2)))
    with pytest.raises(SpaceError, match=r"\(1,\) at 'action', got \(7,\)"):
        pendulum.step(pendulum.reset().set("action", torch.zeros(7)))
    with pytest.raises(SpaceError, match=r"shape \[3, time, 2\].*\(5, 3, 2\)"):
        GymEnv("CartPole-v1", num_envs=3).rollout(5, actions=torch.zeros(5, 3, 2))
    with pytest.raises(SpaceError, match="one-hot rows of 3"):
        env.rollout(5, actions=torch.zeros(5, 3))
    with pytest.raises(TypeError, match="Give one of them"):
        env.rollout(5, lambda td: td, actions=[2])


class Informing(Plain):
    """Has one more info entry."""

    def __init__(self, info: Any):
        super().__init__((GOOD, 1.0, False, False, {"a": info}), (GOOD, {"a": info}))


def named(name: str) -> Any:
    space = spaces.Dict({name: BOX})
    return Plain(outcome({name: GOOD}), ({name: GOOD}, {}), space)


def with_tuples() -> Any:
    return Plain(obs=spaces.Tuple((BOX, BOX)), act=spaces.Tuple((spaces.Discrete(2), BOX)))


ERROR_CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a name": (lambda: GymWrapper("CartPole-v1"), TypeError, r"'CartPole-v1'\. Give gymnasium\.make"),
    "nothing": (GymWrapper, TypeError, r"None\. Give an environment"),
    "a class": (lambda: GymWrapper(Plain), TypeError, r"got the class Plain\. Give an instance: Plain\(\)"),
    "one over TensorDicts": (lambda: GymWrapper(GymEnv("CartPole-v1")), TypeError, "over TensorDicts already"),
    "less than no environment": (lambda: GymEnv("CartPole-v1", num_envs=-1), ValueError, "num_envs .* got -1"),
    "next": (lambda: GymWrapper(named("next")), SpaceError, "other names than 'next'.*Rename"),
    "done": (lambda: GymWrapper(named("done")), SpaceError, "other names than 'done'.*Rename"),
    "reward": (lambda: GymWrapper(named("reward")), SpaceError, "other names than 'reward'.*Rename"),
    "the action": (
        lambda: GymWrapper(named("action")),
        SpaceError,
        "other names than 'action', .* reserved for actions",
    ),
    "tuples": (lambda: GymWrapper(with_tuples()), SpaceError, "other names than '0', '1', .* reserved for actions"),
    "tuples in a batch": (
        lambda: GymWrapper(gymnasium.vector.SyncVectorEnv([with_tuples] * 2)),
        SpaceError,
        "other names than '0', '1'",
    ),
    "a part of an action": (
        lambda: GymWrapper(Plain(obs=spaces.Dict(x=BOX), act=spaces.Dict(x=spaces.Dict(y=BOX)))),
        SpaceError,
        "other names than 'x'",
    ),
    "an array among infos": (
        lambda: GymWrapper(Informing(GOOD)).set_info_dict_reader(default_info_dict_reader(["a"])).rollout(2),
        SpaceError,
        r"shape \(\) at info 'a', got \(2,\).*spec=\{'a': Unbounded\(\(2,\)\)\}",
    ),
    "text among infos": (
        lambda: GymWrapper(Informing("x")).set_info_dict_reader(default_info_dict_reader(["a"])).rollout(2),
        SpaceError,
        "numbers at info 'a', got 'x'",
    ),
}


@pytest.mark.parametrize("case", ERROR_CASES)
def test_error_messages(case: str) -> None:
    call, kind, said = ERROR_CASES[case]
    with pytest.raises(kind, match=f"(?s){said}"):
        call()


def test_a_batched_simulator_has_another_class() -> None:
    message = r"'native::CartPole-v1', of which many.*Use vecrl.envs.SimulatorEnv\('native::CartPole-v1', num_envs=n\)"
    with pytest.raises(ValueError, match=message):
        GymEnv("native::CartPole-v1", num_envs=4)


@pytest.mark.parametrize("name", ["", None])
def test_names_are_texts(name: Any) -> None:
    with pytest.raises(SpaceError, match="Expected the name of an environment, such as 'CartPole-v1', got "):
        GymEnv(name)


@pytest.mark.parametrize("make", [partial(GymEnv, "CartPole-v1"), partial(make_env, "CartPole-v1")])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_unknown_arguments_have_one_sentence(make: Callable[..., Any], num_envs: int | None) -> None:
    start = "^Expected arguments of 'gym::CartPole-v1', got 'on_failure': CartPoleEnv.*"
    with pytest.raises(TypeError, match=start + "Give it to a VectorEnv or a ParallelEnv") as caught:
        make(num_envs=num_envs, on_failure="hide")
    assert str(caught.value).count("Expected") == 1
