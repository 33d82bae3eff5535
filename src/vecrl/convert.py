"""Converts environments of one dialect to another.

Nothing is copied: the same workers or tensors get another interface. TorchRL's environments count as TensorDict
environments.
"""

from __future__ import annotations

from .imports import require_extra

require_extra("tensordict", __name__)

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from .classic import BaseEnv as ClassicEnv
from .engine.pool import Pool
from .engine.simulator import BatchSimulator, BatchStep, ResetOptions
from .engine.space_layout import describe
from .engine.transition import Transition
from .envs import EnvBase, SimulatorEnv
from .envs.adapters import adapt_env
from .envs.entries.keys import Key
from .envs.seed_chain import seed_chain
from .envs.utils import single_observation_key
from .errors import SpaceError
from .simulators.heterogeneous import OBS, REWARD, AnySpace
from .specs import OneHot
from .specs.convert import space_from_spec
from .vector import VectorEnv
from .vector.base import BaseVectorEnv
from .vector.batched_vector_env import BatchedVectorEnv
from .vector.checked_simulator import ALL_NAMES, require
from .vector.factory import SingleEnvOfBatch
from .vector.simulator_pool import SimulatorPool
from .vector.sync_env import SyncVectorEnv
from .vector.torch_wrapper import TorchWrapper
from .venv import BaseVectorEnv as BaseVenv
from .venv import DummyVectorEnv, VectorEnvWrapper
from .venv.batched_venv import BatchedVenv


class EnvBatch:
    """A TensorDict environment as a `BatchSimulator` with one observation, one action and one reward a row.

    Args:
        env: an environment with batch size (n,).
        observation: the key of the observation, if there are several entries.

    Raises:
        SpaceError: `env` has not exactly one batch dimension, or has several observations, actions or groups.
        TypeError: `env` is no `EnvBase`.
    """

    checks_actions = True  # rows of one-hot actions are allowed too; see `BatchSimulator`

    def __init__(self, env: EnvBase, observation: Key | None = None):
        env = adapt_env(env)
        if not isinstance(env, EnvBase):
            raise TypeError(f"Expected a TensorDict environment (EnvBase), got {env!r:.80}.")
        if env.ndim != 1:
            raise SpaceError(
                f"Expected an environment with one batch dimension, got batch size {tuple(env.batch_size)}. "
                "Wrap a single environment in SerialEnv(1, ...)."
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
        self._is_one_hot = isinstance(env.observation_spec[self._obs], OneHot)  # the space has indices
        self._all_false = torch.zeros(self.num_envs, 1, dtype=torch.bool, device=env.device)
        self._root: TensorDictBase = TensorDict({}, env.batch_size)

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Tensor:
        """Resets all rows and returns their observations `[n, ...]`. The seeds of other rows follow from the first.

        Raises:
            SpaceError: there are options, or the seeds are not those that one int gives (in a vector environment or in
                a `GymWrapper` around one).
        """
        if options:
            raise SpaceError(f"Expected no options for a TensorDict environment, got {options}.")
        if seeds is not None:
            _check_seed_chain(seeds)
            self.env._seed_next_reset(seeds[0])
        self._root = self.env.reset()
        return self._obs_of(self._root)

    def reset_where(self, mask: Tensor) -> Tensor:
        """Resets the rows of `mask` `[n]` and returns the observations of all rows."""
        if bool(mask.any()):
            self._root = self.env.reset(self._root.set("_reset", mask.unsqueeze(-1)))
        return self._obs_of(self._root)

    def step(self, actions: Tensor) -> BatchStep:
        """Steps all rows except those that are done, which stay unchanged."""
        done = self._root.get("done")
        return self._step(actions, ~done if bool(done.any()) else None)

    def step_where(self, mask: Tensor, actions: Tensor) -> BatchStep:
        """Steps the rows of `mask` `[n]` that are not done; the others stay unchanged."""
        return self._step(actions, mask.unsqueeze(-1) & ~self._root.get("done"))

    def step_and_reset(self, actions: Tensor) -> tuple[BatchStep, Tensor, Tensor]:
        """Steps all rows and resets those that are done.

        Returns:
            The step; the done flags `[n]`; the observations of all rows after the resets.
        """
        step_result, self._root = self.env.step_and_maybe_reset(self._with_actions(actions))
        next_td = step_result.get("next")
        return self._to_batch_step(next_td), next_td.get("done").squeeze(-1), self._obs_of(self._root)

    def _step(self, actions: Tensor, mask: Tensor | None) -> BatchStep:
        """Steps the rows of `mask` `[n, 1]`, or all rows."""
        root = self._with_actions(actions)
        step_result = self.env.step(root if mask is None else root.set("_step", mask))
        self._root = self.env.step_mdp(step_result)
        return self._to_batch_step(step_result.get("next"))

    def _with_actions(self, actions: Tensor) -> TensorDictBase:
        spec = self.env.action_spec
        if actions.shape != spec.shape and actions.shape == spec.shape[:1]:  # indices for one-hot actions
            actions = torch.nn.functional.one_hot(actions.long(), spec.shape[-1])
        elif actions.shape != spec.shape:
            raise SpaceError(f"Expected actions of shape {tuple(spec.shape)}, got {tuple(actions.shape)}.")
        return self._root.set(self._action, actions.to(spec.dtype))

    def _obs_of(self, tensordict: TensorDictBase) -> Tensor:
        obs = tensordict.get(self._obs)
        return obs.argmax(-1) if self._is_one_hot else obs

    def _to_batch_step(self, next_td: TensorDictBase) -> BatchStep:
        truncated = next_td.get("truncated", self._all_false)
        flags = [flag.squeeze(-1) for flag in (next_td.get("terminated"), truncated)]
        return BatchStep(self._obs_of(next_td), next_td.get(self._reward).squeeze(-1), *flags)

    def render(self, row: int) -> np.ndarray | None:
        """Returns None: TensorDict environments render into entries, not by a call."""
        return None

    def get_state(self) -> dict[str, Tensor]:
        """Raises NotImplementedError: TensorDict environments do not return the states of rows."""
        raise NotImplementedError("A TensorDict environment does not return the states of its rows.")

    # `vecrl.snapshot` captures the environment as a whole instead.
    get_state.is_generic_get_state = True  # pyright: ignore[reportFunctionMemberAccess]

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises NotImplementedError: TensorDict environments do not take the states of rows."""
        raise NotImplementedError("A TensorDict environment does not take the states of its rows.")

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def _check_seed_chain(seeds: Sequence[int | None]) -> None:
    first_seed, count = seeds[0], len(seeds)
    valid = (
        [[None] * count]
        if first_seed is None
        else [list(range(first_seed, first_seed + count)), seed_chain(first_seed, count)]
    )
    if list(seeds) not in valid:
        raise SpaceError(
            "Expected one seed, from which a TensorDict environment derives those of its rows, "
            f"got {list(seeds)}. Give an int (with ids, to `seed`)."
        )


def to_vector(env: Any, *, observation: Key | None = None, **kwargs: Any) -> Any:
    """Converts a TensorDict environment, one of `vecrl.venv`, or a single one to a vector environment (dialect 1).

    Args:
        env: a TensorDict environment with batch size (n,) and done flags at the root; its tensors become the rows. Or
            an environment of `vecrl.venv`; the `VectorEnv` takes over its workers, so do not use `env` any more. Or a
            single gymnasium environment, which becomes the only one of a `VectorEnv`, or gymnasium's `SyncVectorEnv`,
            the environments of which are stepped without it. A vector environment of vecrl is returned unchanged.
        observation: the key of the observation, if there are several entries.
        kwargs: those of `BatchedVectorEnv`: `autoreset_mode`, `num_episodes`, `empty_info`, `episode_stats`; for the
            workers of a `vecrl.venv` only `autoreset_mode`; those of `VectorEnv` for a single environment.

    Raises:
        SpaceError: `env` has several observations, actions or groups, of which a vector environment has one; or its
            environments have different spaces.
        TypeError: `env` is none of these.

    >>> from vecrl.envs import GymEnv, SerialEnv
    >>> vector = to_vector(SerialEnv(2, lambda: GymEnv("CartPole-v1")))
    >>> obs, info = vector.reset(seed=0)
    >>> obs.shape, vector.action_space
    ((2, 4), MultiDiscrete([2 2]))
    >>> vector.close()
    """
    env = _without_torch_wrappers(env)
    if isinstance(env, VectorEnv | BaseVectorEnv):
        if kwargs:
            raise TypeError(
                f"Expected no {', '.join(kwargs)} with the vector environment {env!r:.80}, which is returned "
                "unchanged. Give them to its constructor."
            )
        return env
    if isinstance(env, gymnasium.Env):
        return VectorEnv([lambda: env], **kwargs)
    if isinstance(env, gymnasium.vector.SyncVectorEnv):
        return VectorEnv([lambda single_env=single_env: single_env for single_env in env.envs], **kwargs)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(
            f"Expected environments of vecrl, or a SyncVectorEnv of gymnasium, got {env!r:.80}. Give the functions "
            "that make its environments to VectorEnv."
        )
    if not isinstance(env, BaseVenv):
        return BatchedVectorEnv(EnvBatch(env, observation), **kwargs)
    pool = pool_of(env)
    if isinstance(pool, SimulatorPool):
        return BatchedVectorEnv(pool.simulator, **kwargs)
    first_space = pool.worker_info.observation_space
    if any(
        info.observation_space != first_space or AnySpace() in (info.observation_space, info.action_space)
        for info in pool.worker_infos
    ):
        raise SpaceError("Expected environments with equal spaces for a vector environment, got different ones.")
    return VenvVectorEnv.from_pool(pool, **kwargs)


class VenvVectorEnv(VectorEnv):
    """A vector environment over the workers of an environment with ids.

    These workers also accept observations that their spaces do not declare, and rewards of several numbers, which this
    dialect cannot return.

    Raises:
        SpaceError: `reset` or `step` got such an observation or reward.
    """

    def _after_reset(self, transition: Transition) -> None:
        check_outputs(transition)
        super()._after_reset(transition)

    def _after_step(self, transition: Transition) -> None:
        check_outputs(transition)
        super()._after_step(transition)


def check_outputs(transition: Transition) -> None:
    """Raises a `SpaceError` if an environment of `vecrl.venv` returned what this dialect cannot return: an observation
    that differs from its space, or a reward of several numbers."""
    for infos in (transition.infos, transition.final_infos):
        for env_id, info in infos.items() if infos.dicts else ():
            if OBS in info:
                raise SpaceError(
                    f"Expected observations of {transition.layout.space}, got {describe(info[OBS])} from environment "
                    f"{env_id}. Return what observation_space declares, or declare what is returned."
                )
            if REWARD in info:
                raise SpaceError(
                    f"Expected a number as the reward, got {info[REWARD]} from environment {env_id}. Return one "
                    "number, such as the sum, and the others in the info."
                )


def pool_of(env: object, observation: Key | None = None) -> Pool | SimulatorPool:
    """Returns the pool that steps the environments of a vector environment of any dialect.

    Args:
        env: as for `to_venv`, but no single gymnasium environment.
        observation: the key of the observation of a TensorDict environment, if there are several entries.

    Raises:
        SpaceError: `env` is a `VectorEnvWrapper`, has several observations, actions or groups, or is a `TorchWrapper`
            that changes actions.
        TypeError: `env` is none of these, or is a simulator that lacks a method of `BatchSimulator`.
    """
    env = _without_torch_wrappers(env)
    if isinstance(env, VectorEnvWrapper):
        raise SpaceError(f"Expected a vector environment without wrappers, got {env!r}. Give its `venv`.")
    if isinstance(env, BaseVenv | VectorEnv | SyncVectorEnv):
        return env._pool
    if isinstance(env, SingleEnvOfBatch | BatchedVectorEnv):
        env = env.simulator
    if isinstance(env, EnvBase):
        env = EnvBatch(env, observation)
    if isinstance(env, BatchSimulator):
        return SimulatorPool(env)
    if hasattr(env, "step") and hasattr(env, "num_envs") and not hasattr(env, "single_observation_space"):
        require(env, ALL_NAMES)
    raise TypeError(
        f"Expected an environment of gymnasium or vecrl, got {env!r:.80}. For another library's vector environment, "
        "pass the functions that create its environments to a class of vecrl.venv."
    )


def _without_torch_wrappers(env: object) -> object:
    """Returns the environment that takes and returns arrays.

    Raises:
        SpaceError: a `TorchWrapper` changes actions.
    """
    while isinstance(env, TorchWrapper):
        env = env.unwrapped_actions_env
    return env


def to_venv(env: object, *, observation: Key | None = None, **kwargs: Any) -> BaseVenv:
    """Converts an environment of another dialect to one with ids (dialect 2), on the same workers or tensors.

    Nothing is copied. Do not use `env` any more; closing the result closes it.

    Args:
        env: a `VectorEnv`, `AsyncVectorEnv` or `SyncVectorEnv` (which can then be stepped asynchronously); a
            `BatchedVectorEnv`, a `BatchSimulator` or a TensorDict environment with batch size (n,); a `TorchWrapper`
            around any of these; a single gymnasium environment, or gymnasium's `SyncVectorEnv`, the environments of
            which are stepped without it; or an environment of `vecrl.venv`, which is returned unchanged.
        observation: the key of the observation of a TensorDict environment, if there are several entries.
        kwargs: `wait_num`, `timeout` and `stack_dicts` for environments with workers, see `BaseVectorEnv`.

    Raises:
        SpaceError: `env` has several observations, actions or groups, or is a `TorchWrapper` that changes actions.
        TypeError: `env` is none of these, or is a simulator that lacks a method of `BatchSimulator`.

    >>> from vecrl.vector import make_vector_env
    >>> venv = to_venv(make_vector_env("native::CartPole-v1", num_envs=4))
    >>> venv.reset([3, 1])[0].shape
    (2, 4)
    >>> venv.close()
    """
    env = adapt_env(_without_torch_wrappers(env))
    if isinstance(env, BaseVenv):
        return env
    if isinstance(env, gymnasium.Env) and not isinstance(env, SingleEnvOfBatch):
        return DummyVectorEnv([lambda: env], **kwargs)
    if isinstance(env, gymnasium.vector.SyncVectorEnv):
        return DummyVectorEnv([lambda single_env=single_env: single_env for single_env in env.envs], **kwargs)
    pool = pool_of(env, observation)
    return BatchedVenv(pool.simulator, **kwargs) if isinstance(pool, SimulatorPool) else PoolVenv(pool, **kwargs)


class PoolVenv(BaseVenv):
    """Environments with ids over an existing pool; see `BaseVectorEnv`."""

    def __init__(
        self, pool: Pool, wait_num: int | None = None, timeout: float | None = None, stack_dicts: bool = False
    ):
        self._init_over_pool(pool, wait_num, timeout, stack_dicts, call_env_seed=False)


def to_tensordict(env: object, **kwargs: Any) -> EnvBase:
    """Converts an environment of any other dialect to a TensorDict environment (dialect 3).

    Args:
        env: a gymnasium environment, a vector environment (of dialect 1 or of gymnasium), a `TorchWrapper` around any
            of these, a `BatchSimulator`, an environment with ids (dialect 2; do not use it any more), a classic one
            (dialect 4), or an `EnvBase`, which is returned unchanged.
        kwargs: those of `GymWrapper`; of `SimulatorEnv` for a batched simulator; or of `ClassicWrapper`.

    Raises:
        SpaceError: `env` is a `TorchWrapper` that changes actions, which actions from TensorDicts would bypass.
        TypeError: `env` is none of these.

    >>> import gymnasium
    >>> to_tensordict(gymnasium.make("CartPole-v1")).rollout(2).shape
    torch.Size([2])
    """
    if isinstance(env, BaseVenv):
        pool = pool_of(env)
        if isinstance(pool, SimulatorPool) and isinstance(pool.simulator, EnvBatch):
            return pool.simulator.env
        env = to_vector(env)
    env = adapt_env(env)
    if isinstance(env, EnvBase):
        return env
    env = _without_torch_wrappers(env)
    if isinstance(env, SingleEnvOfBatch):
        return SimulatorEnv(env.simulator, batch_size=(), **kwargs)
    if isinstance(env, BatchedVectorEnv) and env.num_episodes is None:
        return SimulatorEnv(env.simulator, **kwargs)
    if isinstance(env, BatchSimulator):
        return SimulatorEnv(env, **kwargs)
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv | BaseVectorEnv):
        from .envs.libs.gym import GymWrapper

        return GymWrapper(env, **kwargs)
    if isinstance(env, ClassicEnv):
        from .classic import from_classic

        return from_classic(env, **kwargs)
    if hasattr(env, "step") and hasattr(env, "num_envs"):
        require(env, ALL_NAMES)
    raise TypeError(f"Expected an environment of gymnasium or vecrl, got {env!r:.80}. Make one of these.")
