"""What every `Simulator` must do; see `vecrl.testing`."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np

from ..engine.pool import Pool
from ..engine.simulator import Simulator, SupportsState
from ..engine.space_layout import Tree
from ..engine.transition import Transition
from .comparisons import SEEDS, assert_equal_arrays, same_tree


class SimulatorConformance:
    """Tests of a `Simulator`, which writes rows into host memory. Derive a class and define `make`.

    Each test drives the simulator by a `Pool` in this process.

    Attributes:
        num_steps: steps of each comparison; enough of them that some episode ends.
        deterministic_reset: whether every episode begins with the same observation.

    >>> import gymnasium
    >>> from vecrl.simulators.gymnasium import GymnasiumSimulator
    >>> class TestCartPole(SimulatorConformance):
    ...     def make(self, num_envs):
    ...         return GymnasiumSimulator([lambda: gymnasium.make("CartPole-v1")] * num_envs)
    >>> TestCartPole().test_equal_seeds_give_equal_episodes()
    """

    num_steps = 40
    deterministic_reset = False

    def make(self, num_envs: int) -> Simulator:
        """Returns a new simulator of `num_envs` environments."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define make(num_envs).")

    def pool(self, num_envs: int, num_workers: int = 1) -> closing[Pool]:
        """Returns a pool of `num_workers` simulators of `num_envs` environments each, to be used in a `with`."""
        return closing(Pool([(lambda: self.make(num_envs), num_envs)] * num_workers))

    def actions(self, pool: Pool, step: int) -> list[Tree]:
        """Returns one action for each environment, which depend on the step and the id only."""
        found: list[Tree] = []
        for env_id in range(pool.num_envs):
            pool.action_layout.space.seed(1000 * step + env_id)
            found.append(pool.action_layout.space.sample())
        return found

    def test_attributes_describe_the_environments(self) -> None:
        """`num_envs`, spaces, metadata, render mode and spec are there."""
        sim = self.make(2)
        try:
            assert sim.num_envs == 2
            assert isinstance(sim.observation_space, gymnasium.Space)
            assert isinstance(sim.action_space, gymnasium.Space)
            assert sim.render_mode is None or sim.render_mode in sim.metadata["render_modes"]
            _ = sim.spec
        finally:
            sim.close()

    def test_observations_are_elements_of_the_space(self) -> None:
        """Of resets, steps and ends of episodes."""
        with self.pool(2) as pool:
            _check_transition(pool, pool.reset(list(SEEDS[:2])))
            for step in range(self.num_steps):
                _check_transition(pool, self._step(pool, step))

    def test_equal_seeds_give_equal_episodes(self) -> None:
        """Two simulators with equal seeds and actions give equal results, through the ends of episodes."""
        assert_equal_arrays(self._play(3), self._play(3), 0.0)

    def test_environments_do_not_depend_on_the_worker(self) -> None:
        """Two simulators of one environment each equal one simulator of two."""
        assert_equal_arrays(self._play(2), self._play(1, num_workers=2), 0.0)

    def test_without_seeds_simulators_differ(self) -> None:
        """There is no hidden default seed."""
        if self.deterministic_reset:
            return
        with self.pool(1) as first, self.pool(1) as second:
            assert not same_tree(first.reset().obs, second.reset().obs), (
                "Expected two simulators without seeds to start with different observations, got the same. "
                "Set deterministic_reset = True if all episodes begin alike."
            )

    def test_partial_resets_and_steps_leave_other_rows_alone(self) -> None:
        """An environment that is neither reset nor stepped continues as if nothing had happened."""
        with self.pool(3) as pool, self.pool(3) as undisturbed:
            for each in (pool, undisturbed):
                each.reset(list(SEEDS))
                self._step(each, 0, reset_done=False)
            pool.reset([1], ids=[1])
            pool.send([1], _batched(pool, self.actions(pool, 1)[1:2]))
            pool.recv()
            first, second = (self._step(each, 2, reset_done=False) for each in (pool, undisturbed))
            for row in (0, 2):
                assert same_tree(_row(pool, first, row), _row(undisturbed, second, row))
                assert first.reward[row] == second.reward[row]

    def test_done_rows_are_reset_within_the_step(self) -> None:
        """With `reset_done`, the final observation is kept and the next one begins an episode."""
        with self.pool(2) as pool, self.pool(2) as stepwise:
            for each in (pool, stepwise):
                each.reset(list(SEEDS[:2]))
            for step in range(self.num_steps):
                t = self._step(pool, step)
                expected = self._step(stepwise, step, reset_done=False)
                assert same_tree(t.next_obs, expected.next_obs)
                assert np.array_equal(t.done, expected.done)
                if expected.done.any():
                    ids = np.flatnonzero(expected.done)
                    first_obs = stepwise.reset(ids=ids)
                    for place, row in enumerate(ids):
                        assert same_tree(_row(pool, t, int(row)), _row(stepwise, first_obs, place))

    def test_states_restore_the_same_future(self) -> None:
        """Where `get_state` exists, `set_state` goes back exactly."""
        sim = self.make(2)
        sim.close()
        if not isinstance(sim, SupportsState):
            return
        with self.pool(2) as pool:
            pool.reset(list(SEEDS[:2]))
            self._step(pool, 0)
            states = pool.get_state()
            futures: list[list[dict[str, np.ndarray]]] = []
            for _ in range(2):
                pool.set_state(states)
                steps = [self._step(pool, number) for number in range(1, 6)]
                futures.append([_transition_arrays(pool, t) for t in steps])
            assert_equal_arrays(futures[0], futures[1], 0.0)

    def test_close_may_be_called_twice(self) -> None:
        """The second `close` has no effect."""
        sim = self.make(1)
        sim.close()
        sim.close()

    def _step(self, pool: Pool, step: int, reset_done: bool = True) -> Transition:
        return pool.step(_batched(pool, self.actions(pool, step)), reset_done=reset_done)

    def _play(self, num_envs: int, num_workers: int = 1) -> list[dict[str, np.ndarray]]:
        with self.pool(num_envs, num_workers) as pool:
            played = [_transition_arrays(pool, pool.reset(list(SEEDS[: pool.num_envs])))]
            for step in range(self.num_steps):
                played.append(_transition_arrays(pool, self._step(pool, step)))
            return played


def _batched(pool: Pool, actions: list[Tree]) -> Tree:
    """Returns the actions of some environments as the pool takes them: with one array for each leaf of the space."""
    layout = pool.action_layout
    return actions if layout.flat else layout.build(layout.columns(actions))


def _leaves(pool: Pool, obs: Tree) -> list[Tree]:
    return pool.obs_layout.split(obs)


def _check_transition(pool: Pool, t: Transition) -> None:
    assert t.ids.tolist() == list(range(pool.num_envs))
    for row in range(pool.num_envs):
        obs = _row(pool, t, row)
        assert pool.obs_layout.space.contains(obs), f"{obs} is no element of {pool.obs_layout.space}"
    assert t.reward.dtype == np.float64
    assert t.terminated.dtype == t.truncated.dtype == bool


def _row(pool: Pool, t: Transition, row: int) -> Tree:
    """The observation of one row, as one environment would return it."""
    return pool.obs_layout.build([leaf[row] for leaf in _leaves(pool, t.obs)])


def _transition_arrays(pool: Pool, t: Transition) -> dict[str, np.ndarray]:
    obs = {f"obs {i}": np.array(leaf, copy=True) for i, leaf in enumerate(_leaves(pool, t.obs))}
    next_obs = {f"next_obs {i}": np.array(leaf, copy=True) for i, leaf in enumerate(_leaves(pool, t.next_obs))}
    flags = {"reward": t.reward.copy(), "terminated": t.terminated.copy(), "truncated": t.truncated.copy()}
    return {**obs, **next_obs, **flags}
