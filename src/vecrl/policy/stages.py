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

from vecrl.engine.backends.cluster import RayOptions
from vecrl.engine.opening import BackendName
from vecrl.engine.pool import Pool
from vecrl.engine.simulator import BatchSimulator, Simulator
from vecrl.errors import SpaceError, WorkerCrash
from vecrl.policy.compiled import CompiledPlay
from vecrl.policy.episodes import Evaluation, Judging, Outcome, Seeding, Subbatch, play_pool
from vecrl.policy.fused import play_batch
from vecrl.policy.interface import Interface
from vecrl.policy.norm import RunningNorm
from vecrl.policy.policy import Policy
from vecrl.simulators.native import NativeSimulator
from vecrl.vector.residents import GRACE, Resident, Residents, shipped
from vecrl.vector.vector_env import EnvFn, split_env_fns

PATIENCE = 3  # how often a member may lose its worker within one evaluation, before that is its own doing
AGAIN = "The next call begins anew, with other workers in the places of those that are gone."
Make = Callable[[int], BatchSimulator]
Place = tuple[BackendName, int | None, RayOptions | None]
_log = logging.getLogger("vecrl")


class Stepped:
    """Python environments over workers, one a member, that are stepped from here: all subbatches in lock step."""

    def __init__(self, shares: Sequence[tuple[Callable[[], Simulator], int]], place: Place):
        self.pool = Pool(shares, place[0], infos=False, ray_options=place[2])
        self.close, self.settle = self.pool.close, partial(self.pool.settle, GRACE)
        card = self.pool.card
        self.interface = interface_of(card.observation_space, card.action_space, self.close)

    def play(self, net: nn.Module, judging: Judging, left: Mapping[int, Subbatch], found: dict[int, Outcome]) -> None:
        """Play what is left, and put down in `found` how it came out.

        Raises:
            WorkerError: environments failed; `found` has what is over nevertheless.
        """
        envs = np.concatenate([subbatch.members for subbatch in left.values()])
        outcomes = play_pool(self.pool, net, self.interface, judging, [*left.values()], envs)
        found |= zip(left, outcomes, strict=True)


class Troupe(Resident):
    """Plays subbatches in a worker, with as many environments as they have members."""

    def __init__(self, make: Callable[[], Simulator], count: int):
        super().__init__(make, count)
        self._interface = Interface(*self.spaces())
        self._shipped, self._net = b"", nn.Module()

    def play(self, net: bytes, judging: bytes, subbatches: list[Subbatch]) -> list[Outcome]:
        """See `play_pool`. (The bytes come from the process that made this one, not from a file or the network.)"""
        if net != self._shipped:
            self._shipped, self._net = net, cloudpickle.loads(net)
        envs = np.arange(sum(len(subbatch.members) for subbatch in subbatches))
        return play_pool(self.pool, self._net, self._interface, cloudpickle.loads(judging), subbatches, envs)


class Sent:
    """Python environments over workers, each of which plays whole subbatches by itself.

    Args:
        size: how many members a subbatch may have.
        subbatches, workers: how many of them there are.
    """

    def __init__(self, env_fn: EnvFn, size: int, subbatches: int, workers: int, place: Place):
        backend, _, options = place
        counts = [len(range(worker, subbatches, workers)) * size for worker in range(workers)]
        shares = [split_env_fns([env_fn] * count, backend, 1)[0] for count in counts]
        makers = [(partial(Troupe, make, count), count) for make, count in shares]
        self._troupes = Residents(makers, backend, AGAIN, ray_options=options)
        self.pool, self.close = self._troupes.pool, self._troupes.close
        self.settle = self._troupes.settle
        observed, done = self._troupes.ask("spaces", [()])[0]
        self.interface = interface_of(observed, done, self.close)

    def play(self, net: nn.Module, judging: Judging, left: Mapping[int, Subbatch], found: dict[int, Outcome]) -> None:
        """See `Stepped.play`."""
        sent = shipped("network", net), shipped("observations' layer", judging)
        count = min(self.pool.num_envs, len(left))
        shares = [[*left][worker::count] for worker in range(count)]
        ids = [[member for i in share for member in left[i].members.tolist()] for share in shares]
        results: list[Any] = []
        try:
            results = self._troupes.ask("play", [(*sent, [left[i] for i in share]) for share in shares], ids)
        except WorkerCrash as error:
            results = error.results or []
            raise
        finally:
            for share, outcomes in zip(shares, results, strict=False):
                found |= zip(share, outcomes or (), strict=False)


class PoolStage:
    """Python environments over workers. Whoever loses its worker plays again from the beginning.

    Args:
        env_fn: makes an environment.
        popsize: the most members that play at once.
        subbatch_size: how many of them may act together.
        place: backend, workers, cluster.
    """

    device = torch.device("cpu")

    def __init__(self, env_fn: EnvFn, popsize: int, subbatch_size: int, place: Place):
        subbatches = -(-popsize // subbatch_size)
        self._size = -(-popsize // subbatches)
        backend, num_workers, _ = place
        shares = split_env_fns([env_fn] * popsize, backend, num_workers)
        self._acts: Sent | Stepped
        if backend in ("processes", "ray") and 1 < subbatches >= len(shares):
            self._acts = Sent(env_fn, self._size, subbatches, len(shares), place)
        else:
            self._acts = Stepped(shares, place)
        self.interface = self._acts.interface

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._acts.pool.closed

    def compile(self, policy: Policy) -> None:
        """Not here."""
        raise ValueError("Only native tasks are compiled; leave compile out.")

    def play(
        self, policy: Policy, parameters: Tensor, judging: Judging, seeds: Seeding
    ) -> tuple[Evaluation, list[RunningNorm]]:
        """Let members play.

        Args:
            policy: whose network acts.
            parameters: `[k, L]` float32 on the stage's device.
            seeds: of episodes `(members, episodes)`.

        Returns:
            What they are worth, and the statistics of what they saw, to be joined in this order.
        """
        subbatches = self._split(parameters, judging, seeds)
        scores, interactions = np.empty((3, len(parameters))), 0
        learnt: list[RunningNorm] = []
        for i, outcome in self._play(policy.wrapped_module, judging, subbatches):
            scores[:, subbatches[i].members] = outcome.scores
            interactions += outcome.interactions
            if outcome.seen is not None:
                learnt.append(RunningNorm(shape=self.interface.obs_length))
                learnt[-1].load_state_dict(outcome.seen)
        fitness, returns, lengths = torch.from_numpy(scores)
        return Evaluation(fitness, returns, lengths, interactions), learnt

    def _split(self, parameters: Tensor, judging: Judging, seeds: Seeding) -> dict[int, Subbatch]:
        """As few subbatches as may be, alike in size, to which members are dealt like cards: neighbours are often as
        good as each other, and the good ones take long."""
        count, episodes = len(parameters), judging.rules.most_episodes
        members, rows = np.arange(count), parameters.numpy()
        table = seeds(members.repeat(episodes), np.tile(np.arange(episodes), count)).reshape(count, episodes)
        dealt = -(-count // self._size)
        hands = [members[i::dealt] for i in range(dealt)]
        return {i: Subbatch(hand, rows[hand], table[hand]) for i, hand in enumerate(hands)}

    def _play(self, net: nn.Module, judging: Judging, subbatches: dict[int, Subbatch]) -> list[tuple[int, Outcome]]:
        """Play them all, whatever becomes of workers; in their order."""
        found: dict[int, Outcome] = {}
        losses: Counter[int] = Counter()
        while left := {i: subbatch for i, subbatch in subbatches.items() if i not in found}:
            try:
                self._acts.settle()
                self._acts.play(net, judging, left, found)
            except WorkerCrash as error:
                losses.update(error.env_ids)
                if max(losses.values()) > PATIENCE or any(failure.kind != "crashed" for failure in error.failures):
                    raise
                _log.warning("%s; what was not over is played again in others", str(error).splitlines()[0])
        return sorted(found.items())

    def close(self) -> None:
        """End the workers. That some are gone is no harm any more."""
        try:
            self._acts.close()
        except WorkerCrash as error:
            if any(failure.kind != "crashed" for failure in error.failures):
                raise
            _log.warning("%s", str(error).splitlines()[0])

    def __repr__(self) -> str:
        return f"{self._acts.pool.backend_name}, num_workers={self._acts.pool.num_workers}"


class BatchStage:
    """All members in one batched simulator."""

    def __init__(self, make: Make, popsize: int):
        self._make = make
        self._simulator = simulator = make(popsize)
        plain = isinstance(simulator, NativeSimulator) and not simulator.compile
        self._resize = make if plain else None  # compiled ones are compiled for each size
        self.device = torch.device(simulator.device)
        self.interface = interface_of(simulator.observation_space, simulator.action_space, simulator.close)
        self.closed = False
        self._compiled: CompiledPlay | None = None

    def compile(self, policy: Policy) -> None:
        """From now on, play by compiled regions for this policy's network."""
        if not isinstance(self._simulator, NativeSimulator):
            raise ValueError("Only native tasks are compiled; leave compile out.")
        self._compiled = CompiledPlay(self._simulator, policy, self.interface)

    def play(
        self, policy: Policy, parameters: Tensor, judging: Judging, seeds: Seeding
    ) -> tuple[Evaluation, list[RunningNorm]]:
        """See `PoolStage`. Where the size cannot be had, the last member fills up the rows, and counts once."""
        size, members = self._simulator.num_envs, len(parameters)
        zero = np.zeros(1, np.int64)
        noise = judging.noise(size, 0, int(seeds(zero, zero)[0]), self.device)
        normaliser = judging.normaliser(self.interface.obs_length, self.device)
        policy.set_parameters(parameters)
        told = judging.rules, seeds, normaliser, noise.generator
        if self._compiled is not None:
            evaluation = self._compiled(policy, *told)
        else:
            simulator = self._simulator
            if members < size and self._resize is not None:
                simulator = self._resize(members)
            elif members < size:
                policy.set_parameters(parameters[torch.arange(size).clamp(max=members - 1)])
            more: Any = {"members": members, "resize": self._resize}
            evaluation = play_batch(simulator, policy, self.interface, *told, **more)
        return evaluation, [] if normaliser.norm is None else [normaliser.norm]

    def close(self) -> None:
        """Close the simulator."""
        self.closed = True
        self._simulator.close()

    def __repr__(self) -> str:
        return repr(self._simulator)


def interface_of(observation_space: Any, action_space: Any, close: Callable[[], None]) -> Interface:
    """The interface to environments, which are closed where there is none to them."""
    try:
        return Interface(observation_space, action_space)
    except SpaceError:
        close()
        raise
