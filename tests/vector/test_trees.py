"""Batch simulators and environments with nested spaces, in vector environments and `TorchWrapper`."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from tests.fixtures.nested_simulators import ACTION, OBSERVATION, NestedBatch, NestedEnv, StatelessBatch

from vecrl.convert import to_tensordict, to_venv
from vecrl.engine.trees import map_tree
from vecrl.errors import SpaceError
from vecrl.simulators import registry
from vecrl.testing import BatchSimulatorConformance
from vecrl.testing.comparisons import same_tree
from vecrl.vector import BatchedVectorEnv, SyncVectorEnv, TorchWrapper, VectorEnv, make_vector_env
from vecrl.vector.base import batch_space
from vecrl.vector.factory import make_single_env
from vecrl.venv.batched_venv import BatchedVenv

N = 3
SEEDS = [3, 5, 8]


class TestNestedBatch(BatchSimulatorConformance):
    tolerance = 0.0

    def make(self, num_envs: int) -> Any:
        return NestedBatch(num_envs, "rgb_array")


class TestStatelessBatch(BatchSimulatorConformance):
    has_states = False

    def make(self, num_envs: int) -> Any:
        return StatelessBatch(num_envs)


def actions(step: int, n: int = N) -> Any:
    space = batch_space(ACTION, n)
    space.seed(step)
    sample = space.sample()
    return {"move": sample["move"] * np.float32(0.9), "mode": sample["mode"]}


def tensors(tree: Any) -> Any:
    return map_tree(lambda leaf: torch.as_tensor(leaf), tree)


def arrays(tree: Any) -> Any:
    return map_tree(lambda leaf: leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf, tree)


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_equals_single_environments(mode: str) -> None:
    """A `BatchedVectorEnv` of nested tensors equals a `VectorEnv` of the single environments, in every mode."""
    batch = BatchedVectorEnv(NestedBatch(N), autoreset_mode=mode)
    single = VectorEnv([NestedEnv] * N, autoreset_mode=mode)
    assert batch.observation_space == single.observation_space
    assert same_tree(batch.reset(seed=SEEDS)[0], single.reset(seed=SEEDS)[0])
    ended = 0
    for step in range(45):
        (obs, *results, info), (expected_obs, *expected, expected_info) = (
            env.step(actions(step)) for env in (batch, single)
        )
        assert same_tree(obs, expected_obs), step
        for result, reference in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, reference)
        assert ("final_obs" in info) == ("final_obs" in expected_info)
        for row, final in enumerate(info.get("final_obs", ())):
            reference = expected_info["final_obs"][row]
            assert final is reference is None or same_tree(final, reference)
        done = results[1] | results[2]
        ended += int(done.sum())
        if mode == "disabled" and done.any():
            options = {"reset_mask": done}
            assert same_tree(batch.reset(options=options)[0], single.reset(options=options)[0])
    assert ended >= N
    batch.close()
    single.close()


def test_partial_resets_with_seeds_keep_the_other_rows() -> None:
    env = BatchedVectorEnv(NestedBatch(N), autoreset_mode="disabled")
    env.reset(seed=SEEDS)
    before = env.step(actions(0))[0]
    obs, _ = env.reset(seed=[None, 77, None], options={"reset_mask": np.array([False, True, False])})
    assert obs["clock"][1]["seed"].ravel().tolist() == [3, 77, 8]
    assert obs["clock"][0].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(obs["position"][::2], before["position"][::2])


def test_finished_rows_observe_nan_or_zeros() -> None:
    env = BatchedVectorEnv(NestedBatch(N), num_episodes=1)
    env.reset(seed=SEEDS)
    for step in range(21):
        obs, reward, terminated, _, _ = env.step(actions(step))
    assert np.isnan(obs["position"]).all()
    assert np.isnan(reward).all()
    assert terminated.all()
    assert not obs["clock"][0].any()
    assert not obs["clock"][1]["seed"].any()


def test_tensors_of_the_first_row_without_a_batch() -> None:
    registry.register("nested", make_batch=lambda name, num_envs, **_: NestedBatch(num_envs))
    try:
        env, single = make_vector_env("nested::point"), TorchWrapper(NestedEnv())
        for each in (env, single):
            assert each.action_space == ACTION
            assert each.observation_space == OBSERVATION
        assert same_tree(arrays(env.reset(seed=4)[0]), arrays(single.reset(seed=4)[0]))
        for step in range(5):
            action = tensors(map_tree(lambda leaf: leaf[0], actions(step, 1)))
            results = [each.step(action)[:4] for each in (env, single)]
            assert isinstance(results[1][0]["clock"][1]["seed"], torch.Tensor)
            assert same_tree(*(arrays(result[0]) for result in results))
            assert all(float(one) == float(other) for one, other in zip(*(r[1:] for r in results), strict=True))
        vector = make_vector_env("nested::point", num_envs=2)
        obs, _ = vector.reset(seed=1)
        assert obs["clock"][1]["seed"].tolist() == [[1], [2]]
        assert vector.step(tensors(actions(0, 2)))[0]["position"].shape == (2, 2)
    finally:
        registry.unregister("nested")


# -- TorchWrapper ------------------------------------------------------------------------------------


def test_vector_environments_of_gymnasium() -> None:
    env = TorchWrapper(gymnasium.vector.SyncVectorEnv([NestedEnv] * N))
    reference = VectorEnv([NestedEnv] * N, autoreset_mode="next_step")
    assert same_tree(arrays(env.reset(seed=1)[0]), reference.reset(seed=1)[0])
    for step in range(25):
        obs, reward, *_ = env.step(tensors(actions(step)))
        expected = reference.step(actions(step))
        assert same_tree(arrays(obs), expected[0])
        np.testing.assert_array_equal(reward.numpy(), expected[1])
    assert obs["bits"].dtype == torch.int8
    env.close()
    reference.close()


def test_earlier_results_of_single_environments_are_copies() -> None:
    env = TorchWrapper(NestedEnv())
    first, _ = env.reset(seed=1)
    kept = first["position"].clone()
    env.unwrapped.position += 1
    assert torch.equal(first["position"], kept)


@pytest.mark.parametrize("n", [None, N])
def test_scores_and_clipping_of_leaves(n: int | None) -> None:
    inner: Any = NestedEnv() if n is None else BatchedVectorEnv(NestedBatch(N))
    env = TorchWrapper(inner, discrete_to_continuous_act=True, clip_actions=True)
    single_space = env.action_space if n is None else env.single_action_space
    assert single_space["mode"][0] == Box(-np.inf, np.inf, (3,))
    assert env.action_space["mode"][0].shape == ((3,) if n is None else (N, 3))
    assert single_space["move"] == ACTION["move"]
    plain = TorchWrapper(NestedEnv() if n is None else BatchedVectorEnv(NestedBatch(N)))
    for each in (env, plain):
        each.reset(seed=1)
    shape = () if n is None else (N,)
    choice = torch.zeros(*shape, 2, dtype=torch.int64)
    scores = torch.tensor([0.0, 5.0, 1.0]).expand(*shape, 3)
    obs = env.step({"move": torch.full((*shape, 2), 7.0), "mode": (scores, choice)})[0]
    index = torch.full(shape, 2)
    expected = plain.step({"move": torch.ones(*shape, 2), "mode": (index, choice)})[0]
    assert torch.equal(obs["position"], expected["position"])
    with pytest.raises(SpaceError, match="does not change actions"):
        _ = env.unwrapped_actions_env


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"move": a["move"]}, r"the action to be a dict with the keys \[.*\], got a dict with"),
        (lambda a: a | {"more": 1}, r"dict with the keys \[.*\], got a dict with the keys"),
        (lambda a: a["move"], r"the action to be a dict with the keys"),
        (lambda a: a | {"mode": a["mode"][:1]}, r"the action\['mode'\] to be a tuple of 2, got a tuple of 1"),
        (lambda a: a | {"mode": (a["mode"][0].double(), a["mode"][1])}, r"integer actions for Discrete\(3, start=1\)"),
        (lambda a: a | {"move": a["move"][:2]}, r"one action per environment \(3 environments\), got shape \[2, 2\]"),
    ],
)
def test_actions_of_another_structure(change: Any, message: str) -> None:
    env = TorchWrapper(BatchedVectorEnv(NestedBatch(N)))
    env.reset()
    with pytest.raises(SpaceError, match=message):
        env.step(change(tensors(actions(0))))


@pytest.mark.parametrize("space", [Dict(a=Text(3)), Tuple((Discrete(2), Dict(a=Text(3))))])
def test_leaves_must_be_arrays(space: Any) -> None:
    with pytest.raises(SpaceError, match=r"Text.*Encode it"):
        batch_space(space, 2)
    env = NestedEnv()
    env.observation_space = space
    with pytest.raises(SpaceError, match=r"Text.*Encode it"):
        TorchWrapper(env)


# -- checks of results -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda obs: obs["position"],
            r"observations of NestedBatch\.reset to be a dict with the keys \['position', 'clock'",
        ),
        (lambda obs: obs | {"more": obs["bits"]}, r"dict with the keys \[.*\], got a dict"),
        (
            lambda obs: obs | {"clock": list(obs["clock"])},
            r"NestedBatch\.reset\['clock'\] to be a tuple of 2, got list",
        ),
        (lambda obs: obs | {"bits": obs["bits"][:1]}, r"reset\['bits'\] to have the shape \(3, 3\), got \(1, 3\)"),
        (lambda obs: obs | {"bits": obs["bits"].long()}, r"reset\['bits'\] to have the dtype int8, got int64"),
    ],
)
def test_results_of_another_structure(change: Any, message: str) -> None:
    simulator = NestedBatch(N)
    reset = simulator.reset
    simulator.reset = lambda *args: change(reset(*args))  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(SpaceError, match=message):
        BatchedVectorEnv(simulator).reset()


def test_later_results_are_checked_by_their_structure() -> None:
    simulator = NestedBatch(N)
    env = BatchedVectorEnv(simulator)
    env.reset()
    obs = simulator.reset_where
    simulator.reset_where = lambda mask: obs(mask)  # pyright: ignore[reportAttributeAccessIssue]
    env.step(actions(0))
    simulator.reset_where = lambda mask: {"position": obs(mask)["position"]}  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(SpaceError, match="dict with the keys"):
        env.step(actions(0))


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (np.zeros((N, 3), np.float32), r"actions\['move'\] of shape \(3, 2\) for NestedBatch, .*got shape \(3, 3\)"),
        (
            np.zeros((N, 2), np.complex64),
            r"actions\['move'\] of dtype torch.float32 for .*, got torch.complex64",
        ),
        (np.zeros((2, 2), np.float32), r"actions\['move'\] of leftmost size 3"),
    ],
)
def test_leaves_of_actions_are_checked(leaf: Any, message: str) -> None:
    env = BatchedVectorEnv(NestedBatch(N))
    env.reset()
    with pytest.raises(SpaceError, match=message):
        env.step(actions(0) | {"move": leaf})
    assert env.step(actions(0) | {"move": np.zeros((N, 2))})[0]["position"].dtype == np.float32


# -- without states ----------------------------------------------------------------------------------


def test_operations_that_need_states_say_so() -> None:
    env = BatchedVectorEnv(StatelessBatch(N))
    env.reset(seed=SEEDS)
    mask = {"reset_mask": np.array([True, False, False])}
    env.reset(options=mask)
    with pytest.raises(NotImplementedError, match=r"some rows with seeds or options needs a .*states.*on a robot"):
        env.reset(seed=1, options=mask)
    venv = BatchedVenv(StatelessBatch(N))
    venv.reset(seed=SEEDS)
    venv.step(actions(0))
    with pytest.raises(NotImplementedError, match=r"A step of some rows needs .*states or step_where, which Stateless"):
        venv.step(actions(0, 1), id=[1])


# -- other dialects ----------------------------------------------------------------------------------


def test_environments_with_ids() -> None:
    venv, stacked = BatchedVenv(NestedBatch(N)), BatchedVenv(NestedBatch(N), stack_dicts=True)
    reference = VectorEnv([NestedEnv] * N, autoreset_mode="disabled")
    expected, _ = reference.reset(seed=SEEDS)
    obs, _ = venv.reset(seed=SEEDS)
    assert same_tree(stacked.reset(seed=SEEDS)[0], expected)
    assert obs.shape == (N,)
    assert obs[1]["clock"][1]["seed"].tolist() == [5]
    one, _, _, _, infos = venv.step(actions(0, 1), id=[2])
    assert one[0]["clock"][0] == 1
    assert infos[0]["env_id"] == 2
    rows = [map_tree(lambda leaf, row=row: leaf[row], actions(1)) for row in range(N)]
    by_rows = venv.step(rows)[0]
    assert [row["clock"][0] for row in by_rows] == [1, 1, 2]
    expected = reference.step(actions(0))[0]
    assert same_tree(stacked.step(actions(0))[0], expected)


def test_environments_with_ids_have_no_tuples() -> None:
    simulator = NestedBatch(N)
    simulator.observation_space = OBSERVATION["clock"]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(SpaceError, match="got tuples"):
        to_venv(simulator)


def test_tensordicts() -> None:
    env = to_tensordict(BatchedVectorEnv(NestedBatch(N)))
    env.set_seed(0)
    rollout = env.rollout(25, break_when_any_done=False)
    assert rollout["next", "clock", "1", "seed"].shape == (N, 25, 1)
    assert rollout["mode", "1"].shape == (N, 25, 6)
    assert rollout["next", "done"].any()


def test_states_of_nested_vector_environments() -> None:
    env = TorchWrapper(BatchedVectorEnv(NestedBatch(N), num_episodes=9))
    env.reset(seed=1)
    env.step(tensors(actions(0)))
    state = pickle.loads(pickle.dumps(env.get_state()))
    expected = arrays(env.step(tensors(actions(1)))[0])
    env.step(tensors(actions(2)))
    env.set_state(state)
    assert same_tree(arrays(env.step(tensors(actions(1)))[0]), expected)


# -- single environments by name ---------------------------------------------------------------------


@pytest.mark.parametrize("num_episodes", [None, 1])
def test_environments_by_name(num_episodes: int | None) -> None:
    """`make_vector_env` of a registered single environment gives tensors, and dummy rows after the last episode."""
    registry.register("toy", env_fn=lambda name: NestedEnv)
    try:
        env = make_vector_env("toy::point", num_envs=N, num_episodes=num_episodes)
    finally:
        registry.unregister("toy")
    batch = BatchedVectorEnv(NestedBatch(N), num_episodes=num_episodes)
    obs, _ = env.reset(seed=1)
    seeds = obs["clock"][1]["seed"].ravel().tolist()
    assert same_tree(arrays(obs), batch.reset(seed=seeds)[0])
    for step in range(25):
        obs, reward, terminated, *_ = env.step(tensors(actions(step)))
        expected = batch.step(actions(step))
        np.testing.assert_array_equal(reward.numpy(), expected[1])
        np.testing.assert_array_equal(terminated.numpy(), expected[2])
        if not np.isnan(expected[1]).any():  # same_tree tells NaN from NaN
            assert same_tree(arrays(obs), expected[0])
    assert bool(obs["position"].isnan().all()) == (num_episodes == 1)
    env.close()


def test_final_observations_of_environments_by_name() -> None:
    env = SyncVectorEnv([NestedEnv] * 2, num_episodes=1)
    env.reset(seed=1)
    action = {"move": np.full((2, 2), 0.7, np.float32), "mode": (np.array([1, 3]), np.zeros((2, 2), np.int64))}
    final: dict[int, Any] = {}
    for step in range(1, 7):
        *_, info = env.step(action)
        if "final_obs" in info:
            assert info["_final_obs"].sum() == 1
            (row,) = np.flatnonzero(info["_final_obs"]).tolist()
            final[row] = info["final_obs"][row]
            assert info["final_obs"][1 - row] is None
            assert final[row]["clock"][0] == step
            assert final[row]["position"].max() > 3
    assert final.keys() == {0, 1}
    env.close()


def test_single_environments_take_and_return_arrays() -> None:
    registry.register("nested", make_batch=lambda name, num_envs, infos=True: NestedBatch(num_envs))
    try:
        env, expected = make_single_env("nested::any"), NestedEnv()
        first, second = env.reset(seed=5)[0], expected.reset(seed=5)[0]
        assert same_tree(map_tree(np.asarray, first), map_tree(np.asarray, second))
        action = {"move": np.array([0.5, -1], np.float32), "mode": (2, np.array([1, 3]))}
        results, others = env.step(action), expected.step(action)
        assert same_tree(map_tree(np.asarray, results[0]), map_tree(np.asarray, others[0]))
        assert results[1:4] == others[1:4]
        assert [type(value) for value in results[1:4]] == [float, bool, bool]
    finally:
        registry.unregister("nested")
