"""`SyncVectorEnv`: environments over arrays, auto-reset in the same step, and an optional episode limit.

It has what neuroevolution needs: it counts episodes, stops stepping environments that have finished theirs, merges
infos without masks, and can return results on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete

from ..engine.backends.registry import BackendName
from ..engine.infos import InfoDict, Infos, copy_nested
from ..engine.pool import Pool
from ..engine.simulator import Array, ResetKeywords
from ..engine.space_layout import Layout, Leaf, Tree
from ..engine.transition import AutoresetMode, GymStep, Transition
from ..engine.transition import autoreset_mode as parse_autoreset_mode
from ..engine.trees import map_tree
from ..errors import ClosedError, SpaceError, WorkerError
from ..validation import check_seed, parse_device, parse_optional_count
from .arrays import convert_from_torch, to_device
from .base import BaseVectorEnv, Facts, seeds_of
from .env_fns import env_fn_list, resolve_backend, split_env_fns
from .reset_masks import LatestObs, split_options
from .vector_env import AnyEnv, ObservationMode, VectorEnv

Step = tuple[Array, Array, Array, Array, InfoDict]
_NO_SEED = object()


class SyncVectorEnv(BaseVectorEnv):
    """n gymnasium environments that are stepped together.

    Their spaces are `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, or these nested in `Dict` and `Tuple`.

    An environment that reports terminated or truncated is reset within the same `step` (gymnasium's SAME_STEP). Its
    observation and info are then those of the new episode; its reward and flags are those of the step that ended the
    old episode. The last observation and info of the old episode are under `final_obs` and `final_info`.

    >>> import gymnasium
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
        copy, observation_mode, autoreset_mode: accepted for compatibility with gymnasium. `copy` has no effect; the
            modes must be "same" and "same_step": `VectorEnv` has the others.
        empty_info: whether infos are always `{}`, which saves their cost.
        num_episodes: the number of episodes that each environment runs after a `reset`. An environment that has run
            them is not stepped until the next `reset`: it reports terminated and truncated, a reward of NaN, and an
            observation of NaN (0 if its dtype is not a float). The step that ends its last episode does not reset it,
            and returns that step's observation and info. None means no limit.
        device: the device of the observations, rewards, flags and numeric infos, which are then tensors; each call
            copies them there in one transfer. None returns NumPy arrays.
        backend: "serial" runs the environments one after another in this process; "threads", "processes" and "ray"
            distribute them to `num_workers` workers. Results are the same. "auto": see `VectorEnv`.
        num_workers: see `VectorEnv`.
        pool_options: `check_nan`, `step_timeout`, `on_failure`, `restarts_per_hour`, `start_method`,
            `threads_per_worker`, `preload`, `pin_workers`, `ray_options`, `wait`: see `vecrl.engine.PoolOptions`.

    Later calls never overwrite what `reset` and `step` returned.

    Raises:
        ValueError: there are no makers, `num_episodes` is not positive, or a mode is one of `VectorEnv` only.
        SpaceError: (a `TypeError` and a `ValueError`) a space is another one, or the spaces of the environments
            differ: observations in shape or dtype, actions in type, shape, dtype, `n` or `start`. Bounds may differ;
            the spaces of this object have those of 0.
        WorkerError: environments could not be made; has their numbers and tracebacks.
    """

    def __init__(
        self,
        env_makers: Iterable[Callable[[], AnyEnv]],
        *,
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        empty_info: bool = False,
        num_episodes: int | None = None,
        device: torch.device | str | None = None,
        backend: BackendName = "serial",
        num_workers: int | None = None,
        **pool_options: Any,
    ):
        self.closed = True  # until the pool exists
        self._num_episodes = parse_optional_count("num_episodes", num_episodes)
        self._device = None if device is None else parse_device(device)
        self._empty_info = empty_info
        _require_same_step(observation_mode, autoreset_mode)
        env_makers = env_fn_list(env_makers)
        backend = resolve_backend(backend, env_makers, num_workers)
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
        layout = self._pool.obs_layout
        self._latest_obs = LatestObs(layout, self.num_envs)
        self._dummy = layout.build([_dummy(leaf, self.num_envs) for leaf in layout.leaves])

    def _check_spaces(self) -> None:
        observation, action = (self._pool.invoke("get", f"{name}_space") for name in ("observation", "action"))
        for index, space in enumerate(observation):
            if Layout(space).opaque:
                raise SpaceError(
                    f"Expected observations that are (nested) arrays, but environment {index} has {space}. "
                    "Encode it, or use VectorEnv, which takes every space."
                )
        first_space = action[0]
        for index, space in enumerate(action):
            if type(space) is not type(first_space) or (isinstance(space, Discrete) and space != first_space):
                raise SpaceError(
                    f"Expected the action space {first_space} of environment 0 in all environments, but environment "
                    f"{index} has {space}. Give them the same action space."
                )

    # -- gymnasium's interface ---------------------------------------------------------------------

    def seed(self, seed: Any = None) -> None:
        """Sets the seed that the next `reset` uses if it gets no `seed` argument."""
        self._require_open()
        self._seeds = self._draw_seeds(seed)

    def reset(self, **kwargs: Any) -> tuple[Array, InfoDict]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Resets every environment and returns the observations.

        Args:
            seed: environment i gets the i-th number of `numpy.random.RandomState(seed).randint(0, 2**32, num_envs)`,
                in this reset only; or a sequence of one seed per environment. None continues each environment's random
                stream, even after a call of `seed`.
            options: passed to each environment's `reset`. `options["reset_mask"]`, bool `[n]`, selects the environments
                to reset and to give `num_episodes` again; the latest observations of the others are returned unchanged
                (NaN or 0 of those that have run their episodes).
            kwargs: all other keywords are passed to each environment's `reset`.

        Returns:
            Observations `[n, *obs_shape]`, and infos. A key for which every environment returned a number, or an array
            of one shape, has one array; any other key has a list, with None for environments that lack the key.

        Raises:
            OutOfSpecError: (a `SpaceError`) the mask is not bool `[n]` with a True, or does not select all environments
                in the first reset.
        """
        options, mask = split_options(kwargs.pop("options", None), self.num_envs)
        ids = self._latest_obs.reset_ids(mask)
        seed = kwargs.pop("seed", _NO_SEED)
        seeds = self._seeds if seed is _NO_SEED else self._draw_seeds(seed)
        self._seeds = None
        keywords = ResetKeywords({"options": options} | kwargs) if kwargs or options is not None else None
        if ids is not None and seeds is not None:
            seeds = [seeds[i] for i in ids]
        transition = self._receive(lambda: self._pool.reset(seeds, keywords, ids), full=ids is None)
        obs = transition.obs if ids is None else self._latest_obs.copy_tree()
        self._episodes_left[transition.ids] = self._num_episodes or 0
        if ids is not None and self._num_episodes is not None:
            finished = self._episodes_left == 0
            map_tree(lambda leaf, dummy: leaf.__setitem__(finished, dummy[finished]), obs, self._dummy)
        return self._to_device((obs, self._infos(transition)))

    def step(self, action: Tree) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Steps every environment that has episodes left, and returns the results of all.

        Args:
            action: `[n, *action_shape]`, an array or a tensor on any device; a dict or tuple of these for such spaces.

        Returns:
            Observations `[n, *obs_shape]` of the space's dtype (dicts or tuples of arrays for such spaces); rewards
            `[n]` float64; terminated and truncated `[n]` bool; infos, merged as in `reset`. If episodes ended, infos
            have `final_obs`, `final_info` and their masks.

        Raises:
            SpaceError: (a `ValueError`) the actions are not n rows of the action space.
            WorkerError: environments failed; has their numbers and tracebacks. Call `reset` to continue.
        """
        if not isinstance(action, np.ndarray):
            action = map_tree(_to_numpy, action)
        if self._num_episodes is None:
            return self._full_result(self._receive(lambda: self._pool.step(action, reset_done=True)))
        return self._count_episodes(action)

    def render(self) -> list[Any] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns what every environment renders, or None if there is no render mode."""
        self._require_open()
        return self._pool.invoke("render") if self.render_mode is not None else None

    def close_extras(self, **kwargs: Any) -> None:
        """Closes every environment. `timeout`: see `Pool.close`."""
        self._pool.close(kwargs.get("timeout"))

    def close(self, **kwargs: Any) -> None:
        """Closes every environment; later calls have no effect. Other methods raise `ClosedError` afterwards."""
        if not self.closed:
            self.closed = True
            self.close_extras(**kwargs)

    def __enter__(self) -> SyncVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Does nothing: the pool stops its workers when it is garbage-collected."""

    # -- private methods ---------------------------------------------------------------------------

    def _state_facts(self) -> Facts:
        return super()._state_facts() | {"num_episodes": self._num_episodes, "empty_info": self._empty_info}

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError("This object is closed. Make a new one.")

    def _draw_seeds(self, seed: Any) -> list[int | None] | None:
        if not isinstance(seed, int | np.integer):
            return seeds_of(seed, self.num_envs)
        check_seed(seed)
        # EvoTorch draws seeds in this way; with another generator or dtype the numbers would differ.
        return np.random.RandomState(seed).randint(0, 2**32, self._pool.num_envs, dtype=np.int64).tolist()

    def _count_episodes(self, action: Tree) -> Step:
        """Steps the environments that have episodes left; the last episode of each ends without a reset."""
        unfinished, on_last_episode = self._episodes_left > 0, self._episodes_left == 1
        if unfinished.all() and (on_last_episode.all() or not on_last_episode.any()):
            return self._full_result(self._receive(lambda: self._pool.step(action, reset_done=not on_last_episode[0])))
        layout = self._pool.action_layout
        action = layout.build(layout.batch(action, self.num_envs))
        for ids, reset_done in (
            (np.flatnonzero(unfinished & ~on_last_episode), True),
            (np.flatnonzero(on_last_episode), False),
        ):
            if len(ids):
                self._pool.send(ids, _rows(action, ids), reset_done=reset_done)
        obs, reward = map_tree(np.copy, self._dummy), np.full(self.num_envs, np.nan)
        terminated, truncated = np.ones((2, self.num_envs), bool)
        if not unfinished.any():
            return self._to_device((obs, reward, terminated, truncated, {}))
        transition = self._receive(self._pool.recv, full=False)
        map_tree(lambda leaf, values: leaf.__setitem__(transition.ids, values), obs, transition.obs)
        reward[transition.ids] = transition.reward
        terminated[transition.ids], truncated[transition.ids] = transition.terminated, transition.truncated
        return self._to_device((obs, reward, terminated, truncated, self._infos(transition)))

    def _receive(self, get_transition: Callable[[], Transition], full: bool = True) -> Transition:
        """Returns the transition. Keeps its observations and counts the episodes that it ends, also if some
        environments failed.

        Args:
            get_transition: waits for the transition.
            full: whether it has all environments, in order.
        """
        try:
            transition = get_transition()
        except WorkerError as error:
            if (failed := error.transition) is not None:
                self._latest_obs.write_into(failed.obs, failed.ids, error.env_ids)
                self._record(failed, full)
            raise
        self._record(transition, full)
        return transition

    def _record(self, transition: Transition, full: bool) -> None:
        self._latest_obs.store(transition.obs, None if full else transition.ids)
        if self._num_episodes is not None:
            self._episodes_left[transition.episodes.ids] -= 1

    def _full_result(self, transition: Transition) -> Step:
        return self._to_device(
            (transition.obs, transition.reward, transition.terminated, transition.truncated, self._infos(transition))
        )

    def _to_device(self, results: Any) -> Any:
        return results if self._device is None else to_device(results, self._device)

    def _infos(self, transition: Transition) -> InfoDict:
        if self._empty_info:
            return {}
        info = merge_infos(transition.infos, self.num_envs)
        if len(transition.episodes.ids):
            info |= self._final_infos(transition)
        return info

    def _final_infos(self, transition: Transition) -> InfoDict:
        """Returns gymnasium's `final_*` infos of all episodes that ended, including those that no reset followed."""
        ids = transition.episodes.ids
        infos, final_obs = transition.final_infos, transition.final_obs
        if len(transition.final_rows) < len(ids):  # some were not reset: the step has their final obs and info
            rows = np.flatnonzero(transition.done)
            final_obs = _rows(transition.next_obs, rows)
            not_reset_ids = set(ids[~np.isin(rows, transition.final_rows)].tolist())
            infos = Infos(
                dicts=[(env_id, info) for env_id, info in transition.infos.items() if env_id in not_reset_ids]
            )
            infos.extend(transition.final_infos)
        mask = np.zeros(self.num_envs, bool)
        mask[ids] = True
        obs = np.full(self.num_envs, None, object)
        for row, env_id in enumerate(ids.tolist()):
            obs[env_id] = _rows(final_obs, row)
        final_info = infos.merge(self.num_envs)
        return {"final_obs": obs, "_final_obs": mask, "final_info": final_info, "_final_info": mask.copy()}


def _require_same_step(observation_mode: ObservationMode, autoreset_mode: AutoresetMode | str) -> None:
    mode = parse_autoreset_mode(autoreset_mode)
    if observation_mode != "same" or mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            f"Expected observation_mode='same' and autoreset_mode='same_step', got {observation_mode!r:.80} and "
            f"{mode.value!r}. Use VectorEnv, which has all modes of gymnasium's SyncVectorEnv."
        )


def _dummy(leaf: Leaf, num_envs: int) -> np.ndarray:
    """Returns the observations of environments that have run their episodes, for one leaf."""
    return np.full((num_envs, *leaf.shape), np.nan if np.issubdtype(leaf.dtype, np.floating) else 0, leaf.dtype)


def _rows(tree: Tree, rows: np.ndarray | int) -> Tree:
    return map_tree(lambda leaf: leaf[rows], tree)


def _to_numpy(value: Any) -> Any:
    return convert_from_torch(value, "numpy") if isinstance(value, torch.Tensor) else value


def merge_infos(infos: Infos, num_envs: int) -> InfoDict:
    """Merges infos key by key, without masks.

    Returns:
        A key for which all `num_envs` environments have a number, or an array of one shape, has an array
        `[num_envs, ...]`; any other key has a list, with None for environments that lack the key.

    >>> merge_infos(Infos(dicts=[(0, {"x": 1, "y": 2}), (1, {"x": 0.5})]), 2)
    {'x': array([1. , 0.5]), 'y': [2, None]}
    """
    columns: InfoDict | None = infos.columns(num_envs)
    if columns is not None:
        return columns
    columns = {}
    absent: dict[str, int] = {}
    for env_id, info in infos.items():
        for key, value in info.items():
            columns.setdefault(key, [None] * num_envs)[env_id] = copy_nested(value)
            absent[key] = absent.get(key, num_envs) - 1
    return {key: values if absent[key] else _as_array(values) for key, values in columns.items()}


def _as_array(values: list[Any]) -> Any:
    """Returns one array if the values are numbers or arrays of one shape, else the list itself."""
    if not all(isinstance(value, int | float | complex | np.number | np.bool_ | np.ndarray) for value in values):
        return values
    if len({np.shape(value) for value in values}) > 1:
        return values
    array = np.array(values)
    return values if array.dtype == object else array


class SyncVectorEnvWithEpisodes(SyncVectorEnv):
    """A `SyncVectorEnv` with `episode` (`r`, `l`) and `_episode` in its infos, unless these are empty."""

    def _infos(self, transition: Transition) -> InfoDict:
        info = super()._infos(transition)
        return info if self._empty_info else info | _episode_info(transition, self.num_envs)


class VectorEnvWithEpisodes(VectorEnv):
    """A `VectorEnv` with `episode` (`r`, `l`) and `_episode` in its infos."""

    def _results(self, transition: Transition) -> GymStep:
        obs, reward, terminated, truncated, info = super()._results(transition)
        return obs, reward, terminated, truncated, info | _episode_info(transition, self.num_envs)


def _episode_info(transition: Transition, num_envs: int) -> InfoDict:
    """Returns the entries of the environments in which an episode ended, 0 for others; `{}` if there are none."""
    episodes = transition.episodes
    if not len(episodes.ids):
        return {}
    returns, lengths, mask = np.zeros(num_envs), np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
    returns[episodes.ids], lengths[episodes.ids], mask[episodes.ids] = episodes.returns, episodes.lengths, True
    return {"episode": {"r": returns, "l": lengths}, "_episode": mask}
