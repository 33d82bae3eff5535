"""Where a population acts: over workers, stepped from here or by themselves, or as one batch in a simulator.

A stage has a device, an interface, and plays members. It knows no names of environments, and keeps no statistics.
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

from vecrl.engine.backends.ray_cluster.options import RayOptions
from vecrl.engine.pool import Pool
from vecrl.engine.pool_factory import BackendName
from vecrl.engine.simulator import BatchSimulator, Simulator
from vecrl.errors import SpaceError, WorkerCrash
from vecrl.policy.evaluation.compiled_loop import CompiledEvaluation
from vecrl.policy.evaluation.device_loop import evaluate_on_device
from vecrl.policy.evaluation.pool_loop import (
    Evaluation,
    EvaluationSettings,
    Seeding,
    Subbatch,
    SubbatchResult,
    evaluate_on_pool,
)
from vecrl.policy.obs_norm import RunningNorm
from vecrl.policy.policy import Policy
from vecrl.policy.policy_io import PolicyIO
from vecrl.simulators.native import NativeSimulator
from vecrl.vector.remote_workers import RECOVER_TIMEOUT_S, RemoteWorker, RemoteWorkerGroup, pickled
from vecrl.vector.vector_env import EnvFn, split_env_fns

MAX_WORKER_LOSSES = 3  # how often a member may lose its worker within one evaluation, before that is its own doing
RETRY_ADVICE = "The next call begins anew, with other workers in the places of those that are gone."
MakeSimulator = Callable[[int], BatchSimulator]
BackendChoice = tuple[BackendName, int | None, RayOptions | None]
_log = logging.getLogger("vecrl")


class LockstepExecutor:
    """Python environments over workers, one a member, that are stepped from here: all subbatches in lock step."""

    def __init__(self, worker_makers: Sequence[tuple[Callable[[], Simulator], int]], backend_choice: BackendChoice):
        self.pool = Pool(worker_makers, backend_choice[0], infos=False, ray_options=backend_choice[2])
        self.close, self.settle = self.pool.close, partial(self.pool.recover, RECOVER_TIMEOUT_S)
        card = self.pool.worker_info
        self.policy_io = make_policy_io(card.observation_space, card.action_space, self.close)

    def evaluate(
        self,
        net: nn.Module,
        settings: EvaluationSettings,
        remaining: Mapping[int, Subbatch],
        completed: dict[int, SubbatchResult],
    ) -> None:
        """Play what is left, and put down in `completed` how it came out.

        Raises:
            WorkerError: environments failed; `completed` has what is over nevertheless.
        """
        envs = np.concatenate([subbatch.members for subbatch in remaining.values()])
        subbatch_results = evaluate_on_pool(self.pool, net, self.policy_io, settings, [*remaining.values()], envs)
        completed |= zip(remaining, subbatch_results, strict=True)


class EvaluationWorker(RemoteWorker):
    """Plays subbatches in a worker, with as many environments as they have members."""

    def __init__(self, make: Callable[[], Simulator], count: int):
        super().__init__(make, count)
        self._policy_io = PolicyIO(*self.spaces())
        self._pickled_net, self._net = b"", nn.Module()

    def evaluate(self, net: bytes, settings: bytes, subbatches: list[Subbatch]) -> list[SubbatchResult]:
        """See `evaluate_on_pool`. (The bytes come from the process that made this one, not from a file or the
        network.)"""
        if net != self._pickled_net:
            self._pickled_net, self._net = net, cloudpickle.loads(net)
        envs = np.arange(sum(len(subbatch.members) for subbatch in subbatches))
        return evaluate_on_pool(self.pool, self._net, self._policy_io, cloudpickle.loads(settings), subbatches, envs)


class RemoteExecutor:
    """Python environments over workers, each of which plays whole subbatches by itself.

    Args:
        size: how many members a subbatch may have.
        subbatches, workers: how many of them there are.
    """

    def __init__(self, env_fn: EnvFn, size: int, subbatches: int, workers: int, backend_choice: BackendChoice):
        backend, _, options = backend_choice
        counts = [len(range(worker, subbatches, workers)) * size for worker in range(workers)]
        worker_makers = [split_env_fns([env_fn] * count, backend, 1)[0] for count in counts]
        makers = [(partial(EvaluationWorker, make, count), count) for make, count in worker_makers]
        self._workers = RemoteWorkerGroup(makers, backend, RETRY_ADVICE, ray_options=options)
        self.pool, self.close = self._workers.pool, self._workers.close
        self.settle = self._workers.recover
        observation_space, action_space = self._workers.call_all("spaces", [()])[0]
        self.policy_io = make_policy_io(observation_space, action_space, self.close)

    def evaluate(
        self,
        net: nn.Module,
        settings: EvaluationSettings,
        remaining: Mapping[int, Subbatch],
        completed: dict[int, SubbatchResult],
    ) -> None:
        """See `LockstepExecutor.evaluate`."""
        pickled_arguments = pickled("network", net), pickled("observations' layer", settings)
        count = min(self.pool.num_envs, len(remaining))
        worker_makers = [[*remaining][worker::count] for worker in range(count)]
        ids = [
            [member for i in worker_share for member in remaining[i].members.tolist()] for worker_share in worker_makers
        ]
        results: list[Any] = []
        try:
            results = self._workers.call_all(
                "evaluate",
                [(*pickled_arguments, [remaining[i] for i in worker_share]) for worker_share in worker_makers],
                ids,
            )
        except WorkerCrash as error:
            results = error.results or []
            raise
        finally:
            for worker_share, subbatch_results in zip(worker_makers, results, strict=False):
                completed |= zip(worker_share, subbatch_results or (), strict=False)


class PoolExecutor:
    """Python environments over workers. Whoever loses its worker plays again from the beginning.

    Args:
        env_fn: makes an environment.
        popsize: the most members that play at once.
        subbatch_size: how many of them may act together.
        backend_choice: backend, workers, cluster.
    """

    device = torch.device("cpu")

    def __init__(self, env_fn: EnvFn, popsize: int, subbatch_size: int, backend_choice: BackendChoice):
        subbatches = -(-popsize // subbatch_size)
        self._size = -(-popsize // subbatches)
        backend, num_workers, _ = backend_choice
        worker_makers = split_env_fns([env_fn] * popsize, backend, num_workers)
        self._runner: RemoteExecutor | LockstepExecutor
        if backend in ("processes", "ray") and 1 < subbatches >= len(worker_makers):
            self._runner = RemoteExecutor(env_fn, self._size, subbatches, len(worker_makers), backend_choice)
        else:
            self._runner = LockstepExecutor(worker_makers, backend_choice)
        self.policy_io = self._runner.policy_io

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._runner.pool.closed

    def compile(self, policy: Policy) -> None:
        """Not here."""
        raise ValueError("Only native tasks are compiled; leave compile out.")

    def evaluate(
        self, policy: Policy, parameters: Tensor, settings: EvaluationSettings, seeds: Seeding
    ) -> tuple[Evaluation, list[RunningNorm]]:
        """Let members play.

        Args:
            policy: whose network acts.
            parameters: `[k, L]` float32 on the stage's device.
            seeds: of episodes `(members, episodes)`.

        Returns:
            What they are worth, and the statistics of what they saw, to be joined in this order.
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
        """As few subbatches as may be, alike in size, to which members are dealt like cards: neighbours are often as
        good as each other, and the good ones take long."""
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
        """Play them all, whatever becomes of workers; in their order."""
        completed: dict[int, SubbatchResult] = {}
        num_losses: Counter[int] = Counter()
        while remaining := {i: subbatch for i, subbatch in subbatches.items() if i not in completed}:
            try:
                self._runner.settle()
                self._runner.evaluate(net, settings, remaining, completed)
            except WorkerCrash as error:
                num_losses.update(error.env_ids)
                if max(num_losses.values()) > MAX_WORKER_LOSSES or any(
                    failure.kind != "crashed" for failure in error.failures
                ):
                    raise
                _log.warning("%s; what was not over is played again in others", str(error).splitlines()[0])
        return sorted(completed.items())

    def close(self) -> None:
        """End the workers. That some are gone is no harm any more."""
        try:
            self._runner.close()
        except WorkerCrash as error:
            if any(failure.kind != "crashed" for failure in error.failures):
                raise
            _log.warning("%s", str(error).splitlines()[0])

    def __repr__(self) -> str:
        return f"{self._runner.pool.backend_name}, num_workers={self._runner.pool.num_workers}"


class DeviceExecutor:
    """All members in one batched simulator."""

    def __init__(self, make: MakeSimulator, popsize: int):
        self._make = make
        self._simulator = simulator = make(popsize)
        can_resize = isinstance(simulator, NativeSimulator) and not simulator.compile
        self._resize = make if can_resize else None  # compiled ones are compiled for each size
        self.device = torch.device(simulator.device)
        self.policy_io = make_policy_io(simulator.observation_space, simulator.action_space, simulator.close)
        self.closed = False
        self._compiled: CompiledEvaluation | None = None

    def compile(self, policy: Policy) -> None:
        """From now on, play by compiled regions for this policy's network."""
        if not isinstance(self._simulator, NativeSimulator):
            raise ValueError("Only native tasks are compiled; leave compile out.")
        self._compiled = CompiledEvaluation(self._simulator, policy, self.policy_io)

    def evaluate(
        self, policy: Policy, parameters: Tensor, settings: EvaluationSettings, seeds: Seeding
    ) -> tuple[Evaluation, list[RunningNorm]]:
        """See `PoolExecutor`. Where the size cannot be had, the last member fills up the rows, and counts once."""
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
        """Close the simulator."""
        self.closed = True
        self._simulator.close()

    def __repr__(self) -> str:
        return repr(self._simulator)


def make_policy_io(observation_space: Any, action_space: Any, close: Callable[[], None]) -> PolicyIO:
    """The interface to environments, which are closed where there is none to them."""
    try:
        return PolicyIO(observation_space, action_space)
    except SpaceError:
        close()
        raise
