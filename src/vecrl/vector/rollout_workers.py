"""Environments that play whole rollouts where they are: each worker has a copy of the policy.

A caller that steps environments sees every observation and answers with every action, so one caller is the limit of
how many steps there are a second. Here workers step a vector environment of their own under their own copy of the
policy, and what travels is parameters there and trajectories back. Knows no network, nor torch unless the policy does.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import cloudpickle
import numpy as np

from ..engine.fault_policy import OnFailure, check_fault_options
from ..engine.pool_factory import BackendName
from ..engine.simulator import Simulator
from ..engine.space_layout import Layout, Tree
from ..engine.transition import Transition
from ..errors import PendingError, SpaceError
from ..random_streams import RandomStreams, seed_streams
from ..seeding import seed_for, stream_for
from .remote_workers import RemoteWorker, RemoteWorkerGroup, pickled
from .vector_env import EnvFn, seeds_of, split_env_fns

PolicyFn = Callable[[Any], Any]
"""Actions for a batch of observations `[k, ...]`, as the action space nests."""
_STREAMS = {"processes": "process", "ray": "process", "serial": "worker", "threads": "policy"}
_ONE_AT_A_TIME = threading.RLock()  # held by the thread that has switched the process's global generators
_ADVICE = "Call reset() to go on: others take the places of workers that are gone or late (but not of threads)."


@dataclass(frozen=True, slots=True)
class Rollout:
    """What n environments lived through in T steps.

    Attributes:
        obs: what was acted on, a tree of arrays `[T, n, ...]`.
        action: what was done, a tree of arrays `[T, n, ...]`.
        reward: `[T, n]` float64.
        terminated, truncated: `[T, n]` bool. An environment whose episode ends begins anew at once.
        last_obs: what to act on next, a tree of arrays `[n, ...]`.
        ends: `[e, 2]` int64, step and environment of each episode that ended, in the order of the steps.
        final_obs: the observations that these ended with, a tree of arrays `[e, ...]`; None where e is 0.
        returns: `[e]` float64, lengths: `[e]` int64, of these episodes, what came before the rollout included.
    """

    obs: Tree
    action: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    last_obs: Tree
    ends: np.ndarray
    final_obs: Tree
    returns: np.ndarray
    lengths: np.ndarray


class RolloutWorkers:
    """n environments over workers that step them under copies of one policy.

    With a policy that acts on each row alike and draws no random numbers, rollouts are equal, bit for bit, to those of
    a `VectorEnv` in same-step mode that is stepped from here, on every backend and for any number of workers.

    A policy may draw from the global generators of `random`, NumPy and torch: every worker has streams of its own,
    which a seed makes reproducible. With the same number of workers, rollouts of the same seed are then equal on every
    backend; with `row_by_row=True`, for any number of workers too. (Environments should draw from their own generators,
    as gymnasium's do: those that draw from global ones differ between threads and processes.) A policy with generators
    of its own, which each worker's copy would repeat, should have a method `seed(seed)`: it is called with another
    number in each worker, when the worker begins and at each seeded reset. Rollouts of such a policy depend on the
    number of workers in any case.

    >>> import gymnasium
    >>> def upright(obs):
    ...     return (obs[:, 2] > 0).astype(np.int64)
    >>> with RolloutWorkers([lambda: gymnasium.make("CartPole-v1")] * 4, upright, backend="serial") as workers:
    ...     workers.reset(seed=1)
    ...     rollout = workers.rollout(50)
    >>> rollout.obs.shape, rollout.reward.sum(), len(rollout.ends)
    ((50, 4, 4), np.float64(200.0), 3)

    Args:
        env_fns: n functions, each of which makes an environment.
        policy: gives the actions for a batch of observations `[k, ...]` of NumPy arrays. Each worker has a copy of its
            own, pickled by value. One that takes new parameters has a method `set_parameters` or, as torch's modules,
            `load_state_dict`.
        backend: "processes", "threads", "serial" or "ray".
        num_workers: how many workers share the environments; by default as many as there are cores.
        seed: what the first `reset` uses if it is given no seed; None takes entropy from the operating system.
        row_by_row: give the policy one observation at a time, as a batch of 1, with random streams of that
            environment's own. It takes as many calls as there are environments.
        on_failure, restarts_per_hour: what becomes of an environment that raises, in each worker, see `VectorEnv`. A
            worker that dies is a `WorkerCrash` in any case, and `reset` puts another in its place.
        pool_options: `start_method`, `threads_per_worker`, `preload`, `pin_workers`, `ray_options`, `step_timeout`
            (for a whole rollout), see `VectorEnv`.

    Raises:
        WorkerError: with all tracebacks, where environments cannot be made. Nothing is left running.
        SerializationError: where the policy cannot be pickled, or a factory cannot be sent to a worker process.
        ValueError: an argument out of its range.
        SpaceError: where spaces differ.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        policy: PolicyFn,
        *,
        backend: BackendName = "processes",
        num_workers: int | None = None,
        seed: int | Sequence[int | None] | None = None,
        row_by_row: bool = False,
        on_failure: OnFailure = "raise",
        restarts_per_hour: int = 100,
        **pool_options: Any,
    ):
        parts = split_env_fns(env_fns, backend, num_workers)
        self._starts = [0, *itertools.accumulate(count for _, count in parts)]
        self.num_envs = self._starts[-1]
        seeds_of(seed, self.num_envs)
        self._seed = seed  # until it is used
        inner_options = {"on_failure": on_failure, "restarts_per_hour": restarts_per_hour}
        check_fault_options(on_failure, restarts_per_hour)
        pickled_policy = pickled("policy", policy)
        noise = {"row_by_row": row_by_row, "streams": _STREAMS.get(backend, "process"), "entropy": secrets.randbits(64)}
        makers = [
            (
                partial(
                    _RolloutWorker, make, count, pickled_policy, {**inner_options, "env_id_offset": start}, **noise
                ),
                count,
            )
            for (make, count), start in zip(parts, self._starts, strict=False)
        ]
        self._parameters: bytes | None = None  # that all workers have, if not those that the policy came with
        self._needs_reset = False  # whether the last call did not come to its end
        self._workers = RemoteWorkerGroup(makers, backend, _ADVICE, **pool_options)
        [spaces, *other_spaces] = self._workers.call_all("spaces")
        for start, spaces_of_other in zip(self._starts[1:], other_spaces, strict=False):
            if spaces_of_other != spaces:
                self._workers.close()
                raise SpaceError(
                    f"environment {start}: its spaces are {spaces_of_other}, but those before have {spaces}."
                )
        self.single_observation_space, self.single_action_space = spaces

    def reset(self, seed: int | Sequence[int | None] | None = None) -> None:
        """Begin an episode in every environment.

        Args:
            seed: None continues each environment's and the policy's random streams; an int gives environment i seed + i
                and the policy streams that follow from seed; a sequence gives each environment its own, and the policy
                streams that follow from all of them.

        Raises:
            WorkerError: environments or workers failed. Another reset begins anew, with new workers for those that are
                gone or do not answer.
        """
        seed = self._seed if seed is None else seed
        seeds = seeds_of(seed, self.num_envs)
        parts = [None if seeds is None else seeds[a:b] for a, b in itertools.pairwise(self._starts)]
        root = None if seeds is None or not any(s is not None for s in seeds) else _root_of(seeds)
        if self._needs_reset and not self._workers.pool.closed:
            self._recover()
        self._call_all("reset_envs", [(part, root) for part in parts])
        self._seed = None

    def _recover(self) -> None:
        """Have workers that wait, all with the same parameters."""
        self._workers.recover()
        self._call_all("reload_policy", [(self._parameters,)] * len(self._workers.counts))

    def _call_all(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._needs_reset = True
        results = self._workers.call_all(name, arguments)
        self._needs_reset = False
        return results

    def set_parameters(self, parameters: Any) -> None:
        """Give every copy of the policy these parameters, by its `set_parameters` or `load_state_dict`.

        Raises:
            SerializationError: they cannot be pickled.
            WorkerError: the policy has neither, or does not take these; `reset` gives it back those that it had.
        """
        self._require_reset()
        pickled_parameters = pickled("parameters", parameters)
        self._call_all("load_parameters", [(pickled_parameters,)] * len(self._workers.counts))
        self._parameters = pickled_parameters

    def _require_reset(self) -> None:
        if self._needs_reset and not self._workers.pool.closed:
            raise PendingError("The last call did not come to its end; reset() before you go on.")

    def rollout(self, steps: int, parameters: Any = None) -> Rollout:
        """Play on for some steps; begins with `reset()` where there was none.

        Args:
            steps: T, at least 1.
            parameters: to play with from now on, see `set_parameters`.

        Raises:
            WorkerError: an environment or the policy raised, or a worker is gone or late; `reset` before you go on.
            PendingError: there was none since.
        """
        self._require_reset()
        if not isinstance(steps, int | np.integer) or isinstance(steps, bool) or steps < 1:
            raise ValueError(f"Expected steps to be an int of 1 or more, but {steps!r} came.")
        if parameters is not None:
            self.set_parameters(parameters)
        if self._seed is not None:
            self.reset()
        parts: list[Rollout] = self._call_all("collect", [(steps,)] * len(self._workers.counts))
        return _concat_rollouts(
            parts, self._starts, Layout(self.single_observation_space), Layout(self.single_action_space)
        )

    def close(self) -> None:
        """Close every environment and end every worker; twice is harmless."""
        self._workers.close()

    def __enter__(self) -> RolloutWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        pool = self._workers.pool
        kind = f"backend={pool.backend_name!r}, num_workers={pool.num_workers}"
        return f"{type(self).__name__}(num_envs={self.num_envs}, {kind})"


class _RolloutWorker(RemoteWorker):
    """One worker's environments, and its copy of the policy.

    Args:
        row_by_row: whether the policy is called once for each environment, with streams of the environment's own.
        streams: which code of a worker uses seeded random streams: "process" (all of it: the process is the worker's
            own), "worker" (all of it, one worker after another) or "policy" (the policy alone, as workers are threads).
        entropy: seed of policies with generators of their own, until a seed is given.
    """

    def __init__(
        self,
        make: Callable[[], Simulator],
        count: int,
        policy: bytes,
        options: Any,
        *,
        row_by_row: bool,
        streams: Literal["process", "worker", "policy"],
        entropy: int,
    ):
        super().__init__(make, count, **options)
        self._pickled_policy = policy
        self._policy: PolicyFn = cloudpickle.loads(policy)
        self._obs: Tree = None
        self._ids = range(options["env_id_offset"], options["env_id_offset"] + count)
        self._row_by_row = row_by_row
        self._streams = streams
        self._worker_streams: AbstractContextManager[Any] = nullcontext()
        self._policy_streams: list[RandomStreams] = []
        self._seed_policy(seed_for(entropy, self._ids[0]))

    def reset_envs(self, seeds: Sequence[int | None] | None, root: int | None = None) -> None:
        """Resets the environments; a `root` seeds the random streams too."""
        if root is not None:
            self._seed_streams(root)
        with self._worker_streams:
            self._obs = self.pool.reset(seeds).obs

    def _seed_streams(self, root: int) -> None:
        buffer = seed_for(root, self._ids[0])
        if self._streams == "process":
            seed_streams(buffer)
        elif self._streams == "worker":
            self._worker_streams = RandomStreams(buffer)
        if self._row_by_row:
            self._policy_streams = [RandomStreams(seed_for(stream_for(root, "rows"), i)) for i in self._ids]
        elif self._streams == "policy":
            self._policy_streams = [RandomStreams(buffer)]
        self._seed_policy(buffer)

    def _seed_policy(self, seed: int) -> None:
        self._policy_seed = seed
        if callable(reseed := getattr(self._policy, "seed", None)):
            reseed(seed)

    def _act(self, obs: Tree) -> Tree:
        """The actions for the observations of all environments."""
        action_layout, count = self.pool.action_layout, self.pool.num_envs
        if not self._row_by_row:
            return action_layout.build(
                action_layout.batch(_arrays(self._call_policy(obs, *self._policy_streams)), count)
            )
        obs_layout, parts = self.pool.obs_layout, []
        for row in range(count):
            one = obs_layout.build(_rows_of(obs_layout, obs, np.array([row])))
            parts.append(action_layout.batch(_arrays(self._call_policy(one, *self._policy_streams[row : row + 1])), 1))
        return _concat_leaves(parts, action_layout, 0)

    def _call_policy(self, obs: Tree, streams: RandomStreams | None = None) -> Any:
        if streams is None:
            return self._policy(obs)
        with _ONE_AT_A_TIME, streams:
            return self._policy(obs)

    def reload_policy(self, parameters: bytes | None) -> None:
        """Begin with another copy of the policy, and these parameters if any."""
        self._policy = cloudpickle.loads(self._pickled_policy)
        self._seed_policy(seed_for(self._policy_seed, 1))
        if parameters is not None:
            self.load_parameters(parameters)

    def load_parameters(self, parameters: bytes) -> None:
        """Take new parameters. (All bytes come from the process that made this one, no file and no network.)"""
        load: Any = getattr(self._policy, "set_parameters", None) or getattr(self._policy, "load_state_dict", None)
        if load is None:
            kind = type(self._policy).__name__
            raise TypeError(f"Expected a policy with set_parameters or load_state_dict, but {kind} has neither.")
        load(cloudpickle.loads(parameters))

    def collect(self, steps: int) -> Rollout:
        """Steps the environments, and returns what happened."""
        if self._obs is None:
            self.reset_envs(None)
        with self._worker_streams:
            return self._play(steps)

    def _play(self, steps: int) -> Rollout:
        obs_layout, action_layout = self.pool.obs_layout, self.pool.action_layout
        obs, actions = _TreeBuffer(obs_layout, steps), _TreeBuffer(action_layout, steps)
        transitions: list[Transition] = []
        final_obs_rows: list[list[Any]] = []
        for step in range(steps):
            action = self._act(self._obs)
            obs.store(step, self._obs)
            actions.store(step, action)
            transitions.append(self.pool.step(action, reset_done=True))
            self._obs = transitions[-1].obs
            done_ids = transitions[-1].episodes.ids
            if len(done_ids) > len(transitions[-1].final_rows):  # who is left out does not begin anew
                final_obs_rows.append(_rows_of(obs_layout, transitions[-1].next_obs, done_ids))
            elif len(done_ids):
                final_obs_rows.append(obs_layout.split(transitions[-1].final_obs))
            transitions[-1].obs = None  # or every slot of the arena would be held
        ends = [[step, i] for step, t in enumerate(transitions) for i in t.episodes.ids.tolist()]
        return Rollout(
            obs=obs.tree(),
            action=actions.tree(),
            reward=np.stack([t.reward for t in transitions]),
            terminated=np.stack([t.terminated for t in transitions]),
            truncated=np.stack([t.truncated for t in transitions]),
            last_obs=self._obs,
            ends=np.array(ends, np.int64).reshape(-1, 2),
            final_obs=_concat_leaves(final_obs_rows, obs_layout, 0) if final_obs_rows else None,
            returns=np.concatenate([t.episodes.returns for t in transitions]),
            lengths=np.concatenate([t.episodes.lengths for t in transitions]),
        )


class _TreeBuffer:
    """Leaf arrays of T steps, written one by one."""

    def __init__(self, layout: Layout, steps: int):
        self._layout = layout
        self._steps = steps
        self._leaves: list[Any] = []

    def store(self, step: int, tree: Tree) -> None:
        leaves = self._layout.split(tree)
        if not self._leaves:
            size = self._steps
            self._leaves = [
                np.empty((size, *leaf.shape), leaf.dtype) if isinstance(leaf, np.ndarray) else [None] * size
                for leaf in leaves
            ]
        for buffer, leaf in zip(self._leaves, leaves, strict=True):
            buffer[step] = leaf

    def tree(self) -> Tree:
        return self._layout.build([tuple(buffer) if isinstance(buffer, list) else buffer for buffer in self._leaves])


def _root_of(seeds: Sequence[int | None]) -> int:
    """The root of the policy's random streams: a hash of all environments' seeds."""
    return int.from_bytes(hashlib.blake2b(repr(list(seeds)).encode(), digest_size=8).digest())


def _arrays(actions: Any) -> Any:
    """What a policy of torch's gives, as arrays; anything else as it is."""
    if isinstance(actions, dict):
        return {key: _arrays(value) for key, value in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_arrays(value) for value in actions)
    return actions.detach().cpu().numpy() if hasattr(actions, "detach") else actions


def _concat_leaves(parts: Sequence[Sequence[Any]], layout: Layout, axis: int) -> Tree:
    """Trees, given by their leaves, side by side along an axis."""
    leaves: list[Any] = []
    for values in zip(*parts, strict=True):
        if isinstance(values[0], np.ndarray):
            leaves.append(np.concatenate(values, axis))
        elif axis == 0:
            leaves.append(tuple(itertools.chain.from_iterable(values)))
        else:
            leaves.append(tuple(tuple(itertools.chain.from_iterable(rows)) for rows in zip(*values, strict=True)))
    return layout.build(leaves)


def _concat_rollouts(
    parts: Sequence[Rollout], starts: Sequence[int], obs_layout: Layout, action_layout: Layout
) -> Rollout:
    """The rollouts of all workers as one."""
    ends = np.concatenate([part.ends + np.array([0, start]) for part, start in zip(parts, starts, strict=False)])
    permutation = np.lexsort((ends[:, 1], ends[:, 0]))
    final_obs_rows = [obs_layout.split(part.final_obs) for part in parts if len(part.ends)]
    return Rollout(
        obs=_concat_leaves([obs_layout.split(part.obs) for part in parts], obs_layout, 1),
        action=_concat_leaves([action_layout.split(part.action) for part in parts], action_layout, 1),
        reward=np.concatenate([part.reward for part in parts], 1),
        terminated=np.concatenate([part.terminated for part in parts], 1),
        truncated=np.concatenate([part.truncated for part in parts], 1),
        last_obs=_concat_leaves([obs_layout.split(part.last_obs) for part in parts], obs_layout, 0),
        ends=ends[permutation],
        final_obs=_reorder(_concat_leaves(final_obs_rows, obs_layout, 0), obs_layout, permutation)
        if final_obs_rows
        else None,
        returns=np.concatenate([part.returns for part in parts])[permutation],
        lengths=np.concatenate([part.lengths for part in parts])[permutation],
    )


def _reorder(tree: Tree, layout: Layout, permutation: np.ndarray) -> Tree:
    """The rows of a tree in another order."""
    return layout.build(_rows_of(layout, tree, permutation))


def _rows_of(layout: Layout, tree: Tree, rows: np.ndarray) -> list[Any]:
    """The leaves of some rows of a tree."""
    leaves = layout.split(tree)
    return [leaf[rows] if isinstance(leaf, np.ndarray) else tuple(leaf[i] for i in rows) for leaf in leaves]
