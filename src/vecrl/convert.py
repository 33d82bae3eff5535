"""Ways between the dialects: an environment of one seen as one of another.

Nothing is copied on the way: rows are the same tensors, seen through other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from .classic import BaseEnv as ClassicEnv
from .engine.pool import Pool
from .engine.simulator import BatchSimulator, BatchStep
from .envs import EnvBase
from .envs.seed_chain import seed_chain
from .envs.spec_container import Key, single_observation_key
from .errors import SpaceError
from .simulators.heterogeneous import AnySpace
from .specs.convert import space_from_spec
from .vector import VectorEnv
from .vector.base import BaseVectorEnv
from .vector.batched_env import BatchedVectorEnv
from .vector.factory import SingleEnvOfBatch
from .vector.sync_env import SyncVectorEnv
from .vector.torch_wrapper import TorchWrapper
from .venv import BaseVectorEnv as BaseVenv
from .venv import DummyVectorEnv, VectorEnvWrapper
from .venv.batch_pool import BatchedVenv, BatchPool


class EnvBatch:
    """An environment over TensorDicts as a `BatchSimulator`: one observation, one action, one reward a row.

    Args:
        env: of batch size (n,).
        observation: which entry the observation is, where there are several.
    """

    def __init__(self, env: EnvBase, observation: Key | None = None):
        if not isinstance(env, EnvBase):
            raise TypeError(f"Expected an environment over TensorDicts, an EnvBase, but {env!r:.80} came.")
        if env.ndim != 1:
            raise SpaceError(
                f"Expected an environment of one batch dimension, but its batch size is {tuple(env.batch_size)}. "
                "Put a single one into a SerialEnv(1, ...)."
            )
        self.render_mode: str | None = None
        self.metadata: dict[str, Any] = {"render_modes": []}
        self.env = env
        self._obs = single_observation_key(env, observation)
        self._action, self._reward = env.action_key, env.reward_key
        self.num_envs = env.batch_size[0]
        self.observation_space = space_from_spec(env.observation_spec[self._obs][0])
        self.action_space = space_from_spec(env.action_spec[0])
        self.device = str(env.device or "cpu")
        self._all_false = torch.zeros(self.num_envs, 1, dtype=torch.bool, device=env.device)
        self._root: TensorDictBase = TensorDict({}, env.batch_size)

    def reset(self, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None) -> Tensor:
        """Begin an episode in every row; the first seed is enough, those of other rows follow from it.

        Raises:
            ValueError: options; seeds other than those that an int gives, of a vector or of a `GymWrapper` around one.
        """
        if options:
            raise ValueError(f"Expected no options, since environments over TensorDicts take none, but {options} came.")
        if seeds is not None:
            _check_seed_chain(seeds)
            self.env.set_seed(seeds[0])
        self._root = self.env.reset()
        return self._root.get(self._obs)

    def reset_where(self, mask: Tensor) -> Tensor:
        """Begin an episode in the rows of `mask`; the observations of all rows."""
        if bool(mask.any()):
            self._root = self.env.reset(self._root.set("_reset", mask.unsqueeze(-1)))
        return self._root.get(self._obs)

    def step(self, actions: Tensor) -> BatchStep:
        """Advance every row but those that are over, which stay as they are."""
        done = self._root.get("done")
        action_tensordict = self._with_actions(actions)
        step_result = self.env.step(action_tensordict.set("_step", ~done) if bool(done.any()) else action_tensordict)
        self._root = self.env.step_mdp(step_result)
        return self._to_batch_step(step_result.get("next"))

    def step_and_reset(self, actions: Tensor) -> tuple[BatchStep, Tensor, Tensor]:
        """Advance every row and begin anew where that ended an episode: the step, who ended, and all observations."""
        step_result, self._root = self.env.step_and_maybe_reset(self._with_actions(actions))
        next_td = step_result.get("next")
        return self._to_batch_step(next_td), next_td.get("done").squeeze(-1), self._root.get(self._obs)

    def _with_actions(self, actions: Tensor) -> TensorDictBase:
        spec = self.env.action_spec
        if actions.shape != spec.shape and actions.shape == spec.shape[:1]:  # indices for one-hot actions
            actions = torch.nn.functional.one_hot(actions.long(), spec.shape[-1])
        return self._root.set(self._action, actions.to(spec.dtype))

    def _to_batch_step(self, next_td: TensorDictBase) -> BatchStep:
        truncated = next_td.get("truncated", self._all_false)
        flags = [flag.squeeze(-1) for flag in (next_td.get("terminated"), truncated)]
        return BatchStep(next_td.get(self._obs), next_td.get(self._reward).squeeze(-1), *flags)

    def step_where(self, mask: Tensor, actions: Tensor) -> BatchStep:
        """Advance the rows of `mask` `[n]`; the others stay as they are."""
        step_mask = (mask & ~self._root.get("done").squeeze(-1)).unsqueeze(-1)
        step_result = self.env.step(self._with_actions(actions).set("_step", step_mask))
        self._root = self.env.step_mdp(step_result)
        return self._to_batch_step(step_result.get("next"))

    def render(self, row: int) -> np.ndarray | None:
        """Nothing: environments over TensorDicts show themselves in entries of their own."""
        return None

    def get_state(self) -> dict[str, Any]:
        """Raises: environments over TensorDicts do not say their states."""
        raise NotImplementedError("An environment over TensorDicts does not say its rows' states.")

    get_state.is_generic_get_state = True  # pyright: ignore[reportFunctionMemberAccess] -- but it has one as a whole, see `vecrl.snapshot`

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Raises: environments over TensorDicts do not take states."""
        raise NotImplementedError("An environment over TensorDicts does not take a state.")

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _check_seed_chain(seeds: Sequence[int | None]) -> None:
    first_seed, count = seeds[0], len(seeds)
    valid = (
        [[None] * count]
        if first_seed is None
        else [list(range(first_seed, first_seed + count)), seed_chain(first_seed, count)]
    )
    if list(seeds) not in valid:
        raise ValueError(
            f"Expected one seed, from which an environment over TensorDicts draws those of its rows, but {list(seeds)} "
            "came: give an int (with ids, to `seed`)."
        )


def to_vector(env: EnvBase | BaseVenv, *, observation: Key | None = None, **kwargs: Any) -> Any:
    """An environment over TensorDicts, or one with ids, as a vector environment (dialect 1).

    Args:
        env: an environment over TensorDicts of batch size (n,), with done flags at the root, whose tensors are the
            rows; or one of `vecrl.venv`, whose workers go on under a `VectorEnv`, and which is not used any more.
        observation: which entry the observation is, where there are several.
        kwargs: those of `BatchedVectorEnv`: `autoreset_mode`, `num_episodes`, `empty_info`, `episode_stats`; for the
            workers of a `vecrl.venv` `autoreset_mode`.

    Raises:
        SpaceError: several observations, actions or groups, of which a vector environment has one; spaces that differ.
        TypeError: something else.

    >>> from vecrl.envs import GymEnv, SerialEnv
    >>> vector = to_vector(SerialEnv(2, lambda: GymEnv("CartPole-v1")))
    >>> obs, info = vector.reset(seed=0)
    >>> obs.shape, vector.action_space
    ((2, 4), MultiDiscrete([2 2]))
    >>> vector.close()
    """
    if not isinstance(env, BaseVenv):
        return BatchedVectorEnv(EnvBatch(env, observation), **kwargs)
    pool = _pool_of(env)
    if isinstance(pool, BatchPool):
        return BatchedVectorEnv(pool.simulator, **kwargs)
    heterogeneous = [
        worker_info
        for worker_info in pool.worker_infos
        if AnySpace() in (worker_info.observation_space, worker_info.action_space)
    ]
    if heterogeneous or any(
        worker_info.observation_space != pool.worker_info.observation_space for worker_info in pool.worker_infos
    ):
        raise SpaceError("Expected environments of equal spaces, which a vector environment's are, but theirs differ.")
    return VectorEnv.from_pool(pool, **kwargs)


def _pool_of(env: BaseVenv) -> Pool | BatchPool:
    if isinstance(env, VectorEnvWrapper):
        raise SpaceError(f"Expected a vector environment without wrappers, but {env!r} came: give its `venv`.")
    return env._pool


def to_venv(env: Any, *, observation: Key | None = None, **kwargs: Any) -> BaseVenv:
    """An environment of another dialect as one with ids (dialect 2), on the same workers or the same tensors.

    Nothing is copied on the way; `env` itself is not used any more, and is closed by what is returned.

    Args:
        env: a `VectorEnv`, `AsyncVectorEnv` or `SyncVectorEnv`, whose workers may go asynchronous; a
            `BatchedVectorEnv`, a `BatchSimulator` or a batch over TensorDicts; a `TorchWrapper` around any of these; a
            single environment of gymnasium's; or one of `vecrl.venv`, which is returned as it is.
        observation: of a batch over TensorDicts, which entry the observation is, where there are several.
        kwargs: for workers `wait_num`, `timeout` and `stack_dicts`, see `BaseVectorEnv`.

    Raises:
        SpaceError: several observations, actions or groups; a `TorchWrapper` that changes actions.
        TypeError: something else.

    >>> from vecrl.vector import make_vector_env
    >>> venv = to_venv(make_vector_env("native::CartPole-v1", num_envs=4))
    >>> venv.reset([3, 1])[0].shape
    (2, 4)
    >>> venv.close()
    """
    while isinstance(env, TorchWrapper):
        env = env.unwrapped_actions_env
    if isinstance(env, SingleEnvOfBatch | BatchedVectorEnv):
        env = env.simulator
    if isinstance(env, BaseVenv):
        return env
    if isinstance(env, VectorEnv | SyncVectorEnv):
        return PoolVenv(env._pool, **kwargs)
    if isinstance(env, gymnasium.Env):
        return DummyVectorEnv([lambda: env], **kwargs)
    if isinstance(env, EnvBase):
        return BatchedVenv(EnvBatch(env, observation), **kwargs)
    if isinstance(env, BatchSimulator):
        return BatchedVenv(env, **kwargs)
    raise TypeError(
        f"Expected an environment of gymnasium or vecrl, but {env!r:.80} came. Give the functions that make the "
        "environments of another library's vector environment to one of vecrl.venv."
    )


class PoolVenv(BaseVenv):
    """Environments with ids on a pool that there is; see `BaseVectorEnv`."""

    def __init__(
        self, pool: Pool, wait_num: int | None = None, timeout: float | None = None, stack_dicts: bool = False
    ):
        self._init_over_pool(pool, wait_num, timeout, stack_dicts, call_env_seed=False)


class TensorToNumpyWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A single environment that speaks tensors, in arrays and numbers."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As gymnasium's."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs.numpy(force=True), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As gymnasium's."""
        obs, reward, terminated, truncated, info = self.env.step(torch.as_tensor(action))
        return obs.numpy(force=True), float(reward), bool(terminated), bool(truncated), info


def to_tensordict(env: Any, **kwargs: Any) -> EnvBase:
    """Any environment of another dialect as one over TensorDicts (dialect 3).

    Args:
        env: a gymnasium environment, a vector environment (dialect 1, or gymnasium's own), a `TorchWrapper` around
            any of these, an environment with ids (dialect 2), which is not used any more, a classic one (dialect 4), or
            an `EnvBase`, which is returned as it is.
        kwargs: those of `GymWrapper`, or of `ClassicWrapper`.

    Raises:
        SpaceError: a `TorchWrapper` that changes actions, which TensorDicts would carry past it.
        TypeError: something else.

    >>> import gymnasium
    >>> to_tensordict(gymnasium.make("CartPole-v1")).rollout(2).shape
    torch.Size([2])
    """
    if isinstance(env, BaseVenv):
        pool = _pool_of(env)
        if isinstance(pool, BatchPool) and isinstance(pool.simulator, EnvBatch):
            return pool.simulator.env
        env = to_vector(env)
    if isinstance(env, EnvBase):
        return env
    while isinstance(env, TorchWrapper):
        env = env.unwrapped_actions_env
    if isinstance(env, SingleEnvOfBatch):
        env = TensorToNumpyWrapper(env)
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv | BaseVectorEnv):
        from .envs.libs.gym import GymWrapper

        return GymWrapper(env, **kwargs)
    if isinstance(env, ClassicEnv):
        from .classic import from_classic

        return from_classic(env, **kwargs)
    raise TypeError(f"Expected an environment of gymnasium or vecrl, but {env!r} came.")
