"""`RolloutWorkers`: workers that step environments with their copies of a policy, and return the trajectories.

If the caller steps the environments, every observation and every action passes through one process, which limits the
number of steps per second. Workers of `RolloutWorkers` step their environments with their copies of the policy; only
parameters are sent to workers, and only trajectories are sent back.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ..engine.backends.registry import BackendName, backend_entry
from ..engine.pool_options import OnFailure, PoolOptions
from ..engine.space_layout import Layout, Tree
from ..engine.trees import map_tree
from ..errors import OutOfSpecError, PendingError, WorkerError
from ..random_streams import RandomStreams, seed_streams
from ..registries import check_name
from ..seeding import random_seed, seed_for
from ..simulators.registry import explained_arguments
from ..validation import check_callable, parse_count, parse_optional_count
from .base import seeds_of
from .policy_copy import PolicyCopy
from .remote_workers import STEPS_IN_WORKER, RemoteWorker, RemoteWorkerGroup, pickled
from .rollout_data import Rollout, RolloutRecorder, concat_rollouts
from .vector_env import EnvFn
from .worker_pools import AnyPool, parts_of

PolicyFn = Callable[..., Any]
"""Returns the actions for a batch of observations `[k, ...]`, and more: see `RolloutWorkers`."""
_OPTIONS = "start_method", "threads_per_worker", "preload", "pin_workers", "ray_options", "wait", "step_timeout"
_ADVICE = "Call reset() to continue; it replaces workers that crashed or timed out (threads excepted)."


class _Parameters(NamedTuple):
    """Pickled parameters of the policy, and how many times parameters were set; None for the policy's initial ones."""

    version: int
    pickled: bytes | None


class RolloutWorkers:
    """n environments in workers, each of which steps its environments with a copy of one policy.

    If the policy treats each row independently and draws no random numbers, rollouts are bit for bit equal to those of
    a `VectorEnv` in same-step mode that the caller steps, on every backend and for any number of workers.

    A policy may draw from the global generators of `random`, NumPy and torch: every worker has separate random streams,
    which a seed makes reproducible. With the same number of workers, rollouts of the same seed are then equal on every
    backend; with `row_by_row=True`, also for any number of workers. (Environments should draw from generators of each
    environment, as gymnasium's do: results of those that draw from global ones differ between threads and processes.)

    A policy returns the actions, nested as the action space is, or `(action, extras)`, or a dict or TensorDict with
    "action" and extras. Extras are arrays or tensors `[k, ...]` by names, such as log-probabilities and values.

    If it has a method `initial_state(k)`, which returns a tree of arrays or tensors `[k, ...]`, it has a hidden state:
    it is called as `policy(obs, state)`, and returns `(action, state)` or `(action, extras, state)`. Rows in which an
    episode starts get the initial state.

    If it has a method `value(obs)`, or `value(obs, state)` with a hidden state, which returns one number per row, the
    rollout has the values of the last and of the final observations, which advantages need.

    `rollout` returns the steps of all environments; `rollouts` yields those of one worker after another, as they come.

    A policy with its own generators should have a method `seed(seed)`, since all copies would otherwise draw the same
    numbers. It is called with a different number in each worker, when the worker starts and at each seeded reset.
    Rollouts of such a policy always depend on the number of workers.

    >>> import gymnasium
    >>> import numpy as np
    >>> def upright(obs):
    ...     return (obs[:, 2] > 0).astype(np.int64)
    >>> with RolloutWorkers([lambda: gymnasium.make("CartPole-v1")] * 4, upright, backend="serial") as workers:
    ...     workers.reset(seed=1)
    ...     rollout = workers.rollout(50)
    >>> rollout.obs.shape, rollout.reward.sum(), len(rollout.ends)
    ((50, 4, 4), np.float64(200.0), 3)

    Args:
        env_fns: n functions, each of which makes an environment; or a name as `vecrl.make` takes it. Of a batched
            simulator (`mujoco::`, `native::`, `brax::`, …), each worker makes a batch of some of the n rows.
        policy: returns the actions for a batch of observations, NumPy arrays `[k, ...]`, see above. Each worker has a
            copy of it, pickled by value. To take new parameters it needs a method `set_parameters` or, as torch's
            modules have, `load_state_dict`.
        num_envs: n, with a name; otherwise None.
        env_options: with a name, arguments of the simulator.
        backend: "processes", "threads", "serial" or "ray".
        num_workers: the number of workers that share the environments; by default 1 for a batched simulator and with
            "serial", else the number of cores.
        seed: the seed of the first `reset` if that gets none; None takes entropy from the operating system.
        row_by_row: whether to call the policy once per environment, with a batch of 1 and with random streams for each
            environment. A step then takes as many policy calls as there are environments.
        on_failure, restarts_per_hour: how each worker handles an environment that raises, see `VectorEnv`; with a
            batched simulator, `on_failure` must be "raise". A worker that crashes always raises `WorkerCrash`, and
            `reset` replaces it.
        pool_options: `start_method`, `threads_per_worker`, `preload`, `pin_workers`, `ray_options`, `wait`,
            `step_timeout` (for a whole rollout), see `vecrl.engine.PoolOptions`.

    Raises:
        WorkerError: environments cannot be made; contains all tracebacks. No worker is left running.
        SerializationError: the policy cannot be pickled, or a factory cannot be sent to a worker process.
        ValueError: an argument is out of its range, the name is unknown, or `num_envs` is missing with a name.
        TypeError: an argument of `env_options` or of `pool_options` is unknown.
        ImportError: the simulator is not installed; the message says how to install it.
        OutOfSpecError: the spaces of the environments differ.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn] | str,
        policy: PolicyFn,
        *,
        num_envs: int | None = None,
        env_options: Mapping[str, Any] | None = None,
        backend: BackendName = "processes",
        num_workers: int | None = None,
        seed: int | Sequence[int | None] | None = None,
        row_by_row: bool = False,
        on_failure: OnFailure = "raise",
        restarts_per_hour: int = 100,
        **pool_options: Any,
    ):
        check_callable("policy", policy)
        if isinstance(policy, type):
            raise TypeError(f"Expected a policy, got the class {policy.__name__}. Give an instance of it.")
        entry = backend_entry(backend)
        inner = replace(STEPS_IN_WORKER, on_failure=on_failure, restarts_per_hour=restarts_per_hour)
        outer = _outer_options(backend, pool_options)
        name = env_fns if isinstance(env_fns, str) else ""
        with explained_arguments(name, env_options or {}):
            parts = parts_of(env_fns, num_envs, env_options, backend, num_workers, inner)
        self._worker_bounds = [0, *(ids.stop for _, ids in parts)]
        self.num_envs = self._worker_bounds[-1]
        seeds_of(seed, self.num_envs)
        self._seed = seed  # None after the first reset
        make_worker = partial(
            _RolloutWorker,
            policy=pickled("policy", policy),
            row_by_row=row_by_row,
            streams="worker" if entry.runs_inline else "policy" if entry.in_process else "process",
            entropy=random_seed(64),
        )
        makers = [(partial(make_worker, make, ids), len(ids)) for make, ids in parts]
        self._parameters = self._newest = _Parameters(0, None)  # those that a worker has loaded, and the latest ones
        self._loaded = [self._parameters] * len(parts)  # those of each worker
        self._needs_reset = False  # whether the last call did not complete
        self._is_iterated = False  # whether an iterator of `rollouts` is used
        self._late_error: WorkerError | None = None  # of a rollout that was dropped
        with explained_arguments(name, env_options or {}):
            self._workers = RemoteWorkerGroup(makers, outer, _ADVICE)
        [spaces, *other_spaces] = self._workers.call_all("spaces")
        for start, spaces_of_other in zip(self._worker_bounds[1:], other_spaces, strict=False):
            if spaces_of_other != spaces:
                self._workers.close()
                raise OutOfSpecError(
                    f"Expected the spaces {spaces} of environment 0 in all environments, but environment {start} has "
                    f"{spaces_of_other}. Give them the same spaces."
                )
        self.single_observation_space, self.single_action_space = spaces

    def reset(self, seed: int | Sequence[int | None] | None = None) -> None:
        """Resets every environment.

        Args:
            seed: None continues the random streams of the environments and the policy. An int seeds environment i with
                seed + i, and the policy with streams derived from it. A sequence contains one seed per environment;
                the policy's streams are derived from all of them.

        Raises:
            WorkerError: environments or workers failed. Call `reset` again: it replaces workers that crashed or do not
                reply.
        """
        self._require_no_iterator()
        seed = self._seed if seed is None else seed
        seeds = seeds_of(seed, self.num_envs)
        parts = [None if seeds is None else seeds[a:b] for a, b in itertools.pairwise(self._worker_bounds)]
        root = None if seeds is None or not any(s is not None for s in seeds) else _root_of(seeds)
        if self._needs_reset and not self._workers.pool.closed:
            self._recover()
        self._call_all("reset_envs", [(part, root) for part in parts])
        self._seed = None

    def _recover(self) -> None:
        """Makes all workers ready for a call, with the same policy parameters."""
        newest, self._newest, self._late_error = self._newest, self._parameters, None
        self._workers.recover()
        self._call_all("reload_policy", [(self._parameters.pickled,)] * len(self._loaded))
        self._loaded = [self._parameters] * len(self._loaded)
        if newest is not self._parameters:  # an iteration ended before a worker had loaded them
            self._load(newest)

    def _load(self, parameters: _Parameters) -> None:
        self._call_all("load_parameters", [(parameters.pickled,)] * len(self._loaded))
        self._parameters = self._newest = parameters
        self._loaded = [parameters] * len(self._loaded)

    def _call_all(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        self._needs_reset = True
        results = self._workers.call_all(name, arguments)
        self._needs_reset = False
        return results

    def set_parameters(self, parameters: object) -> None:
        """Sets the parameters of every copy of the policy, with its `set_parameters` or `load_state_dict`.

        While `rollouts` is iterated over, it does not wait: each worker loads them before its next rollout, and that
        raises what this call would raise.

        Raises:
            SerializationError: the parameters cannot be pickled.
            WorkerError: the policy has neither method, or rejects the parameters; `reset` restores the previous ones.
        """
        if not self._is_iterated:
            self._require_reset()
        newest = _Parameters(self.version + 1, pickled("parameters", parameters))
        if self._is_iterated:
            self._newest = newest
        else:
            self._load(newest)

    @property
    def version(self) -> int:
        """How many times parameters were set."""
        return self._newest.version

    def _require_reset(self) -> None:
        self._require_no_iterator()
        if self._needs_reset and not self._workers.pool.closed:
            text = "Expected the last call to have completed, but it did not. Call reset()."
            raise PendingError(text) from self._late_error

    def _require_no_iterator(self) -> None:
        if self._is_iterated and not self._workers.pool.closed:
            raise PendingError(
                "Expected no iteration over rollouts(), but one is not finished, in which only set_parameters may be "
                "called. End the loop, or call close() of the iterator."
            )

    def rollout(self, steps: int, parameters: object = None) -> Rollout:
        """Steps all environments with the policy and returns the trajectories; calls `reset()` first if needed.

        Args:
            steps: T, at least 1.
            parameters: new parameters, used from now on, see `set_parameters`.

        Raises:
            WorkerError: an environment or the policy raised, or a worker crashed or timed out; call `reset`.
            PendingError: the last call failed, and `reset` was not called since.
        """
        self._require_reset()
        steps = parse_count("steps", steps)
        if parameters is not None:
            self.set_parameters(parameters)
        elif any(loaded is not self._newest for loaded in self._loaded):  # after an iteration
            self._load(self._newest)
        if self._seed is not None:
            self.reset()
        parts: list[Rollout] = self._call_all("collect", [(steps,)] * len(self._loaded))
        layouts = Layout(self.single_observation_space), Layout(self.single_action_space)
        joined = concat_rollouts(parts, self._worker_bounds, *layouts)
        return replace(joined, env_ids=np.arange(self.num_envs), version=self.version)

    def rollouts(self, steps: int, count: int | None = None) -> Iterator[Rollout]:
        """Yields rollouts of single workers as they come, while the others go on, as IMPALA and APPO need them.

        A worker begins its next rollout when its last one is yielded, with the parameters that were set until then. So
        workers act while the caller learns. `Rollout.version` says which parameters made a rollout, and `env_ids` of
        which environments it is. In the loop, of all methods only `set_parameters` and `close` may be called.

        At the end of the loop, rollouts that are not complete are waited for and dropped, so that the next one begins
        where they have ended. With a `count`, no more than that are started.

        >>> import gymnasium
        >>> import numpy as np
        >>> def upright(obs):
        ...     return (obs[:, 2] > 0).astype(np.int64)
        >>> make = [lambda: gymnasium.make("CartPole-v1")] * 4
        >>> with RolloutWorkers(make, upright, backend="serial", num_workers=2, seed=1) as workers:
        ...     [rollout.env_ids.tolist() for rollout in workers.rollouts(50, count=3)]
        [[0, 1], [2, 3], [0, 1]]

        Args:
            steps: T, at least 1.
            count: how many rollouts to yield; None for no limit.

        Raises:
            WorkerError: an environment or the policy raised, or a worker crashed or timed out; call `reset`.
            PendingError: the last call failed, and `reset` was not called since; or there is such an iterator already.
        """
        self._require_reset()
        steps, count = parse_count("steps", steps), parse_optional_count("count", count)
        if self._seed is not None:
            self.reset()
        return self._iterate(steps, count)

    def _iterate(self, steps: int, count: int | None) -> Iterator[Rollout]:
        self._require_reset()
        running: dict[int, _Parameters] = {}  # the workers that make a rollout, and with which parameters
        left = itertools.repeat(True) if count is None else itertools.repeat(True, count)

        def start(worker: int) -> None:
            if not next(left, False):
                return
            newest, loaded = self._newest, self._loaded[worker]
            self._workers.send(worker, "collect", (steps, None if loaded is newest else newest.pickled))
            self._loaded[worker] = running[worker] = newest

        self._needs_reset = self._is_iterated = True
        try:
            for worker in range(len(self._loaded)):
                start(worker)
            while running:
                worker, rollout = self._workers.receive()
                parameters = running.pop(worker)
                if parameters.version > self._parameters.version:
                    self._parameters = parameters
                start(worker)
                bounds = self._worker_bounds[worker : worker + 2]
                yield replace(rollout, env_ids=np.arange(*bounds), version=parameters.version)
            self._needs_reset = False
        except GeneratorExit:
            self._drop(len(running))
            raise
        finally:
            self._is_iterated = False

    def _drop(self, count: int) -> None:
        """Waits for rollouts that are dropped. What they raise is the cause of the error of the next call."""
        if self._workers.pool.closed:
            return
        try:
            for _ in range(count):
                self._workers.receive()
            self._needs_reset = False
        except WorkerError as error:
            self._late_error = error

    def close(self) -> None:
        """Closes every environment and stops every worker; later calls have no effect."""
        self._workers.close()

    def __enter__(self) -> RolloutWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        pool = self._workers.pool
        kind = f"backend={pool.backend_name!r}, num_workers={pool.num_workers}"
        return f"{type(self).__name__}(num_envs={self.num_envs}, {kind})"


def _outer_options(backend: BackendName, options: Mapping[str, Any]) -> PoolOptions:
    """Returns the options of the pool of workers."""
    for name in options:
        check_name("an option of workers", name, _OPTIONS, TypeError)
    return PoolOptions.from_keywords(backend=backend, **options)


class _RolloutWorker(RemoteWorker[AnyPool]):
    """The environments of one worker, and its copy of the policy.

    Args:
        make: makes the pool of the environments.
        ids: the numbers of the environments.
        row_by_row: whether the policy is called once per environment, with random streams for each environment.
        streams: which code of a worker uses seeded random streams: "process" (all code, since the process has only
            this worker), "worker" (all code, one worker after another) or "policy" (only the policy, since workers are
            threads).
        entropy: the seed of a policy with its own generators, until `reset` gets a seed.
    """

    def __init__(
        self,
        make: Callable[[], AnyPool],
        ids: range,
        *,
        policy: bytes,
        row_by_row: bool,
        streams: Literal["process", "worker", "policy"],
        entropy: int,
    ):
        super().__init__(make())
        layouts = self.pool.obs_layout, self.pool.action_layout
        try:
            self._policy = PolicyCopy(policy, *layouts, len(ids), row_by_row=row_by_row)
            self._policy.seed(seed_for(entropy, ids[0]))
        except BaseException:
            self.pool.close()
            raise
        self._obs: Tree = None
        self._ids = ids
        self._streams = streams
        self._worker_streams: AbstractContextManager[object] = nullcontext()

    def reset_envs(self, seeds: Sequence[int | None] | None, root: int | None = None) -> None:
        """Resets the environments; a `root` seeds the random streams too."""
        if root is not None:
            self._seed_streams(root)
        with self._worker_streams:
            self._obs = self.pool.reset(seeds).obs
            self._policy.restart()

    def _seed_streams(self, root: int) -> None:
        seed = seed_for(root, self._ids[0])
        if self._streams == "process":
            seed_streams(seed)
        elif self._streams == "worker":
            self._worker_streams = RandomStreams(seed)
        self._policy.seed_streams(root, self._ids, separate=self._streams == "policy")
        self._policy.seed(seed)

    def reload_policy(self, parameters: bytes | None) -> None:
        """Replaces the policy by a new copy, and loads the parameters if there are any."""
        self._policy.reload(parameters)

    def load_parameters(self, parameters: bytes) -> None:
        """Loads new parameters of the policy."""
        self._policy.load_parameters(parameters)

    def collect(self, steps: int, parameters: bytes | None = None) -> Rollout:
        """Loads the parameters if there are any, steps the environments and returns their trajectories."""
        if parameters is not None:
            self._policy.load_parameters(parameters)
        if self._obs is None:
            self.reset_envs(None)
        with self._worker_streams:
            return self._play(steps)

    def _play(self, steps: int) -> Rollout:
        policy, recorder = self._policy, RolloutRecorder(self.pool.obs_layout, self.pool.action_layout, steps)
        first_state = policy.state_arrays()
        for _ in range(steps):
            recorder.record_obs(self._obs)
            action, extras = policy.act(self._obs)
            transition = self.pool.step(action, reset_done=True)
            self._obs = transition.obs
            ended = transition.episodes.ids
            final_obs = recorder.record(action, extras, transition)
            if policy.has_values and len(ended):
                state = None if policy.state is None else map_tree(lambda leaf, rows=ended: leaf[rows], policy.state)
                recorder.record_final_value(policy.values(final_obs, state, len(ended)))
            policy.restart(ended)
        last_value = policy.values(self._obs, policy.state, self.pool.num_envs) if policy.has_values else None
        return recorder.rollout(self._obs, first_state, policy.state_arrays(), last_value)


def _root_of(seeds: Sequence[int | None]) -> int:
    """Returns the root of the policy's random streams: a hash of all environments' seeds."""
    return int.from_bytes(hashlib.blake2b(repr(list(seeds)).encode(), digest_size=8).digest())
