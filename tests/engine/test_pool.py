"""`Pool`: order of results, concurrent partial commands, seeds, and rejected calls."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from tests.fixtures.faulty_envs import FaultyEnv, raises, sleeps
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.engine.pool import Pool
from vecrl.errors import ClosedError, PendingError, SpaceError, WorkerError
from vecrl.simulators.gymnasium import GymnasiumSimulator


def _pool(backend: str = "serial", count: int = 4, workers: int = 2, **options: Any) -> Pool:
    return make_pool([lambda i=i: FaultyEnv(i, **options) for i in range(count)], backend, workers)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_in_request_order(backend: str) -> None:
    pool = _pool(backend)
    for ids in ([3, 0, 2, 1], [1, 0], [2], [3, 2, 1, 0]):
        started = pool.reset([10 + i for i in ids], ids=ids)
        np.testing.assert_array_equal(started.ids, ids)
        np.testing.assert_array_equal(started.obs[:, 0], ids)
        assert [i for i, _ in sorted(started.infos.items())] == sorted(ids)
        assert all(info == {"env_id": i} for i, info in started.infos.items())
        pool.send(ids, np.zeros(len(ids), int))
        step_td = pool.recv()
        np.testing.assert_array_equal(step_td.obs[:, 0], ids)
        np.testing.assert_array_equal(step_td.reward, step_td.obs[:, 2])
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_commands_can_be_pending(backend: str) -> None:
    pool = _pool(backend)
    pool.reset()
    pool.send([2], [0])
    pool.send([0, 3], [0, 0])
    assert pool.pending.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(pool.reset(ids=[1]).obs, [[1, 1, 0]])
    assert pool.pending.tolist() == [0, 2, 3], "a reset of some returns these alone"
    pool.send_reset([1])
    together = pool.recv()
    np.testing.assert_array_equal(together.obs, [[2, 0, 1], [0, 0, 1], [3, 0, 1], [1, 2, 0]])
    np.testing.assert_array_equal(together.was_reset, [False, False, False, True])
    pool.close()


def test_fast_environments_do_not_wait_for_slow_ones() -> None:
    makers = [lambda i=i: FaultyEnv(i, "step", sleeps if i == 0 else None) for i in range(3)]
    for backend in ("threads", "processes"):
        pool = make_pool(makers, backend, 3)
        pool.reset()
        pool.send([0, 1, 2], np.zeros(3, int))
        actual: list[int] = []
        while len(actual) < 2:
            actual += pool.recv(at_least=1).ids.tolist()
        assert sorted(actual) == [1, 2]
        pool.send([1, 2], np.zeros(2, int))
        remaining = pool.recv()
        np.testing.assert_array_equal(remaining.obs, [[0, 0, 1], [1, 0, 2], [2, 0, 2]])
        pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_reach_their_environments(backend: str) -> None:
    class Seeded(FaultyEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            obs, _ = super().reset(seed=seed)
            return obs, {"seed": -1 if seed is None else seed, "draw": float(self.np_random.random())}

    samples: list[dict[int, Any]] = []
    for workers in (1, 2, 4):
        pool = make_pool([Seeded] * 4, backend, workers)
        first = dict(pool.reset([5, None, 7, 8]).infos.items())
        assert [first[i]["seed"] for i in range(4)] == [5, -1, 7, 8]
        subset = dict(pool.reset([9, 3], ids=[2, 0]).infos.items())
        assert {i: info["seed"] for i, info in subset.items()} == {2: 9, 0: 3}
        samples.append({i: first[i]["draw"] for i in (0, 2, 3)} | {-i: subset[i]["draw"] for i in (2,)})
        pool.close()
    assert samples[0] == samples[1] == samples[2], "whatever the number of workers"


@pytest.mark.parametrize("backend", BACKENDS)
def test_reset_mask_resets_instead_of_stepping(backend: str) -> None:
    pool = _pool(backend)
    pool.reset()
    pool.step(np.zeros(4, int))
    for wrong in (np.zeros(3, bool), np.zeros((4, 1), bool), np.zeros(4, int)):
        for call in (pool.step, pool.step_async):
            with pytest.raises(SpaceError, match=r"Expected reset_mask to be 4 bools, got (bool|int64) of shape"):
                call(np.zeros(4, int), reset_mask=wrong)
    mixed = pool.step(np.zeros(4, int), reset_mask=np.array([False, True, True, False]))
    np.testing.assert_array_equal(mixed.obs[:, 1:], [[0, 2], [1, 0], [1, 0], [0, 2]])
    np.testing.assert_array_equal(mixed.reward, [2, 0, 0, 2])
    np.testing.assert_array_equal(mixed.was_reset, [False, True, True, False])
    pool.close()


def test_resetting_a_failed_row_clears_its_failure() -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i, "step", raises if i == 1 else None) for i in range(2)], "serial")
    pool.reset()
    with pytest.raises(WorkerError):
        pool.step(np.zeros(2, int))
    pool.step(np.zeros(2, int), reset_mask=np.array([False, True]))
    np.testing.assert_array_equal(pool.step(np.zeros(2, int)).obs[:, 1:], [[0, 3], [1, 1]])
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_episodes_are_counted_once(backend: str) -> None:
    pool = _pool(backend, length=3)
    pool.reset()
    for step in range(1, 7):
        t = pool.step(np.zeros(4, int), reset_done=True)
        assert len(t.episodes.ids) == (4 if step % 3 == 0 else 0)
    np.testing.assert_array_equal(t.episodes.returns, 6.0)
    np.testing.assert_array_equal(t.next_obs[:, 1:], [[1, 3]] * 4)
    np.testing.assert_array_equal(t.obs[:, 1:], [[2, 0]] * 4)
    np.testing.assert_array_equal(t.discount, 0.0)
    pool.send([2, 1], np.zeros(2, int))
    pool.recv()
    pool.reset(ids=[2])
    for _ in range(3):
        pool.send([2], [0])
        last = pool.recv()
    np.testing.assert_array_equal(last.episodes.ids, [2])
    np.testing.assert_array_equal(last.episodes.lengths, [3])
    pool.close()


def test_invalid_calls_raise() -> None:
    pool = _pool()
    pool.reset()
    for ids, error in (
        ([0, 0], SpaceError),
        ([], SpaceError),
        ([0.5], SpaceError),
        ([4], IndexError),
        ([-1], IndexError),
    ):
        with pytest.raises(error):
            pool.send(ids, np.zeros(len(ids), int))
        with pytest.raises(error):
            pool.reset(ids=ids)
    with pytest.raises(SpaceError, match="Expected 4 seeds, one per environment, got 1"):
        pool.reset([1])
    with pytest.raises(SpaceError, match="Expected 2 seeds"):
        pool.reset([1], ids=[0, 1])
    with pytest.raises(SpaceError, match="Expected 4 values"):
        pool.invoke("set", "x", [1])
    with pytest.raises(SpaceError, match=r"Expected actions of shape \(4,\)"):
        pool.step(np.zeros(3, int))
    with pytest.raises(ValueError, match="at_least to be 1 or more, got 0"):
        pool.recv(at_least=0)
    for wait in (pool.wait, pool.recv, pool.invoke_wait):
        with pytest.raises(PendingError):
            wait()
    pool.step_async(np.zeros(4, int))
    with pytest.raises(PendingError, match="or reset all environments to drop them"):
        pool.step(np.zeros(4, int))
    pool.wait()
    assert pool.pending.tolist() == []
    np.testing.assert_array_equal(pool.step(np.zeros(4, int)).reward, 2.0)
    pool.close()
    for use in (pool.reset, lambda: pool.step([0] * 4), lambda: pool.send([0], [0]), lambda: pool.invoke("render")):
        with pytest.raises(ClosedError, match="closed; make a new one"):
            use()


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_space_can_be_stepped(backend: str) -> None:
    class Rich(FaultyEnv):
        observation_space = spaces.Dict(
            {
                "box": spaces.Box(-9, 9, (2,), np.float32),
                "sequence": spaces.Sequence(spaces.Discrete(100)),
                "tuple": spaces.Tuple((spaces.Discrete(100), spaces.Text(9), spaces.MultiBinary(2))),
            }
        )
        action_space = spaces.Dict({"go": spaces.Discrete(9), "say": spaces.Text(9), "where": spaces.Box(-1, 1, (2,))})
        seen: Any = None

        def step(self, action: Any) -> Any:
            self.seen = action["go"], action["say"], action["where"].tolist()
            return super().step(action)

        def _observe(self) -> Any:
            bits = np.array([self.count % 2, 1], np.int8)
            return {
                "box": np.full(2, self.count, np.float32),
                "sequence": (self.env_id, self.count),
                "tuple": (self.count, f"{self.env_id}:{self.count}", bits),
            }

    pool = make_pool([lambda i=i: Rich(i, length=2) for i in range(3)], backend)
    pool.reset()
    actions = {"go": [1, 2, 3], "say": ("a", "b", "c"), "where": np.zeros((3, 2))}
    pool.step(actions, reset_done=True)
    t = pool.step(actions, reset_done=True)
    assert pool.invoke("get", "seen") == [(i + 1, "abc"[i], [0, 0]) for i in range(3)]
    assert t.next_obs["sequence"] == ((0, 2), (1, 2), (2, 2))
    assert t.obs["tuple"][1] == ("0:0", "1:0", "2:0")
    np.testing.assert_array_equal(t.next_obs["tuple"][2], [[0, 1]] * 3)
    np.testing.assert_array_equal(t.next_obs["box"], [[2, 2]] * 3)
    pool.send([2, 0], {"go": [7, 8], "say": ("y", "z"), "where": np.zeros((2, 2))})
    assert pool.recv().obs["sequence"] == ((2, 1), (0, 1))
    assert [seen[:2] for seen in pool.invoke("get", "seen")] == [(8, "z"), (2, "b"), (7, "y")]
    pool.close()


class TextActionEnv(gymnasium.Env[Any, Any]):
    """Accepts only its own action words. Episode number n has n + 1 steps."""

    observation_space = spaces.Box(0, 9, (1,), np.float64)
    action_space = spaces.Text(5)

    def __init__(self, env_id: int):
        self.env_id, self.count = env_id, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        assert action == f"go {self.env_id}"
        self.count += 1
        return np.zeros(1), 1.0, self.count > self.env_id, False, {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_opaque_actions_reach_their_rows_beside_reset_rows(backend: str) -> None:
    pool = make_pool([lambda i=i: TextActionEnv(i) for i in range(3)], backend, 1)
    pool.reset()
    begin = None
    for rewards in ([1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 1, 0]):
        t = pool.step(["go 0", "go 1", "go 2"], reset_mask=begin)
        assert t.reward.tolist() == rewards
        begin = t.done
    pool.close()


def test_concurrent_waits_raise() -> None:
    pool = make_pool([lambda: FaultyEnv(0, "step", sleeps)], "processes", 1)
    pool.reset()
    pool.send([0], [0])
    errors: list[Exception] = []

    def wait() -> None:
        try:
            pool.recv()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [PendingError]
    pool.close()


class Outer(gymnasium.Wrapper):
    """A wrapper of this module; workers get it by value."""


class OuterSubclass(Outer):
    pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_are_found_by_the_name_of_their_class(backend: str) -> None:
    makers = [
        lambda: gymnasium.make("CartPole-v1"),
        lambda: OuterSubclass(gymnasium.make("CartPole-v1")),
        lambda: TimeLimit(Outer(gymnasium.make("CartPole-v1")), 3),
    ]
    pool = make_pool(makers, backend)
    assert pool.invoke("is_wrapped", f"{__name__}.Outer") == [False, True, True]
    assert pool.invoke("is_wrapped", f"{__name__}.OuterSubclass", ids=[1, 2]) == [True, False]
    assert pool.invoke("is_wrapped", "gymnasium.envs.classic_control.cartpole.CartPoleEnv") == [False] * 3
    pool.close()


class _Echo(gymnasium.Env[Any, Any]):
    """Returns the action as observation and reward; episodes of two steps."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(100)
    count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return int(action), float(action), self.count == 2, False, {}


class _SeparateCalls:
    """A simulator that steps some rows and resets others by two calls."""

    def __init__(self, count: int):
        self._simulator = GymnasiumSimulator([_Echo] * count)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "mixes_steps_and_resets":
            raise AttributeError(name)
        return getattr(self._simulator, name)


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("make", [lambda: GymnasiumSimulator([_Echo] * 3), lambda: _SeparateCalls(3)])
def test_rows_beside_a_reset_get_their_own_actions(make: Any, backend: str) -> None:
    pool = Pool([(make, 3)], backend)
    pool.reset()
    pool.step(np.array([5, 6, 7]))
    transition = pool.step(np.array([8, 9, 10]), reset_mask=np.array([True, False, False]))
    pool.close()
    assert transition.obs.tolist() == [0, 9, 10]
    assert transition.reward.tolist() == [0, 9, 10]
    assert transition.terminated.tolist() == [False, True, True]
    assert transition.was_reset.tolist() == [True, False, False]
    assert transition.episode_stats is not None
    returns, lengths = transition.episode_stats
    assert returns[1:].tolist() == [15, 17]
    assert lengths[1:].tolist() == [2, 2]
