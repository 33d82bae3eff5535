"""`BaseVectorEnv`: steps or resets any subset of environments by id, with or without waiting for the others.

Names and behavior are Tianshou's; a `Pool` does the work, and `result_format` formats the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from ..engine.backends.registry import BackendName, backend_entry
from ..engine.env_access import InvokeKind
from ..engine.pool import Pool
from ..engine.pool_options import Spaces
from ..engine.simulator import ResetKeywords
from ..engine.space_layout import Tree
from ..engine.transition import Transition
from ..engine.worker import WorkerInfo
from ..errors import ClosedError, SpaceError, StepTimeout
from ..simulators.heterogeneous import HeterogeneousSimulator, common_space
from ..snapshot import Stateful
from ..validation import check_seconds
from ..vector.base import seeds_of
from ..vector.env_fns import env_fn_list, split_env_fns
from .result_format import NO_TUPLES, Obs, ResultFormatter

Id = int | Sequence[int] | np.ndarray | None
Step = tuple[Obs, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
EnvFn = Callable[[], Any]


class BaseVectorEnv(Stateful):
    """n environments with ids 0 to n - 1.

    There is no auto-reset: the caller must reset an environment when its episode has ended.

    Args:
        env_fns: n functions, each of which makes an environment: gymnasium's, or any object with `reset` and
            `step`. Their spaces may differ, and environments that are not gymnasium's may have none.
        wait_num: the number of environments that a `step` waits for. Less than n makes steps asynchronous.
        timeout: seconds after which a `step` returns with the environments that are ready, at least one. A value other
            than None makes steps asynchronous.
        backend: "serial", "threads", "processes", "ray" or another registered backend.
        num_workers: the number of workers that share the environments, each with consecutive ones. By default one per
            environment, but 1 for synchronous steps in this thread ("serial"). The environments of one worker step one
            after another, and become ready together.
        stack_dicts: whether dict observations are returned as one dict of arrays `[m, ...]` instead of an array `[m]`
            of dicts.
        trust_spaces: True transfers observations and actions in arrays of the declared spaces; observations that do not
            fit are pickled and returned unchanged. False ignores the spaces, and pickles all observations and actions.
        pool_options: `step_timeout`, `on_failure`, `check_nan`, `start_method`, `threads_per_worker`, `preload`,
            `pin_workers`, `wait`: see `vecrl.engine.PoolOptions`.

    Attributes:
        env_num: n.
        wait_num, timeout: the arguments; `wait_num` is n if it was None.
        is_async: whether `step` may return before all environments that it sent actions to are ready.
        is_closed: whether it was closed.

    Raises:
        ValueError: `wait_num` is not from 1 to n, or `timeout` is not above 0.
        SpaceError: there are no functions, or observations are tuples (also a TypeError).
        WorkerError: environments could not be made; has their numbers and tracebacks.
    """

    excluded_from_state = ("_formatter", "_spaces", "_all_ids")  # see `vecrl.snapshot`

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        backend: BackendName = "processes",
        num_workers: int | None = None,
        stack_dicts: bool = False,
        trust_spaces: bool = True,
        **pool_options: Any,
    ):
        self.is_closed = True  # until the pool exists
        env_fns = env_fn_list(env_fns)
        is_async = check_waiting(len(env_fns), wait_num, timeout)
        if num_workers is None:
            num_workers = 1 if backend_entry(backend).runs_inline and not is_async else max(len(env_fns), 1)
        pool = make_pool(env_fns, backend, num_workers, trust_spaces, pool_options)
        self._init_over_pool(pool, wait_num, timeout, stack_dicts)

    def _init_over_pool(
        self, pool: Any, wait_num: int | None, timeout: float | None, stack_dicts: bool, call_env_seed: bool = True
    ) -> None:
        """Initializes this object over a pool.

        Args:
            pool: a `Pool`, or an object with its methods.
            wait_num, timeout, stack_dicts: see the class.
            call_env_seed: whether environments may have a method `seed`.
        """
        if isinstance(pool.obs_layout.space, spaces.Tuple):
            pool.close()
            raise SpaceError(NO_TUPLES)
        self._pool = pool
        self.env_num: int = pool.num_envs
        self.is_async = check_waiting(self.env_num, wait_num, timeout)
        self.wait_num = self.env_num if wait_num is None else int(wait_num)
        self.timeout = timeout
        self._all_ids = np.arange(self.env_num)
        self._formatter = ResultFormatter(pool.obs_layout, stack_dicts, pool.in_process)
        self._seeds: dict[int, int] = {}  # seeds for the next reset, by environment
        self._spaces: dict[str, list[Any]] = {}
        self._call_env_seed = call_env_seed
        self._last_step_was_full = False  # whether the latest step used pool.step_async
        self._unfinished = False  # whether the latest reset or call raised, so that it may still be pending
        self.is_closed = False

    def _state_facts(self) -> dict[str, object]:
        return {"env_num": len(self)}

    # -- episodes ----------------------------------------------------------------------------------

    def reset(self, env_id: Id = None, **kwargs: Any) -> tuple[Obs, np.ndarray]:
        """Resets all environments, or those in `env_id`, and returns their observations in this order.

        A reset of all environments waits for pending commands first, and drops their results.

        Args:
            env_id: one id, or a list or array of ids.
            kwargs: passed to the `reset` of each environment; if `seed` is a list, each environment gets one seed.

        Returns:
            Observations of `m` environments (see `step`), and their infos, `[m]` dicts.

        Raises:
            PendingError: commands to some environments in `env_id` are pending.
            StepTimeout: a pending command or the reset timed out; `cancel` it, or reset again to wait longer.
            WorkerError: environments failed; has their numbers and tracebacks.
        """
        ids = None if env_id is None else np.atleast_1d(env_id)
        self._resolve_pending(ids)
        id_list = (self._all_ids if ids is None else ids).tolist()
        seed = kwargs.pop("seed", None)
        if isinstance(seed, list | tuple | np.ndarray):
            seeds: list[int | None] | None = seeds_of(seed, len(id_list))
        elif seed is None:
            seeds = [self._seeds.get(i) for i in id_list] if self._seeds else None
        else:
            seeds = [seed] * len(id_list)
        self._unfinished = True
        transition = self._pool.reset(seeds, ResetKeywords(kwargs) if kwargs else None, ids)
        self._unfinished = False
        for chosen_id in id_list if self._seeds else ():
            self._seeds.pop(chosen_id, None)
        return self._formatter.reset(transition)

    def _resolve_pending(self, ids: np.ndarray | None) -> None:
        """Waits for the pending commands that would prevent a reset of `ids` (None: all environments)."""
        self._drop_unfinished()
        if ids is None:
            self._pool.drain()  # if this times out, the pending results can still be collected
            self._last_step_was_full = False
            return
        self._last_step_was_full = False
        if not self.is_async and len(self._pool.pending):  # after a step that timed out, or Ctrl-C
            self._pool.drain()

    def _drop_unfinished(self, timeout: float | None = None) -> None:
        """Waits for a reset or call that timed out or was interrupted, since no other code collects its result."""
        if self._unfinished and len(self._pool.pending):
            self._pool.drop_call(timeout)
        self._unfinished = False

    def step(self, action: Tree, id: Id = None) -> Step:  # noqa: A002
        """Steps all environments, or those in `id`, and returns the results.

        An asynchronous step returns when `wait_num` environments are ready, or after `timeout` seconds with those that
        are ready. These may include environments of earlier calls: `info["env_id"]` is the environment of each row.

        Args:
            action: `[m, ...]`, one per environment: an array, a tensor, or a list. None sends no actions and only
                collects pending results.
            id: one id, or a list or array of `m` ids, in the order of the actions.

        Returns:
            Observations: an array `[m, ...]`, or an array `[m]` of objects if they have different shapes, are dicts or
            are not arrays. Rewards `[m]` float64, terminated and truncated `[m]` bool, and infos `[m]`, dicts with
            `env_id`. Later calls never overwrite them.

        Raises:
            SpaceError: (a ValueError) there is not one action for each environment.
            PendingError: some of the environments have pending commands, or failed and were not reset.
            StepTimeout: no environment was ready within the `step_timeout`; `step(None)` waits longer.
            WorkerError: environments failed; its `transition` has the results of the others.
        """
        if hasattr(action, "detach"):
            action = action.numpy(force=True)
        if self._unfinished:
            self._drop_unfinished()
        if self.is_async:
            return self._step_async(action, id)
        pool = self._pool
        if action is None:
            transition = self._collect_pending()
        elif id is None or self._is_all_ids(id):
            try:
                transition = pool.step(action)
            except (StepTimeout, KeyboardInterrupt):  # the step is pending
                self._last_step_was_full = True
                raise
        else:
            pool.send(id, action)
            self._last_step_was_full = False
            transition = pool.recv()
        return self._formatter.step(transition)

    def _is_all_ids(self, ids: Id) -> bool:
        ids = np.asarray(ids)
        return ids.shape == self._all_ids.shape and bool((ids == self._all_ids).all())

    def _collect_pending(self) -> Transition:
        """Returns the results of a step that timed out."""
        if not len(self._pool.pending):
            if self.is_closed:
                raise self._closed_error()
            raise ValueError("Expected actions, got None, which only collects pending results. No step is pending.")
        return self._pool.wait() if self._last_step_was_full else self._pool.recv()

    def _step_async(self, action: Tree, ids: Id) -> Step:
        pool = self._pool
        if action is not None:
            pool.send(self._all_ids if ids is None else ids, action)
        elif not len(pool.pending):
            if self.is_closed:
                raise self._closed_error()
            return self._formatter.empty_result()
        if self.timeout is None:
            return self._formatter.step(pool.recv(self.wait_num))
        try:
            transition = pool.recv(self.wait_num, self.timeout)
        except StepTimeout:
            transition = pool.recv(1)
        return self._formatter.step(transition)

    def cancel(self, id: Id = None) -> np.ndarray:  # noqa: A002
        """Cancels the pending commands of all environments, or of those in `id`, and restarts their workers.

        Returns:
            `[m]` int64, the ids of the environments that were made again, which must be reset. See `Pool.cancel`.
        """
        lost = self._pool.cancel(self._all_ids if id is None else id)  # pyright: ignore[reportArgumentType]
        with suppress(StepTimeout):  # other environments have not replied yet
            self._drop_unfinished(0.0)
        return lost

    @property
    def waiting_id(self) -> list[int]:
        """The ids of the environments with pending commands."""
        return self._pool.pending.tolist()

    @property
    def ready_id(self) -> list[int]:
        """The ids of the environments without pending commands."""
        return np.setdiff1d(self._all_ids, self._pool.pending).tolist()

    # -- attributes and methods of environments ----------------------------------------------------

    def get_env_attr(self, key: str, id: Id = None) -> list[Any]:  # noqa: A002
        """Returns an attribute of all environments, or of those in `id`, as a list in their order.

        It is looked up through an environment's wrappers, from the outermost to the innermost.

        Raises:
            PendingError: some of the environments have pending commands.
            WorkerError: an environment has no such attribute.
        """
        return self._invoke("get", key, None, id)

    def set_env_attr(self, key: str, value: object, id: Id = None) -> None:  # noqa: A002
        """Sets an attribute of the innermost environment, below all wrappers; ids and errors as for `get_env_attr`."""
        self._spaces.pop(key, None)
        self._invoke("set", key, value, id)

    def _invoke(self, kind: InvokeKind, name: str, value: object, ids: Id = None) -> list[Any]:
        """Invokes the same command with the same value on each environment in `ids`."""
        id_list = None if ids is None else np.atleast_1d(ids)
        return self._invoke_each(kind, name, [value] * (self.env_num if id_list is None else len(id_list)), id_list)

    def _invoke_each(self, kind: InvokeKind, name: str, values: Sequence[object], ids: np.ndarray | None) -> list[Any]:
        self._last_step_was_full = False
        self._drop_unfinished()
        self._unfinished = True
        results = self._pool.invoke(kind, name, values, ids)
        self._unfinished = False
        return results

    def seed(self, seed: int | Sequence[int] | None = None) -> list[list[int | None]]:
        """Seeds the environments.

        Environments with a method `seed` are seeded at once, all others by their next `reset`.

        Args:
            seed: an int seeds environment i with `seed + i`; a list contains one seed per environment; None sets none.

        Returns:
            The seeds used, one list per environment.

        Raises:
            PendingError: environments have pending commands.
        """
        seeds = seeds_of(seed, self.env_num) or [None] * self.env_num
        env_seeds: list[Any] = [None] * self.env_num
        if self._call_env_seed:
            env_seeds = self._invoke_each("call", "seed", [((s,), {}) for s in seeds], None)
        self._seeds = {i: s for i, s in enumerate(seeds) if env_seeds[i] is None and s is not None}
        return [[s] if env_seed is None else env_seed for s, env_seed in zip(seeds, env_seeds, strict=True)]

    def render(self, **kwargs: Any) -> list[Any]:
        """Returns the result of `render(**kwargs)` of each environment.

        Raises:
            PendingError: environments have pending commands.
        """
        return self._invoke("call", "render", ((), kwargs))

    @property
    def action_space(self) -> list[Any]:
        """The action space of each environment, cached; None if it declares none."""
        return self._space("action_space")

    @property
    def observation_space(self) -> list[Any]:
        """The observation space of each environment, cached; None if it declares none."""
        return self._space("observation_space")

    def _space(self, name: str) -> list[Any]:
        if self.is_closed:
            raise self._closed_error()
        if name not in self._spaces:
            self._spaces[name] = self.get_env_attr(name)
        return list(self._spaces[name])

    @property
    def metadata(self) -> list[dict[str, Any]]:
        """The metadata of each environment."""
        return self.get_env_attr("metadata")

    @property
    def spec(self) -> list[Any]:
        """The gymnasium spec of each environment."""
        return self.get_env_attr("spec")

    @property
    def reward_range(self) -> list[tuple[float, float]]:
        """The reward range of each environment; (-inf, inf) if it has none."""
        return self.get_env_attr("reward_range")

    @property
    def workers(self) -> list[WorkerView]:
        """One object per environment, with its environment as `env` if that is in this process, as in Tianshou."""
        return [WorkerView(self, env_id) for env_id in range(self.env_num)]

    def _wrap_id(self, id: Id = None) -> Any:  # noqa: A002
        """Returns ids as a list or array, as the method of this name in Tianshou, which subclasses call."""
        return list(range(self.env_num)) if id is None else [id] if np.isscalar(id) else id

    # -- closing -----------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Closes every environment and stops every worker. After that, `close` does nothing, and others raise.

        Args:
            timeout: see `Pool.close`.
        """
        if not self.is_closed:
            self.is_closed = True
            self._pool.close(timeout)

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"This {type(self).__name__} is closed. Make a new one.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.env_num

    def __repr__(self) -> str:
        wait_options = f", wait_num={self.wait_num}, timeout={self.timeout}" if self.is_async else ""
        return f"{type(self).__name__}(env_num={self.env_num}, num_workers={self._pool.num_workers}{wait_options})"


class WorkerView:
    """Stands for Tianshou's worker of one environment; see `BaseVectorEnv.workers`."""

    def __init__(self, envs: BaseVectorEnv, env_id: int):
        self._envs, self._env_id = envs, env_id

    @property
    def env(self) -> Any:
        """The environment.

        Raises:
            AttributeError: it is not in this process.
        """
        if not self._envs._pool.in_process:
            raise AttributeError(
                f"Expected get_env_attr, set_env_attr or render, got workers[{self._env_id}].env. Environments of "
                f"{type(self._envs).__name__} are in other processes. Use get_env_attr(name, {self._env_id})."
            )
        return self._envs.get_env_attr("step", self._env_id)[0].__self__


def make_pool(
    env_fns: Sequence[Any], backend: BackendName, num_workers: int, trust_spaces: bool, options: Mapping[str, Any]
) -> Pool:
    """Returns a pool of the environments, which may have different spaces; arguments as of `BaseVectorEnv`."""
    makers = split_env_fns(env_fns, backend, num_workers, HeterogeneousSimulator, trust_spaces=trust_spaces)
    return Pool(makers, backend, infos="dicts", resolve_spaces=_resolve_spaces, **options)


def _resolve_spaces(worker_infos: Sequence[WorkerInfo]) -> Spaces:
    """Returns the spaces for the batch buffers: those that the spaces of all workers share."""
    actions = common_space([worker_info.action_space for worker_info in worker_infos], nested=False)
    return common_space([worker_info.observation_space for worker_info in worker_infos]), actions


def check_waiting(env_num: int, wait_num: int | None, timeout: float | None) -> bool:
    """Returns whether steps are asynchronous with these arguments.

    Raises:
        ValueError: one of them is invalid.
    """
    is_integer = isinstance(wait_num, int | np.integer) and not isinstance(wait_num, bool)
    if wait_num is not None and not (is_integer and 1 <= wait_num <= env_num):
        raise ValueError(f"Expected wait_num to be an integer from 1 to {env_num}, or None, got {wait_num!r}.")
    check_seconds("timeout", timeout)
    return timeout is not None or (wait_num is not None and wait_num < env_num)
