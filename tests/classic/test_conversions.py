"""Conversions of classic environments to TensorDict environments and back give bit-identical values."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.fixtures.classic_envs import KINDS, WalkEnv

from vecrl.classic import BaseEnv, GymEnv, from_classic, to_classic
from vecrl.classic.conversions import ClassicWrapper
from vecrl.classic.spaces import info_of_space, space_of_info
from vecrl.convert import to_tensordict
from vecrl.envs import EnvBase, NativeEnv, PendulumEnv, SerialEnv, TransformedEnv, check_env_specs
from vecrl.envs import GymEnv as TensorDictGymEnv
from vecrl.envs.transforms import DoubleToFloat, StepCounter
from vecrl.errors import SpaceError
from vecrl.specs import OneHot

STEPS = 40


def seeded(env: BaseEnv) -> BaseEnv:
    if not isinstance(env, WalkEnv):
        env.seed(3)
    return env


def play(env: BaseEnv) -> list[tuple[np.ndarray, float, bool, bool]]:
    """Returns states, rewards and done flags under a fixed sequence of actions."""
    space = space_of_info(env.get_action_info(), is_action=True)
    space.seed(0)
    found = [(np.array(env.reset()), 0.0, False, False)]
    for _ in range(STEPS):
        state, reward, done, info = env.step(space.sample())
        found.append((np.array(state), reward, done, info.get("TimeLimit.truncated", False)))
        if done:
            found.append((np.array(env.reset()), 0.0, False, False))
    return found


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_classic_round_trip_gives_equal_results(make: Any) -> None:
    plain, back = seeded(make()), seeded_back(make())
    for actual, reference in zip(play(plain), play(back), strict=True):
        assert actual[0].dtype == reference[0].dtype
        np.testing.assert_array_equal(reference[0], actual[0], strict=True)
        assert reference[1:] == actual[1:]
    for name in ("get_state_info", "get_action_info"):
        actual, reference = (
            space_of_info(getattr(env, name)(), is_action=name == "get_action_info") for env in (plain, back)
        )
        assert actual == reference
    assert (back.simulator, back.env_name) == (plain.simulator, plain.env_name)


def seeded_back(env: BaseEnv) -> BaseEnv:
    back = to_classic(from_classic(env))
    if not isinstance(env, WalkEnv):
        assert back.seed(3) == [3]
    return back


OVER_TENSORDICTS: dict[str, Any] = {
    "choices": lambda: TensorDictGymEnv("CartPole-v1"),
    "indices": lambda: TensorDictGymEnv("FrozenLake-v1", categorical_action_encoding=True),
    "numbers": lambda: TensorDictGymEnv("Pendulum-v1"),
    "float64": lambda: TensorDictGymEnv("Hopper-v5"),
    "transformed": lambda: TransformedEnv(TensorDictGymEnv("Hopper-v5"), DoubleToFloat()),
    "native": lambda: NativeEnv("Pendulum-v1"),
}


@pytest.mark.parametrize("kind", OVER_TENSORDICTS)
def test_tensordict_round_trip_gives_equal_results(kind: str) -> None:
    plain, env = OVER_TENSORDICTS[kind](), OVER_TENSORDICTS[kind]()
    back = from_classic(to_classic(env, "observation"), categorical_action_encoding=kind == "indices")
    torch.manual_seed(0)
    actions = plain.action_spec.rand((STEPS,))
    rollout = []
    for item in (plain, back):
        item.set_seed(5)
        rollout.append(item.rollout(STEPS, actions=actions, break_when_any_done=False))
    actual, reference = rollout
    keys = sorted(reference.keys(True, True), key=str)
    assert len(keys) >= 10
    for key in keys:
        assert reference[key].dtype == actual[key].dtype
        assert torch.equal(reference[key].contiguous(), actual[key].contiguous()), key


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("categorical", [False, True])
def test_outputs_match_the_specs(make: Any, categorical: bool) -> None:
    env = from_classic(make(), categorical_action_encoding=categorical)
    check_env_specs(env, break_when_any_done="both")
    rollout = env.rollout(60, break_when_any_done=False)
    assert env.observation_spec["observation"].is_in(rollout["observation"])
    assert env.action_spec.is_in(rollout["action"])


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)])
def test_terminated_and_truncated_are_distinguished(flags: tuple[bool, bool]) -> None:
    rollout = from_classic(GymEnv("Ends-v0", flags=flags)).rollout(9)
    assert rollout.shape == (3,)
    assert rollout["next", "done"].squeeze(-1).tolist() == [False, False, True]
    assert [rollout["next", name][-1].item() for name in ("terminated", "truncated")] == list(flags)
    back = to_classic(from_classic(GymEnv("Ends-v0", flags=flags)))
    back.reset()
    reached = {"TimeLimit.reached": True} if all(flags) else {}
    assert [back.step([0, 1])[3] for _ in range(3)][-1] == {"TimeLimit.truncated": not flags[0], **reached}


def test_conversions_accept_the_source_outputs() -> None:
    """The result equals the TensorDict environment of the same name, except for the precision of rewards."""
    actual, reference = from_classic(GymEnv("CartPole-v1")), TensorDictGymEnv("CartPole-v1")
    assert isinstance(actual.action_spec, OneHot)
    assert actual.observation_spec == reference.observation_spec
    assert actual.action_spec == reference.action_spec
    assert actual.reward_spec.dtype == torch.float64
    assert actual.full_done_spec == reference.full_done_spec


def test_reused_state_arrays_are_copied() -> None:
    env = from_classic(WalkEnv("walk"))
    rollout = env.rollout(2, actions=torch.eye(2)[[1, 1]].long())
    assert rollout["observation"][:, 1].tolist() == [0.0, 1.0]
    classic = to_classic(env)
    first = classic.reset()
    classic.step(1)
    assert first.tolist() == [0.0, 0.0]


def test_other_observations_are_in_the_info() -> None:
    env = to_classic(TransformedEnv(TensorDictGymEnv("CartPole-v1"), StepCounter()), "observation")
    env.seed(0)
    np.testing.assert_array_equal(env.reset(), GymEnv("CartPole-v1", seed=0).reset())
    assert env.step(0)[3]["step_count"].tolist() == [1]


def test_classic_options_apply_to_converted_environments() -> None:
    env = to_classic(TensorDictGymEnv("Pendulum-v1"), fixed_normalize_states=True)
    env.seed(0)
    assert np.abs(env.reset()).max() <= 1
    assert env.get_state_info()["high_bound"].tolist() == [1.0] * 3


def test_batches_raise() -> None:
    batch = SerialEnv(2, lambda: TensorDictGymEnv("CartPole-v1"))
    with pytest.raises(SpaceError, match=r"got batch size \(2,\)\. .*to_vector"):
        to_classic(batch)
    batch.close()
    with pytest.raises(SpaceError, match=r"got batch size \(4,\)"):
        to_classic(NativeEnv("CartPole-v1", 4))
    with pytest.raises(SpaceError, match=r"batch size \(\) for a single environment, got \(2,\)"):
        from_classic(GymEnv("CartPole-v1"), batch_size=[2])


def test_several_observations_must_be_named() -> None:
    with pytest.raises(SpaceError, match="Expected one observation"):
        to_classic(PendulumEnv())
    with pytest.raises(SpaceError, match="got 'nothing'"):
        to_classic(PendulumEnv(), "nothing")


@pytest.mark.parametrize("convert", [from_classic, to_classic])
def test_other_environments_raise(convert: Any) -> None:
    with pytest.raises(TypeError, match=r"Expected an? .*environment"):
        convert(3)


def test_a_step_needs_a_reset() -> None:
    with pytest.raises(SpaceError, match="reset before the first step"):
        to_classic(TensorDictGymEnv("CartPole-v1")).step(0)


def test_convert_accepts_classic_environments() -> None:
    env = to_tensordict(GymEnv("CartPole-v1"), categorical_action_encoding=True)
    assert isinstance(env, ClassicWrapper)
    assert isinstance(env, EnvBase)
    env.close()


SPACES = [
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)),
    spaces.Discrete(1),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("acted", [True, False])
def test_spaces_round_trip_through_infos(space: Any, acted: bool) -> None:
    assert space_of_info(info_of_space(space), is_action=acted) == space


@pytest.mark.parametrize(
    ("info", "acted", "expected"),
    [
        ({"shape": (4,), "dtype": "float"}, True, spaces.Box(-np.inf, np.inf, (4,), np.float64)),
        ({"shape": 4, "dtype": "float32"}, False, spaces.Box(-np.inf, np.inf, (4,), np.float32)),
        (
            {"shape": (2,), "dtype": "continuous", "low_bound": 0, "high_bound": 1},
            True,
            spaces.Box(0, 1, (2,), np.float64),
        ),
        ({"shape": (3,), "dtype": int}, True, spaces.Discrete(3)),
        ({"shape": 3, "dtype": "int"}, True, spaces.Discrete(3)),
        ({"shape": (), "dtype": "discrete", "n": 3}, False, spaces.Discrete(3)),
        ({"shape": (2,), "dtype": np.uint8}, False, spaces.Box(0, 255, (2,), np.uint8)),
    ],
)
def test_older_info_formats_are_accepted(info: Any, acted: bool, expected: Any) -> None:
    assert space_of_info(info, is_action=acted) == expected


@pytest.mark.parametrize("info", [{"shape": (3,)}, {"dtype": "int"}, {"shape": (3,), "dtype": "words"}])
def test_incomplete_infos_raise(info: Any) -> None:
    with pytest.raises(SpaceError, match="Expected"):
        space_of_info(info, is_action=True)
