"""States through a pool: of all environments or some, with episode counters, on every backend."""

import numpy as np
import pytest
from tests.fixtures.gym_envs import CountingEnv
from tests.fixtures.pools import BACKENDS, make_pool
from tests.fixtures.state_envs import HiddenStateEnv, OwnStateEnv, RichStateEnv

from vecrl.engine.pool import Pool
from vecrl.errors import PendingError, SpaceError, StateError, WorkerError


def steps(pool, count, reset_done=True):
    """Returns the results of a pool's environments under fixed actions."""
    seen = []
    for number in range(count):
        t = pool.step(np.arange(pool.num_envs) * number % 2, reset_done=reset_done)
        episodes = t.episodes
        seen.append(
            [t.obs.tolist(), t.next_obs.tolist(), t.reward.tolist(), t.terminated.tolist(), t.truncated.tolist()]
        )
        seen.append([episodes.ids.tolist(), episodes.returns.tolist(), episodes.lengths.tolist()])
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "make", [RichStateEnv, OwnStateEnv, lambda: CountingEnv(0, 7)], ids=["rich", "own", "counting"]
)
def test_states_include_episode_counters(backend, make):
    pool = make_pool([make] * 4, backend, 2)
    pool.reset([1, 2, 3, 4])
    steps(pool, 9)
    states = pool.get_state()
    expected = steps(pool, 45)
    assert any(row[0] for row in expected[1::2])
    pool.set_state(states)
    assert steps(pool, 45) == expected
    other = make_pool([make] * 4, "serial" if backend == "processes" else "processes", 3)
    other.set_state(states)
    assert steps(other, 45) == expected
    other.close()
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_of_some_rows_can_be_swapped(backend):
    pool = make_pool([lambda i=i: CountingEnv(i, 9) for i in range(4)], backend, 2)
    pool.reset()
    pool.send([3, 1], np.array([0, 0]))
    pool.recv()
    states = pool.get_state([3, 0])
    assert [state["length"] for state in states] == [1, 0]
    steps(pool, 3)
    pool.set_state(states, [1, 3])
    assert [t[:2] for t in pool.step(np.zeros(4, int)).obs.tolist()] == [[0, 0], [3, 0], [2, 0], [0, 0]]
    assert [state["length"] for state in pool.get_state()] == [4, 2, 4, 1]
    pool.close()


def test_failed_rows_have_no_state_and_set_state_clears_the_failure():
    pool = make_pool([lambda: Failing(3), lambda: Failing(99)], "processes", 2)
    pool.reset()
    states = pool.get_state()
    for _ in range(2):
        pool.step(np.zeros(2, int))
    with pytest.raises(WorkerError, match="requested failure"):
        pool.step(np.zeros(2, int))
    with pytest.raises(PendingError, match=r"Environments \[0\] failed before"):
        pool.get_state()
    assert len(pool.get_state([1])) == 1
    pool.set_state(states[:1], [0])
    assert pool.step(np.zeros(2, int)).obs[0].tolist() == [0, 0, 1]
    pool.close()


class Failing(CountingEnv):
    def __init__(self, at):
        super().__init__(0, 99)
        self.at = at

    def step(self, action):
        if self.count + 1 == self.at:
            raise ZeroDivisionError("requested failure")
        return super().step(action)


def test_pending_commands_raise():
    pool = make_pool([lambda: CountingEnv(0)] * 2, "threads", 2)
    pool.reset()
    pool.step_async(np.zeros(2, int))
    with pytest.raises(PendingError, match="pending"):
        pool.get_state()
    pool.wait()
    assert len(pool.get_state()) == 2
    pool.close()


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_unsaveable_states_raise_with_the_path(backend):
    pool = make_pool([OwnStateEnv, HiddenStateEnv], backend, 2)
    with pytest.raises(
        WorkerError, match=r"environment 1 .*'get_state': StateError: The state of HiddenStateEnv .*env\.hidden"
    ) as info:
        pool.get_state()
    assert isinstance(info.value.__cause__, StateError)
    assert len(pool.get_state([0])) == 1
    pool.close()


def test_invalid_states_raise():
    pool = make_pool([OwnStateEnv] * 2, "serial", 1)
    pool.reset()
    states = pool.get_state()
    with pytest.raises(StateError, match="Expected 2 states as get_state returns them, got 1 items"):
        pool.set_state(states[:1])
    with pytest.raises(StateError, match="Expected 2 states as get_state returns them"):
        pool.set_state([1, 2])
    with pytest.raises((SpaceError, IndexError)):
        pool.set_state(states, [0, 7])
    rich = make_pool([RichStateEnv] * 2, "serial", 1)
    with pytest.raises(WorkerError, match=r"Expected a state with observation_space Box\(4,\)"):
        rich.set_state(states)
    for each in (pool, rich):
        each.close()


def test_environments_without_the_objects_are_reset_first():
    class Late(RichStateEnv):
        def __init__(self):
            super().__init__()
            self.boss = self.enemies = self.grid = None

    pool = make_pool([RichStateEnv], "processes", 1)
    pool.reset([1])
    steps(pool, 9)
    states = pool.get_state()
    expected = steps(pool, 9)
    late = make_pool([Late], "serial", 1)
    states[0]["env"]["nodes"][0]["of"] = f"{Late.__module__}.{Late.__qualname__}"
    late.set_state(states)
    assert steps(late, 9) == expected
    late.close()
    pool.close()


class Bare:
    """A simulator without states."""

    num_envs, metadata, render_mode, spec = 1, {}, None, None
    observation_space, action_space = OwnStateEnv.observation_space, OwnStateEnv.action_space

    def close(self):
        pass


def test_simulators_without_states_raise():
    pool = Pool([(Bare, 1)])  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match="got Bare without get_state"):
        pool.get_state()
    pool.close()
