"""`BatchedVectorEnv` equals gymnasium's vector environments over the same counting task, in all auto-reset modes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.batch_simulators import CountingBatch, N, SeededCountingEnv

from vecrl.engine import BatchStep
from vecrl.errors import PendingError, SpaceError
from vecrl.simulators.native import make_native
from vecrl.simulators.native.cartpole import CartPole
from vecrl.vector.batched_vector_env import BatchedVectorEnv, _numpy_info

torch.set_num_threads(1)

MODES = list(AutoresetMode)


def assert_same(actual, reference):
    for value, expected in zip(actual, reference, strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.asarray(expected))


masks = st.lists(st.booleans(), min_size=N, max_size=N).filter(any)
moves = st.lists(
    st.one_of(st.just("step"), masks, st.integers(0, 99), st.tuples(masks, st.integers(0, 99))), max_size=12
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tensors", [False, True])
@settings(max_examples=40, deadline=None)
@given(moves=moves)
def test_any_call_sequence_equals_gymnasium(mode, tensors, moves):
    """Steps, full and partial resets, seeds and options in any order equal gymnasium's SyncVectorEnv."""
    actual = BatchedVectorEnv(CountingBatch(), autoreset_mode=mode)
    step, reset = (actual.tensor_step, actual.tensor_reset) if tensors else (actual.step, actual.reset)
    reference = SyncVectorEnv([SeededCountingEnv] * N, autoreset_mode=mode)
    assert_same(reset(seed=7)[:1], reference.reset(seed=7)[:1])
    rng = np.random.default_rng(0)
    for move in moves:
        if move == "step":
            actions = rng.integers(-1, 2, N)
            received, expected = step(actions), reference.step(actions)
            assert_same(received[:4], expected[:4])
            assert all(isinstance(value, torch.Tensor if tensors else np.ndarray) for value in received[:4])
            assert tensors or [value.dtype for value in received[1:4]] == [value.dtype for value in expected[1:4]]
            check_final_obs(received[4], expected[4])
            done = np.asarray(received[2] | received[3])
            if mode is AutoresetMode.DISABLED and done.any():  # required by gymnasium
                repeated = reset(options={"reset_mask": done}), reference.reset(options={"reset_mask": done})
                assert_same(*(result[:1] for result in repeated))
        elif isinstance(move, int):
            assert_same(reset(seed=move)[:1], reference.reset(seed=move)[:1])
        else:
            mask, seed = move if isinstance(move, tuple) else (move, None)
            options = {} if seed is None else {"time": seed % 2}
            received, _ = reset(seed=seed, options=options | {"reset_mask": torch.tensor(mask)})
            expected, _ = reference.reset(seed=seed, options=options | {"reset_mask": np.array(mask)})
            assert_same([received], [expected])


def check_final_obs(received, expected):
    if "final_obs" in expected:
        rows = expected["_final_obs"]
        np.testing.assert_array_equal(np.asarray(received["_final_obs"]), rows)
        np.testing.assert_array_equal(np.stack([*received["final_obs"][rows]]), np.stack(expected["final_obs"][rows]))
        if isinstance(received["final_obs"], np.ndarray):
            assert [value is None for value in received["final_obs"]] == [
                value is None for value in expected["final_obs"]
            ]
    else:
        assert not received.get("_final_obs", torch.zeros(1)).any()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_num_episodes(mode, dtype):
    """Until its last observation, a row equals one without an episode limit; then it is idle until the next reset."""
    actual = BatchedVectorEnv(CountingBatch(dtype=dtype), autoreset_mode=mode, num_episodes=2, episode_stats=True)
    unlimited = BatchedVectorEnv(CountingBatch(dtype=dtype), autoreset_mode=mode)
    actual.reset(seed=0)
    unlimited.reset(seed=0)
    ended = torch.zeros(N, dtype=torch.int64)
    for _ in range(9):
        is_over = ended == 2
        obs, reward, terminated, truncated, info = actual.tensor_step(torch.zeros(N, dtype=torch.int64))
        expected = unlimited.tensor_step(torch.zeros(N, dtype=torch.int64))
        done = expected[2] | expected[3]
        ended += done & ~is_over
        last = ~is_over & (ended == 2)
        assert torch.equal(info["_episode"], done & ~is_over)
        assert torch.equal(obs[~is_over & ~last], expected[0][~is_over & ~last])
        final = expected[4]["final_obs"] if mode is AutoresetMode.SAME_STEP else expected[0]
        assert torch.equal(obs[last], final[last])
        for received, expected_value in zip((reward, terminated, truncated), expected[1:4], strict=True):
            assert torch.equal(received[~is_over], expected_value[~is_over])
        assert reward[is_over].isnan().all()
        assert (terminated & truncated)[is_over].all()
        assert (obs[is_over].isnan() if dtype == torch.float32 else obs[is_over] == 0).all()
    assert (ended == 2).all()
    # No row starts an episode beyond its number while it waits for the others.
    assert actual.reset()[0][:, 1].tolist() == [2] * N


@pytest.mark.parametrize("mode", MODES)
def test_episode_stats(mode):
    env = BatchedVectorEnv(CountingBatch(), autoreset_mode=mode, episode_stats=True)
    env.reset(seed=0)
    for _ in range(12):
        done = torch.zeros(N, dtype=torch.bool)
        _, _, terminated, truncated, info = env.tensor_step(np.ones(N, int))
        done = terminated | truncated
        assert torch.equal(info["_episode"], done)
        lengths = info["episode"]["l"][done]
        assert torch.equal(lengths, info["time"][done])
        assert torch.equal(info["episode"]["r"][done], (lengths + lengths * (lengths + 1) / 2).double())
        if mode is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})


def test_infos():
    env = BatchedVectorEnv(CountingBatch())
    env.reset()
    assert set(env.tensor_step(np.zeros(N, int))[4]) == {"final_obs", "_final_obs", "time"}
    env.reset(seed=[0, 1, 2, 5])  # only the first row has an episode of a single step
    info = env.step(np.zeros(N, int))[4]
    assert set(info) == {"final_obs", "_final_obs", "final_info", "_final_info", "time", "_time"}
    assert set(info["final_info"]) == {"time", "_time"}
    assert info["time"].tolist() == [1] * N
    assert info["_time"].all()
    assert info["_final_obs"].tolist() == [True, False, False, False]
    env.reset(seed=[1, 1, 1, 1])
    assert set(env.step(np.zeros(N, int))[4]) == {"time", "_time"}
    silent = BatchedVectorEnv(CountingBatch(), empty_info=True)
    silent.reset()
    assert silent.step(np.zeros(N, int))[4] == {}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_infos_of_tensor_steps_are_of_the_rows_that_were_stepped(mode):
    env = BatchedVectorEnv(CountingBatch(), autoreset_mode=mode)
    env.reset(seed=[0, 1, 2, 5])  # only the first row has an episode of a single step
    expected = [[True] * N, [mode is AutoresetMode.DISABLED, True, True, True]]
    for masks in expected:
        info = env.tensor_step(np.zeros(N, int))[4]
        assert info["_time"].tolist() == masks


def test_next_step_mode_resets_only_rows_that_ended(monkeypatch):
    env, masks = BatchedVectorEnv(CountingBatch(), autoreset_mode="next_step"), []
    reset_where = env.simulator.reset_where
    monkeypatch.setattr(env.simulator, "reset_where", lambda mask: masks.append(mask.tolist()) or reset_where(mask))
    env.reset(seed=[0, 1, 2, 5])  # only the first row has an episode of a single step
    for _ in range(2):
        info = env.step(np.zeros(N, int))[4]
        assert info["_time"].tolist() == [not masks, True, True, True]
    assert masks == [[True, False, False, False]]


def test_writing_to_infos_changes_no_later_step():
    env = BatchedVectorEnv(
        make_native("CartPole-v1", N, max_episode_steps=2), autoreset_mode="next_step", episode_stats=True
    )
    env.reset(seed=1)
    for _ in range(2):
        info = env.step(np.zeros(N, int))[4]
    assert info["_episode"].all()
    info["_episode"][:] = False
    _, reward, _, truncated, _ = env.step(np.zeros(N, int))
    assert not reward.any()
    assert not truncated.any()


def test_spaces_modes_and_seeds():
    env = BatchedVectorEnv(CountingBatch(), autoreset_mode="next_step")
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.action_space.start.tolist() == [-1] * N
    assert env.observation_space.shape == (N, 3)
    assert env.reset(seed=5)[0][:, 0].tolist() == [5, 6, 7, 8]
    assert env.reset(seed=[3, None, 1, 0])[0][:, :2].tolist() == [[3, 0], [6, 1], [1, 0], [0, 0]]
    assert "NextStep" in repr(env)


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_actions_may_be_tensors_arrays_or_lists(kind):
    env = BatchedVectorEnv(CountingBatch())
    env.reset()
    assert env.step(kind([1, 0, -1, 1]))[1].tolist() == [2, 1, 0, 2]


@pytest.mark.parametrize("actions", [1, [0, 0], np.zeros((1, N), int), torch.tensor(0)])
def test_invalid_actions_raise(actions):
    env = BatchedVectorEnv(CountingBatch())
    env.reset()
    with pytest.raises(SpaceError, match="leftmost size 4"):
        env.step(actions)


def test_invalid_use_raises():
    env = BatchedVectorEnv(CountingBatch())
    with pytest.raises(PendingError, match="reset all"):
        env.step([0] * N)
    with pytest.raises(PendingError, match="reset all"):
        env.reset(options={"reset_mask": [True, *[False] * (N - 1)]})
    assert env.reset(seed=5, options={"reset_mask": [True] * N})[0][:, 0].tolist() == [5, 6, 7, 8]
    env = BatchedVectorEnv(CountingBatch())
    with pytest.raises(ValueError, match="one seed or 4"):
        env.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="num_episodes"):
        BatchedVectorEnv(CountingBatch(), num_episodes=0)
    with pytest.raises(ValueError, match="same-step or next-step"):
        BatchedVectorEnv(CountingBatch(), num_episodes=1, autoreset_mode="disabled")


def test_rendering():
    simulator = CountingBatch()
    assert BatchedVectorEnv(simulator).render() is None
    simulator.render_mode = "rgb_array"
    assert [frame[0, 0, 0] for frame in BatchedVectorEnv(simulator).render()] == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counted", [{}, {"episode_stats": True}, {"num_episodes": 3}])
def test_no_host_synchronization(mode, counted):
    """The meta device has no data, so reading a value there raises."""
    if "num_episodes" in counted and mode is AutoresetMode.DISABLED:
        counted = {}
    env = BatchedVectorEnv(make_native("CartPole-v1", N, device="meta"), autoreset_mode=mode, **counted)
    env.tensor_reset(seed=0)
    for _ in range(3):
        obs, reward, *_ = env.tensor_step(torch.zeros(N, dtype=torch.int64, device="meta"))
        assert obs.shape == (N, 4)
        assert reward.device.type == "meta"


@pytest.mark.parametrize("mode", MODES)
def test_one_compiled_graph_without_breaks(mode):
    """The caller may compile a whole step with its policy: `fullgraph` rejects any read of the data."""
    env = BatchedVectorEnv(make_native("CartPole-v1", N), autoreset_mode=mode, empty_info=True)
    obs, _ = env.tensor_reset(seed=0)

    def act_and_step(obs):
        return env.tensor_step((obs[:, 2] > 0).long())[:4]

    compiled = torch.compile(act_and_step, fullgraph=True, backend="eager")
    state = env.simulator.get_state()
    expected = act_and_step(obs)
    env.simulator.set_state(state)
    for received, expected_value in zip(compiled(obs), expected, strict=True):
        torch.testing.assert_close(received, expected_value)


def test_native_tasks_in_same_step_mode_equal_gymnasium():
    """Fused and separate resets (by `num_episodes`) agree until the first row has finished its episodes."""
    fused = BatchedVectorEnv(make_native("CartPole-v1", 32))
    apart = BatchedVectorEnv(make_native("CartPole-v1", 32), num_episodes=1000)
    assert torch.equal(fused.tensor_reset(seed=1)[0], apart.tensor_reset(seed=1)[0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(80):
        actions = torch.randint(0, 2, (32,), generator=generator)
        received, expected = fused.tensor_step(actions), apart.tensor_step(actions)
        assert all(torch.equal(a, b) for a, b in zip(received[:4], expected[:4], strict=True))
        assert torch.equal(received[4]["_final_obs"], expected[4]["_final_obs"])
        assert torch.equal(received[4]["final_obs"], expected[4]["final_obs"])


def _same_steps(one, other, steps=40):
    actions = np.random.default_rng(3).integers(0, 2, (steps, one.num_envs))
    for action in actions:
        found, expected = one.step(action), other.tensor_step(torch.from_numpy(action))
        assert_same(found[:4], expected[:4])
        assert all(type(value) is np.ndarray for value in found[:4])
        check_final_obs(found[4], _numpy_info(expected[4], one.num_envs))


def test_steps_over_arrays_equal_those_over_tensors():
    one, other = (BatchedVectorEnv(make_native("CartPole-v1", 5)) for _ in range(2))
    assert one._takes_arrays
    assert_same(one.reset(seed=1)[:1], other.reset(seed=1)[:1])
    _same_steps(one, other)


@pytest.mark.parametrize(("saved", "restored"), [("numpy", "torch"), ("torch", "numpy")])
def test_states_do_not_depend_on_the_library_that_computes(saved, restored):
    one, other = (BatchedVectorEnv(make_native("CartPole-v1", 5, arrays=arrays)) for arrays in (saved, restored))
    one.reset(seed=1)
    state = one.get_state()
    other.set_state(state)
    assert other._takes_arrays == (restored == "numpy")
    assert_same(other.step(np.ones(5, int))[:4], one.step(np.ones(5, int))[:4])


def _tenfold(result):
    step, done, obs = result
    return replace(step, reward=step.reward * 10), done, obs


class _Tenfold(CartPole):
    def step_and_reset(self, actions):
        return _tenfold(super().step_and_reset(actions))


@pytest.mark.parametrize("place", ["class", "object"])
def test_a_replaced_step_is_called_instead_of_the_one_over_arrays(place):
    simulator = _Tenfold(2) if place == "class" else CartPole(2)
    if place == "object":
        original = simulator.step_and_reset
        simulator.step_and_reset = lambda actions: _tenfold(original(actions))
    with BatchedVectorEnv(simulator) as env:
        env.reset(seed=1)
        assert env.step(np.ones(2, int))[1].tolist() == [10, 10]


@pytest.mark.parametrize("action", [[["0.5"], ["1"]], [[None], [1]], np.zeros((2, 1), "M8[s]"), [[1], [2, 3]]], ids=str)
def test_steps_over_arrays_refuse_what_is_no_number(action):
    with BatchedVectorEnv(make_native("Pendulum-v1", 2)) as env:
        env.reset(seed=1)
        for step in (env.step, env.tensor_step):
            with pytest.raises((SpaceError, ValueError)):
                step(action)


class _ArrayCounting(CountingBatch):
    """A simulator of a user that gives arrays, and does not check its actions."""

    arrays = "numpy"

    def step_and_reset(self, actions):
        step = self.step(actions)
        done = step.terminated | step.truncated
        return step, done, self.reset_where(done)

    def step_and_reset_arrays(self, actions, mask=None):
        assert type(actions) is np.ndarray
        assert actions.dtype == np.int64
        step = self.step(torch.from_numpy(actions))
        done = step.terminated | step.truncated
        obs = self.reset_where(done if mask is None else torch.from_numpy(mask))
        fields = (step.next_obs, step.reward, step.terminated, step.truncated)
        return BatchStep(*(value.numpy() for value in fields)), done.numpy(), obs.numpy()


def test_actions_of_a_simulator_of_a_user_are_checked_and_copied():
    with BatchedVectorEnv(_ArrayCounting()) as env:
        env.reset(seed=1)
        assert env._takes_arrays
        assert env.step(np.zeros(N, np.int32))[0].shape[0] == N
        for wrong in (np.zeros((N, 2), int), np.zeros(N), np.zeros(N + 1, int)):
            with pytest.raises(SpaceError):
                env.step(wrong)
