"""What every registered simulator must do in every dialect, as functions that raise AssertionError.

A dialect is a class with one method per check of `CHECKS`. Where a check has no meaning, the method is a text: why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import iterate
from tensordict import TensorDictBase, is_tensor_collection

from vecrl import checkpoint
from vecrl.classic import GymEnv
from vecrl.envs import EnvBase, check_env_specs, make_env
from vecrl.simulators.registry import find_entry
from vecrl.vector import BatchedVectorEnv, VectorEnv, make_vector_env
from vecrl.venv import DummyVectorEnv
from vecrl.venv.batched_venv import BatchedVenv

CHECKS = (
    "reset",
    "step",
    "seeds",
    "determinism",
    "partial reset",
    "auto-reset",
    "final observation",
    "pixels",
    "states",
)
MAX_STEPS = 3000  # in which some episode must end


def leaves(tree: Any) -> list[np.ndarray]:
    """Returns the arrays of nested dicts, tuples, lists, arrays of objects, TensorDicts and tensors."""
    if is_tensor_collection(tree):
        tree = tree.to_dict()
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, tuple | list) or (isinstance(tree, np.ndarray) and tree.dtype == object):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree.numpy(force=True) if isinstance(tree, torch.Tensor) else np.asarray(tree)]


def assert_equal(first: Any, second: Any, what: str) -> None:
    """Raises AssertionError unless two trees have equal arrays; NaN equals NaN."""
    one, other = leaves(first), leaves(second)
    assert len(one) == len(other), what
    for a, b in zip(one, other, strict=True):
        numeric = a.dtype.kind in "fc"
        assert a.shape == b.shape, what
        assert np.array_equal(a, b, equal_nan=numeric), f"{what}: {a} and {b}"


def sample(space: gymnasium.Space, obs: Any, seed: int) -> Any:
    """Returns an action for one row: a random one that the action mask in its observation permits, if there is one."""
    space.seed(seed)
    if isinstance(space, gymnasium.spaces.Dict):
        parts = obs if isinstance(obs, dict) else {}
        return {key: sample(part, parts.get(key), seed + i) for i, (key, part) in enumerate(space.items())}
    mask = obs.get("action_mask") if isinstance(obs, dict) else None
    if mask is None or not isinstance(space, gymnasium.spaces.Discrete) or not np.any(mask):
        return space.sample()
    return space.sample(np.asarray(mask, np.int8).reshape(-1))


@contextmanager
def closing(env: Any) -> Iterator[Any]:
    """Closes the environment at the end of a `with`."""
    try:
        yield env
    finally:
        env.close()


def check_frame(frame: Any) -> None:
    """Raises AssertionError unless this is an RGB image."""
    assert frame.dtype == np.uint8, frame.dtype
    assert frame.ndim == 3, frame.shape
    assert frame.shape[2] == 3, frame.shape
    assert frame.min() < frame.max(), "all pixels are equal"


class _Dialect:
    """A dialect with one simulator.

    Args:
        name: the environment, with its prefix.
        kwargs: arguments of the simulator.
        folder: for files.
    """

    title: str
    needs_seeds: tuple[str, ...] = ("determinism", "states")
    """The checks that compare two environments with equal seeds."""

    def __init__(self, name: str, kwargs: dict[str, Any], folder: Path):
        self.name, self.kwargs, self.folder = name, kwargs, folder
        self.entry, self.bare_name = find_entry(name)
        self._unused: dict[str, list[Any]] = {}  # environments that no check uses, by the arguments of `make`

    @contextmanager
    def lend(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Lends what `make` returns with these arguments to a check, and then to others, since some take seconds to
        make. A check that raises closes it."""
        unused = self._unused.setdefault(f"{args} {kwargs}", [])
        env = unused.pop() if unused else self.make(*args, **kwargs)
        try:
            yield env
        except BaseException:
            env.close()
            raise
        unused.append(env)

    def close(self) -> None:
        """Closes all environments."""
        for unused in self._unused.values():
            for env in unused:
                env.close()
        self._unused.clear()

    def make(self, **more: Any) -> Any:
        raise NotImplementedError

    def begin(self, env: Any, seed: int = 5) -> Any:
        """Seeds and resets, and returns the observations."""
        raise NotImplementedError

    def advance(self, env: Any, obs: Any, number: int) -> tuple[Any, Any]:
        """Does step `number` from `obs`; returns the observations, and everything else to be compared."""
        raise NotImplementedError

    def play(self, env: Any, obs: Any, first: int, steps: int) -> list[Any]:
        """Does some steps; returns all results."""
        results = []
        for number in range(first, first + steps):
            obs, other = self.advance(env, obs, number)
            results += [obs, other]
        return results

    def seeds(self) -> None:
        with self.lend() as env:
            first = leaves(self.begin(env, 5))
            first = [leaf.copy() for leaf in first]
            self.play(env, self.begin(env, 7), 0, 2)
            assert_equal(first, leaves(self.begin(env, 5)), "resets with equal seeds")

    def determinism(self) -> None:
        trajectories = []
        for _ in range(2):  # both new, since the first episode of some simulators differs from their later ones
            with closing(self.make()) as env:
                obs = self.begin(env)
                trajectories.append([leaf.copy() for leaf in leaves([obs, *self.play(env, obs, 0, 8)])])
        assert_equal(*trajectories, "two environments with equal seeds and actions")

    def states(self) -> None:
        path = self.folder / "state.pt"
        with self.lend() as env, self.lend() as other:
            obs = self.begin(env)
            obs = self.play(env, obs, 0, 3)[-2]
            checkpoint.save(path, env=env)
            expected = [leaf.copy() for leaf in leaves(self.play(env, obs, 3, 4))]
            self.begin(other, 9)
            checkpoint.load(path, env=other)
            assert_equal(expected, self.play(other, obs, 3, 4), "a restored environment")


class Dialect1(_Dialect):
    """Vector environments of two rows."""

    title = "vector"
    needs_seeds = (*_Dialect.needs_seeds, "final observation")

    def make(self, mode: str = "same_step", **more: Any) -> Any:
        kwargs = self.kwargs | more
        if self.entry.make_batch is not None:
            return BatchedVectorEnv(self.entry.make_batch(self.bare_name, 2, **kwargs), autoreset_mode=mode)
        return VectorEnv([self.entry.env_fn(self.bare_name, **kwargs)] * 2, autoreset_mode=mode)

    def begin(self, env: Any, seed: int = 5) -> Any:
        return env.reset(seed=seed)[0]

    def actions(self, env: Any, obs: Any, number: int) -> Any:
        rows = iterate(env.observation_space, obs)
        actions = [sample(env.single_action_space, row, 100 * number + i) for i, row in enumerate(rows)]
        batch = gymnasium.vector.utils.create_empty_array(env.single_action_space, 2)
        return gymnasium.vector.utils.concatenate(env.single_action_space, actions, batch)

    def advance(self, env: Any, obs: Any, number: int) -> tuple[Any, Any]:
        obs, *other, info = env.step(self.actions(env, obs, number))
        self.info = info
        return obs, other

    def _check_rows(self, env: Any, obs: Any) -> None:
        for row in iterate(env.observation_space, obs):
            assert env.single_observation_space.contains(row), f"{row} is not in {env.single_observation_space}"

    def reset(self) -> None:
        with self.lend() as env:
            self._check_rows(env, self.begin(env))
        with closing(make_vector_env(self.name, num_envs=2, **self.kwargs)) as env:
            assert all(len(leaf) == 2 for leaf in leaves(env.reset(seed=3)[0]))

    def step(self) -> None:
        with self.lend() as env:
            obs = self.begin(env)
            for number in range(3):
                obs, (reward, terminated, truncated) = self.advance(env, obs, number)
                self._check_rows(env, obs)
                assert (reward.shape, reward.dtype) == ((2,), np.float64)
                assert terminated.shape == truncated.shape == (2,)
                assert terminated.dtype == truncated.dtype == bool

    def partial_reset(self) -> None:
        with self.lend("disabled") as env:
            obs = self.play(env, self.begin(env), 0, 2)[-2]
            before = [leaf[1].copy() for leaf in map(np.asarray, leaves(obs))]
            after, _ = env.reset(options={"reset_mask": np.array([True, False])})
            self._check_rows(env, after)
            assert_equal(before, [leaf[1] for leaf in leaves(after)], "the row that is not reset")
            self.play(env, after, 2, 2)

    def _until_done(self, env: Any) -> tuple[Any, np.ndarray, int]:
        obs = self.begin(env)
        for number in range(MAX_STEPS):
            obs, (_, terminated, truncated) = self.advance(env, obs, number)
            if (done := terminated | truncated).any():
                return obs, done, number
        raise AssertionError(f"no episode ended in {MAX_STEPS} steps")

    def auto_reset(self) -> None:
        with self.lend() as env:
            obs, _, number = self._until_done(env)
            self._check_rows(env, obs)
            self.play(env, obs, number + 1, 3)

    def final_observation(self) -> None:
        with self.lend() as env, self.lend("disabled") as without:
            first_obs, done, number = self._until_done(env)
            final = self.info["final_obs"]
            expected, done_there, number_there = self._until_done(without)
            assert (number, done.tolist()) == (number_there, done_there.tolist())
            row = int(np.flatnonzero(done)[0])
            found = _row_of(final, row)
            assert_equal(found, [*iterate(without.observation_space, expected)][row], "the final observation")
            del first_obs

    def pixels(self) -> None:
        with self.lend(render_mode="rgb_array") as env:
            self.play(env, self.begin(env), 0, 2)
            frames = env.render()
            assert len(frames) == 2
            check_frame(frames[1])


def _row_of(final: Any, row: int) -> Any:
    """Returns one row of final observations: arrays of objects, or a tree of them."""
    if isinstance(final, dict):
        return {key: _row_of(value, row) for key, value in final.items()}
    return tuple(_row_of(value, row) for value in final) if isinstance(final, tuple) else final[row]


class Dialect2(_Dialect):
    """Two environments with ids."""

    title = "venv"
    needs_seeds = (*_Dialect.needs_seeds, "partial reset")
    auto_reset = "the caller resets by id"

    def make(self, **more: Any) -> Any:
        kwargs = self.kwargs | more
        if self.entry.make_batch is not None:
            return BatchedVenv(self.entry.make_batch(self.bare_name, 2, **kwargs))
        return DummyVectorEnv([self.entry.env_fn(self.bare_name, **kwargs)] * 2)

    def begin(self, env: Any, seed: int = 5) -> Any:
        return env.reset(seed=[seed, seed + 1])[0]

    def advance(self, env: Any, obs: Any, number: int, ids: tuple[int, ...] = (0, 1)) -> tuple[Any, Any]:
        space = env.action_space[0]
        rows = [_row_of(obs, i) for i in range(len(ids))]
        actions = [sample(space, row, 100 * number + i) for i, row in zip(ids, rows, strict=True)]
        array = np.empty(len(actions), object)
        array[:] = actions
        obs, *other, _ = env.step(array if isinstance(actions[0], dict) else np.array(actions), id=[*ids])
        return obs, other

    def reset(self) -> None:
        with self.lend() as env:
            for row, space in zip(range(2), env.observation_space, strict=True):
                found = _row_of(self.begin(env), row)
                assert space.contains(found), f"{found} is not in {space}"

    def step(self) -> None:
        with self.lend() as env:
            obs = self.begin(env)
            for number in range(3):
                obs, (reward, terminated, truncated) = self.advance(env, obs, number)
                assert env.observation_space[1].contains(_row_of(obs, 1))
                assert reward.shape == terminated.shape == truncated.shape == (2,)

    def partial_reset(self) -> None:
        with self.lend() as env, self.lend() as other:
            obs = self.play(env, self.begin(env), 0, 2)[-2]
            first, _ = env.reset([0])
            self.advance(env, first, 2, (0,))
            expected = self.play(other, self.begin(other), 0, 2)[-2]
            assert_equal(obs, expected, "before the reset")
            kept = lambda of: type(of)([_row_of(of, 1)]) if isinstance(of, tuple) else _rows_of(of, 1)  # noqa: E731
            one, _ = self.advance(env, kept(obs), 2, (1,))
            two, _ = self.advance(other, kept(expected), 2, (1,))
            assert_equal(one, two, "the environment that is not reset")

    def final_observation(self) -> None:
        with self.lend() as env:
            obs = self.begin(env)
            for number in range(MAX_STEPS):
                obs, (_, terminated, truncated) = self.advance(env, obs, number)
                if (done := np.flatnonzero(terminated | truncated)).size:
                    row = int(done[0])
                    assert env.observation_space[row].contains(_row_of(obs, row))
                    new, _ = env.reset([row])
                    assert env.observation_space[row].contains(_row_of(new, 0))
                    return
            raise AssertionError(f"no episode ended in {MAX_STEPS} steps")

    def pixels(self) -> None:
        with self.lend(render_mode="rgb_array") as env:
            self.play(env, self.begin(env), 0, 2)
            frames = env.render()
            assert len(frames) == 2
            check_frame(frames[1])


def _rows_of(obs: Any, row: int) -> Any:
    return {key: _rows_of(value, row) for key, value in obs.items()} if isinstance(obs, dict) else obs[row : row + 1]


class Dialect3(_Dialect):
    """Environments over TensorDicts, with two rows."""

    title = "envs"

    def make(self, **more: Any) -> EnvBase:
        return make_env(self.name, num_envs=2, **self.kwargs, **more)

    def begin(self, env: EnvBase, seed: int = 5) -> TensorDictBase:
        env.set_seed(seed)
        return env.reset()

    def seeds(self) -> None:
        with self.lend() as env:
            # without infos, which some simulators do not reset
            keys = [key for key in env.observation_keys if "info" not in key]
            first = self.begin(env, 5).select(*keys).clone()
            self.play(env, self.begin(env, 7), 0, 2)
            assert_equal(first, self.begin(env, 5).select(*keys), "resets with equal seeds")

    def advance(self, env: EnvBase, obs: TensorDictBase, number: int) -> tuple[TensorDictBase, Any]:
        torch.manual_seed(number)
        stepped, following = env.step_and_maybe_reset(env.rand_action(obs.clone()))
        return following, stepped["next"]

    def reset(self) -> None:
        with self.lend() as env:
            env.full_observation_spec.assert_is_in(self.begin(env).select(*env.observation_keys))

    def step(self) -> None:
        with self.lend() as env:
            check_env_specs(env, seed=3)

    def partial_reset(self) -> None:
        with self.lend() as env:
            obs = self.play(env, self.begin(env), 0, 2)[-2]
            before = obs.clone()
            for prefix in env.outer_done_prefixes:  # the root, or agents with episodes of their own
                mask = torch.zeros_like(obs[(*prefix, "done")])
                mask[0] = True
                obs.set((*prefix, "_reset"), mask)
            obs = env.reset(obs)
            for key in env.observation_keys:
                assert_equal(before[key][1], obs[key][1], f"{key} of the row that is not reset")
            self.play(env, obs, 2, 2)

    def _rollout(self, env: EnvBase) -> TensorDictBase:
        self.begin(env)
        torch.manual_seed(1)
        length = 40
        while length <= MAX_STEPS:
            rollout = env.rollout(length, break_when_any_done=False)
            if any(rollout["next", *prefix, "done"].any() for prefix in env.outer_done_prefixes):
                return rollout
            length *= 3
        raise AssertionError(f"no episode ended in {MAX_STEPS} steps")

    def auto_reset(self) -> None:
        with self.lend() as env:
            rollout = self._rollout(env)
            for prefix in env.outer_done_prefixes:
                done = rollout["next", *prefix, "done"][:, :-1].reshape(2, -1)
                if done.any():
                    assert not rollout[(*prefix, "done")][:, 1:].reshape(2, -1)[done].any()

    def final_observation(self) -> None:
        with self.lend() as env:
            rollout = self._rollout(env)
            for key in env.observation_keys:
                path = key if isinstance(key, tuple) else (key,)
                prefix = next(prefix for prefix in env.outer_done_prefixes if path[: len(prefix)] == prefix)
                done = rollout["next", *prefix, "done"].reshape(2, -1)
                entry = rollout["next", key]
                if isinstance(entry, torch.Tensor) and entry.is_floating_point():
                    assert entry[done].isfinite().any(), f"{key} has no final observation"

    def pixels(self) -> None:
        with closing(make_env(self.name, from_pixels=True, **self.kwargs)) as env:
            rollout = env.rollout(2)
            check_frame(rollout["next", "pixels"][-1].numpy(force=True))


class Dialect4(_Dialect):
    """One classic environment."""

    title = "classic"
    auto_reset = "the caller resets"
    partial_reset = "there is one environment"

    def make(self, **more: Any) -> GymEnv:
        return GymEnv(self.name, **self.kwargs, **more)

    def begin(self, env: GymEnv, seed: int = 5) -> np.ndarray:
        env.seed(seed)
        return env.reset()

    def advance(self, env: GymEnv, obs: np.ndarray, number: int) -> tuple[np.ndarray, Any]:
        obs, reward, done, _ = env.step(sample(env.env.action_space, _unflattened(env.env, obs), number))
        return obs, (reward, done)

    def reset(self) -> None:
        with self.lend() as env:
            assert self.begin(env).shape == env.env.observation_space.shape

    def step(self) -> None:
        with self.lend() as env:
            obs, (reward, done) = self.advance(env, self.begin(env), 0)
            assert obs.shape == env.env.observation_space.shape
            assert (type(reward), type(done)) == (float, bool)

    def final_observation(self) -> None:
        with self.lend() as env:
            obs = self.begin(env)
            for number in range(MAX_STEPS):
                obs, (_, done) = self.advance(env, obs, number)
                if done:
                    assert obs.shape == env.env.observation_space.shape
                    assert env.reset().shape == obs.shape
                    return
            raise AssertionError(f"no episode ended in {MAX_STEPS} steps")

    def pixels(self) -> None:
        with self.lend(render_mode="rgb_array") as env:
            self.begin(env)
            check_frame(env.env.render())


def _unflattened(env: Any, obs: np.ndarray) -> Any:
    """Returns the observation in a Dict from which `FlattenObservation` made `obs`; None if there is none."""
    while isinstance(env, gymnasium.Wrapper) and not isinstance(env, gymnasium.wrappers.FlattenObservation):
        env = env.env
    space = env.env.observation_space if isinstance(env, gymnasium.wrappers.FlattenObservation) else None
    return gymnasium.spaces.unflatten(space, obs) if isinstance(space, gymnasium.spaces.Dict) else None


DIALECTS: tuple[type[_Dialect], ...] = (Dialect1, Dialect2, Dialect3, Dialect4)


def run_checks(dialect: _Dialect) -> dict[str, str]:
    """Runs all checks of a dialect; returns for each "✓", "– " and the reason why not, or "✗ " and the error."""
    outcomes = {}
    for check in CHECKS:
        method: Callable[[], None] | str = getattr(dialect, check.replace(" ", "_").replace("-", "_"))
        limits = dialect.entry.limits
        reason = limits.get(check) or (method if isinstance(method, str) else None)
        if reason is None and check in dialect.needs_seeds:
            reason = limits.get("seeds")
        if reason is not None:
            outcomes[check] = f"– {reason}"
            continue
        try:
            method()
            outcomes[check] = "✓"
        except Exception as error:
            outcomes[check] = f"✗ {type(error).__name__}: {error}"
    dialect.close()
    return outcomes
