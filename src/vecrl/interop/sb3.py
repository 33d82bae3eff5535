"""`VecEnv` and `make_vec_env`: vector environments of vecrl for the algorithms, wrappers and callbacks of
Stable-Baselines3.

Importing this module imports Stable-Baselines3. The environments are stepped by the pool of the vector environment;
this module only converts its transitions. It must not know how environments are stepped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np

from ..convert import check_outputs, pool_of, to_vector
from ..engine.backends.registry import BackendName, backend_entry
from ..engine.env_access import InvokeKind
from ..engine.infos import InfoDict, Infos
from ..engine.space_layout import Tree
from ..engine.transition import Transition
from ..engine.trees import map_tree
from ..errors import SpaceError
from ..imports import import_library
from ..simulators.registry import BARE, Entry, find_entry
from ..vector import make_vector_env
from ..vector.vector_env import VectorEnv
from ..venv.base import BaseVectorEnv

_INSTALL_HINT = (
    "vecrl.interop.sb3 needs Stable-Baselines3, which cannot be imported. Install it: pip install stable-baselines3"
)
_vec_env: Any = import_library("stable_baselines3.common.vec_env", _INSTALL_HINT)
_env_util: Any = import_library("stable_baselines3.common.env_util", _INSTALL_HINT)
Indices = int | Iterable[int] | None


class VecEnv(_vec_env.VecEnv):
    """Environments of vecrl as a `VecEnv` of Stable-Baselines3; in place of `DummyVecEnv` and `SubprocVecEnv`.

    Results are those of `DummyVecEnv`, on every backend: NumPy arrays; rewards float32; environments are reset in the
    step that ends their episode; each info has "TimeLimit.truncated", and that of an ended episode also
    "terminal_observation". Later calls never overwrite what `reset` and `step` returned.

    Args:
        env: a `VectorEnv`, `AsyncVectorEnv`, `SyncVectorEnv` or `BatchedVectorEnv`, what `make_vector_env` returned, a
            vector environment of `vecrl.venv`, or a TensorDict environment with batch size (n,). Its auto-reset mode
            and its `num_episodes` have no effect. Do not use it any more; closing the `VecEnv` closes it. Or functions
            that make gymnasium environments, as `DummyVecEnv` takes them. Or a name, as `make_vector_env` takes it.
        options: with functions, arguments of `VectorEnv`: `backend`, `num_workers`, `step_timeout`, `on_failure`, ...
            With a name, those of `make_vector_env`: `num_envs` or `n_envs` (by default 1), `backend`, and the
            simulator's.

    Attributes:
        num_envs: the number of environments n.
        observation_space, action_space: the spaces of one environment.
        reset_infos: the info of the latest reset of each environment.

    Raises:
        SpaceError: the environments have different spaces, or `env` is a `TorchWrapper` that changes actions.
        TypeError: `env` is none of these, or there are `options` for a vector environment.
        ValueError: there is no environment of this name.

    >>> from stable_baselines3 import PPO
    >>> from vecrl.vector import make_vector_env
    >>> env = VecEnv(make_vector_env("native::CartPole-v1", num_envs=4))
    >>> model = PPO("MlpPolicy", env, n_steps=16, batch_size=64, n_epochs=1).learn(64)
    >>> obs = env.reset()
    >>> obs, rewards, dones, infos = env.step(model.predict(obs)[0])
    >>> obs.shape, rewards.tolist(), infos[0]
    ((4, 4), [1.0, 1.0, 1.0, 1.0], {'TimeLimit.truncated': False})
    >>> env.close()
    >>> VecEnv("native::CartPole-v1", num_envs=8).num_envs
    8
    """

    def __init__(self, env: object | Iterable[Callable[[], gymnasium.Env[Any, Any]]], **options: Any):
        if isinstance(env, str):
            num_envs = options.pop("n_envs", 1)  # as SB3 calls it
            env = make_vector_env(env, **{"num_envs": num_envs, **options})
        elif isinstance(env, Iterable) and not hasattr(env, "step"):
            env = _DictInfos(env, **options)
        elif options:
            raise TypeError(
                f"Expected options ({', '.join(options)}) with a name or functions that make environments only, got "
                f"{type(env).__name__}. Give them to its constructor."
            )
        elif isinstance(env, gymnasium.Env):
            raise TypeError(
                f"Expected a vector environment, or functions that make environments, got {env!r:.80}. Give "
                "[lambda: gymnasium.make(...)], or make_vector_env(..., num_envs=1)."
            )
        if isinstance(env, BaseVectorEnv):
            env = to_vector(env)  # raises if the environments have different spaces
        self._pool: Any = pool_of(env)
        self._options_differ = False
        spaces = self._pool.obs_layout.space, self._pool.action_layout.space
        super().__init__(self._pool.num_envs, *spaces)
        self.metadata: dict[str, Any] = self.get_attr("metadata", 0)[0]

    # -- episodes ----------------------------------------------------------------------------------

    def reset(self) -> Tree:
        """Resets all environments with the seeds of `seed` and the options of `set_options`, which are used once.

        A pending step is completed, and its results are dropped.

        Returns:
            Observations, an array `[n, ...]`, or a dict or tuple of arrays.
        """
        pool, options = self._pool, self._options
        seeds = None if self._seeds == [None] * self.num_envs else self._seeds
        pool.drain()
        if self._options_differ:
            resets = [
                pool.reset(None if seeds is None else seeds[i : i + 1], options[i] or None, [i])
                for i in range(self.num_envs)
            ]
        else:
            resets = [pool.reset(seeds, options[0] or None)]
        self.reset_infos = [info for transition in resets for info in self._dicts(transition, transition.infos)]
        self._reset_seeds()
        self._reset_options()
        obs = [transition.obs for transition in resets]
        return obs[0] if len(obs) == 1 else map_tree(lambda *rows: np.concatenate(rows), *obs)

    def step(self, actions: Tree) -> tuple[Tree, np.ndarray, np.ndarray, list[InfoDict]]:
        """Steps all environments; `actions` are `[n, ...]`. The results and errors are those of `step_wait`."""
        return self._results(self._pool.step(actions, reset_done=True))

    def step_async(self, actions: Tree) -> None:
        """Sends a step of all environments without waiting; `actions` are `[n, ...]`."""
        self._pool.step_async(actions, reset_done=True)

    def step_wait(self) -> tuple[Tree, np.ndarray, np.ndarray, list[InfoDict]]:
        """Waits for the step and returns its results.

        Returns:
            Observations `[n, ...]`, of the reset where an episode ended; rewards `[n]` float32; dones `[n]` bool; and
            infos, n dicts.

        Raises:
            PendingError: no step is pending.
            SpaceError: an observation differs from its space, or a reward has several numbers.
            WorkerError: environments failed; has their numbers and tracebacks. `reset` continues.
        """
        return self._results(self._pool.wait())

    def _results(self, transition: Transition) -> tuple[Tree, np.ndarray, np.ndarray, list[InfoDict]]:
        reward = transition.reward.astype(np.float32)
        if not transition.infos and not len(transition.done_rows):  # as in most steps
            infos: list[InfoDict] = [{"TimeLimit.truncated": False} for _ in range(len(reward))]
            return transition.obs, reward, transition.terminated, infos
        infos = self._dicts(transition, transition.infos)
        if len(transition.final_rows):
            self._end_episodes(transition, infos)
        truncated = transition.truncated & ~transition.terminated
        for info, flag in zip(infos, truncated.tolist(), strict=True):
            info["TimeLimit.truncated"] = flag
        return transition.obs, reward, transition.done, infos

    def _end_episodes(self, transition: Transition, infos: list[InfoDict]) -> None:
        """Stores the infos of resets, and replaces them by those of the steps before, with the final observations."""
        rows, layout = transition.final_rows.tolist(), transition.layout
        final_obs = layout.rows(layout.split(transition.final_obs), len(rows))
        final_infos = self._dicts(transition, transition.final_infos)
        for row, obs in zip(rows, final_obs, strict=True):
            self.reset_infos[row], infos[row] = infos[row], final_infos[row]
            infos[row]["terminal_observation"] = obs

    def _dicts(self, transition: Transition, infos: Infos) -> list[InfoDict]:
        """Returns a new dict for each row; raises a `SpaceError` if an observation or a reward does not fit."""
        check_outputs(transition)
        return infos.dicts_of(transition.ids.tolist(), self._pool.in_process)

    def set_options(self, options: Sequence[InfoDict] | InfoDict | None = None) -> None:
        """Sets the options of the next reset: a dict for all environments, or one dict for each."""
        super().set_options(options)
        if len(self._options) != self.num_envs:
            count = len(self._options)
            self._reset_options()
            raise SpaceError(f"Expected one dict of options or {self.num_envs}, one per environment, got {count}.")
        self._options_differ = options is not None and not isinstance(options, Mapping)

    # -- the environments --------------------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Returns an attribute of the environments in `indices` (None: all), looked up through their wrappers.

        Raises:
            AttributeError: an environment has no such attribute (also a `WorkerError`).
        """
        return self._invoke("get", attr_name, None, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of the environments in `indices`; all get the same value, also if it is a list."""
        self._invoke("set", attr_name, value, indices)

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Calls a method of the environments in `indices` and returns the results."""
        return self._invoke("call", method_name, (args, kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Returns whether each environment in `indices` has a wrapper of this class, or of a subclass of it."""
        name = f"{wrapper_class.__module__}.{wrapper_class.__qualname__}"
        return self._invoke("is_wrapped", name, None, indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Returns what each environment renders, or None for each if there is no render mode."""
        return [None] * self.num_envs if self.render_mode is None else self.env_method("render")

    def close(self) -> None:
        """Closes the environments; later calls have no effect."""
        self._pool.close()

    def _invoke(self, kind: InvokeKind, name: str, value: object, indices: Indices) -> list[Any]:
        """Invokes a command with the same value on the environments; negative indices count from the last one."""
        every_id = np.arange(self.num_envs)
        ids = every_id if indices is None else every_id[np.atleast_1d(np.asarray(indices, np.int64))]
        return self._pool.invoke(kind, name, [value] * len(ids), ids) if len(ids) else []

    def __repr__(self) -> str:
        return f"VecEnv(num_envs={self.num_envs}, {self.observation_space}, {self.action_space})"


class _DictInfos(VectorEnv):
    """Does not pack the infos of environments in this process, since they are dicts in the end."""

    def _info_form(self, backend: BackendName) -> bool | Literal["dicts"]:
        return "dicts" if backend_entry(backend).in_process else True


def make_vec_env(
    env_id: str | Callable[..., gymnasium.Env[Any, Any]],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., gymnasium.Env[Any, Any]] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    vec_env_cls: type | None = None,
    vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Makes monitored environments of any simulator as one `VecEnv`; in place of SB3's function of this name.

    Environments are made, seeded and wrapped as SB3 does. The rows of a batched simulator (`native::`, `mujoco::`,
    `brax::`, …) cannot be wrapped one by one: a `VecMonitor` is around their `VecEnv`, and it writes one file,
    `monitor_dir/START_INDEX.monitor.csv`.

    Args:
        env_id: the name of an environment of any simulator, or a function or class that makes one.
        n_envs: the number of environments.
        seed: row i is seeded with `seed + start_index + i`; None takes a random seed.
        start_index: the number of the first environment, in seeds and names of files.
        monitor_dir: the folder for the returns and lengths of episodes; None writes none.
        wrapper_class, wrapper_kwargs: wraps each environment, outside its `Monitor`.
        env_kwargs: arguments of the environment, or of the simulator.
        vec_env_cls: `VecEnv` (the default) or a subclass; or SB3's `SubprocVecEnv`, for `backend="processes"`, and
            `DummyVecEnv`, for `backend="serial"`.
        vec_env_kwargs: options of `VecEnv`: `backend`, `num_workers`, …
        monitor_kwargs: arguments of `Monitor`, or, for a batch, of `VecMonitor`.

    Returns:
        A `VecEnv`, or a `VecMonitor` around one.

    Raises:
        TypeError: `vec_env_cls` is none of these.
        ValueError: there is no environment of this name, or `wrapper_class` is given for a batch.

    >>> env = make_vec_env("CartPole-v1", n_envs=4, seed=0, vec_env_kwargs={"backend": "processes"})
    >>> env.env_is_wrapped(gymnasium.wrappers.TimeLimit)
    [True, True, True, True]
    >>> env.close()
    """
    options = dict(vec_env_kwargs or {})
    if vec_env_cls in (_vec_env.SubprocVecEnv, _vec_env.DummyVecEnv):
        options.setdefault("backend", "processes" if vec_env_cls is _vec_env.SubprocVecEnv else "serial")
        vec_env_cls = None
    cls = VecEnv if vec_env_cls is None else vec_env_cls
    if not (isinstance(cls, type) and issubclass(cls, VecEnv)):
        raise TypeError(
            f"Expected vec_env_cls to be vecrl's VecEnv, or SB3's SubprocVecEnv or DummyVecEnv, got {cls!r:.80}. Give "
            "no vec_env_cls, and a backend in vec_env_kwargs."
        )
    if isinstance(env_id, str):
        entry, name = find_entry(env_id)
        if entry.env_fn is None:
            if wrapper_class is not None:
                raise ValueError(
                    f"Expected no wrapper_class for {env_id!r}, which steps as one batch, got {wrapper_class!r:.80}. "
                    "Wrap what make_vec_env returns in a VecEnvWrapper of SB3."
                )
            env = cls(env_id, **{**options, **(env_kwargs or {}), "num_envs": n_envs})
            return _monitored(env, seed, start_index, monitor_dir, monitor_kwargs or {})
        env_id = name if entry.prefix == BARE else partial(_make_one, entry, name)
    return _env_util.make_vec_env(
        env_id, n_envs, seed, start_index, monitor_dir, wrapper_class, env_kwargs, cls, options, monitor_kwargs,
        wrapper_kwargs,
    )  # fmt: skip


def _make_one(entry: Entry, name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    env_fn: Any = entry.env_fn
    return env_fn(name, **kwargs)()


def _monitored(env: VecEnv, seed: int | None, start_index: int, folder: str | None, options: Mapping[str, Any]) -> Any:
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    env = _vec_env.VecMonitor(env, folder and os.path.join(folder, str(start_index)), **options)
    env.seed(None if seed is None else seed + start_index)
    env.action_space.seed(seed)
    return env
