"""Compiles a policy and a native simulator into one function of many steps, without Python between the steps.

For small batches, the arithmetic of a step takes less time than the call of it. In an unrolled loop, a step needs no
call and no check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...engine.simulator import BatchStep
from ...engine.space_layout import Tree
from ..compile_utils import as_bytes, compile_graph
from ..row_task import RowState, RowTaskSimulator

Region = Callable[[RowState, Tensor, Tree], tuple[RowState, Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True, slots=True)
class FusedTrajectory:
    """T steps of n rows; time is the first dimension.

    Attributes:
        obs: `[T, n, k]`, the observations that the policy received.
        actions: `[T, n, ...]`, as the policy returned them.
        reward: `[T, n]`.
        terminated, truncated: `[T, n]` bool; if either is true, the next step is of a new episode.
        next_obs: `[T, n, k]`, the observations after the steps, including final observations; None unless requested.
        last_obs: `[n, k]`, the observations to act on after the last step.
    """

    obs: Tensor
    actions: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor | None
    last_obs: Tensor


class FusedRollout:
    """Rollouts of one policy on one native simulator, with an auto-reset of rows at the end of an episode.

    Args:
        simulator: the rollout starts from its current rows, and updates them.
        policy_fn: a function of the observations `[n, k]` (and of `params`, if `__call__` receives any) that returns
            actions `[n]` or `[n, k]` and does not read tensors' values in Python. It may draw random numbers. Compiled,
            `torch.tanh` of float32 tensors is `compile_utils.fast_tanh`, with relative errors of up to 4e-7.
        chunk: how many steps are compiled into one region. A step is faster in a longer region, but takes a second or
            more to compile. Rollouts of other lengths consist of several chunks and one shorter region.
        compile: whether to compile; by default the simulator's `compile`.
        next_obs: whether to return `FusedTrajectory.next_obs`.
    """

    def __init__(
        self,
        simulator: RowTaskSimulator,
        policy_fn: Callable[..., Tensor],
        *,
        chunk: int = 8,
        compile: bool | None = None,  # noqa: A002 -- torch's name for it
        next_obs: bool = False,
    ):
        if chunk < 1:
            raise ValueError(f"Expected a chunk of at least 1 step, got {chunk!r}.")
        self.simulator = simulator
        self.policy_fn = policy_fn
        self.chunk = chunk
        self.compile = simulator.compile if compile is None else compile
        self.next_obs = next_obs
        self._regions: dict[int, Region] = {}

    @torch.no_grad()
    def __call__(self, num_steps: int, params: Tree = None) -> FusedTrajectory:
        """Steps every row `num_steps` times.

        Args:
            num_steps: T, at least 1.
            params: a nested structure of tensors, which the policy receives as its second argument unless it is None.
                Pass tensors that change between rollouts (a population's parameters) here: tensors of the same shapes
                and dtypes need no new compilation.

        Raises:
            PendingError: the simulator was not reset yet.
        """
        if num_steps < 1:
            raise ValueError(f"Expected num_steps of at least 1, got {num_steps!r}.")
        chunks: list[tuple[Tensor, ...]] = []
        rows = self.simulator.rows
        obs = self.simulator.rows_obs(rows)
        while num_steps:
            length = min(self.chunk, num_steps) if self.compile else num_steps
            rows, obs, chunk_records = self._maybe_compile(length)(rows, obs, params)
            chunks.append(chunk_records)
            num_steps -= length
        self.simulator.rows = RowState(*rows)
        stacked = [values[0] if len(values) == 1 else torch.cat(values) for values in zip(*chunks, strict=True)]
        obs_steps, actions, reward, terminated, truncated, *next_obs_steps = stacked
        flags = terminated.view(torch.bool), truncated.view(torch.bool)
        return FusedTrajectory(obs_steps, actions, reward, *flags, next_obs_steps[0] if next_obs_steps else None, obs)

    def _maybe_compile(self, length: int) -> Region:
        if length not in self._regions:

            def run(rows: RowState, obs: Tensor, params: Tree) -> tuple[RowState, Tensor, tuple[Tensor, ...]]:
                return self._unroll(length, rows, obs, params)

            self._regions[length] = self._compiled(run) if self.compile else run
        return self._regions[length]

    def _compiled(self, run: Region) -> Region:
        # The policy may close over tensors that change, so this uses `torch.compile` with its guards. On a CPU, the
        # calls of the kernels are compiled too, since there are several per step.
        backend = partial(compile_graph, cpp_wrapper=self.simulator.device == "cpu")
        return torch.compile(run, fullgraph=True, dynamic=False, backend=backend)

    def _step(self, actions: Tensor, rows: RowState) -> tuple[BatchStep, Tensor, RowState]:
        if self.compile:
            return self.simulator.step_and_restart(actions, rows)
        step, _, next_obs, rows = self.simulator.step_and_restart_rows(actions, rows)
        return step, next_obs, rows

    def _unroll(
        self, length: int, rows: RowState, obs: Tensor, params: Tree
    ) -> tuple[RowState, Tensor, tuple[Tensor, ...]]:
        records = []
        for _ in range(length):
            actions = self.policy_fn(obs) if params is None else self.policy_fn(obs, params)
            step, next_obs, rows = self._step(actions, rows)
            record = (obs, actions, step.reward, as_bytes(step.terminated), as_bytes(step.truncated))
            records.append((*record, step.next_obs) if self.next_obs else record)
            obs = next_obs
        return rows, obs, tuple(torch.stack(values) for values in zip(*records, strict=True))


def rollout(
    simulator: RowTaskSimulator, policy_fn: Callable[..., Tensor], num_steps: int, params: Tree = None
) -> FusedTrajectory:
    """Runs one rollout. For several, construct one `FusedRollout`, which keeps its compiled code.

    >>> from vecrl.simulators.native import make_native
    >>> simulator = make_native("CartPole-v1", 2)
    >>> _ = simulator.reset([0, 1])
    >>> record = rollout(simulator, lambda obs: (obs[:, 2] > 0).long(), 5)
    >>> record.obs.shape, record.reward.shape
    (torch.Size([5, 2, 4]), torch.Size([5, 2]))
    """
    return FusedRollout(simulator, policy_fn)(num_steps, params)
