"""`vecrl rollout`: runs episodes with a saved policy or random actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
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
from ..policy.policy_io import FlatActions
from ..policy.population import PopulationEvaluator
from ..policy.saved_policy import SavedPolicy
from ..seeding import Numbers, OwnSeeds, random_seed, seed_for, stream_for
from ..simulators.counter_rng import keys_of, uniform
from ..simulators.registry import find_entry
from .console import INTERRUPTED, SlowNotice, console, print_json, status
from .constant_observation import make_constant_observation_env
from .media import (
    PLOT_SUFFIXES,
    VIDEO_SUFFIXES,
    check_renders,
    check_window,
    draw_returns,
    play_in_window,
    prepare_output_path,
    record_video,
)
from .run_folder import RunFolder
from .run_log import RunLog


class RandomActions(nn.Module):
    """Outputs that make all actions of a space equally likely; of unit variance in dimensions without finite bounds.

    They depend on the seed, the episode and the step alone, so that a batch of any size plays the same episodes. The
    hidden state `[n, 1]` is the number of steps, and the parameters are the number of the episode: its lower and upper
    16 bits, since float32 has no larger integers.

    Args:
        actions: the actions of the space.
        seed: the seed of all episodes.
    """

    def __init__(self, actions: FlatActions, seed: int):
        super().__init__()
        self.low, self.high = (torch.from_numpy(bound).float() for bound in (actions.low, actions.high))
        self.keys = torch.from_numpy(keys_of(np.array([seed], np.uint64)))
        self.episode = nn.Parameter(torch.zeros(2))

    @staticmethod
    def parameters_of(episodes: range) -> Tensor:
        """Returns the parameters for each of these episodes, `[n, 2]`."""
        return torch.tensor([[episode % 2**16, episode >> 16] for episode in episodes], dtype=torch.float32)

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the outputs of one episode, and the next hidden state; `x` is `[1, features]`."""
        y, h = self.outputs(self.episode[None], h)
        return y, h

    def outputs(self, episodes: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the outputs `[n, actions]` for parameters `[n, 2]`, and the next hidden state."""
        steps = episodes.new_zeros(len(episodes), 1) if h is None else h
        low, high, seed_keys = (constant.to(episodes.device) for constant in (self.low, self.high, self.keys))
        numbers = episodes.to(torch.int64) @ torch.tensor([1, 2**16], device=episodes.device)
        keys = torch.stack([seed_keys[0] ^ numbers.to(torch.int32), seed_keys[1].expand(len(episodes))])
        samples = uniform(keys, steps[:, 0].to(torch.int32), len(low)).T
        return samples * (high - low) + low, steps + 1


@register_batched(RandomActions)
def _random(module: RandomActions, parameters: Parameters) -> BatchedForward:
    def forward(x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, state = module.outputs(parameters["episode"], h)
        return y.unsqueeze(1), state

    return forward


class RolloutCommand:
    """One call of the command.

    Args:
        env: the environment's name.
        policy: a policy, or its file; None for random actions.
        episodes: number of episodes, run in batches of `num_envs`.
        evaluator_options: more arguments of `PopulationEvaluator`: backend, num_workers, device, env_kwargs.
    """

    def __init__(
        self,
        env: str,
        policy: Path | SavedPolicy | None,
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
        self.saved_policy = SavedPolicy.load(policy) if isinstance(policy, Path) else policy

    def open_log(self, logger: str | None, parent: Path) -> RunLog:
        """Returns a log in a new folder of `parent` if `logger` is one, with the settings of the command."""
        if logger is None:
            return RunLog()
        log = RunLog.open(logger, RunFolder.new(parent, f"{self.env}-rollout").path)
        policy = "random actions" if self.saved_policy is None else self.saved_policy.network
        settings = {"env": self.env, "policy": policy, "episodes": self.episodes, "envs": self.num_envs}
        log.settings({**settings, "max_steps": self.max_steps, "seed": self.seed, **self.evaluator_options})
        return log

    def show(
        self,
        log: RunLog,
        *,
        plot: Path | None = None,
        video: Path | None = None,
        video_envs: int = 1,
        video_steps: int | None = None,
        human: bool = False,
        as_json: bool = False,
    ) -> None:
        """Runs the episodes, prints the results, writes the plot and the video, and shows an episode in a window.

        Args:
            log: gets the return and the length of each episode, and the video.
            plot, video: the files; None for none.
            video_envs: the number of episodes in the video, side by side.
            video_steps: the largest number of steps in the video and in the window; None for whole episodes.
            human: whether to show the first episode in a window.
            as_json: whether to print the results as JSON.

        Raises:
            ValueError: a file to write has an unsupported suffix, or the environment renders no images.
        """
        self._check_outputs(video, plot)
        if human:
            check_window(self.env)
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
        results: dict[str, Any] = {"env": self.env, "seed": self.seed}
        if evaluations:
            results |= self._report(Evaluation.concat(evaluations), seconds, plot, log)
        if not interrupted:
            steps = [limit for limit in (self.max_steps, video_steps) if limit is not None]
            film: dict[str, Any] = {"max_steps": min(steps, default=None), **self._recorded}
            if video is not None:
                results["video"] = self._record(module, video, video_envs, film, log)
            if human:
                played = play_in_window(self.env, module, seed=seed_for(self.seed, 0), **film)
                console.print(f"in the window: return {played:.4g}")
        if as_json:
            print_json(results)
        if interrupted:
            console.print(
                f"[yellow]Interrupted[/] after {sum(len(evaluation.returns) for evaluation in evaluations)} episodes."
            )
            raise typer.Exit(INTERRUPTED)

    def _report(self, result: Evaluation, seconds: float, plot: Path | None, log: RunLog) -> dict[str, Any]:
        """Prints, logs and plots the results of the episodes; returns them."""
        self._print(result, seconds)
        returns, lengths = result.returns.tolist(), result.lengths.tolist()
        for episode, numbers in enumerate(zip(returns, lengths, strict=True)):
            log.metrics(dict(zip(("return", "length"), numbers, strict=True)), episode)
        if plot is not None:
            draw_returns(returns, plot, self._title())
            console.print(f"plot: {plot}", soft_wrap=True, markup=False)
        rate = result.interactions / seconds
        return {
            "returns": returns,
            "lengths": [int(length) for length in lengths],
            "steps": result.interactions,
            "steps_per_second": rate,
            "plot": None if plot is None else str(plot),
        }

    def _record(
        self, module: nn.Module, path: Path, count: int, film: Mapping[str, Any], log: RunLog
    ) -> dict[str, object]:
        """Records the first `count` episodes in one video, prints where it is, and returns that and the returns."""
        modules = [module]
        if self.saved_policy is None:
            modules = [_random_episode(module, episode) for episode in range(count)]
        seeds = [seed_for(self.seed, episode) for episode in range(count)]
        with status("recording the video"):
            returns = record_video(self.env, modules * (count // len(modules)), path, seeds=seeds, log=log, **film)
        numbers = ", ".join(f"{number:.4g}" for number in returns)
        console.print(f"video: {path} (return {numbers})", soft_wrap=True, markup=False)
        return {"path": str(path), "returns": returns}

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
            seed = stream_for(self.seed, "actions")
            return PopulationEvaluator(
                env, lambda policy_io: RandomActions(policy_io.flat_actions, seed), self.num_envs, **options
            )
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
        vector = None if self.saved_policy is None else self.saved_policy.parameters
        if vector is None:
            vector = RandomActions.parameters_of(range(first_episode, first_episode + count))
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


def _random_episode(module: nn.Module, episode: int) -> nn.Module:
    """Returns a copy of `RandomActions` for one episode."""
    copy = deepcopy(module)
    nn.utils.vector_to_parameters(RandomActions.parameters_of(range(episode, episode + 1))[0], copy.parameters())
    return copy
