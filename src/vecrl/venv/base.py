"""`BaseVectorEnv`: environments with ids, any of which may step or be reset, with or without waiting for the others.

The names and the manner are Tianshou's; the work is the pool's. What transitions look like is said in `rows`. Knows
nothing of how environments are stepped, nor of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.pool import Pool
from ..engine.transition import Transition
from ..engine.worker import WorkerInfo
from ..errors import ClosedError, SpaceError, StepTimeout
from ..simulators.heterogeneous import HeterogeneousSimulator, common_space
from ..simulators.gymnasium import ResetKeywords
from ..snapshot import Stateful
from ..vector.vector_env import split_env_fns
from .result_format import NO_TUPLES, ResultFormatter


Id = int | Sequence[int] | np.ndarray | None
Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
EnvFn = Callable[[], Any]


class BaseVectorEnv(Stateful):
    """n environments, each known by its id, 0 to n - 1.

    Nothing is reset by itself: whoever sees an episode end resets that environment.

    Args:
        env_fns: n functions, each of which makes an environment: gymnasium's, or anything else with `reset` and
            `step`. Their spaces may differ, and may be missing where the environment is not gymnasium's.
        wait_num: how many environments a `step` waits for. Less than n makes stepping asynchronous.
        timeout: seconds after which a `step` returns with those environments that are ready, one at least. Given, it
            makes stepping asynchronous.
        backend: "serial", "threads", "processes" or "ray".
        num_workers: how many workers share the environments, neighbours together; one each by default. With less,
            those of one worker step one after another, and become ready together.
        stack_dicts: whether dict observations come as one dict of arrays `[m, ...]` rather than as an array `[m]` of
            dicts.
        trust_spaces: False takes observations and actions as they come, whatever environments declare; they
            travel pickled then.
        pool_options: `step_timeout`, `on_failure`, `check_nan`, `start_method`, `threads_per_worker`, `preload`,
            `pin_workers`: see `vecrl.engine.pool.Pool`.

    Attributes:
        env_num: n.
        wait_num, timeout: as given; without `wait_num`, it is n.
        is_async: whether `step` may return before all that were asked are ready.
        is_closed: whether it was closed.

    Raises:
        ValueError: `wait_num` is not from 1 to n, or `timeout` not above 0.
        SpaceError: no functions; observations that are tuples (it is a TypeError too).
        WorkerError: environments could not be made; says which, with their tracebacks.
    """

    excluded_from_state = ("_formatter", "_spaces", "_all_ids")  # see `vecrl.snapshot`

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        backend: Any = "processes",
        num_workers: int | None = None,
        stack_dicts: bool = False,
        trust_spaces: bool = True,
        **pool_options: Any,
    ):
        self.is_closed = True  # until there is something to close
        env_fns = list(env_fns)
        is_async = _check_waiting(len(env_fns), wait_num, timeout)
        if num_workers is None:
            num_workers = 1 if backend == "serial" and not is_async else max(len(env_fns), 1)
        makers = split_env_fns(env_fns, backend, num_workers, HeterogeneousSimulator, trust_spaces=trust_spaces)
        self._init_over_pool(
            Pool(makers, backend, infos="dicts", resolve_spaces=_resolve_spaces, **pool_options), wait_num, timeout, stack_dicts
        )

    def _init_over_pool(
        self, pool: Any, wait_num: int | None, timeout: float | None, stack_dicts: bool, call_env_seed: bool = True
    ) -> None:
        """Begin with a pool.

        Args:
            pool: a `Pool`, or what has its methods.
            wait_num, timeout, stack_dicts: see the class.
            call_env_seed: whether environments may have a method `seed` of their own.
        """
        if isinstance(pool.obs_layout.space, spaces.Tuple):
            pool.close()
            raise SpaceError(NO_TUPLES)
        self._pool = pool
        self.env_num: int = pool.num_envs
        self.is_async = _check_waiting(self.env_num, wait_num, timeout)
        self.wait_num = self.env_num if wait_num is None else int(wait_num)
        self.timeout = timeout
        self._all_ids = np.arange(self.env_num)
        self._formatter = ResultFormatter(pool.obs_layout, stack_dicts, pool.backend_name in ("serial", "threads"))
        self._seeds: dict[int, int] = {}  # for the next reset of these
        self._spaces: dict[str, list[Any]] = {}
        self._call_env_seed = call_env_seed
        self._last_step_was_full = False  # whether the latest step went to all, by the short way
        self._unfinished = False  # whether the latest reset or call raised, and so may be pending still
        self.is_closed = False

    def _state_facts(self) -> dict[str, Any]:
        return {"env_num": len(self)}

    # -- episodes ----------------------------------------------------------------------------------

    def reset(self, env_id: Id = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """Begin an episode in all environments, or in those of `env_id`, in this order.

        A reset of all waits for whatever is pending, and drops it.

        Args:
            env_id: one id, or a list or array of them.
            kwargs: for the environments' own `reset`, the same for each; a list of seeds gives each its own.

        Returns:
            Observations of `m` environments (see `step`), and their infos, `[m]` dicts.

        Raises:
            PendingError: some of `env_id` are pending.
            StepTimeout: what is pending, or the reset, is late; `cancel` it, or reset again to go on waiting.
            WorkerError: environments failed; says which, with their tracebacks.
        """
        ids = None if env_id is None else np.atleast_1d(env_id)
        self._resolve_pending(ids)
        id_list = (self._all_ids if ids is None else ids).tolist()
        seed = kwargs.pop("seed", None)
        if isinstance(seed, list | tuple | np.ndarray):
            seeds: list[Any] | None = [None if s is None else int(s) for s in seed]
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
        """Waits for what is pending and must not be where `ids` are reset (None: all, where the pool does it)."""
        self._drop_unfinished()
        if ids is None:
            self._pool.drain()  # if this is late, what is pending can still be collected
            self._last_step_was_full = False
            return
        self._last_step_was_full = False
        if not self.is_async and len(self._pool.pending):  # left behind by a step that was late, or by Ctrl-C
            self._pool.drain()

    def _drop_unfinished(self, timeout: float | None = None) -> None:
        """Waits for a reset or call that timed out or was interrupted: nothing else collects its result."""
        if self._unfinished and len(self._pool.pending):
            self._pool.drop_call(timeout)
        self._unfinished = False

    def step(self, action: Any, id: Id = None) -> Step:  # noqa: A002
        """Step all environments, or those of `id`.

        An asynchronous one returns as soon as `wait_num` environments are ready, or after `timeout` seconds with those
        that are, whoever asked for them when: `info["env_id"]` tells which rows are whose.

        Args:
            action: `[m, ...]`, one an environment: an array, a tensor, or a list. None only collects what is under way.
            id: one id, or a list or array of `m` of them, in the order of the actions.

        Returns:
            Observations: an array `[m, ...]`; an array `[m]` of objects where they are of unequal shapes, dicts, or no
            arrays at all. Rewards `[m]` float64, terminated and truncated `[m]` bool, and infos `[m]`, dicts with
            `env_id`. All of it is the caller's for as long as it is kept.

        Raises:
            SpaceError: (a ValueError) there is not one action for each environment.
            PendingError: some of them are under way, or failed and were not reset.
            StepTimeout: none was ready within the `step_timeout`; `step(None)` goes on waiting.
            WorkerError: environments failed; what the others yielded is in its `transition`.
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
            pool.step_async(action)
            self._last_step_was_full = True
            transition = pool.wait()
        else:
            pool.send(id, action)
            self._last_step_was_full = False
            transition = pool.recv()
        return self._formatter.step(transition)

    def _is_all_ids(self, ids: Id) -> bool:
        ids = np.asarray(ids)
        return ids.shape == self._all_ids.shape and bool((ids == self._all_ids).all())

    def _collect_pending(self) -> Transition:
        """What a step that was late has come to."""
        if not len(self._pool.pending):
            if self.is_closed:
                raise self._closed_error()
            raise ValueError("Expected actions, but None came: that only collects what is under way, and nothing is.")
        return self._pool.wait() if self._last_step_was_full else self._pool.recv()

    def _step_async(self, action: Any, ids: Id) -> Step:
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
        """Give up what all environments, or those of `id`, are doing: others take the places of their workers.

        Returns:
            `[m]` int64, the environments that were made anew, which must be reset. See `Pool.cancel`.
        """
        lost = self._pool.cancel(self._all_ids if id is None else id)  # pyright: ignore[reportArgumentType]
        with suppress(StepTimeout):  # others are still at it
            self._drop_unfinished(0.0)
        return lost

    @property
    def waiting_id(self) -> list[int]:
        """The environments under way."""
        return self._pool.pending.tolist()

    @property
    def ready_id(self) -> list[int]:
        """All others."""
        return np.setdiff1d(self._all_ids, self._pool.pending).tolist()

    # -- reach into environments -------------------------------------------------------------------

    def get_env_attr(self, key: str, id: Id = None) -> list[Any]:  # noqa: A002
        """An attribute of all environments, or of those of `id`, in their order; one id gives a list of one.

        It is looked up through an environment's wrappers, the outermost first.

        Raises:
            PendingError: some of them are under way.
            WorkerError: an environment has no such attribute.
        """
        return self._invoke("get", key, None, id)

    def set_env_attr(self, key: str, value: Any, id: Id = None) -> None:  # noqa: A002
        """Set an attribute of the innermost environment, below all wrappers; ids and errors as `get_env_attr`'s."""
        self._spaces.pop(key, None)
        self._invoke("set", key, value, id)

    def _invoke(self, kind: Any, name: str, value: Any, ids: Id = None) -> list[Any]:
        """The same of each of `ids`."""
        id_list = None if ids is None else np.atleast_1d(ids)
        return self._invoke_each(kind, name, [value] * (self.env_num if id_list is None else len(id_list)), id_list)

    def _invoke_each(self, kind: Any, name: str, values: list[Any], id_list: np.ndarray | None) -> list[Any]:
        self._last_step_was_full = False
        self._drop_unfinished()
        self._unfinished = True
        results = self._pool.invoke(kind, name, values, id_list)
        self._unfinished = False
        return results

    def seed(self, seed: int | Sequence[int] | None = None) -> list[list[int | None]]:
        """Say which seeds environments go on with.

        Those that have a method `seed` are told at once, all others by their next `reset`.

        Args:
            seed: an int gives environment i `seed + i`; a list gives each its own; None none.

        Returns:
            The seeds used, a list an environment.

        Raises:
            PendingError: environments are under way.
        """
        if seed is None:
            seeds: list[Any] = [None] * self.env_num
        elif isinstance(seed, int | np.integer):
            seeds = [int(seed) + i for i in range(self.env_num)]
        else:
            seeds = [None if s is None else int(s) for s in seed]
        if len(seeds) != self.env_num:
            raise SpaceError(f"Expected one seed or {self.env_num}, one an environment, but {len(seeds)} came.")
        env_seeds: list[Any] = [None] * self.env_num
        if self._call_env_seed:
            env_seeds = self._invoke_each("call", "seed", [((s,), {}) for s in seeds], None)
        self._seeds = {i: s for i, s in enumerate(seeds) if env_seeds[i] is None and s is not None}
        return [[s] if env_seed is None else env_seed for s, env_seed in zip(seeds, env_seeds, strict=True)]

    def render(self, **kwargs: Any) -> list[Any]:
        """What each environment's `render(**kwargs)` returns.

        Raises:
            PendingError: environments are under way.
        """
        return self._invoke("call", "render", ((), kwargs))

    @property
    def action_space(self) -> list[Any]:
        """Each environment's; asked for once."""
        return self._space("action_space")

    @property
    def observation_space(self) -> list[Any]:
        """Each environment's; asked for once."""
        return self._space("observation_space")

    def _space(self, name: str) -> list[Any]:
        if self.is_closed:
            raise self._closed_error()
        if name not in self._spaces:
            self._spaces[name] = self.get_env_attr(name)
        return list(self._spaces[name])

    @property
    def metadata(self) -> list[Any]:
        """Each environment's."""
        return self.get_env_attr("metadata")

    @property
    def spec(self) -> list[Any]:
        """Each environment's."""
        return self.get_env_attr("spec")

    @property
    def reward_range(self) -> list[Any]:
        """Each environment's; all numbers where it does not say."""
        return self.get_env_attr("reward_range")

    # -- the end -----------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Close every environment and end every worker; twice is harmless, any other use is a `ClosedError` then.

        Args:
            timeout: see `Pool.close`.
        """
        if not self.is_closed:
            self.is_closed = True
            self._pool.close(timeout)

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"This {type(self).__name__} is closed; make a new one.")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.env_num

    def __repr__(self) -> str:
        wait_options = f", wait_num={self.wait_num}, timeout={self.timeout}" if self.is_async else ""
        return f"{type(self).__name__}(env_num={self.env_num}, num_workers={self._pool.num_workers}{wait_options})"


def _resolve_spaces(worker_infos: Sequence[WorkerInfo]) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The spaces that the arena is laid out for: what all workers' have in common."""
    actions = common_space([worker_info.action_space for worker_info in worker_infos], nested=False)
    return common_space([worker_info.observation_space for worker_info in worker_infos]), actions


def _check_waiting(env_num: int, wait_num: int | None, timeout: float | None) -> bool:
    """Whether these say that steps are asynchronous.

    Raises:
        ValueError: they say nothing sensible.
    """
    if wait_num is not None and not (isinstance(wait_num, int | np.integer) and 1 <= wait_num <= env_num):
        raise ValueError(f"Expected wait_num to be an integer from 1 to {env_num}, or None, but {wait_num!r} came.")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"Expected timeout to be seconds above 0, or None, but {timeout!r} came.")
    return timeout is not None or (wait_num is not None and wait_num < env_num)
