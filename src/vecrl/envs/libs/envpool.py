"""EnvPool's environments, which are stepped by threads in C++, as environments over TensorDicts.

EnvPool resets a row that is done at its next step, and ignores the action. So that no action is lost, such rows are
reset by their ids before that step.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor

from ...engine.transition import AutoresetMode
from ...errors import SpaceError
from ...seeding import random_seed
from ...simulators.envpool import envpool_library, names, with_infinite_bounds
from ...validation import parse_count
from ..base import EnvBase
from .gym.backends import AvailableEnvs
from .gym.env import GymEnv, GymWrapper
from .gym.vector import Info, VectorEnvAdapter, is_envpool


class EnvPoolAdapter(VectorEnvAdapter):
    """Synchronous environments of EnvPool, reset and stepped by their ids; see `MultiThreadedEnvWrapper`."""

    def __init__(self, env: Any, read_output: Any, frame_skip: int = 1):
        super().__init__(env, read_output)
        self.mode = AutoresetMode.NEXT_STEP
        self.returns_copies = self._resets_by_mask = True  # EnvPool allocates the arrays of every step
        self.frame_skip = frame_skip
        self.stepped_rows: np.ndarray | None = None  # ids of the rows that `step` steps; None for all

    def _reset_rows(self, mask: np.ndarray, seeds: object, options: object) -> tuple[Any, Info]:
        obs, info = self.env.reset(np.flatnonzero(mask), options=options)
        return self._write_rows(None, obs, info["env_id"]), self._write_rows(None, info, info["env_id"])

    def step(self, actions: Any, infos: bool = True) -> tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Steps the rows of `stepped_rows`; the other rows of the results are zeros. See `VectorEnvAdapter.step`."""
        rows = np.arange(self.num_envs) if self.stepped_rows is None else self.stepped_rows
        output = self._step_rows(actions, rows, [None] * 6)
        reward = output[1].copy()
        for _ in range(self.frame_skip - 1):
            rows = rows[~output[4][rows]]
            if not rows.size:
                break
            output = self._step_rows(actions, rows, output)
            reward[rows] += output[1][rows]
        return output[0], reward, *output[2:]

    def _step_rows(self, actions: Any, rows: np.ndarray, output: Sequence[Any]) -> list[Any]:
        """Steps some rows, and writes their results into `output`."""
        result = self._read(self.env.step(actions[rows], rows))
        rows = result[5]["env_id"]
        if len(rows) == self.num_envs and (np.diff(rows) > 0).all():
            return result  # without a copy
        return [self._write_rows(whole, part, rows) for whole, part in zip(output, result, strict=True)]

    def _write_rows(self, whole: Any, part: Any, rows: np.ndarray) -> Any:
        """Writes arrays of some rows into arrays of all rows, by default zeros, and returns these."""
        if isinstance(part, Mapping):
            return {key: self._write_rows((whole or {}).get(key), value, rows) for key, value in part.items()}
        whole = np.zeros((self.num_envs, *part.shape[1:]), part.dtype) if whole is None else whole
        whole[rows] = part
        return whole


class MultiThreadedEnvWrapper(GymWrapper):
    """Environments of EnvPool in its synchronous mode: n rows, with the batch size (n,).

    Rewards and done flags have the shape (n, 1). "next" holds the true final observations, and rows that are done hold
    the first observation of a new episode in the next root. A "_step" mask may select any rows.

    Args:
        env: made by `envpool.make` with `env_type="gymnasium"`.
        categorical_action_encoding: encode discrete actions and observations as indices, otherwise as one-hot rows.
        disable_env_checker: has no effect, since EnvPool has no checks to disable.
        from_pixels: must be false, since EnvPool has no frames beside its observations.
        frame_skip: number of steps per action; rewards are summed, and a row that is done is not stepped further.
        kwargs: see `GymLikeEnv`.

    Raises:
        TypeError: if this is no environment of EnvPool with gymnasium's methods.
        SpaceError: if it is asynchronous or has several players, or the batch size is not its number of rows.
    """

    libname = "envpool"
    _resets_when_seeded = False  # new environments begin with the seed

    def __init__(self, env: Any = None, categorical_action_encoding: bool = True, **kwargs: Any):
        kwargs.pop("disable_env_checker", None)
        super().__init__(env, categorical_action_encoding, **kwargs)

    def _build_env(self, pixel_options: dict[str, Any], env: Any = None) -> Any:
        if not is_envpool(env) or not hasattr(env, "single_observation_space"):
            raise TypeError(f'Expected an environment, got {env!r:.80}. Use envpool.make(..., env_type="gymnasium").')
        if pixel_options["from_pixels"]:
            raise SpaceError("Expected from_pixels=False, got True: EnvPool returns no frames. Use GymEnv for pixels.")
        num_envs, batch_size, players = (env.config[key] for key in ("num_envs", "batch_size", "max_num_players"))
        if num_envs != batch_size or players != 1:
            actual = f"num_envs={num_envs}, batch_size={batch_size}, max_num_players={players}"
            raise SpaceError(f"Expected a synchronous environment with one player, got {actual}. Omit batch_size.")
        if self.batch_size not in ((), (num_envs,)):
            raise SpaceError(f"Expected a batch size of {(num_envs,)}, got {tuple(self.batch_size)}. Omit it.")
        self.batch_size = [num_envs]
        self._vector = EnvPoolAdapter(env, self._output_transform, self.frame_skip)
        return env

    def _make_specs(self, env: Any) -> None:
        obs_space = with_infinite_bounds(env.single_observation_space)
        super()._make_specs(SimpleNamespace(observation_space=obs_space, action_space=env.single_action_space))

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        adapter: Any = self._vector
        adapter.stepped_rows = np.flatnonzero(mask.reshape(adapter.num_envs, -1).any(-1).cpu().numpy())
        try:
            return EnvBase._step_masked(self, tensordict, mask)
        finally:
            adapter.stepped_rows = None

    def _set_seed(self, seed: int | None) -> None:
        text = "EnvPool takes seeds only when it makes environments. Use MultiThreadedEnv or envpool.make(..., seed=…)."
        warnings.warn(f"The seed has no effect: {text}", stacklevel=4)

    def _apply_seed(self, seed: int | None, static_seed: bool) -> int | None:
        return EnvBase._apply_seed(self, seed, static_seed)  # row i gets `seed + i`, as in EnvPool

    def get_library_name(self, env: object = None) -> str:
        """Returns "envpool"."""
        return "envpool"

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes the environment and ends EnvPool's threads, unless others hold EnvPool's environment."""
        super().close(raise_if_closed=raise_if_closed)
        self._env = self._vector = None

    def __repr__(self) -> str:
        name = f"env={self.env_name}, " if "env_name" in vars(self) else ""
        return f"{type(self).__name__}({name}num_workers={self.numel()}, device={self.device})"


class MultiThreadedEnv(MultiThreadedEnvWrapper):
    """Environments of EnvPool, made by name; see `MultiThreadedEnvWrapper`.

    Args:
        num_workers: number of environments.
        env_name: EnvPool's name of the task.
        create_env_kwargs: further arguments of `envpool.make`, such as `num_threads`, `max_episode_steps` and `seed`.
        kwargs: arguments of `MultiThreadedEnvWrapper`.

    Attributes:
        available_envs: class attribute, the names of the environments that EnvPool can make.

    Raises:
        VersionError: (an ImportError) if EnvPool is not installed.
    """

    available_envs: Any = AvailableEnvs(names)

    def __init__(
        self, num_workers: int, env_name: str, *, create_env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ):
        num_envs = parse_count("num_workers", num_workers)
        self.env_name = env_name
        self._make_options = dict(env_type="gymnasium", num_envs=num_envs, **(create_env_kwargs or {}))
        super().__init__(envpool_library().make(env_name, **self._make_options), **kwargs)

    def _set_seed(self, seed: int | None) -> None:
        """Makes new environments, since EnvPool takes seeds only then."""
        self._make_options["seed"] = (random_seed(31) if seed is None else seed) % 2**31  # an int32 in EnvPool
        adapter: Any = self._vector
        if adapter is not None:  # a closed environment uses the seed when it opens
            self._env = adapter.env = envpool_library().make(self.env_name, **self._make_options)

    def _open(self) -> None:
        self._env = envpool_library().make(self.env_name, **self._make_options)
        self._vector = EnvPoolAdapter(self._env, self._output_transform, self.frame_skip)
        super()._open()

    @classmethod
    def from_name(cls, name: str, num_envs: int | None = None, **kwargs: Any) -> MultiThreadedEnv:
        """Makes environments by their registered name, one if `num_envs` is None; `kwargs` are EnvPool's."""
        wrapper_names = ("categorical_action_encoding", *GymEnv._WRAPPER_ARGUMENTS)
        wrapper_kwargs = {key: kwargs.pop(key) for key in wrapper_names if key in kwargs}
        return cls(num_envs or 1, name, create_env_kwargs=kwargs, **wrapper_kwargs)
