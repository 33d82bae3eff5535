"""Executors of population evaluations: in workers stepped by the caller, in workers alone, or in a batched simulator.

An executor has a device and a `PolicyIO`, and evaluates members.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from ...engine.backends.registry import backend_entry
from ...engine.pool import Pool
from ...engine.pool_options import PoolOptions
from ...engine.simulator import BatchSimulator, Simulator
from ...engine.space_layout import AnySpace
from ...errors import SpaceError, WorkerCrash
from ...simulators.row_task import RowTaskSimulator
from ...vector.env_fns import split_env_fns
from ...vector.remote_workers import RECOVER_TIMEOUT_S, STEPS_IN_WORKER, RemoteWorker, RemoteWorkerGroup, pickled
from ...vector.vector_env import EnvFn
from ..obs_norm import RunningNorm
from ..policy import Policy
from ..policy_io import PolicyIO
from .compiled_loop import CompiledEvaluation
from .device_loop import evaluate_on_device
from .pool_loop import Subbatch, SubbatchResult, evaluate_on_pool
from .settings import Evaluation, EvaluationSettings, Seeding

MAX_WORKER_LOSSES = 3  # worker crashes per member and evaluation; more are taken as the member's fault
RETRY_ADVICE = "The next call resets everything and replaces crashed workers."
MakeSimulator = Callable[[int], BatchSimulator]
_log = logging.getLogger("vecrl")


class LockstepExecutor:
    """Python environments in workers, one per member, which the caller steps: all subbatches in lock step."""

    def __init__(self, worker_makers: Sequence[tuple[Callable[[], Simulator], int]], options: PoolOptions):
        self.pool = Pool(worker_makers, **options.keywords)
        self.close, self.recover = self.pool.close, partial(self.pool.recover, RECOVER_TIMEOUT_S)
        worker_info = self.pool.worker_info
        self.policy_io = make_policy_io(worker_info.observation_space, worker_info.action_space, self.close)

    def evaluate(
        self,
        net: nn.Module,
        settings: EvaluationSettings,
        remaining: Mapping[int, Subbatch],
        completed: dict[int, SubbatchResult],
    ) -> None:
        """Evaluates the remaining subbatches, and writes their results to `completed`.

        Raises:
            WorkerError: environments failed; `completed` has the results of the subbatches that finished.
        """
        envs = np.concatenate([subbatch.members for subbatch in remaining.values()])
        subbatch_results = evaluate_on_pool(self.pool, net, self.policy_io, settings, [*remaining.values()], envs)
        completed |= zip(remaining, subbatch_results, strict=True)


class EvaluationWorker(RemoteWorker[Pool]):
    """Evaluates subbatches in a worker that has one environment per member."""

    def __init__(self, make: Callable[[], Simulator], count: int):
        super().__init__(Pool([(make, count)], **STEPS_IN_WORKER.keywords))
        self._policy_io = PolicyIO(*self.spaces())
        self._pickled_net, self._net = b"", nn.Module()

    def evaluate(self, net: bytes, settings: bytes, subbatches: list[Subbatch]) -> list[SubbatchResult]:
        """Evaluates subbatches with `evaluate_on_pool`.

        (The bytes come from the process that made this worker, not from a file or the network.)
        """
        if net != self._pickled_net:
            self._pickled_net, self._net = net, cloudpickle.loads(net)
        envs = np.arange(sum(len(subbatch.members) for subbatch in subbatches))
        return evaluate_on_pool(self.pool, self._net, self._policy_io, cloudpickle.loads(settings), subbatches, envs)


class RemoteExecutor:
    """Python environments in workers, each of which evaluates whole subbatches without the caller.

    Args:
        env_fn: makes an environment.
        size: the largest number of members of a subbatch.
        subbatches, workers: the numbers of subbatches and workers.
        options: how the workers are run.
    """

    def __init__(self, env_fn: EnvFn, size: int, subbatches: int, workers: int, options: PoolOptions):
        counts = [len(range(worker, subbatches, workers)) * size for worker in range(workers)]
        worker_makers = [split_env_fns([env_fn] * count, options.backend, 1)[0] for count in counts]
        makers = [(partial(EvaluationWorker, make, count), count) for make, count in worker_makers]
        self._workers = RemoteWorkerGroup(makers, options, RETRY_ADVICE)
        self.pool, self.close = self._workers.pool, self._workers.close
        self.recover = self._workers.recover
        observation_space, action_space = self._workers.call_all("spaces", [()])[0]
        self.policy_io = make_policy_io(observation_space, action_space, self.close)

    def evaluate(
        self,
        net: nn.Module,
        settings: EvaluationSettings,
        remaining: Mapping[int, Subbatch],
        completed: dict[int, SubbatchResult],
    ) -> None:
        """Evaluates the remaining subbatches, like `LockstepExecutor.evaluate`."""
        pickled_arguments = pickled("network", net), pickled("observations' layer", settings)
        count = min(self.pool.num_envs, len(remaining))
        worker_shares = [[*remaining][worker::count] for worker in range(count)]
        ids = [
            [member for i in worker_share for member in remaining[i].members.tolist()] for worker_share in worker_shares
        ]
        results: list[Any] = []
        try:
            results = self._workers.call_all(
                "evaluate",
                [(*pickled_arguments, [remaining[i] for i in worker_share]) for worker_share in worker_shares],
                ids,
            )
        except WorkerCrash as error:
            results = error.results or []
            raise
        finally:
            for worker_share, subbatch_results in zip(worker_shares, results, strict=False):
                completed |= zip(worker_share, subbatch_results or (), strict=False)


class PoolExecutor:
    """Python environments in workers. Members of a worker that crashed are evaluated again from the start.

    Args:
        env_fn: makes an environment.
        popsize: the largest number of members at once.
        subbatch_size: the largest number of members that act together.
        num_workers: the number of workers; None for the default of the backend.
        options: how the workers are run.
    """

    device = torch.device("cpu")

    def __init__(self, env_fn: EnvFn, popsize: int, subbatch_size: int, num_workers: int | None, options: PoolOptions):
        subbatches = -(-popsize // subbatch_size)
        self._size = -(-popsize // subbatches)
        worker_makers = split_env_fns([env_fn] * popsize, options.backend, num_workers)
        self._executor: RemoteExecutor | LockstepExecutor
        if not backend_entry(options.backend).in_process and 1 < subbatches >= len(worker_makers):
            self._executor = RemoteExecutor(env_fn, self._size, subbatches, len(worker_makers), options)
        else:
            self._executor = LockstepExecutor(worker_makers, options)
        self.policy_io = self._executor.policy_io

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._executor.pool.closed

    def compile(self, policy: Policy) -> None:
        """Raises ValueError: Python environments cannot be compiled."""
        raise ValueError("Expected a native task to compile, got Python environments. Omit compile.")

    def evaluate(
        self, policy: Policy, parameters: Tensor, settings: EvaluationSettings, seeds: Seeding
    ) -> tuple[Evaluation, list[RunningNorm]]:
        """Evaluates members.

        Args:
            policy: the policy with the network.
            parameters: `[k, L]` float32 on the executor's device.
            settings: the settings of the call.
            seeds: returns the seeds of the episodes `(members, episodes)`.

        Returns:
            The results of the members, and the statistics of their observations, to be merged in this order.
        """
        subbatches = self._split(parameters, settings, seeds)
        score_table, interactions = np.empty((3, len(parameters))), 0
        norms: list[RunningNorm] = []
        for i, subbatch_result in self._play(policy.wrapped_module, settings, subbatches):
            score_table[:, subbatches[i].members] = subbatch_result.scores
            interactions += subbatch_result.interactions
            if subbatch_result.norm_state is not None:
                norms.append(RunningNorm(shape=self.policy_io.obs_length))
                norms[-1].load_state_dict(subbatch_result.norm_state)
        fitness, returns, lengths = torch.from_numpy(score_table)
        return Evaluation(fitness, returns, lengths, interactions), norms

    def _split(self, parameters: Tensor, settings: EvaluationSettings, seeds: Seeding) -> dict[int, Subbatch]:
        """Splits members into as few subbatches as possible, of similar size, with every k-th member in the same one.

        Consecutive members often have similar fitness, and good members have long episodes, so this balances the load.
        """
        count, episodes = len(parameters), settings.rules.max_episodes
        members, parameter_rows = np.arange(count), parameters.numpy()
        seed_table = seeds(members.repeat(episodes), np.tile(np.arange(episodes), count)).reshape(count, episodes)
        num_subbatches = -(-count // self._size)
        member_groups = [members[i::num_subbatches] for i in range(num_subbatches)]
        return {
            i: Subbatch(group_members, parameter_rows[group_members], seed_table[group_members])
            for i, group_members in enumerate(member_groups)
        }

    def _play(
        self, net: nn.Module, settings: EvaluationSettings, subbatches: dict[int, Subbatch]
    ) -> list[tuple[int, SubbatchResult]]:
        """Evaluates all subbatches, also if workers crash; returns the results in the order of the subbatches."""
        completed: dict[int, SubbatchResult] = {}
        num_losses: Counter[int] = Counter()
        while remaining := {i: subbatch for i, subbatch in subbatches.items() if i not in completed}:
            try:
                self._executor.recover()
                self._executor.evaluate(net, settings, remaining, completed)
            except WorkerCrash as error:
                num_losses.update(error.env_ids)
                if max(num_losses.values()) > MAX_WORKER_LOSSES or any(
                    failure.kind != "crashed" for failure in error.failures
                ):
                    raise
                _log.warning("%s; unfinished members are evaluated again in other workers", str(error).splitlines()[0])
        return sorted(completed.items())

    def close(self) -> None:
        """Stops the workers; crashed workers are only logged."""
        try:
            self._executor.close()
        except WorkerCrash as error:
            if any(failure.kind != "crashed" for failure in error.failures):
                raise
            _log.warning("%s", str(error).splitlines()[0])

    def __repr__(self) -> str:
        return f"{self._executor.pool.backend_name}, num_workers={self._executor.pool.num_workers}"


class DeviceExecutor:
    """All members in one batched simulator."""

    def __init__(self, make: MakeSimulator, popsize: int):
        self._make = make
        self._simulator = simulator = make(popsize)
        can_resize = isinstance(simulator, RowTaskSimulator) and not simulator.compile
        self._resize = make if can_resize else None  # a compiled simulator would be compiled for each size
        self.device = torch.device(simulator.device)
        self.policy_io = make_policy_io(simulator.observation_space, simulator.action_space, simulator.close)
        self.closed = False
        self._compiled: CompiledEvaluation | None = None

    def compile(self, policy: Policy) -> None:
        """Uses compiled regions for this policy's network from now on."""
        if not isinstance(self._simulator, RowTaskSimulator) or not self._simulator.can_compile:
            raise ValueError(f"Expected a native task to compile, got {self._simulator!r}. Omit compile.")
        self._compiled = CompiledEvaluation(self._simulator, policy, self.policy_io)

    def evaluate(
        self, policy: Policy, parameters: Tensor, settings: EvaluationSettings, seeds: Seeding
    ) -> tuple[Evaluation, list[RunningNorm]]:
        """Evaluates members, like `PoolExecutor.evaluate`.

        If the simulator cannot be resized, the last member fills the remaining rows, and counts once.
        """
        size, members = self._simulator.num_envs, len(parameters)
        zero = np.zeros(1, np.int64)
        noise = settings.noise(size, 0, int(seeds(zero, zero)[0]), self.device)
        normalizer = settings.normalizer(self.policy_io.obs_length, self.device)
        policy.set_parameters(parameters)
        evaluation_arguments = settings.rules, seeds, normalizer, noise.generator
        if self._compiled is not None:
            evaluation = self._compiled(policy, *evaluation_arguments)
        else:
            simulator = self._simulator
            if members < size and self._resize is not None:
                simulator = self._resize(members)
            elif members < size:
                policy.set_parameters(parameters[torch.arange(size).clamp(max=members - 1)])
            size_options: Any = {"members": members, "resize": self._resize}
            evaluation = evaluate_on_device(simulator, policy, self.policy_io, *evaluation_arguments, **size_options)
        return evaluation, [] if normalizer.norm is None else [normalizer.norm]

    def close(self) -> None:
        """Closes the simulator."""
        self.closed = True
        self._simulator.close()

    def __repr__(self) -> str:
        return repr(self._simulator)


def make_policy_io(observation_space: AnySpace, action_space: AnySpace, close: Callable[[], None]) -> PolicyIO:
    """Makes the `PolicyIO` for spaces; calls `close` if the spaces are not supported."""
    try:
        return PolicyIO(observation_space, action_space)
    except SpaceError:
        close()
        raise
