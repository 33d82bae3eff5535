"""How a population plays episodes in one batched simulator: member i acts in row i, all on the simulator's device.

Nobody waits for the device within a step: rows that are over go on unseen. Only now and then somebody looks who still
plays, and lets those go on in a smaller batch where the simulator can be had in any size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vecrl.engine.simulator import BatchSimulator
from vecrl.policy.episodes import Evaluation, Noise, Normaliser, Rules, Seeding
from vecrl.policy.interface import Interface
from vecrl.policy.policy import Policy

LOOK_EVERY = 16  # steps between two looks at who still plays
SHRINK = 0.5  # a smaller batch takes over once no more than this share still plays
Resize = Callable[[int], BatchSimulator]


class Scores:
    """What the members in a batch have reached, all on its device.

    Attributes:
        ids: `[k]`, who they are.
        alive: `[k]` bool, who still plays.
    """

    def __init__(self, members: int, rules: Rules, device: torch.device):
        self.rules = rules
        self.ids = torch.arange(members, device=device)
        self.alive = torch.ones(members, dtype=torch.bool, device=device)
        self._results = torch.zeros(4, members, dtype=torch.float64, device=device)
        self._age = torch.zeros(members, dtype=torch.int64, device=device)
        self._fitness, self._returns, self._steps, self._episodes = self._results

    def add(self, reward: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
        """Count a step of all who play: a mask `[k]` of those who begin another episode now."""
        rules, alive = self.rules, self.alive
        self._returns = self._returns + torch.where(alive, reward, 0.0)
        self._steps = self._steps + alive
        if rules.shaping:
            self._age = self._age + 1
            self._fitness = self._fitness + torch.where(alive, rules.shaped(reward, terminated, self._age), 0.0)
        done = (terminated | truncated) & alive
        if rules.max_steps is not None:
            spent = alive & (self._steps >= rules.max_steps)
            done, alive = done | spent, alive & ~spent
        self._episodes = self._episodes + done
        if rules.num_episodes == 1:
            self.alive = alive & ~done
            return torch.zeros_like(done)
        self.alive = alive & (self._episodes < rules.num_episodes)
        begin = done & self.alive
        if rules.shaping:
            self._age = torch.where(begin, 0, self._age)
        return begin

    def columns(self) -> tuple[Tensor, ...]:
        """All that `add` goes on from, `[k]` each."""
        return self.alive, self._age, self._fitness, self._returns, self._steps, self._episodes

    def set_columns(self, columns: Sequence[Tensor]) -> None:
        """Go on from there."""
        self.alive, self._age, self._fitness, self._returns, self._steps, self._episodes = columns

    def keep(self, rows: Tensor) -> None:
        """Put by what all have reached, and go on with these rows alone."""
        self._put_by()
        self.ids = self.ids[rows]
        self.set_columns([column[rows] for column in self.columns()])

    def _put_by(self) -> None:
        self._results[:, self.ids] = torch.stack(self.columns()[2:])

    def result(self, members: int | None) -> Evaluation:
        """Of the first `members`, when nobody plays any more."""
        self._put_by()
        fitness, returns, steps, episodes = self._results[:, :members].cpu()
        returns, lengths = returns / episodes, steps / episodes
        return Evaluation(fitness / episodes if self.rules.shaping else returns, returns, lengths, int(steps.sum()))


@torch.no_grad()
def play_batch(
    simulator: BatchSimulator,
    policy: Policy,
    interface: Interface,
    rules: Rules,
    seeds: Seeding,
    normaliser: Normaliser,
    generator: torch.Generator | None = None,
    *,
    members: int | None = None,
    resize: Resize | None = None,
) -> Evaluation:
    """Let each of the policy's members play its episodes, all in lock step.

    Args:
        simulator: of as many rows as the policy has members.
        seeds: of the first episodes `(ids, episodes)`; later ones follow from them in the simulator's own way.
        generator: of the action noise, on the simulator's device.
        members: those that count, the first ones; None counts all.
        resize: makes such a simulator in another size, where that is cheap; None keeps the size.
    """
    size, device = simulator.num_envs, torch.device(simulator.device)
    scores, noise = Scores(size, rules, device), Noise(rules.action_noise, size, generator)
    scores.alive[members:] = False
    obs = simulator.reset(seeds(np.arange(size), np.zeros(size, np.int64)).tolist())
    while True:
        for _ in range(LOOK_EVERY):
            outputs = policy(normaliser(interface.features(obs), scores.alive))
            step = simulator.step(interface.actions(noise(outputs, scores.ids)))
            begin = scores.add(step.reward, step.terminated, step.truncated)
            obs = step.next_obs
            if rules.num_episodes > 1:
                obs = simulator.reset_where(begin)
                policy.reset(begin)
        left = int(scores.alive.sum())
        if not left:
            normaliser.flush()
            return scores.result(members)
        if resize is not None and left <= SHRINK * len(scores.ids):
            rows = scores.alive.nonzero().squeeze(1)
            state = {name: value[rows] for name, value in simulator.get_state().items()}
            simulator, policy, obs = resize(left), policy.select(rows), obs[rows]
            simulator.set_state(state)
            scores.keep(rows)
