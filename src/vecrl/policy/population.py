"""Evaluates populations for neuroevolution: runs every member for some episodes and returns its fitness.

`PopulationEvaluator` keeps environments and statistics between calls, and chooses how environments are stepped: one
Python environment per member in a pool of workers (`vecrl.policy.evaluation.pool_loop`), or all members in one batched
simulator (`vecrl.policy.evaluation.device_loop`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.backends.registry import BackendName
from ..engine.backends.worker_options import RayOptions, Wait
from ..engine.pool_options import PoolOptions
from ..engine.simulator import BatchSimulator
from ..errors import ClosedError, Failure, SpaceError, VecrlError, remap_failures
from ..seeding import OwnSeeds, SeedRule, seed_rule, stream_for
from ..simulators.registry import find_entry
from ..validation import parse_count, parse_optional_count
from ..vector.batched_vector_env import BatchedVectorEnv
from ..vector.factory import make_vector_env
from ..vector.torch_wrapper import TorchWrapper
from ..vector.vector_env import EnvFn
from .evaluation.executors import RETRY_ADVICE, DeviceExecutor, PoolExecutor
from .evaluation.settings import AliveBonus, Evaluation, EvaluationSettings, FitnessRules
from .obs_norm import ObsNormLayer, RunningNorm
from .policy import Policy
from .policy_io import PolicyIO

OBS_CLIP = 10.0  # normalized observations are clipped at this many standard deviations
ObsLayer = Callable[[Tensor], Tensor]
_log = logging.getLogger("vecrl")
Net = str | nn.Module | Policy | Callable[[PolicyIO], nn.Module]


class PopulationEvaluator:
    """Evaluates populations of policies in environments that it keeps between calls.

    Environments may have any spaces, also nested ones: `vecrl.policy.policy_io` converts them to features and from
    outputs. Members act in lock step, and finished members cost no more time. Results depend on the parameters, the
    seed, the sizes and the number of earlier calls; they do not depend on the backend, the number of workers or their
    timing.

    Args:
        env: a name that `vecrl.vector.make_vector_env` takes ("CartPole-v1", "native::CartPole-v1",
            "brax::ant"), or a function that makes one gymnasium environment. Batched simulators run all members at once
            on their device; any other environment is made once per member.
        net: a string in the network language, with the constants `obs_length` and `act_length`; a module; a `Policy`
            (only its module is used); or a function that makes a module for a `PolicyIO`.
        popsize: the number of members that act at once; a larger population is run in parts.
        subbatch_size: the largest number of members that act together in Python environments, with their networks in
            one call and on one thread. If there are at least as many subbatches as workers, each worker process or
            actor runs whole subbatches, which is the fastest way; else the caller's process computes the actions, and
            all workers step environments.
        backend, num_workers, ray_options, wait: for Python environments, see `VectorEnv`.
        num_episodes: the number of episodes of each member.
        max_steps: the largest number of steps of a member over all its episodes; an episode that this limit cuts counts
            as far as it went.
        obs_norm: whether to normalize observations with the statistics of earlier calls (the first call does not
            normalize). True makes a `RunningNorm`; or give one to continue with. All members of a call use the same
            statistics, which are updated with every observation that a member acted on.
        action_noise: the standard deviation of Gaussian noise on the network's outputs.
        decrease_rewards_by: subtracted from every reward.
        alive_bonus: `(t0, t1, bonus)`, see `AliveBonus`; added to the reward of every step that does not terminate.
        seed: the seed of episodes and noise: an int, or a rule of `vecrl.seed_fn`; None takes entropy.
        device: the device of a batched simulator; not for Python environments.
        compile: whether to compile policy and simulator together; only for native tasks. About ten times faster, after
            about a minute of compilation.
        env_kwargs: arguments for the maker of the environment.

    Attributes:
        policy_io: the conversion between network and spaces, with `obs_length` and `act_length`.
        policy: the `Policy`.
        norm: the `RunningNorm`, or None.
        rules: the `FitnessRules`.
        calls: the number of evaluated populations.

    Raises:
        ValueError: the name is unknown, or an argument is out of its range.
        SpaceError: observations contain no arrays, actions contain other elements than arrays, or the network does not
            fit the spaces.
        WorkerError: Python environments cannot be made.

    >>> with PopulationEvaluator("CartPole-v1", "Linear(obs_length, act_length)", 3, seed=1) as evaluate:
    ...     result = evaluate(torch.zeros(3, evaluate.parameter_length))
    >>> result.returns.tolist(), result.interactions
    ([9.0, 8.0, 9.0], 26)
    """

    def __init__(
        self,
        env: str | EnvFn,
        net: Net,
        popsize: int,
        *,
        backend: BackendName = "serial",
        num_workers: int | None = None,
        num_episodes: int = 1,
        max_steps: int | None = None,
        obs_norm: bool | RunningNorm = False,
        action_noise: float = 0.0,
        decrease_rewards_by: float = 0.0,
        alive_bonus: AliveBonus | Sequence[float] | None = None,
        seed: int | SeedRule | None = None,
        device: str | torch.device | None = None,
        compile: bool = False,  # noqa: A002 -- torch's name for it
        env_kwargs: Mapping[str, Any] | None = None,
        ray_options: RayOptions | None = None,
        wait: Wait = "auto",
        subbatch_size: int = 128,
    ):
        popsize, subbatch_size = parse_count("popsize", popsize), parse_count("subbatch_size", subbatch_size)
        num_episodes = parse_count("num_episodes", num_episodes)
        max_steps = parse_optional_count("max_steps", max_steps)
        if not 0 <= action_noise < math.inf:
            raise ValueError(f"Expected action_noise of 0 or more, got {action_noise!r}.")
        if not math.isfinite(decrease_rewards_by):
            raise ValueError(f"Expected decrease_rewards_by to be a finite number, got {decrease_rewards_by!r}.")
        bonus = None if alive_bonus is None else AliveBonus.from_schedule(alive_bonus)
        self.rules = FitnessRules(num_episodes, max_steps, decrease_rewards_by, bonus, action_noise)
        self.seeds = seed_rule(seed)
        self.calls = 0
        self.popsize = popsize
        options = PoolOptions(backend=backend, infos=False, ray_options=ray_options, wait=wait)
        kwargs = dict(env_kwargs or {})
        self._executor = _build_executor(env, popsize, subbatch_size, num_workers, options, device, kwargs)
        try:
            self.policy_io = self._executor.policy_io
            if omitted := ", ".join(self.policy_io.observations.omitted):
                _log.warning("Policies get the observations without %s, since their elements are no arrays.", omitted)
            self.policy = _build_policy(net, self.policy_io)
            self._check_network()
            self.norm = self._build_norm(obs_norm)
            if compile:
                self._executor.compile(self.policy)
        except BaseException:
            self.close()
            raise

    def _check_network(self) -> None:
        probe_policy = Policy(self.policy.wrapped_module)
        probe_policy.set_parameters(torch.zeros(1, probe_policy.parameter_length, device=self._executor.device))
        self.policy_io.check(probe_policy, self._executor.device)

    def _build_norm(self, obs_norm: bool | RunningNorm) -> RunningNorm | None:
        if isinstance(obs_norm, RunningNorm):
            if obs_norm.shape != (self.policy_io.obs_length,):
                raise SpaceError(f"Expected obs_norm of shape {self.policy_io.obs_length}, got {obs_norm!r}.")
            return obs_norm.to(self._executor.device)
        shape, device = self.policy_io.obs_length, self._executor.device
        return RunningNorm(shape=shape, device=device, clip=OBS_CLIP) if obs_norm else None

    @property
    def parameter_length(self) -> int:
        """The length L of a member's parameters."""
        return self.policy.parameter_length

    @property
    def obs_layer(self) -> ObsNormLayer | None:
        """The current normalization layer; None if there are no statistics."""
        return None if self.norm is None or self.norm.stats.empty else self.norm.to_layer().to(self._executor.device)

    def __call__(self, parameters: Tensor) -> Evaluation:
        """Evaluates a population.

        Args:
            parameters: `[P, L]`, one row per member, a tensor on any device or an array.

        Returns:
            The results of each member, on the CPU.

        Raises:
            SpaceError: `parameters` have another shape.
            WorkerError: environments failed; the next call resets everything.
            ClosedError: `close` was called.
        """
        first_episode = self.calls * self.rules.num_episodes
        result = self._evaluate(parameters, self.rules, self.seeds, first_episode, self.obs_layer, self.norm)
        self.calls += 1
        return result

    def test(
        self,
        parameters: Tensor,
        num_episodes: int = 100,
        *,
        seed: int | SeedRule | None = None,
        obs_layer: ObsLayer | EllipsisType | None = ...,
    ) -> Evaluation:
        """Runs new episodes with one policy, without noise or shaping, and without updates of the statistics.

        Args:
            parameters: `[L]`; or `[num_episodes, L]`, one policy for each episode.
            num_episodes: the number of episodes; each is a row of the result.
            seed: the seed of the episodes; the default is the same for each call and differs from those of populations.
            obs_layer: the normalization layer, a module or None; by default that of the current statistics.
        """
        num_episodes = parse_count("num_episodes", num_episodes)
        parameters = torch.as_tensor(parameters)
        shape = num_episodes, self.parameter_length
        if parameters.shape not in (shape, shape[1:]):
            raise SpaceError(
                f"Expected parameters [{shape[1]}], or {list(shape)} for one policy per episode, got shape "
                f"{tuple(parameters.shape)}."
            )
        seeds = self._derived_seeds("test") if seed is None else seed_rule(seed)
        layer = self.obs_layer if obs_layer is ... else obs_layer
        rows = parameters.expand(shape)
        return self._evaluate(rows, FitnessRules(max_steps=self.rules.max_steps), seeds, 0, layer, None)

    def _evaluate(
        self,
        parameters: Tensor,
        rules: FitnessRules,
        seeds: SeedRule,
        first_episode: int,
        layer: ObsLayer | None,
        norm: RunningNorm | None,
    ) -> Evaluation:
        if self._executor.closed:
            raise ClosedError("This evaluator is closed. Make a new one.")
        parameters = torch.as_tensor(parameters)
        if parameters.ndim != 2 or parameters.shape[1] != self.parameter_length or not len(parameters):
            raise SpaceError(f"Expected parameters [P, {self.parameter_length}], got shape {tuple(parameters.shape)}.")
        parameters = parameters.detach().to(self._executor.device, torch.float32)
        results: list[Evaluation] = []
        chunk_norms: list[RunningNorm] = []
        for start in range(0, len(parameters), self.popsize):

            def seed_fn(ids: np.ndarray, episodes: np.ndarray, start: int = start) -> np.ndarray:
                return seeds(ids + start, episodes + first_episode)

            chunk = parameters[start : start + self.popsize]
            settings = EvaluationSettings(rules, layer, norm is not None, f"{first_episode} {start}")
            with remap_failures(partial(_offset_env_ids, start), RETRY_ADVICE):
                result, norms = self._executor.evaluate(self.policy, chunk, settings, seed_fn)
            results.append(result)
            chunk_norms += norms
        for chunk_norm in chunk_norms:
            assert norm is not None
            norm.update(chunk_norm)
        return Evaluation.concat(results)

    def _derived_seeds(self, name: str) -> SeedRule:
        return OwnSeeds(stream_for(int(self.seeds([0], [0])[0]), name))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that later calls depend on besides the constructor's arguments, as tensors and numbers."""
        return {"calls": self.calls, "norm": None if self.norm is None else self.norm.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` returned."""
        self.calls = int(state["calls"])
        if self.norm is not None and state["norm"] is not None:
            self.norm.load_state_dict(state["norm"])

    def close(self) -> None:
        """Closes the environments; later calls have no effect."""
        self._executor.close()

    def __enter__(self) -> PopulationEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PopulationEvaluator({self._executor!r}, popsize={self.popsize}, rules={self.rules})"


def _build_executor(
    env: str | EnvFn,
    popsize: int,
    subbatch_size: int,
    num_workers: int | None,
    options: PoolOptions,
    device: str | torch.device | None,
    kwargs: dict[str, Any],
) -> PoolExecutor | DeviceExecutor:
    make_env: EnvFn
    if isinstance(env, str):
        entry, name = find_entry(env)
        if entry.env_fn is None:
            arguments = kwargs if device is None else {**kwargs, "device": device}
            return DeviceExecutor(partial(_make_simulator, env, arguments), popsize)
        make_env = entry.env_fn(name, **kwargs)
    else:
        make_env = partial(env, **kwargs)
    if device is not None and str(device).partition(":")[0] != "cpu":
        raise ValueError(
            f"Expected no device for Python environments, which run on the CPU, got {str(device)!r}. Omit device."
        )
    return PoolExecutor(make_env, popsize, subbatch_size, num_workers, options)


def _offset_env_ids(start: int, failure: Failure) -> list[Failure]:
    """Converts a failure in a part of the population to the numbers of members in the whole population."""
    return [replace(failure, env_ids=tuple(i + start for i in failure.env_ids))]


@contextmanager
def creation_errors(env: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """A context that converts errors of a simulator's maker, such as unknown arguments or devices, to ValueError.

    Raises:
        ValueError: the maker raised TypeError, RuntimeError or AssertionError; the message contains that error.
    """
    try:
        yield
    except VecrlError:
        raise
    except (TypeError, RuntimeError, AssertionError) as error:  # torch raises all of these for wrong devices
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        arguments = ", ".join(f"{name}={value!r}" for name, value in kwargs.items()) or "no arguments"
        raise ValueError(f"{env!r} could not be made with {arguments}: {reason}") from error


def _make_simulator(env: str, kwargs: dict[str, Any], num_envs: int) -> BatchSimulator:
    with creation_errors(env, kwargs):
        made: object = make_vector_env(env, num_envs=num_envs, empty_info=True, **kwargs)
    wrapped_env = made.env if isinstance(made, TorchWrapper) else made  # a user's maker may return either
    if not isinstance(wrapped_env, BatchedVectorEnv):
        raise ValueError(f"Expected a batched simulator, got {env!r}. Give a function that makes one environment.")
    return wrapped_env.simulator


def _build_policy(net: Net, policy_io: PolicyIO) -> Policy:
    if isinstance(net, Policy):
        return Policy(net.wrapped_module)
    if isinstance(net, str):
        return Policy(net, **policy_io.constants)
    return Policy(net if isinstance(net, nn.Module) else net(policy_io))
