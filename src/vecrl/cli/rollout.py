"""`vecrl rollout`: runs episodes with a saved policy or random actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from rich.table import Table
from torch import Tensor, nn

from ..gym_interface import Env
from ..policy.batched_kernels import BatchedForward, Parameters, register_batched
from ..policy.evaluation.settings import Evaluation
from ..policy.policy_io import FlatActions, PolicyIO
from ..policy.population import PopulationEvaluator
from ..policy.saved_policy import SavedPolicy
from ..seeding import Numbers, OwnSeeds, random_seed, seed_for, stream_for
from ..simulators.registry import find_entry
from .console import INTERRUPTED, SlowNotice, console, status
from .constant_observation import make_constant_observation_env
from .media import PLOT_SUFFIXES, VIDEO_SUFFIXES, check_renders, draw_returns, prepare_output_path, record_video
from .run_folder import RunFolder
from .run_log import RunLog


class RandomActions(nn.Module):
    """Outputs that make all actions of a space equally likely; of unit variance in dimensions without finite bounds."""

    def __init__(self, actions: FlatActions):
        super().__init__()
        self.low, self.high = (torch.from_numpy(bound).float() for bound in (actions.low, actions.high))

    def forward(self, x: Tensor) -> Tensor:
        return torch.rand(*x.shape[:-1], len(self.low)) * (self.high - self.low) + self.low


@register_batched(RandomActions)
def _random(module: RandomActions, parameters: Parameters) -> BatchedForward:
    return module.forward


def _load_policy(path: Path) -> SavedPolicy:
    try:
        return SavedPolicy.load(path)
    except OSError as error:
        raise ValueError(
            f"Expected --policy to be a file that vecrl evolve wrote, such as RUN/best.pt, got {str(path)!r}: "
            f"{error.strerror}."
        ) from error


def _random_actions(policy_io: PolicyIO) -> RandomActions:
    return RandomActions(policy_io.flat_actions)


class RolloutCommand:
    """One call of the command.

    Args:
        env: the environment's name.
        policy: a file of `SavedPolicy`; None for random actions.
        episodes: number of episodes, run in batches of `num_envs`.
        evaluator_options: more arguments of `PopulationEvaluator`: backend, num_workers, device, env_kwargs.
    """

    def __init__(
        self,
        env: str,
        policy: Path | None,
        episodes: int,
        num_envs: int,
        max_steps: int | None,
        seed: int | None,
        threads: int,
        evaluator_options: dict[str, Any],
    ):
        torch.set_num_threads(threads)
        self.env, self.episodes, self.evaluator_options, self.max_steps = env, episodes, evaluator_options, max_steps
        self.num_envs = min(num_envs, episodes)
        self.seed = random_seed() if seed is None else seed
        self.saved_policy = None if policy is None else _load_policy(policy)

    def open_log(self, logger: str | None, parent: Path) -> RunLog:
        """Returns a log in a new folder of `parent` if `logger` is one, with the settings of the command."""
        if logger is None:
            return RunLog()
        log = RunLog.open(logger, RunFolder.new(parent, f"{self.env}-rollout").path)
        policy = "random actions" if self.saved_policy is None else self.saved_policy.network
        settings = {"env": self.env, "policy": policy, "episodes": self.episodes, "envs": self.num_envs}
        log.settings({**settings, "max_steps": self.max_steps, "seed": self.seed, **self.evaluator_options})
        return log

    def show(self, video: Path | None, plot: Path | None, log: RunLog) -> None:
        """Runs the episodes, prints the results, and writes the plot and the video.

        Args:
            video, plot: the files; None for none.
            log: gets the return and the length of each episode, and the video.

        Raises:
            ValueError: a file to write has an unsupported suffix, or the environment renders no images.
        """
        self._check_outputs(video, plot)
        torch.manual_seed(stream_for(self.seed, "actions") >> 1)
        evaluations: list[Evaluation] = []
        started, interrupted = time.perf_counter(), False
        with self._evaluator() as evaluator:
            started = time.perf_counter()
            try:
                with status("running"), SlowNotice(self.max_steps is not None).watch():
                    for first_episode in range(0, self.episodes, self.num_envs):
                        evaluations.append(self._evaluate(evaluator, first_episode))
            except KeyboardInterrupt:
                interrupted = True
            seconds = time.perf_counter() - started
            module = evaluator.policy.wrapped_module if self.saved_policy is None else self.saved_policy.module()
        if evaluations:
            result = Evaluation.concat(evaluations)
            self._print(result, seconds)
            for episode, numbers in enumerate(zip(result.returns.tolist(), result.lengths.tolist(), strict=True)):
                log.metrics(dict(zip(("return", "length"), numbers, strict=True)), episode)
            if plot is not None:
                draw_returns(result.returns.tolist(), plot, self._title())
                console.print(f"plot: {plot}", soft_wrap=True, markup=False)
        if interrupted:
            console.print(
                f"[yellow]Interrupted[/] after {sum(len(evaluation.returns) for evaluation in evaluations)} episodes."
            )
            raise typer.Exit(INTERRUPTED)
        if video is not None:
            with status("recording the video"):
                video_return = record_video(
                    self.env,
                    module,
                    video,
                    seed=seed_for(self.seed, 0),
                    max_steps=self.max_steps,
                    log=log,
                    **self._recorded,
                )
            console.print(f"video: {video} (return {video_return:.4g})", soft_wrap=True, markup=False)

    @property
    def _recorded(self) -> dict[str, Any]:
        """The arguments that say which environment is recorded."""
        kwargs = self.evaluator_options["env_kwargs"]
        return {"env_kwargs": kwargs, "constant_observation": self.saved_policy is None}

    def _check_outputs(self, video: Path | None, plot: Path | None) -> None:
        """Raises the errors of files that cannot be written before the first episode, not after the last."""
        for path, suffixes in ((video, VIDEO_SUFFIXES), (plot, PLOT_SUFFIXES)):
            if path is not None:
                prepare_output_path(path, suffixes)
        if video is not None:
            check_renders(self.env, **self._recorded)

    def _title(self) -> str:
        return f"{self.env}, {'random actions' if self.saved_policy is None else 'saved policy'}"

    def _evaluator(self) -> PopulationEvaluator:
        options = {"max_steps": self.max_steps, **self.evaluator_options}
        if self.saved_policy is None:
            entry, name = find_entry(self.env)
            env: str | Callable[[], Env] = self.env
            if entry.env_fn is not None:
                env = partial(make_constant_observation_env, entry.env_fn(name, **options.pop("env_kwargs")))
            return PopulationEvaluator(env, _random_actions, self.num_envs, **options)
        evaluator = PopulationEvaluator(self.env, self.saved_policy.network, self.num_envs, **options)
        try:
            self.saved_policy.check_spaces(self.env, evaluator.policy_io)
        except ValueError:
            evaluator.close()
            raise
        return evaluator

    def _evaluate(self, evaluator: PopulationEvaluator, first_episode: int) -> Evaluation:
        def seeds(env_ids: Numbers, episodes: Numbers) -> np.ndarray:
            return OwnSeeds(self.seed)(np.add(env_ids, first_episode), episodes)

        count = min(self.num_envs, self.episodes - first_episode)
        vector = torch.empty(0) if self.saved_policy is None else self.saved_policy.parameters
        layer = None if self.saved_policy is None else self.saved_policy.obs_layer()
        return evaluator.test(vector, count, seed=seeds, obs_layer=layer)

    def _print(self, result: Evaluation, seconds: float) -> None:
        title = f"{self._title()}: {len(result.returns)} episodes"
        table = Table("", "mean", "deviation", "minimum", "maximum", title=title)
        for name, values in (("return", result.returns), ("length", result.lengths)):
            numbers = values.mean(), values.std(unbiased=False), values.min(), values.max()
            table.add_row(name, *(f"{number:.5g}" for number in numbers))
        console.print(table)
        rate = result.interactions / seconds
        console.print(f"{result.interactions} steps in {seconds:.2f} s: {rate:,.0f} steps/s (seed {self.seed})")
