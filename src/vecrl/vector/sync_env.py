"""`SyncVectorEnv`: many environments of plain boxes, eager auto-reset, and, where wanted, a number of episodes each.

What neuroevolution asks of a vector environment is said here: episodes that are counted, environments that rest when
they have run theirs, infos without masks, results on a device. How environments are stepped is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from ..engine.infos import Infos
from ..engine.pool import Pool
from ..engine.pool_factory import BackendName
from ..engine.transition import AutoresetMode, Transition
from ..errors import ClosedError, SpaceError, WorkerError
from ..simulators.gymnasium import ResetKeywords
from .arrays import convert_from_torch
from .base import BaseVectorEnv
from .device_transfer import to_device
from .vector_env import split_env_fns

Step = tuple[Any, Any, Any, Any, dict[str, Any]]
_NO_SEED = object()


class SyncVectorEnv(BaseVectorEnv):
    """n gymnasium environments of `Box` observations and `Box` or `Discrete` actions that step as one.

    An environment that reports terminated or truncated is reset within the same `step` (gymnasium's SAME_STEP): its
    observation and info are then those of the new episode, its reward and flags those of the step that ended the old
    one, whose last observation and info are under `final_obs` and `final_info`.

    >>> env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, num_episodes=1)
    >>> obs, info = env.reset(seed=1)
    >>> steps = 0
    >>> while not np.isnan(obs).all():
    ...     obs, reward, terminated, truncated, info = env.step(np.array([0, 1]))
    ...     steps += 1
    >>> steps, reward
    (11, array([nan, nan]))
    >>> env.close()

    Args:
        env_makers: n functions, each of which makes an environment.
        empty_info: infos are `{}`, and cost nothing.
        num_episodes: how many episodes each environment runs after a `reset`. One that has run them is not touched
            until the next `reset`: it reports terminated and truncated, a reward of NaN, and an observation
            of NaN (0 where its dtype is no float). On the step that ends its last episode it is not reset, and
            observation and info are that step's own. None: no end.
        device: where observations, rewards, flags and numeric infos come back as tensors, moved there in one
            copy a call; None for NumPy arrays.
        backend: "serial" runs the environments one after another in this process; "threads", "processes" and "ray"
            share them out to `num_workers` workers. Results are the same.
        num_workers: see `VectorEnv`.
        pool_options: `check_nan`, `step_timeout`, `on_failure`, `restarts_per_hour`, `start_method`,
            `threads_per_worker`, `preload`, `pin_workers`, `ray_options`: see `VectorEnv`.

    What `reset` and `step` return is the caller's for as long as it is kept; nothing is copied for that.

    Raises:
        ValueError: no makers, or a `num_episodes` that is not positive.
        SpaceError: (a `TypeError` and a `ValueError`) an observation space that is no `Box`, an action space that is
            neither `Box` nor `Discrete`, or spaces that differ: observations in shape or dtype,
            actions in kind, shape, dtype, `n` or `start`. Bounds may differ; those of environment 0 are shown.
        WorkerError: environments could not be made; says which, with their tracebacks.
    """

    def __init__(
        self,
        env_makers: Iterable[Callable[[], gymnasium.Env[Any, Any]]],
        *,
        empty_info: bool = False,
        num_episodes: int | None = None,
        device: torch.device | str | None = None,
        backend: BackendName = "serial",
        num_workers: int | None = None,
        **pool_options: Any,
    ):
        self.closed = True  # until there is something to close
        if num_episodes is not None and (num_episodes != int(num_episodes) or num_episodes < 1):
            raise ValueError(f"Expected num_episodes to be a positive integer or None, but {num_episodes!r} came.")
        self._device = None if device is None else torch.device(device)
        self._num_episodes = None if num_episodes is None else int(num_episodes)
        self._empty_info = empty_info
        makers = split_env_fns(env_makers, backend, num_workers, same_spaces=False, same_actions=False)
        self._pool = Pool(makers, backend, infos=not empty_info, same_spaces=False, same_actions=False, **pool_options)
        worker_info = self._pool.worker_info
        try:
            self._check_spaces()
            super().__init__(self._pool.num_envs, worker_info.observation_space, worker_info.action_space)
        except BaseException:
            self._pool.close()
            raise
        self.render_mode = worker_info.render_mode
        self.spec = worker_info.spec
        self.metadata = worker_info.metadata | {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._seeds: list[int | None] | None = None
        self._episodes_left = np.full(self.num_envs, self._num_episodes or 0)  # episodes still to run
        is_float = np.issubdtype(worker_info.observation_space.dtype, np.floating)
        self._dummy = np.full(
            self.observation_space.shape or (), np.nan if is_float else 0, worker_info.observation_space.dtype
        )

    def _check_spaces(self) -> None:
        observation, action = (self._pool.invoke("get", f"{name}_space") for name in ("observation", "action"))
        for index, space in enumerate(observation):
            if not isinstance(space, Box):
                raise SpaceError(
                    f"Expected Box observation spaces, but environment {index} has {space}: flatten it, "
                    "or use VectorEnv, which takes every space."
                )
        first_space = action[0]
        for index, space in enumerate(action):
            if type(space) is not type(first_space) or (isinstance(space, Discrete) and space != first_space):
                raise SpaceError(
                    f"environment {index}: its action_space is {space}, but environments of one vector must have the "
                    f"same, here {first_space}."
                )

    # -- gymnasium's interface ---------------------------------------------------------------------

    def seed(self, seed: Any = None) -> None:
        """Have the next `reset`, if it is given no seed of its own, be `reset(seed=seed)`."""
        self._require_open()
        self._seeds = self._draw_seeds(seed)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin an episode in every environment.

        Args:
            seed: environment i gets the i-th of `numpy.random.RandomState(seed).randint(0, 2**32, num_envs)`, in this
                reset only. None goes on with each environment's own stream, whatever `seed` said before.
            kwargs: every other keyword is for each environment's `reset`.

        Returns:
            Observations `[n, *obs_shape]` and infos: under a key for which every environment gave a number, or an array
            of one shape, an array of them; under any other key, a list with None where it is absent.
        """
        seed = kwargs.pop("seed", _NO_SEED)
        seeds = self._seeds if seed is _NO_SEED else self._draw_seeds(seed)
        self._seeds = None
        transition = self._pool.reset(seeds, ResetKeywords({"options": None} | kwargs) if kwargs else None)
        self._episodes_left[:] = self._num_episodes or 0
        return self._to_device((transition.obs, self._infos(transition)))

    def step(self, action: Any) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Step every environment that has episodes to run.

        Args:
            action: `[n, *action_shape]`, an array or a tensor on any device.

        Returns:
            Observations `[n, *obs_shape]` of the space's dtype; rewards `[n]` float64; terminated and truncated
            `[n]` bool; infos as `reset` merges them; with `final_obs`, `final_info` and their masks where episodes
            ended.

        Raises:
            SpaceError: (a `ValueError`) actions that are no n rows of the action space.
            WorkerError: environments failed; says which, with their tracebacks. `reset` to go on.
        """
        if isinstance(action, torch.Tensor):
            action = convert_from_torch(action, "numpy")
        if self._num_episodes is None:
            return self._full_result(self._pool.step(action, reset_done=True))
        return self._count_episodes(action)

    def render(self) -> list[Any] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What every environment renders; None where they were made without a render mode."""
        self._require_open()
        return self._pool.invoke("render") if self.render_mode is not None else None

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment. `timeout`: see `Pool.close`."""
        self._pool.close(kwargs.get("timeout"))

    def close(self, **kwargs: Any) -> None:
        """Close every environment once; closing again is harmless, anything else is then a `ClosedError`."""
        if not self.closed:
            self.closed = True
            self.close_extras(**kwargs)

    def __enter__(self) -> SyncVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Nothing: the pool ends its workers when it is collected."""

    # -- inside ------------------------------------------------------------------------------------

    def _state_facts(self) -> dict[str, Any]:
        return super()._state_facts() | {"num_episodes": self._num_episodes}

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("This object is closed; make a new one.")

    def _draw_seeds(self, seed: Any) -> list[int | None] | None:
        if seed is None:
            return None
        # The source's own draw: the old generator and the dtype are part of which numbers come out.
        return np.random.RandomState(seed).randint(0, 2**32, self._pool.num_envs, dtype=np.int64).tolist()

    def _count_episodes(self, action: Any) -> Step:
        """A step of those that have episodes left; the last episode of each ends without a reset."""
        unfinished, on_last_episode = self._episodes_left > 0, self._episodes_left == 1
        if unfinished.all() and (on_last_episode.all() or not on_last_episode.any()):
            return self._full_result(
                self._count_down(lambda: self._pool.step(action, reset_done=not on_last_episode[0]))
            )
        (action,) = self._pool.action_layout.batch(action, self.num_envs)
        for ids, reset_done in (
            (np.flatnonzero(unfinished & ~on_last_episode), True),
            (np.flatnonzero(on_last_episode), False),
        ):
            if len(ids):
                self._pool.send(ids, action[ids], reset_done=reset_done)
        obs, reward = self._dummy.copy(), np.full(self.num_envs, np.nan)
        terminated, truncated = np.ones((2, self.num_envs), bool)
        if not unfinished.any():
            return self._to_device((obs, reward, terminated, truncated, {}))
        transition = self._count_down(self._pool.recv)
        obs[transition.ids], reward[transition.ids] = transition.obs, transition.reward
        terminated[transition.ids], truncated[transition.ids] = transition.terminated, transition.truncated
        return self._to_device((obs, reward, terminated, truncated, self._infos(transition)))

    def _count_down(self, get_transition: Callable[[], Transition]) -> Transition:
        """The transition, with the episodes that it ends counted; also where some environments failed."""
        try:
            transition = get_transition()
        except WorkerError as error:
            if error.transition is not None:
                self._episodes_left[error.transition.episodes.ids] -= 1
            raise
        self._episodes_left[transition.episodes.ids] -= 1
        return transition

    def _full_result(self, transition: Transition) -> Step:
        return self._to_device(
            (transition.obs, transition.reward, transition.terminated, transition.truncated, self._infos(transition))
        )

    def _to_device(self, results: Any) -> Any:
        return results if self._device is None else to_device(results, self._device)

    def _infos(self, transition: Transition) -> dict[str, Any]:
        if self._empty_info:
            return {}
        info = merge_infos(transition.infos, self.num_envs)
        if len(transition.episodes.ids):
            info |= self._final_infos(transition)
        return info

    def _final_infos(self, transition: Transition) -> dict[str, Any]:
        """What gymnasium says of episodes that ended, of those that were not followed by a reset too."""
        ids = transition.episodes.ids
        infos, final_obs = transition.final_infos, transition.final_obs
        if len(transition.final_rows) < len(ids):  # some were not reset: what they observed and said is the step's
            rows = np.flatnonzero(transition.done)
            final_obs = transition.next_obs[rows]
            not_reset_ids = set(ids[~np.isin(rows, transition.final_rows)].tolist())
            infos = Infos(
                dicts=[(env_id, info) for env_id, info in transition.infos.items() if env_id in not_reset_ids]
            )
            infos.extend(transition.final_infos)
        mask = np.zeros(self.num_envs, bool)
        mask[ids] = True
        obs = np.full(self.num_envs, None, object)
        for env_id, row in zip(ids.tolist(), final_obs, strict=True):
            obs[env_id] = row
        final_info = infos.merge(self.num_envs)
        return {"final_obs": obs, "_final_obs": mask, "final_info": final_info, "_final_info": mask.copy()}


def merge_infos(infos: Infos, num_envs: int) -> dict[str, Any]:
    """Merge infos key by key, without masks.

    Returns:
        Under a key for which all `num_envs` gave a number, or an array of one shape, an array `[num_envs, ...]`; under
        any other, a list with None where an environment did not give it.

    >>> merge_infos(Infos(dicts=[(0, {"x": 1, "y": 2}), (1, {"x": 0.5})]), 2)
    {'x': array([1. , 0.5]), 'y': [2, None]}
    """
    columns: dict[str, Any] | None = infos.columns(num_envs)
    if columns is not None:
        return columns
    columns = {}
    absent: dict[str, int] = {}
    for env_id, info in infos.items():
        for key, value in info.items():
            columns.setdefault(key, [None] * num_envs)[env_id] = value
            absent[key] = absent.get(key, num_envs) - 1
    return {key: values if absent[key] else _as_array(values) for key, values in columns.items()}


def _as_array(values: list[Any]) -> Any:
    """One array of numbers or of arrays of one shape; else the list itself."""
    if not all(isinstance(value, int | float | complex | np.number | np.bool_ | np.ndarray) for value in values):
        return values
    if len({np.shape(value) for value in values}) > 1:
        return values
    array = np.array(values)
    return values if array.dtype == object else array
