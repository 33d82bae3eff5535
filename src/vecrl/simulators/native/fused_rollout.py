"""Policy and simulator as one function: many steps in one compiled region, with nothing of Python between them.

At small batches a step's arithmetic is less than the cost of asking for it; unrolled, a step costs neither call nor
check. It knows of policies only that they are functions of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import NativeSimulator, NativeState
from .compile_utils import as_bytes


@dataclass(frozen=True, slots=True)
class FusedTrajectory:
    """T steps of n rows; time is the first dimension.

    Attributes:
        obs: `[T, n, k]`, what was acted on.
        actions: `[T, n, ...]`, as the policy gave them.
        reward: `[T, n]`.
        terminated, truncated: `[T, n]` bool; where either holds, the next step is of a new episode.
        next_obs: `[T, n, k]`, the true successors, final observations included; None unless asked for.
        last_obs: `[n, k]`, what to act on after the last step.
    """

    obs: Tensor
    actions: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor | None
    last_obs: Tensor


class FusedRollout:
    """Rollouts of one policy on one native simulator, with resets of rows whose episode ends.

    Args:
        simulator: it goes on from where it is, and is where the rollout ended afterwards.
        policy_fn: a function of the observations `[n, k]` (and of `params`, where `__call__` is given some) that gives
            actions `[n]` or `[n, k]` without a look at tensors' values. Random numbers are welcome.
        chunk: how many steps are compiled into one region. A step costs less in a longer one, but a second or more
            to compile. A rollout of another length is put together of chunks and one shorter region.
        compile: by default as the simulator was made.
        next_obs: return `FusedTrajectory.next_obs` too.
    """

    def __init__(
        self,
        simulator: NativeSimulator,
        policy_fn: Callable[..., Tensor],
        *,
        chunk: int = 8,
        compile: bool | None = None,  # noqa: A002 -- the word that torch's users look for
        next_obs: bool = False,
    ):
        if chunk < 1:
            raise ValueError(f"Expected a chunk of at least 1 step, but {chunk!r} came.")
        self.simulator = simulator
        self.policy_fn = policy_fn
        self.chunk = chunk
        self.compile = simulator.compile if compile is None else compile
        self.next_obs = next_obs
        self._regions: dict[int, Callable[..., Any]] = {}

    @torch.no_grad()
    def __call__(self, num_steps: int, params: Any = None) -> FusedTrajectory:
        """Run `num_steps` steps in every row.

        Args:
            num_steps: T, at least 1.
            params: any nesting of tensors, handed to the policy as its second argument unless None. Pass what
                changes between rollouts (a population's parameters) here: tensors like the last ones cost no new
                compilation.

        Raises:
            PendingError: the simulator had no `reset` yet.
        """
        if num_steps < 1:
            raise ValueError(f"Expected num_steps of at least 1, but {num_steps!r} came.")
        chunks: list[tuple[Tensor, ...]] = []
        rows = self.simulator.rows
        obs = self.simulator.rows_obs(rows)
        while num_steps:
            length = min(self.chunk, num_steps) if self.compile else num_steps
            rows, obs, chunk_records = self._maybe_compile(length)(rows, obs, params)
            chunks.append(chunk_records)
            num_steps -= length
        self.simulator.rows = NativeState(*rows)
        stacked = [values[0] if len(values) == 1 else torch.cat(values) for values in zip(*chunks, strict=True)]
        obs_steps, actions, reward, terminated, truncated, *next_obs_steps = stacked
        flags = terminated.view(torch.bool), truncated.view(torch.bool)
        return FusedTrajectory(obs_steps, actions, reward, *flags, next_obs_steps[0] if next_obs_steps else None, obs)

    def _maybe_compile(self, length: int) -> Callable[..., Any]:
        if length not in self._regions:

            def run(rows: NativeState, obs: Tensor, params: Any) -> tuple[NativeState, Tensor, tuple[Tensor, ...]]:
                return self._unroll(length, rows, obs, params)

            self._regions[length] = self._compiled(run) if self.compile else run
        return self._regions[length]

    def _compiled(self, run: Callable[..., Any]) -> Callable[..., Any]:
        # The policy may close over tensors that change, so this is `torch.compile` with its guards. On a CPU, what
        # calls the kernels is compiled too: there are several a step.
        options: dict[str, Any] = {"cpp_wrapper": self.simulator.device == "cpu"}
        return torch.compile(run, fullgraph=True, dynamic=False, options=options)

    def _unroll(
        self, length: int, rows: NativeState, obs: Tensor, params: Any
    ) -> tuple[NativeState, Tensor, tuple[Tensor, ...]]:
        records = []
        for _ in range(length):
            actions = self.policy_fn(obs) if params is None else self.policy_fn(obs, params)
            step, next_obs, rows = self.simulator.step_and_restart(actions, rows)
            record = (obs, actions, step.reward, as_bytes(step.terminated), as_bytes(step.truncated))
            records.append((*record, step.next_obs) if self.next_obs else record)
            obs = next_obs
        return rows, obs, tuple(torch.stack(values) for values in zip(*records, strict=True))


def rollout(
    simulator: NativeSimulator, policy_fn: Callable[..., Tensor], num_steps: int, params: Any = None
) -> FusedTrajectory:
    """One rollout; where there are to be more, make a `FusedRollout` once, which keeps what it compiled.

    >>> from vecrl.simulators.native import make_native
    >>> simulator = make_native("CartPole-v1", 2)
    >>> _ = simulator.reset([0, 1])
    >>> record = rollout(simulator, lambda obs: (obs[:, 2] > 0).long(), 5)
    >>> record.obs.shape, record.reward.shape
    (torch.Size([5, 2, 4]), torch.Size([5, 2]))
    """
    return FusedRollout(simulator, policy_fn)(num_steps, params)
