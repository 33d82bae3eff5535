"""Runs the episodes of a population in one batched simulator: member i acts in row i, all on the simulator's device.

No step waits for the device: rows of finished members are stepped on, and their results are ignored, unless the
simulator is on the CPU and can step the others alone. Every few steps the loop reads which members are active, and
continues with a smaller batch if the simulator can be made in any size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...engine.simulator import BatchSimulator, SupportsStepWhere
from ...vector.checked_simulator import CheckedSimulator
from ..policy import Policy
from ..policy_io import PolicyIO
from .settings import ActionNoise, Evaluation, FitnessRules, Normalizer, Seeding

ALIVE_CHECK_INTERVAL = 16  # steps between two reads of the mask of active members
RESIZE_FRACTION = 0.5  # a smaller batch is made when at most this share of the members is active
Resize = Callable[[int], BatchSimulator]


class TensorEpisodeAccounting:
    """Counts steps, episodes and rewards of the members in a batch, all on its device.

    Attributes:
        ids: `[k]`, the ids of the members.
        active: `[k]` bool, the mask of active members.
    """

    def __init__(self, members: int, rules: FitnessRules, device: torch.device):
        self.rules = rules
        self.ids = torch.arange(members, device=device)
        self.active = torch.ones(members, dtype=torch.bool, device=device)
        self._results = torch.zeros(4, members, dtype=torch.float64, device=device)
        self._episode_step = torch.zeros(members, dtype=torch.int64, device=device)
        self._fitness, self._returns, self._steps, self._episodes = self._results

    def add(self, reward: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
        """Counts a step of all active members; returns the mask `[k]` of members that start another episode now."""
        rules, active = self.rules, self.active
        self._returns = self._returns + torch.where(active, reward, 0.0)
        self._steps = self._steps + active
        if rules.has_shaping:
            self._episode_step = self._episode_step + 1
            self._fitness = self._fitness + torch.where(
                active, rules.shape_reward(reward, terminated, self._episode_step), 0.0
            )
        done = (terminated | truncated) & active
        if rules.max_steps is not None:
            out_of_steps = active & (self._steps >= rules.max_steps)
            done, active = done | out_of_steps, active & ~out_of_steps
        self._episodes = self._episodes + done
        if rules.num_episodes == 1:
            self.active = active & ~done
            return torch.zeros_like(done)
        self.active = active & (self._episodes < rules.num_episodes)
        starts_episode = done & self.active
        if rules.has_shaping:
            self._episode_step = torch.where(starts_episode, 0, self._episode_step)
        return starts_episode

    def running_columns(self) -> tuple[Tensor, ...]:
        """Returns the tensors that `add` reads and updates, `[k]` each."""
        return self.active, self._episode_step, self._fitness, self._returns, self._steps, self._episodes

    def set_columns(self, columns: Sequence[Tensor]) -> None:
        """Sets the tensors that `running_columns` returned."""
        self.active, self._episode_step, self._fitness, self._returns, self._steps, self._episodes = columns

    def keep(self, row_index: Tensor) -> None:
        """Stores the results of all rows, and keeps only the rows in `row_index`."""
        self._store_results()
        self.ids = self.ids[row_index]
        self.set_columns([column[row_index] for column in self.running_columns()])

    def _store_results(self) -> None:
        self._results[:, self.ids] = torch.stack(self.running_columns()[2:])

    def result(self, members: int | None) -> Evaluation:
        """Returns the results of the first `members` members, when no member is active."""
        self._store_results()
        fitness, returns, steps, episodes = self._results[:, :members].cpu()
        returns, lengths = returns / episodes, steps / episodes
        return Evaluation(fitness / episodes if self.rules.has_shaping else returns, returns, lengths, int(steps.sum()))


@torch.no_grad()
def evaluate_on_device(
    simulator: BatchSimulator,
    policy: Policy,
    policy_io: PolicyIO,
    rules: FitnessRules,
    seeds: Seeding,
    normalizer: Normalizer,
    generator: torch.Generator | None = None,
    *,
    members: int | None = None,
    resize: Resize | None = None,
) -> Evaluation:
    """Runs the episodes of all members of a policy in lock step, and returns their results.

    Args:
        simulator: a simulator with one row per member of the policy.
        policy: the policy, with a batch of parameters.
        policy_io: the conversion between network and spaces.
        rules: the rules for episodes and fitness.
        seeds: returns the seeds of the first episodes `(ids, episodes)`; the simulator derives those of later episodes.
        normalizer: the normalization of observations.
        generator: the generator of the action noise, on the simulator's device.
        members: only this many members, the first ones, count; None counts all.
        resize: makes the same simulator in another size, if that is cheap; None keeps the size.
    """
    size, device = simulator.num_envs, torch.device(simulator.device)
    accounting, noise = TensorEpisodeAccounting(size, rules, device), ActionNoise(rules.action_noise, size, generator)
    accounting.active[members:] = False
    checked, steps_rows = CheckedSimulator(simulator), device.type == "cpu" and isinstance(simulator, SupportsStepWhere)
    features = policy_io.features(checked.reset(seeds(np.arange(size), np.zeros(size, np.int64)).tolist()))
    while True:
        for _ in range(ALIVE_CHECK_INTERVAL):
            outputs = policy(normalizer(features, accounting.active))
            actions = policy_io.actions(noise(outputs, accounting.ids))
            step = checked.step_where(accounting.active, actions) if steps_rows else checked.step(actions)
            starts_episode = accounting.add(step.reward, step.terminated, step.truncated)
            obs = step.next_obs
            if rules.num_episodes > 1:
                obs = checked.reset_where(starts_episode)
                policy.reset(starts_episode)
            features = policy_io.features(obs)
            if steps_rows and not accounting.active.any():
                break
        num_active = int(accounting.active.sum())
        if not num_active:
            normalizer.flush()
            return accounting.result(members)
        if resize is not None and num_active <= RESIZE_FRACTION * len(accounting.ids):
            active_rows = accounting.active.nonzero().squeeze(1)
            state = {name: value[active_rows] for name, value in simulator.get_state().items()}
            simulator, policy, features = resize(num_active), policy.select(active_rows), features[active_rows]
            simulator.set_state(state)
            checked = CheckedSimulator(simulator)
            accounting.keep(active_rows)
