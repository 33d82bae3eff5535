"""The base of adapters, with two small libraries: one that starts episodes on request, and one that does so itself."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.engine.simulator import BatchStep
from vecrl.errors import ClosedError, PendingError, SpaceError, StateError, WorkerError
from vecrl.simulators.batch_adapter import BatchAdapter, RowStreams, SelfResetAdapter
from vecrl.testing import BatchSimulatorConformance
from vecrl.vector.checked_simulator import CheckedSimulator


class Walk(BatchAdapter):
    """A point on a line, which the action moves by -1, 0 or 1; beyond 3, the episode terminates."""

    label = "Walk"

    def __init__(self, num_envs, **kwargs):
        obs_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        super().__init__(num_envs, obs_space, spaces.Discrete(3, start=-1), **{"max_episode_steps": 6, **kwargs})
        self.place = torch.zeros(num_envs)
        self.frees = 0

    def start(self, rows, seeds):
        places = [np.random.default_rng(seed).uniform(-1, 1) for seed in self.streams.draw(rows)]
        self.place[torch.from_numpy(rows)] = torch.tensor(places, dtype=torch.float32)

    def advance(self, actions):
        self.place += actions
        terminated = self.place.abs() > 3
        return BatchStep(self.observe(), -self.place.abs(), terminated, torch.zeros_like(terminated))

    def observe(self):
        return self.place[:, None].clone()

    def draw(self, row):
        return np.full((4, 5, 3), int(10 * self.place[row]) % 256, np.uint8)

    def read_state(self):
        return {"place": self.place.clone()}

    def write_state(self, state):
        self.place = state["place"].clone()

    def free(self):
        self.frees += 1


class SelfResettingWalk(SelfResetAdapter, Walk):
    """A walk in which the step that ends an episode starts the next one; the final observation is lost."""

    def advance(self, actions):
        step = Walk.advance(self, actions)
        self.at_start = step.terminated.numpy()
        self._start(np.flatnonzero(self.at_start), None)
        return step


class TestWalk(BatchSimulatorConformance):
    num_steps = 15

    def make(self, num_envs):
        return Walk(num_envs, render_fps=10, render_mode="rgb_array")


def test_time_limits_truncate_and_start_again_with_each_episode():
    sim = Walk(2, max_episode_steps=3)
    sim.reset([0, 1])
    still = torch.zeros(2, dtype=torch.int64)
    sim.step(still)
    sim.reset_where(torch.tensor([True, False]))
    assert [sim.step(still).truncated.tolist() for _ in range(2)] == [[False, False], [False, True]]
    assert sim.step(still).truncated.tolist() == [True, True]
    endless = Walk(1, max_episode_steps=None)
    endless.reset()
    assert not any(endless.step(still[:1]).truncated.item() for _ in range(20))


def test_streams_depend_on_the_seed_of_the_row_and_the_number_of_the_episode():
    streams, other = RowStreams(3), RowStreams(1)
    streams.seed([4, None, 2**63 + 5])
    other.seed([4])
    rows = np.arange(3)
    first, second = streams.draw(rows), streams.draw(rows)
    assert (first[0], first[2]) == (4, 5)
    assert [other.draw(rows[:1])[0] for _ in range(2)] == [4, second[0]]
    assert len({*first, *second}) == 6
    streams.seed([4, None, None])
    assert streams.draw(rows[:1]) == [4]


def test_wrong_calls_are_refused():
    sim = Walk(2)
    still = torch.zeros(2, dtype=torch.int64)
    for call in (lambda: sim.step(still), lambda: sim.reset_where(still.bool())):
        with pytest.raises(PendingError, match=r"No episode of Walk was started\. Call reset first\."):
            call()
    with pytest.raises(SpaceError, match=r"Expected no reset options for Walk, got \['x'\]"):
        sim.reset(options={"x": 1})
    with pytest.raises(SpaceError, match="Expected 2 seeds, one per environment, got 1"):
        sim.reset([1])
    with pytest.raises(SpaceError, match="Expected a seed of 0 or more"):
        sim.reset([1, -1])
    sim.reset()
    with pytest.raises(SpaceError, match=r"Expected actions from -1 to 1 for Walk, got \[2\] for the environments"):
        sim.step(torch.tensor([0, 2]))
    for mask in (torch.tensor([0, 1]), torch.ones(3, dtype=torch.bool)):
        with pytest.raises(SpaceError, match=r"Expected a bool mask of shape \(2,\), got torch\.(int64|bool) of shape"):
            sim.reset_where(mask)
    with pytest.raises(StateError, match="Expected a state of 2 rows"):
        sim.set_state(Walk(3).get_state())
    with pytest.raises(ValueError, match=r"Expected render_mode to be None for Walk, got 'rgb_array'\."):
        Walk(1, render_mode="rgb_array")
    sim.close()
    sim.close()
    assert sim.frees == 1
    for call in (sim.reset, lambda: sim.step(still), lambda: sim.reset_where(still.bool())):
        with pytest.raises(ClosedError, match="Expected an open simulator of Walk"):
            call()


def test_states_hold_streams_and_step_counts():
    sim, other = Walk(2), Walk(2)
    sim.reset([3, 4])
    sim.step(torch.tensor([0, 1]))
    other.set_state(sim.get_state())
    for each in (sim, other):
        for _ in range(4):
            each.step(torch.zeros(2, dtype=torch.int64))
    steps = [each.step(torch.zeros(2, dtype=torch.int64)) for each in (sim, other)]
    assert all(step.truncated.all() for step in steps)
    resets = [each.reset_where(torch.tensor([False, True])) for each in (sim, other)]
    assert torch.equal(*resets)


@pytest.mark.parametrize("resets_again", [False, True])
def test_first_observations_of_self_resets_are_kept_until_a_reset_asks_for_them(resets_again):
    sim = SelfResettingWalk(2, max_episode_steps=None)
    sim.resets_again = resets_again
    sim.reset([0, 1])
    for _ in range(5):
        step, done, obs = sim.step_and_reset(torch.tensor([1, 0]))
        if done[0]:
            break
    assert step.next_obs[0].item() > 3
    assert torch.equal(done, torch.tensor([True, False]))
    counts = sim.streams.counts.copy()
    again = sim.reset_where(torch.tensor([True, False]))
    assert (sim.streams.counts - counts).tolist() == [int(resets_again), 0]
    assert torch.equal(again, obs) != resets_again
    sim.step(torch.zeros(2, dtype=torch.int64))
    sim.reset_where(torch.tensor([True, True]))
    assert (sim.streams.counts - counts).tolist() == [1 + int(resets_again), 1]


@pytest.mark.parametrize("limit", [0, 2.5, "5", True])
def test_time_limits_are_counts(limit):
    with pytest.raises(ValueError, match="Expected max_episode_steps to be an int of 1 or more, or None, got"):
        Walk(2, max_episode_steps=limit)


@pytest.mark.parametrize("limit", [None, -1])
def test_without_a_limit_episodes_are_not_truncated(limit):
    walk = Walk(2, max_episode_steps=limit)
    walk.reset([1, 2])
    assert not any(walk.step(torch.zeros(2)).truncated.any() for _ in range(10))


@pytest.mark.parametrize("name", ["seeds", "episodes", "episode_steps"])
def test_incomplete_states_change_nothing(name):
    walk = Walk(2)
    walk.reset([1, 2])
    before = walk.get_state()
    state = walk.get_state() | {"place": before["place"] + 1}
    del state[name]
    with pytest.raises(StateError, match=rf"Expected a state of Walk with \['{name}'\]"):
        walk.set_state(state)
    assert all(torch.equal(walk.get_state()[key], value) for key, value in before.items())


def test_states_of_a_library_have_names_of_their_own():
    class Seeded(Walk):
        def read_state(self):
            return {"seeds": self.place.clone()}

    walk = Seeded(2)
    walk.reset([1, 2])
    with pytest.raises(StateError, match=r"other names than \['seeds'\]"):
        walk.get_state()


def test_the_class_is_the_name_in_messages_by_default():
    class Unnamed(BatchAdapter):
        def start(self, rows, seeds):
            pass

        def advance(self, actions):
            raise NotImplementedError

        def observe(self):
            return torch.zeros(self.num_envs, 1)

    unnamed = Unnamed(2, spaces.Box(0, 1, (1,)), spaces.Discrete(2))
    with pytest.raises(PendingError, match="No episode of Unnamed was started"):
        unnamed.step(torch.zeros(2))


def test_wrong_results_are_returned_to_the_checks_that_refuse_them():
    class Wrong(Walk):
        def advance(self, actions):
            step = Walk.advance(self, actions)
            return BatchStep(step.next_obs, step.reward, step.terminated, step.truncated.float())

    walk = CheckedSimulator(Wrong(2))
    walk.reset([1, 2])
    with pytest.raises((SpaceError, WorkerError), match="truncated"):
        walk.step(torch.zeros(2, dtype=torch.int64))
