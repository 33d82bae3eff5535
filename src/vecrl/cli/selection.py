"""Selects the best policy of a run: the candidates and their tests.

The highest return in training is the maximum of many noisy ones, so it only nominates a candidate. A policy is judged
by its mean return over test episodes, which are the same for all candidates of a run and do not occur in training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ..policy.evaluation.settings import Evaluation
from ..policy.population import PopulationEvaluator
from ..policy.saved_policy import SavedPolicy
from ..seeding import SeedRule, stream_for
from .options import Options

EVERY = 10  # generations between two tests by default, at least
SHARE = 0.1  # maximum ratio of test steps to training steps by default; the next test waits while it is exceeded
PATIENCE = 3  # minimum of generations between two tests that start because training reached the goal
NUMBERS = "chosen_at", "episodes", "tested_at", "steps"  # attributes in the state


class Selection:
    """Tests candidates and keeps the best one, which only a higher mean in the same test replaces.

    Args:
        options: how often to test, and on how many episodes.
        evaluator: runs the test episodes.

    Attributes:
        best: the policy with the highest test mean, which is its `mean_return`; None before the first test.
        chosen_at: the generation after which `best` was tested.
        episodes: how many episodes the test of `best` has.
        luckiest: the policy with the highest return in training since the last scheduled test, which is its
            `mean_return`.
        tested_at: the generation of the last scheduled test.
        steps: environment steps of all scheduled tests.
    """

    def __init__(self, options: Options, evaluator: PopulationEvaluator):
        self._options, self._evaluator = options, evaluator
        self.best: SavedPolicy | None = None
        self.luckiest: SavedPolicy | None = None
        self.chosen_at, self.episodes = 0, options.test_episodes
        self.tested_at, self.steps = -PATIENCE, 0

    @property
    def solved(self) -> bool:
        """Whether there is a goal and the test mean of `best` reaches it."""
        return self._options.stop_at is not None and _mean(self.best) >= self._options.stop_at

    def nominate(self, policy: SavedPolicy) -> None:
        """Makes a policy the luckiest one if its return in training is the highest."""
        if _mean(policy) > _mean(self.luckiest):
            self.luckiest = policy

    def due(self, generation: int, steps: int, promising: bool) -> bool:
        """Returns whether a test is scheduled after a generation.

        Args:
            steps: environment steps of training so far.
            promising: training reached the goal, so that a test may end the run.
        """
        if promising and generation - self.tested_at >= PATIENCE:
            return True
        every = self._options.test_every
        if every is None:
            return generation - max(self.tested_at, 0) >= EVERY and self.steps <= SHARE * steps
        return generation % every == 0

    def test(self, generation: int, center: SavedPolicy, *, last: bool = False) -> float:
        """Tests the search's center, and the luckiest policy if it may be better; returns the higher mean return.

        Args:
            last: the run ends. Only `best` can change, so that a resumed run makes the same scheduled tests as one
                that did not end.
        """
        mean, steps = self._judge(generation, center)
        if self.luckiest is not None and _mean(self.luckiest) > _mean(self.best):
            other, more = self._judge(generation, self.luckiest)
            mean, steps = max(mean, other), steps + more
        if not last:
            self.tested_at, self.luckiest = generation, None
            self.steps += steps
        return mean

    def retest(self) -> None:
        """Tests `best` again if the number of test episodes changed: candidates compare under the same test only."""
        if self.best is not None and self.episodes != self._options.test_episodes:
            self.best = replace(self.best, mean_return=float(self._play(self.best).returns.mean()))
        self.episodes = self._options.test_episodes

    def report(self) -> float:
        """Returns the mean return of `best` over as many episodes that neither training nor any test uses."""
        assert self.best is not None
        return float(self._play(self.best, stream_for(self._options.seed or 0, "report")).returns.mean())

    def _judge(self, generation: int, policy: SavedPolicy) -> tuple[float, int]:
        """Tests a policy and keeps it if it is the best: its mean return, and the steps that the test took."""
        result = self._play(policy)
        mean = float(result.returns.mean())
        if mean > _mean(self.best):
            self.best, self.chosen_at = replace(policy, mean_return=mean), generation
        return mean, result.interactions

    def _play(self, policy: SavedPolicy, seed: int | SeedRule | None = None) -> Evaluation:
        layer = policy.obs_layer()
        if layer is not None and self._options.device is not None:
            layer = layer.to(self._options.device)
        return self._evaluator.test(policy.parameters, self._options.test_episodes, seed=seed, obs_layer=layer)

    def state_dict(self) -> dict[str, object]:
        """Returns everything that later tests depend on, as plain data."""
        policies = {"best": self.best, "luckiest": self.luckiest}
        return {
            **{name: None if policy is None else asdict(policy) for name, policy in policies.items()},
            **{name: getattr(self, name) for name in NUMBERS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.best, self.luckiest = (
            None if state[name] is None else SavedPolicy.from_dict(state[name]) for name in ("best", "luckiest")
        )
        for name in NUMBERS:
            setattr(self, name, int(state[name]))


def _mean(policy: SavedPolicy | None) -> float:
    """Returns the mean return of a policy, minus infinity if there is none."""
    return -math.inf if policy is None or policy.mean_return is None else policy.mean_return
