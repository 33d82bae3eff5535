"""The form of observations, rewards and infos, whatever environments declare; equal for every class."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.equality import assert_same
from tests.fixtures.venv_envs import KINDS, GatedCountingEnv, ReturnedObsEnv, make, make_returned_obs_venv

from vecrl.convert import to_vector
from vecrl.errors import SpaceError

BOX = spaces.Box(-1, 9, (2,), np.float32)
DICT = spaces.Dict(a=spaces.Discrete(3), b=BOX, words=spaces.Text(5))


def objects(*values: Any) -> np.ndarray:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


DICTS = [{"a": 1, "b": ones(2), "words": "abc"}, {"a": 2, "b": 2 * ones(2), "words": "de"}]
CASES: dict[str, tuple[list[Any], Any]] = {
    "numbers": ([(2, spaces.Discrete(5)), (3, spaces.Discrete(9))], np.array([2, 3])),
    "arrays, cast to what is declared": ([(ones(2, dtype=float), BOX)] * 2, ones(2, 2)),
    "lists": ([([1.0, 2.0], BOX)] * 2, np.array([[1, 2]] * 2, np.float32)),
    "of two lengths": (
        [(ones(2), BOX), (ones(3), spaces.Box(-1, 1, (3,)))],
        objects(ones(2), ones(3)),
    ),
    "of two shapes that begin alike": (
        [(ones(2, 2), spaces.Box(-1, 1, (2, 2))), (ones(2, 3), spaces.Box(-1, 1, (2, 3)))],
        objects(ones(2, 2), ones(2, 3)),
    ),
    "of two dtypes": (
        [(ones(2), BOX), (ones(2, dtype=float), spaces.Box(-1, 1, (2,), np.float64))],
        ones(2, 2, dtype=float),
    ),
    "text": ([("abc", spaces.Text(5)), ("de", spaces.Text(5))], objects("abc", "de")),
    "dicts": (
        [(obs, DICT) for obs in DICTS],
        objects(*({**obs, "a": np.int64(obs["a"])} for obs in DICTS)),
    ),
    "dicts and arrays": ([(DICTS[0], DICT), (ones(2), BOX)], objects(DICTS[0], ones(2))),
    "dicts of other keys": (
        [({"x": 1}, spaces.Dict(x=spaces.Discrete(2))), ({"y": 1}, spaces.Dict(y=spaces.Discrete(2)))],
        objects({"x": 1}, {"y": 1}),
    ),
    "objects": ([({1, 2}, spaces.Text(3)), (None, spaces.Text(3))], objects({1, 2}, None)),
}


@pytest.mark.parametrize(("kind", "num_workers"), [("dummy", 1), ("dummy", 2), ("shmem", 2), ("shmem", 1)])
@pytest.mark.parametrize("name", CASES)
def test_observations_are_stacked_or_objects(name, kind, num_workers):
    cases, expected = CASES[name]
    with make_returned_obs_venv(*cases, kind=kind, num_workers=num_workers) as envs:
        assert_same(envs.reset()[0], expected)
        assert_same(envs.step([0, 1])[0], expected)
        assert_same(envs.step([1, 0], [1, 0])[0], expected[::-1])
        assert envs.observation_space == [space for _, space in cases]


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
def test_stacked_dicts(kind):
    stacked = {"a": np.array([1, 2]), "b": np.stack([ones(2), 2 * ones(2)]), "words": objects("abc", "de")}
    with make_returned_obs_venv(*((obs, DICT) for obs in DICTS), kind=kind, stack_dicts=True) as envs:
        assert_same(envs.reset()[0], stacked)
        assert_same(envs.step([0, 0])[0], stacked)
        assert_same(envs.step([0], 1)[0], {key: value[1:] for key, value in stacked.items()})
    untrusted = [(obs, DICT) for obs in DICTS]
    with make_returned_obs_venv(*untrusted, kind=kind, stack_dicts=True, trust_spaces=False) as envs:
        assert_same(envs.reset()[0], stacked)
    with make_returned_obs_venv((DICTS[0], DICT), (ones(2), BOX), kind=kind, stack_dicts=True) as envs:
        assert_same(envs.reset()[0], objects(DICTS[0], ones(2)))


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
@pytest.mark.parametrize("trust", [True, False])
def test_tuples_raise(kind, trust):
    pair = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))
    with pytest.raises(TypeError, match="tuples"):
        make_returned_obs_venv(((1, 1), pair), kind=kind, trust_spaces=trust).reset()


MISFITS: dict[str, tuple[list[Any], Any]] = {
    "another shape": ([(ones(3, dtype=float), BOX)] * 2, ones(2, 3, dtype=float)),
    "an array for a number": ([(ones(1), spaces.Box(-1, 1, ()))] * 2, ones(2, 1)),
    "another kind of dtype": ([(0.5, spaces.Discrete(3)), (1, spaces.Discrete(3))], np.array([0.5, 1])),
    "in one environment": ([(ones(3), BOX), (ones(2), BOX)], objects(ones(3), ones(2))),
    "text": ([("abc", BOX), (None, BOX)], objects("abc", None)),
    "a missing key": ([({"a": 1}, DICT), (DICTS[1], DICT)], objects({"a": 1}, {**DICTS[1], "a": np.int64(2)})),
    "a further key": ([({**DICTS[0], "c": {"d": 1}}, DICT)] * 2, objects(*[{**DICTS[0], "c": {"d": 1}}] * 2)),
    "a dict for an array": ([(DICTS[0], BOX)] * 2, objects(*[DICTS[0]] * 2)),
}


@pytest.mark.parametrize(("kind", "num_workers"), [("dummy", 1), ("dummy", 2), ("shmem", 2), ("shmem", 1)])
@pytest.mark.parametrize("name", MISFITS)
def test_observations_that_differ_from_their_space_are_returned_unchanged(name, kind, num_workers):
    """As in Tianshou."""
    cases, expected = MISFITS[name]
    cases = [(*case, 1.0, {"x": 1}) for case in cases]
    with make_returned_obs_venv(*cases, kind=kind, num_workers=num_workers) as envs:
        obs, infos = envs.reset()
        assert_same(obs, expected)
        assert infos.tolist() == [{"x": 1}] * 2
        obs, *_, infos = envs.step([0, 1])
        assert_same(obs, expected)
        assert infos.tolist() == [{"x": 1, "env_id": 0}, {"x": 1, "env_id": 1}]
        obs = envs.step([1, 0], [1, 0])[0]
        assert_same(list(obs), list(expected[::-1]))


def test_observations_that_differ_from_their_space_are_copies():
    obs = ones(3)
    with make_returned_obs_venv((obs, BOX)) as envs:
        first = envs.reset()[0]
        obs += 1
        assert_same(first, ones(1, 3))
        assert_same(envs.step([0])[0], 2 * ones(1, 3))


def test_stacked_dicts_that_differ_from_their_space():
    cases = [({**obs, "c": 3}, DICT) for obs in DICTS]
    with make_returned_obs_venv(*cases, stack_dicts=True) as envs:
        assert_same(envs.reset()[0]["c"], np.array([3, 3]))


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
def test_a_vector_environment_refuses_observations_that_differ_from_their_space(kind):
    vector = to_vector(make_returned_obs_venv((ones(2), BOX), (ones(3), BOX), kind=kind))
    with pytest.raises(SpaceError, match=r"Expected observations of Box.*shape \(3,\).* from environment 1"):
        vector.reset()
    vector.close()


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
def test_untrusted_spaces_are_ignored(kind):
    with make_returned_obs_venv(*[(ones(2, dtype=float), BOX)] * 2, kind=kind, trust_spaces=False) as envs:
        assert_same(envs.reset()[0], ones(2, 2, dtype=float))
        envs.step([0, "any"])
        assert envs.get_env_attr("action") == [0, "any"]


class Acting(ReturnedObsEnv):
    """Accepts nested actions."""

    action_space = spaces.Dict(left=spaces.Discrete(3), right=BOX)


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
def test_nested_and_heterogeneous_actions_arrive_unchanged(kind):
    actions = [{"left": i, "right": ones(2)} for i in range(2)]
    with KINDS[kind]([partial(Acting, ones(2), BOX)] * 2) as envs:
        envs.reset()
        envs.step(actions)
        assert_same(envs.get_env_attr("action"), actions)
        envs.step(objects(*actions[::-1]), [1, 0])
        assert_same(envs.get_env_attr("action"), actions)
        with pytest.raises(SpaceError, match="Expected 2 actions"):
            envs.step(actions[:1])

    def differing(size: int) -> ReturnedObsEnv:
        env = ReturnedObsEnv(ones(2), BOX)
        env.action_space = spaces.Box(-1, 1, (size,))
        return env

    with KINDS[kind]([partial(differing, size) for size in (1, 2)]) as envs:
        envs.reset()
        envs.step([ones(1), ones(2)])
        assert [action.shape for action in envs.get_env_attr("action")] == [(1,), (2,)]


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_vector_rewards_are_stacked(kind, num_workers):
    """One reward per agent or objective, as Tianshou's PettingZoo environments return them."""
    cases = [(ones(2), BOX, [1, 2.5]), (ones(2), BOX, np.array([3, 4]), {"x": 1})]
    with make_returned_obs_venv(*cases, kind=kind, num_workers=num_workers) as envs:
        envs.reset()
        _, rew, _, _, infos = envs.step([0, 0])
        assert_same(rew, np.array([[1, 2.5], [3, 4]]))
        assert infos.tolist() == [{"env_id": 0}, {"x": 1, "env_id": 1}]
        assert envs.step([0], 1)[1].tolist() == [[3, 4]]


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_infos_are_passed_through(kind, num_workers):
    """Numbers keep their types, for any number of workers."""
    infos = [
        {"int": 1, "float": 2.0, "wide": np.float32(3), "flag": True},
        {"int": 4, "nested": {"x": ones(2)}, "env_id": "own"},
    ]
    with make_returned_obs_venv(
        *((ones(2), BOX, 0.0, info) for info in infos), kind=kind, num_workers=num_workers
    ) as envs:
        assert_same(envs.reset()[1], objects(*infos))
        assert_same(envs.step([0, 0])[4], objects(*({**info, "env_id": i} for i, info in enumerate(infos))))
    with make_returned_obs_venv(*[(ones(2), BOX, 0.0, infos[0])] * 2, kind=kind, num_workers=num_workers) as envs:
        assert_same(envs.reset()[1], objects(infos[0], infos[0]))


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
def test_no_pending_environments_give_empty_results(kind):
    with make(kind, 3, wait_num=2) as envs:
        envs.reset()
        obs, rew, terminated, truncated, infos = envs.step(None)
        assert (obs.shape, obs.dtype) == ((0, 3), np.float32)
        assert rew.shape == terminated.shape == truncated.shape == infos.shape == (0,)
        assert (rew.dtype, terminated.dtype, infos.dtype) == (float, bool, object)
    with make_returned_obs_venv((DICTS[0], DICT), (DICTS[1], DICT), kind=kind, wait_num=1, stack_dicts=True) as envs:
        assert envs.step(None)[0]["b"].shape == (0, 2)
    assert GatedCountingEnv.observation_space.shape == (3,)
