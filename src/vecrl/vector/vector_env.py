"""`VectorEnv`: gymnasium's vector interface over gymnasium environments, on every backend of the engine.

This module and `engine.transition` translate between the engine and gymnasium's conventions (auto-reset modes, result
tuples, info dicts, names).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import Space

from ..engine.backends.registry import BackendName
from ..engine.backends.worker_options import RayOptions, StartMethod, Wait
from ..engine.env_index import Ids
from ..engine.infos import Info, InfoDict
from ..engine.large_boxes import batch_space
from ..engine.pool import Pool
from ..engine.pool_options import OnFailure
from ..engine.simulator import ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..engine.transition import Autoreset, AutoresetMode, GymStep, Transition, gymnasium_step
from ..errors import SpaceError, WorkerError
from ..snapshot import Stateful
from ..validation import check_length, check_text, parse_int
from .base import Facts, seeds_of, state_facts
from .env_fns import env_fn_list, resolve_backend, split_env_fns
from .reset_masks import LatestObs, split_options

AnyEnv = gymnasium.Env[Any, Any]
EnvFn = Callable[[], AnyEnv]
ObservationMode = Literal["same", "different"] | tuple[AnySpace, AnySpace]


class VectorEnv(Stateful, gymnasium.vector.VectorEnv):
    """n gymnasium environments that are stepped together.

    A drop-in replacement for `gymnasium.vector.SyncVectorEnv` and `AsyncVectorEnv`: observations, rewards, flags, infos
    and seeds are the same in all three auto-reset modes, with every backend and any number of workers. Later calls
    never overwrite what `reset` and `step` returned.

    >>> import gymnasium
    >>> envs = VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode="same_step")
    >>> obs, info = envs.reset(seed=1)
    >>> obs.shape, obs.dtype
    ((3, 4), dtype('float32'))
    >>> obs, reward, terminated, truncated, info = envs.step(np.array([0, 1, 0]))
    >>> reward
    array([1., 1., 1.])
    >>> envs.close()

    Args:
        env_fns: n functions, each of which makes an environment. With `backend="processes"` they are called only in
            the workers. They are pickled by value, so scripts need no main guard.
        backend: "serial", "threads", "processes", "ray" or another registered backend, see `vecrl.engine.PoolOptions`;
            or "auto" for "serial" or "processes", after a measurement of one environment, which takes up to 0.2 s.
        num_workers: the number of workers that share the environments; by default 1 with "serial", else the number of
            cores.
        copy: accepted for compatibility with gymnasium. It has no effect: later calls never overwrite results.
        observation_mode: "same", "different" (spaces of one shape and dtype, but different bounds) or a pair of
            the batched and the single space.
        autoreset_mode: "next_step", "same_step" or "disabled", or gymnasium's `AutoresetMode`.
        empty_info: whether to drop all infos, which saves their cost.
        check_nan, step_timeout, on_failure, restarts_per_hour: the failures of environments and what happens to them,
            see `vecrl.engine.PoolOptions`.
        start_method, threads_per_worker, preload, pin_workers, ray_options, python, wait: how workers are started and
            waited for, see `vecrl.engine.backends.worker_options.WorkerOptions`.

    Raises:
        WorkerError: environments cannot be made; contains all tracebacks. No worker is left running.
        SerializationError: a factory cannot be sent to a worker process.
        SpaceError: the spaces of the environments differ.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        *,
        backend: BackendName = "serial",
        num_workers: int | None = None,
        empty_info: bool = False,
        check_nan: bool = False,
        step_timeout: float | None = None,
        on_failure: OnFailure = "raise",
        restarts_per_hour: int = 100,
        start_method: StartMethod = "forkserver",
        threads_per_worker: int = 1,
        preload: Sequence[str] = (),
        pin_workers: bool = False,
        ray_options: RayOptions | None = None,
        python: str | None = None,
        wait: Wait = "auto",
    ):
        self.closed = True  # until the pool exists
        is_pair = isinstance(observation_mode, tuple) and [isinstance(s, Space) for s in observation_mode] == [True] * 2
        if observation_mode not in ("same", "different") and not is_pair:
            raise SpaceError(
                "Expected observation_mode to be 'same', 'different' or a pair of the batched and the single space, "
                f"got {observation_mode!r}."
            )
        single_space = observation_mode[1] if isinstance(observation_mode, tuple) else None
        must_be_equal = observation_mode == "same"
        env_fns = env_fn_list(env_fns)
        backend = resolve_backend(backend, env_fns, num_workers)
        makers = split_env_fns(env_fns, backend, num_workers, observation_space=single_space, same_spaces=must_be_equal)
        autoreset = Autoreset(autoreset_mode, sum(count for _, count in makers))
        self.copy = copy
        pool = Pool(
            makers,
            backend,
            infos=not empty_info and self._info_form(backend),
            check_nan=check_nan,
            step_timeout=step_timeout,
            on_failure=on_failure,
            restarts_per_hour=restarts_per_hour,
            start_method=start_method,
            threads_per_worker=threads_per_worker,
            preload=preload,
            pin_workers=pin_workers,
            same_spaces=must_be_equal,
            ray_options=ray_options,
            python=python,
            wait=wait,
        )
        self._init_over_pool(pool, autoreset, observation_mode)

    def _info_form(self, backend: BackendName) -> bool | Literal["dicts"]:
        """Returns the option `infos` of the pool: here, infos may be packed, since they are merged to arrays."""
        return True

    @classmethod
    def from_pool(cls, pool: Pool, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP) -> VectorEnv:
        """Returns a vector environment over an existing pool; closing it closes the pool."""
        if not isinstance(pool, Pool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected pool to be a vecrl.engine.pool.Pool, got {pool!r:.80}.")
        envs = cls.__new__(cls)
        envs.copy = True
        envs._init_over_pool(pool, Autoreset(autoreset_mode, pool.num_envs), "same")
        return envs

    def _init_over_pool(self, pool: Pool, autoreset: Autoreset, observation_mode: ObservationMode) -> None:
        self._pool = pool
        self._autoreset = autoreset
        self.num_envs = pool.num_envs
        self.closed = False
        worker_info = pool.worker_info
        self.render_mode = worker_info.render_mode
        self.spec = worker_info.spec
        self.metadata = worker_info.metadata | {"autoreset_mode": self._autoreset.mode}
        self.single_action_space = worker_info.action_space
        self.action_space = batch_space(worker_info.action_space, self.num_envs)
        self.single_observation_space, self.observation_space = self._observation_spaces(observation_mode)
        self._latest_obs = LatestObs(self._pool.obs_layout, self.num_envs)
        self._reset_ids: np.ndarray | None = None  # the environments of the pending reset; None for all

    def _observation_spaces(self, mode: ObservationMode) -> tuple[AnySpace, AnySpace]:
        single_space = self._pool.worker_info.observation_space
        if isinstance(mode, tuple):
            return mode[1], mode[0]
        if mode == "same":
            return single_space, batch_space(single_space, self.num_envs)
        from gymnasium.vector.utils import batch_differing_spaces

        return single_space, batch_differing_spaces(self._pool.invoke("get", "observation_space"))

    # -- gymnasium's interface ---------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Tree, InfoDict]:
        """Resets every environment and returns the observations.

        Args:
            seed: None continues each environment's random stream; an int seeds environment i with seed + i; a sequence
                contains one seed per environment.
            options: passed to each environment's `reset`. `options["reset_mask"]`, bool `[n]`, selects the environments
                to reset; the latest observations of the others are returned unchanged.

        Returns:
            Observations, a tree of arrays `[n, ...]`, and infos.
        """
        arguments = self._reset_arguments(seed, options)
        return self._read_reset(lambda: self._pool.reset(*arguments))

    def step(self, actions: Tree) -> GymStep:
        """Steps every environment and returns the results.

        Args:
            actions: a tree of arrays or CPU tensors `[n, ...]`, nested like the action space.

        Returns:
            Observations `[n, ...]`; rewards `[n]` float64; terminated and truncated `[n]` bool; infos.
        """
        autoreset = self._autoreset
        try:
            transition = self._pool.step(actions, reset_mask=autoreset.reset_mask(), reset_done=autoreset.reset_done)
        except WorkerError as error:
            self._after_failed_step(error)
            raise
        self._after_step(transition)
        return self._results(transition)

    def _reset_arguments(
        self, seed: int | Sequence[int | None] | None, options: ResetOptions | None
    ) -> tuple[list[int | None] | None, ResetOptions | None, np.ndarray | None]:
        """Returns the seeds and options of the environments to reset, and their ids; None for all."""
        options, mask = split_options(options, self.num_envs)
        ids = self._latest_obs.reset_ids(mask)
        seeds = seeds_of(seed, self.num_envs)
        self._reset_ids = ids
        return seeds if ids is None or seeds is None else [seeds[i] for i in ids], options, ids

    def _start_reset(self, seed: int | Sequence[int | None] | None, options: ResetOptions | None) -> None:
        seeds, options, ids = self._reset_arguments(seed, options)
        if ids is None:
            self._pool.reset_async(seeds, options)
        else:
            self._pool.send_reset(ids, seeds, options)

    def _finish_reset(self, timeout: float | None = None) -> tuple[Tree, InfoDict]:
        pool = self._pool
        return self._read_reset(lambda: pool.wait(timeout) if self._reset_ids is None else pool.recv(timeout=timeout))

    def _read_reset(self, get_transition: Callable[[], Transition]) -> tuple[Tree, InfoDict]:
        """Returns the results of a reset, which `get_transition` waits for."""
        try:
            transition = get_transition()
        except WorkerError as error:
            if (failed := error.transition) is not None:
                self._latest_obs.write_into(failed.obs, failed.ids, error.env_ids)
                self._after_reset(failed)
            raise
        self._after_reset(transition)
        obs = transition.obs if self._reset_ids is None else self._latest_obs.copy_tree()
        return obs, transition.infos.merge(self.num_envs)

    def _after_reset(self, transition: Transition) -> None:
        self._autoreset.after_reset(transition.ids)
        self._latest_obs.store(transition.obs, None if self._reset_ids is None else transition.ids)

    def _start_step(self, actions: Tree) -> None:
        self._pool.step_async(actions, reset_mask=self._autoreset.reset_mask(), reset_done=self._autoreset.reset_done)

    def _finish_step(self, timeout: float | None = None) -> GymStep:
        try:
            transition = self._pool.wait(timeout)
        except WorkerError as error:
            self._after_failed_step(error)
            raise
        self._after_step(transition)
        return self._results(transition)

    def _results(self, transition: Transition) -> GymStep:
        return gymnasium_step(transition, self.num_envs)

    def _after_failed_step(self, error: WorkerError) -> None:
        if (transition := error.transition) is not None:
            self._latest_obs.write_into(transition.obs, transition.ids, error.env_ids)
            self._after_step(transition)

    def _after_step(self, transition: Transition) -> None:
        self._autoreset.after_step(transition)
        self._latest_obs.store(transition.obs)

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Calls a method of every environment, or reads an attribute; returns one result per environment."""
        check_text("name", name)
        return tuple(self._pool.invoke("call", name, [(args, kwargs)] * self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of every environment, looked up through its wrappers."""
        return tuple(self._pool.invoke("get", name))

    def set_attr(self, name: str, values: object) -> None:
        """Sets an attribute of every environment: a list or tuple has one value per environment, any other value is
        set in all."""
        values = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        check_length("values", values, self.num_envs)
        self._pool.invoke("set", name, values)

    def cancel(self, ids: Ids) -> np.ndarray:
        """Cancels the pending commands of environments after a `StepTimeout`; `reset` them afterwards. See
        `Pool.cancel`."""
        return self._pool.cancel(ids)

    def render(self) -> tuple[Any, ...] | None:
        """Returns what every environment renders, or None if there is no render mode."""
        return tuple(self._pool.invoke("render")) if self.render_mode is not None else None

    def close_extras(self, timeout: float | None = None, **_: object) -> None:
        """Closes every environment and stops every worker. See `Pool.close`."""
        self._pool.close(timeout)

    def close(self, **kwargs: Any) -> None:
        """Closes the vector environment; later calls have no effect. `timeout`: see `Pool.close`."""
        if not self.closed:
            self.closed = True
            self.close_extras(**kwargs)

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Does nothing: the pool stops its workers when it is garbage-collected."""

    @property
    def envs(self) -> list[AnyEnv]:
        """Raises AttributeError: environments may be in other processes."""
        raise AttributeError(
            f"Expected call, get_attr or set_attr, got envs. Environments of {type(self).__name__} may be in other "
            'processes. Use get_attr("name") or call("name").'
        )

    def __repr__(self) -> str:
        pool = self._pool
        env_name = "" if self.spec is None else f"{self.spec.id!r}, "
        kind = f"backend={pool.backend_name!r}, num_workers={pool.num_workers}"
        return (
            f"{type(self).__name__}({env_name}num_envs={self.num_envs}, {kind}, "
            f"autoreset_mode={self._autoreset.mode.name})"
        )

    def _state_facts(self) -> Facts:
        return state_facts(self) | {"autoreset_mode": self._autoreset.mode.value}

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """The auto-reset mode: when an environment is reset after its episode ended."""
        return self._autoreset.mode

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The seed of every environment's generator."""
        return self.get_attr("np_random_seed")

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Every environment's generator (a copy of it with worker processes)."""
        return self.get_attr("np_random")


def info_of(info: Info, env_id: int) -> InfoDict:
    """Returns the info of one environment from the merged infos of a vector environment.

    >>> info_of({"x": np.array([1.0, 2.0]), "_x": np.array([False, True])}, 1)
    {'x': np.float64(2.0)}
    """
    if not isinstance(info, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected info to be that of a vector environment, a mapping, got {info!r:.80}.")
    env_id = parse_int("env_id", env_id)
    env_info: InfoDict = {}
    for key, value in info.items():
        mask = info.get(f"_{key}")
        if mask is not None and not -len(mask) <= env_id < len(mask):
            raise IndexError(f"Expected env_id to be from 0 to {len(mask) - 1}, got {env_id}.")
        if mask is not None and mask[env_id]:
            env_info[key] = info_of(value, env_id) if isinstance(value, Mapping) else value[env_id]
    return env_info
