"""What every `BatchSimulator` must do; see `vecrl.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from ..engine.simulator import (
    Array,
    BatchSimulator,
    BatchStep,
    SupportsArrays,
    SupportsStepAndReset,
    SupportsStepWhere,
)
from ..engine.space_layout import Layout, Tree
from ..engine.trees import is_nested, map_tree, named_leaves
from ..simulators.native import NativeSimulator
from ..simulators.row_task_checks import check_functions
from ..vector import BatchedVectorEnv
from .comparisons import SEEDS, assert_equal_arrays, error_of, same_tree

STEP_FIELDS = "next_obs", "reward", "terminated", "truncated"
_START_ADVICE = (
    "Draw starts from the random stream of the row, or set deterministic_reset = True if all episodes begin alike."
)


class BatchSimulatorConformance:
    """Tests of a `BatchSimulator`. Derive a class with a name that begins with `Test`, and define `make`.

    Attributes:
        num_steps: steps of each comparison; enough of them that some episode ends.
        tolerance: how much observations and rewards may differ between batches of different sizes; 0 means not a bit.
        deterministic_reset: whether every episode begins with the same observation.
        endless: whether episodes never end.
        has_states: whether `get_state` and `set_state` work; they raise `NotImplementedError` otherwise.

    Observations and actions of nested spaces are nested dicts and tuples of arrays.

    >>> from vecrl.simulators.native import make_native
    >>> class TestCartPole(BatchSimulatorConformance):
    ...     def make(self, num_envs):
    ...         return make_native("CartPole-v1", num_envs)
    >>> TestCartPole().test_equal_seeds_give_equal_episodes()
    """

    num_steps = 30
    tolerance = 0.0
    deterministic_reset = False
    endless = False
    has_states = True

    def make(self, num_envs: int) -> BatchSimulator:
        """Returns a new simulator of `num_envs` rows, which the test closes."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define make(num_envs).")

    def action(self, simulator: BatchSimulator, step: int) -> Any:
        """Returns the actions `[n, ...]` of one step. Row i of a larger batch gets what row i of a smaller one gets."""
        rows: list[Tree] = []
        for row in range(simulator.num_envs):
            simulator.action_space.seed(1000 * step + row)
            rows.append(simulator.action_space.sample())
        return map_tree(lambda *leaves: torch.from_numpy(np.stack(leaves)).to(simulator.device), *rows)

    # -- shapes ------------------------------------------------------------------------------------

    def test_attributes_describe_the_rows(self) -> None:
        """`num_envs`, spaces of one row, device, metadata and render mode are there."""
        with _closed(self.make, 3) as sim:
            assert isinstance(sim, BatchSimulator), "some method or attribute of BatchSimulator is missing"
            assert sim.num_envs == 3, f"Expected num_envs 3, got {sim.num_envs}."
            for space in (sim.observation_space, sim.action_space):
                assert isinstance(space, gymnasium.Space), f"Expected the gymnasium space of one row, got {space!r}."
            torch.device(sim.device)
            modes = sim.metadata["render_modes"]
            assert sim.render_mode in (None, *modes), f"Expected None or one of {modes}, got {sim.render_mode!r}."

    def test_results_have_the_declared_shapes(self) -> None:
        """Observations are elements of the space, rewards `[n]` floating, flags `[n]` bool, infos `[n, ...]`."""
        for num_envs in (1, 3):
            with _closed(self.make, num_envs) as sim:
                _check_obs(sim, sim.reset(list(SEEDS[:num_envs])))
                for step in range(self.num_steps):
                    result = sim.step(self.action(sim, step))
                    _check_obs(sim, result.next_obs)
                    _check_rows("the reward", result.reward, num_envs, "f")
                    for name in ("terminated", "truncated"):
                        _check_rows(name, getattr(result, name), num_envs, "b")
                    lengths = {name: len(value) for name, value in result.info.items()}
                    assert {*lengths.values()} <= {num_envs}, f"Expected {num_envs} rows of each info, got {lengths}."
                    sim.reset_where(result.terminated | result.truncated)

    # -- randomness --------------------------------------------------------------------------------

    def test_equal_seeds_give_equal_episodes(self) -> None:
        """Two simulators with equal seeds and actions give equal results, through the ends of episodes."""
        first, second = (self._play(3, SEEDS) for _ in range(2))
        assert_equal_arrays(first, second, 0.0)

    def test_rows_do_not_depend_on_each_other(self) -> None:
        """Row i of a batch equals a simulator of one row with the same seed and actions."""
        with _closed(self.make, 2) as batch:
            actions: list[Any] = []
            obs = _array(batch.reset(list(SEEDS[:2]))).copy()
            played = [{"obs": obs}, *self._continue(batch, actions)]
        for row in range(2):
            with _closed(self.make, 1) as single:
                obs = _array(single.reset([SEEDS[row]])).copy()
                of_row = [map_tree(lambda leaf, row=row: leaf[row : row + 1], action) for action in actions]
                alone = [{"obs": obs}, *self._continue(single, of_row)]
            in_batch = [{key: value[row : row + 1] for key, value in step.items()} for step in played]
            assert_equal_arrays(in_batch, alone, self.tolerance)

    def test_a_row_without_a_seed_continues_its_stream(self) -> None:
        """A seed of None changes nothing about other rows, and does not repeat the row's earlier episode."""
        with _closed(self.make, 3) as sim:
            first = _array(sim.reset([7, 8, 9])).copy()
            mixed = _array(sim.reset([7, None, 8])).copy()
            assert np.array_equal(mixed[0], first[0]), "the same seed gives another observation"
            assert np.array_equal(mixed[2], first[1]), "the observation depends on the row's number"
            if not self.deterministic_reset:
                assert not np.array_equal(mixed[1], first[1]), (
                    "Expected a reset with the seed None to continue the stream of the row, got the observation of the "
                    f"earlier seed. {_START_ADVICE}"
                )

    def test_without_seeds_simulators_differ(self) -> None:
        """There is no hidden default seed."""
        if self.deterministic_reset:
            return
        with _closed(self.make, 2) as first, _closed(self.make, 2) as second:
            # several resets, since a simulator may have few initial states
            starts = [np.stack([_array(each.reset()) for _ in range(4)]) for each in (first, second)]
            assert not np.array_equal(starts[0], starts[1]), (
                "Expected two simulators without seeds to start with different observations, got the same. "
                f"{_START_ADVICE}"
            )

    # -- native tasks ------------------------------------------------------------------------------

    def test_functions_of_a_task(self) -> None:
        """The functions of a `NativeSimulator` return the shapes and dtypes that `RowTask` describes."""
        with _closed(self.make, 3) as sim:
            if isinstance(sim, NativeSimulator):
                check_functions(sim)

    # -- resets and steps --------------------------------------------------------------------------

    def test_reset_where_resets_masked_rows_only(self) -> None:
        """Other rows keep their observation and continue as if nothing had happened."""
        mask = [False, True, False]
        with _closed(self.make, 3) as sim, _closed(self.make, 3) as undisturbed:
            for each in (sim, undisturbed):
                each.reset(list(SEEDS))
                before = _array(each.step(self.action(each, 0)).next_obs).copy()
            after = _array(sim.reset_where(torch.tensor(mask, device=sim.device)))
            assert np.array_equal(after[::2], before[::2]), "a reset of row 1 changed the observations of other rows"
            if not self.deterministic_reset:
                assert not np.array_equal(after[1], before[1]), (
                    f"Expected a new first observation after the reset of row 1, got the last one. {_START_ADVICE}"
                )
            for number in range(1, self.num_steps):
                first, second = (_arrays(each.step(self.action(each, number))) for each in (sim, undisturbed))
                assert_equal_arrays([_rows(first)], [_rows(second)], self.tolerance)
                if (first["terminated"] | first["truncated"])[::2].any():
                    break

    def test_episodes_end_and_are_not_reset_by_the_step(self) -> None:
        """Within `num_steps` some episode ends; `next_obs` stays the observation of its row until a reset."""
        with _closed(self.make, 2) as sim:
            sim.reset(list(SEEDS[:2]))
            ended = False
            for number in range(self.num_steps):
                step = sim.step(self.action(sim, number))
                ended = ended or bool((_array(step.terminated) | _array(step.truncated)).any())
                obs = sim.reset_where(torch.zeros(2, dtype=torch.bool, device=sim.device))
                assert np.array_equal(_array(obs), _array(step.next_obs)), (
                    "a step reset a row, or next_obs is not its end"
                )
            assert ended or self.endless, f"no episode ended within {self.num_steps} steps; set num_steps, or endless"

    def test_final_observations_are_those_of_the_step(self) -> None:
        """Where an episode ends, `next_obs` is its last observation, and not the first one of the next episode."""
        if not self.has_states:
            return
        with _closed(self.make, 3) as sim, _closed(self.make, 3) as other:
            obs = _array(sim.reset(list(SEEDS))).copy()
            moves, is_first, is_unchanged = False, list[bool](), list[bool]()
            for number in range(self.num_steps):
                state = sim.get_state()
                step = _arrays(sim.step(self.action(sim, number)))
                done = step["terminated"] | step["truncated"]
                moves = moves or bool((step["next_obs"] != obs)[~done].any())
                obs = _array(sim.reset_where(torch.tensor(done, device=sim.device))).copy()
                if not done.any():
                    continue
                other.set_state(state)
                first_obs = _array(other.reset_where(torch.tensor(done, device=sim.device)))
                for row in np.flatnonzero(done):
                    is_first.append(np.array_equal(step["next_obs"][row], first_obs[row]))
                    is_unchanged.append(np.array_equal(step["next_obs"][row], obs[row]))
            if moves and is_first:
                assert not all(is_first), (
                    "Expected next_obs to be the final observation of rows that are done, got the first observation of "
                    "their next episodes. Let step reset no row; reset_where does it."
                )
                assert not all(is_unchanged), (
                    "Expected reset_where to return first observations of rows that are done, got their final ones. "
                    "Reset the rows of the mask, and only these."
                )

    def test_results_do_not_change_later(self) -> None:
        """What a reset or a step returned is not written by later calls."""
        with _closed(self.make, 2) as sim:
            obs = sim.reset(list(SEEDS[:2]))
            results: list[Array] = [obs, *(sim.step(self.action(sim, step)).next_obs for step in range(3))]
            copies = [_array(value).copy() for value in results]
            sim.step(self.action(sim, 3))
            sim.reset()
            assert all(np.array_equal(_array(value), copy) for value, copy in zip(results, copies, strict=True))

    def test_actions_are_neither_kept_nor_changed(self) -> None:
        """A step does not write to the actions, and the caller may write to them after it."""
        with _closed(self.make, 2) as sim, _closed(self.make, 2) as undisturbed:
            results: list[dict[str, np.ndarray]] = []
            for each in (sim, undisturbed):
                each.reset(list(SEEDS[:2]))
                action = self.action(each, 0)
                each.step(action)
                assert np.array_equal(_array(action), _array(self.action(each, 0))), "the step changed the actions"
                if each is sim:
                    map_tree(Tensor.zero_, action)
                results.append(_arrays(each.step(self.action(each, 1))))
            assert_equal_arrays(results[:1], results[1:], 0.0)

    def test_results_as_arrays_equal_those_as_tensors(self) -> None:
        """`step_and_reset_arrays` equals `step_and_reset`, keeps no actions, and its results are not changed later."""
        with _closed(self.make, 3) as sim, _closed(self.make, 3) as other:
            if not isinstance(sim, SupportsArrays) or sim.arrays != "numpy" or is_nested(sim.observation_space):
                return
            assert isinstance(other, SupportsStepAndReset), "there is no step_and_reset"
            found: list[dict[str, Any]] = []
            expected: list[dict[str, np.ndarray]] = []
            for each in (sim, other):
                each.reset(list(SEEDS))
            masks = (None, np.array([True, False, True]), np.zeros(3, bool))
            for number in range(self.num_steps):
                actions, mask = _array(self.action(sim, number)).copy(), masks[number % 3]
                step, done, obs = sim.step_and_reset_arrays(actions, mask)
                actions.fill(0)
                fields = {name: getattr(step, name) for name in STEP_FIELDS}
                found.append({**fields, **step.info, "done": done, "obs": obs})
                assert all(type(values) is np.ndarray for values in found[-1].values())
                if mask is None:
                    step, done, obs = other.step_and_reset(self.action(other, number))
                else:
                    step = other.step(self.action(other, number))
                    done, obs = step.terminated | step.truncated, other.reset_where(torch.from_numpy(mask))
                expected.append({**_arrays(step), "done": _array(done), "obs": _array(obs)})
            assert_equal_arrays(found, expected, self.tolerance)

    def test_optional_methods_equal_the_general_ones(self) -> None:
        """`step_and_reset` equals `step` and `reset_where`; `step_where` steps the masked rows only."""
        with _closed(self.make, 3) as sim, _closed(self.make, 3) as general:
            sim.reset(list(SEEDS))
            general.reset(list(SEEDS))
            for number in range(self.num_steps):
                if not isinstance(sim, SupportsStepAndReset):
                    break
                step, done, obs = sim.step_and_reset(self.action(sim, number))
                expected = general.step(self.action(general, number))
                expected_done = expected.terminated | expected.truncated
                assert_equal_arrays([_arrays(step)], [_arrays(expected)], self.tolerance)
                assert np.array_equal(_array(done), _array(expected_done)), "step_and_reset gives other done flags"
                expected_obs = _array(general.reset_where(expected_done))
                is_close = np.allclose(_array(obs), expected_obs, rtol=0, atol=self.tolerance)
                assert is_close, "step_and_reset gives other observations than step and reset_where"
            if isinstance(sim, SupportsStepWhere) and self.has_states:
                mask = torch.tensor([True, False, True], device=sim.device)
                before = sim.get_state()
                step = sim.step_where(mask, self.action(sim, 0))
                general.set_state(before)
                rows = _arrays(step)
                expected_rows = _arrays(general.step(self.action(general, 0)))
                assert_equal_arrays([_rows(rows)], [_rows(expected_rows)], self.tolerance)

    # -- state, rendering, closing -----------------------------------------------------------------

    def test_states_restore_the_same_future(self) -> None:
        """A state is a copy; restored in this or another simulator, all later steps and resets are the same."""
        with _closed(self.make, 3) as sim, _closed(self.make, 3) as other:
            sim.reset(list(SEEDS))
            sim.step(self.action(sim, 0))
            if not self.has_states:
                error_of(NotImplementedError, sim.get_state)
                error_of(NotImplementedError, sim.set_state, {})
                return
            state = sim.get_state()
            assert all(len(value) == 3 for value in state.values()), "an entry has no row for each environment"
            copied = {name: _array(value).copy() for name, value in state.items()}
            expected = self._continue(sim)
            for name, value in copied.items():
                assert np.array_equal(_array(state[name]), value), f"later steps changed {name!r} of the state"
            other.reset([seed + 1 for seed in SEEDS])
            for each in (sim, other):
                each.set_state(state)
                assert_equal_arrays(self._continue(each), expected, 0.0)

    def test_frames_are_images(self) -> None:
        """`render` gives uint8 `[height, width, 3]` in mode "rgb_array", and None without a mode."""
        with _closed(self.make, 2) as sim:
            sim.reset(list(SEEDS[:2]))
            frame = sim.render(1)
            if sim.render_mode is None:
                assert frame is None, f"Expected None without a render mode, got {type(frame).__name__}."
            elif sim.render_mode == "rgb_array":
                assert frame is not None, "Expected an image from render, got None."
                found = f"{frame.dtype} {frame.shape}"
                is_image = frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
                assert is_image, f"Expected an image uint8 [height, width, 3], got {found}."

    def test_close_may_be_called_twice(self) -> None:
        """The second `close` has no effect."""
        sim = self.make(1)
        sim.reset([0])
        sim.close()
        sim.close()

    def test_all_dialects_can_use_it(self) -> None:
        """Vector environments and environments with ids give equal results; specs of TensorDict environments hold."""
        from ..convert import to_tensordict
        from ..envs import check_env_specs
        from ..venv.batched_venv import BatchedVenv

        seeds = list(SEEDS[:2])
        env = BatchedVectorEnv(self.make(2), autoreset_mode="disabled")
        td_env = to_tensordict(BatchedVectorEnv(self.make(2)))
        is_tuple = isinstance(env.single_observation_space, gymnasium.spaces.Tuple)  # which vecrl.venv does not have
        venv = None if is_tuple else BatchedVenv(self.make(2), stack_dicts=True)
        try:
            first_obs = env.reset(seed=seeds)[0]
            if venv is not None:
                same_start = same_tree(first_obs, venv.reset(seed=seeds)[0])
                assert same_start, "vecrl.vector and vecrl.venv give other first observations for the same seeds"
                for number in range(3):
                    action = map_tree(_array, self.action(env.simulator, number))
                    for one, other in zip(env.step(action)[:4], venv.step(action)[:4], strict=True):
                        assert same_tree(one, other), "vecrl.vector and vecrl.venv give other results of a step"
            check_env_specs(td_env)
        finally:
            for each in (env, td_env, *([] if venv is None else [venv])):
                each.close()

    def _play(self, num_envs: int, seeds: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Plays through the ends of episodes; one dict of arrays a step."""
        with _closed(self.make, num_envs) as sim:
            return [{"obs": _array(sim.reset(list(seeds))).copy()}, *self._continue(sim)]

    def _continue(self, sim: BatchSimulator, actions: list[Any] | None = None) -> list[dict[str, np.ndarray]]:
        """Plays on for `num_steps` steps, with resets of the rows that are done.

        Args:
            actions: those of each step; an empty list gets copies of the actions of `self.action`.
        """
        given = bool(actions)
        played: list[dict[str, np.ndarray]] = []
        for number in range(self.num_steps):
            action = actions[number] if given and actions else self.action(sim, number)
            if actions is not None and not given:
                actions.append(map_tree(Tensor.clone, action))
            result = sim.step(action)
            played.append(_arrays(result))
            played.append({"obs": _array(sim.reset_where(result.terminated | result.truncated)).copy()})
        return played


@contextmanager
def _closed(make: Callable[[int], BatchSimulator], num_envs: int) -> Iterator[BatchSimulator]:
    simulator = make(num_envs)
    try:
        yield simulator
    finally:
        simulator.close()


def _array(value: Tree) -> np.ndarray:
    """Returns an array `[n, ...]`; the numbers of all leaves, `[n, k]` float64, of a tree."""
    if isinstance(value, dict | tuple):
        leaves: list[np.ndarray] = []
        map_tree(lambda leaf: leaves.append(_array(leaf)), value)
        return np.concatenate([leaf.reshape(len(leaf), -1).astype(np.float64) for leaf in leaves], 1)
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


def _arrays(step: BatchStep) -> dict[str, np.ndarray]:
    """Copies of the fields of a step and of its infos."""
    fields = {name: getattr(step, name) for name in STEP_FIELDS}
    return {name: _array(value).copy() for name, value in {**fields, **step.info}.items()}


def _rows(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows 0 and 2 of three."""
    return {name: value[::2] for name, value in arrays.items()}


def _check_obs(simulator: BatchSimulator, obs: Tree) -> None:
    space, layout, num_envs = simulator.observation_space, Layout(simulator.observation_space), simulator.num_envs
    arrays: list[np.ndarray] = []
    for name, leaf, value in named_leaves("observations", space, obs):
        array = _array(value)
        assert array.shape == (num_envs, *(leaf.shape or ())), f"{name} have the shape {array.shape}"
        assert not getattr(value, "requires_grad", False), f"{name} require grad"
        arrays.append(array)
    for row in layout.rows(arrays, num_envs):
        assert space.contains(row), f"{row} is no element of {space}"


def _check_rows(name: str, values: Any, num_envs: int, kind: str) -> None:
    """Checks that `values` is `[num_envs]`, of floats ("f") or bools ("b")."""
    array = _array(values)
    is_valid = array.shape == (num_envs,) and array.dtype.kind == kind
    words = {"f": "floats", "b": "bools"}
    assert is_valid, f"Expected {name} to be {num_envs} {words[kind]}, got {array.dtype} {array.shape}."
