"""`vecrl evolve`: a population search on any environment, saved in a run folder. A resumed run gives the same bits."""

from __future__ import annotations

import math
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.live import Live
from rich.markup import escape
from torch import Tensor

from ..policy.population import OBS_CLIP
from ..policy.saved_policy import SavedPolicy
from ..policy.search import Search
from ..seeding import random_seed, seed_for, stream_for
from ..simulators.faster import faster_name
from .console import INTERRUPTED, Settings, SlowNotice, console, deferred_interrupts, first_line, status
from .list_envs import refuse_unused
from .media import draw_curve, record_video, require_ffmpeg
from .options import CHANGEABLE_OPTIONS, Options
from .run_folder import RunFolder, checked_env_args
from .run_log import RunLog
from .selection import Selection

SAVE_INTERVAL_S = 5.0  # seconds between two states on disk
PRINT_INTERVAL_S = 5.0  # seconds between two lines if the output is no terminal
MANY_PARAMETERS = 100_000  # with more, a population search makes little progress


class Evolution:
    """A run: the search, the evaluator, the selection of the best policy and the folder.

    Args:
        options: the options, with a seed.
        folder: the run folder.
        state: the state to resume; None for a new run.
    """

    def __init__(self, options: Options, folder: RunFolder, state: Mapping[str, Any] | None = None):
        torch.set_num_threads(options.threads)
        self.options, self.folder = options, folder
        self.steps, self.seconds = 0, 0.0
        self._last: dict[str, float] = {}
        self._steps_per_second = self._mean_generation_s = 0.0
        self._resumed = state is not None
        self._log = RunLog()
        self._slow_notice = SlowNotice(options.max_steps is not None)
        self.evaluator = options.evaluator()
        try:
            self.search = self._new_search()
            self.selection = Selection(options, self.evaluator)
            if state is not None:
                self._load(state)
            self._last_complete = self.state_dict()  # the state after the last complete generation
        except BaseException:
            self.evaluator.close()
            raise

    def _new_search(self) -> Search:
        center = torch.zeros(self.evaluator.parameter_length)
        return self.options.search(center, seed=stream_for(self.options.seed or 0, "search") >> 1)

    @classmethod
    def start(cls, options: Options, parent: Path) -> Evolution:
        """Creates a new run in a new folder of `parent`."""
        if options.seed is None:
            options = replace(options, seed=random_seed())
        run = cls(options, RunFolder(parent))  # before the folder is created, so that wrong options leave none
        try:
            with deferred_interrupts():  # so that they leave no folder without its files
                run._create_folder(parent)
        except BaseException:
            run.evaluator.close()
            raise
        return run

    @classmethod
    def check(cls, options: Options) -> None:
        """Raises the errors of `start` that need no folder."""
        cls(options, RunFolder(Path())).evaluator.close()

    def _create_folder(self, parent: Path) -> None:
        self.folder = RunFolder.new(parent, self.options.env)
        try:
            self.folder.write_state(self.state_dict(), None)  # before config.yaml: a folder with one can be resumed
            self.write_config()
        except BaseException:
            shutil.rmtree(self.folder.path)
            raise

    @classmethod
    def resume(cls, path: Path, changes: Mapping[str, Any]) -> Evolution:
        """Loads the run in the folder `path`, with some options changed.

        What names code in the folder is used only if `changes` name it too, see `checked_env_args`.

        Raises:
            ValueError: `path` is no run folder, an option cannot change, or the folder names code that `changes` do not
                name.
        """
        folder = RunFolder(path)
        config, state = folder.read_config(), folder.read_state()
        unchangeable = set(changes) - CHANGEABLE_OPTIONS - {"env", "env_args"}
        if unchangeable:
            allowed = ", ".join(sorted(CHANGEABLE_OPTIONS))
            raise ValueError(
                f"Expected only changes of {allowed} in a resumed run, got {', '.join(sorted(unchangeable))}."
            )
        saved = Options.from_dict(config, folder.config)
        refuse_unused(saved.env, changes)
        others = {name: value for name, value in changes.items() if name in CHANGEABLE_OPTIONS}
        env_args = checked_env_args(folder.config, saved.env, saved.env_args, changes)
        return cls(replace(saved, env_args=env_args, **others), folder, state)

    def write_config(self) -> None:
        """Writes the options and the version of vecrl to the folder."""
        import vecrl

        config = asdict(self.options)
        if self.options.alive_bonus is not None:
            config["alive_bonus"] = list(self.options.alive_bonus)
        self.folder.write_config({"vecrl": vecrl.__version__, **config})

    # -- the run -------------------------------------------------------------------------------------

    def show(self) -> int:
        """Runs until the goal, the last generation or an interrupt; saves and prints the result.

        Returns:
            The exit code of the command.
        """
        try:
            with self.folder.lock():
                if self._resumed:
                    self.folder.rewind(self.search.generation)
                    self.write_config()
                with RunLog.open(self.options.logger, self.folder.path) as self._log:
                    self._log.settings(asdict(self.options))
                    return self._show()
        except Exception:
            if not self._resumed and not self.search.generation:  # the folder has nothing to resume or to play
                shutil.rmtree(self.folder.path, ignore_errors=True)
            raise
        finally:
            self.evaluator.close()

    def _show(self) -> int:
        options, interrupted, reported = self.options, False, None
        console.print(
            f"[bold]{escape(options.env)}[/]: {self.search.popsize} members of {self.evaluator.parameter_length} "
            f"parameters, seed {options.seed}, in {escape(str(self.folder.path))}",
            soft_wrap=True,
        )
        if (name := faster_name(options.env)) is not None:
            console.print(f"[dim]vecrl evolve {name} gives the same values, and is faster.[/]", soft_wrap=True)
        if self.evaluator.parameter_length >= MANY_PARAMETERS:
            console.print(
                f"[yellow]A search over {self.evaluator.parameter_length:,} parameters is slow.[/] The default network "
                "has 16 for each number of an observation. Use smaller observations, or a --network with fewer.",
                soft_wrap=True,
            )
        records_video = options.video and self._can_record()
        try:
            with self._slow_notice.watch():
                self.selection.retest()
            self._run()
            self._test_last()
            self._last_complete = self.state_dict()
        except KeyboardInterrupt:
            interrupted = True
            self._load(self._last_complete)  # discards an incomplete generation
        try:
            self._save_last_complete()
            if not interrupted:
                reported = self._report()
            self.evaluator.close()
            if records_video and not interrupted:
                self._record_video()
        except KeyboardInterrupt:
            interrupted = True
        self._conclude(interrupted, reported)
        return INTERRUPTED if interrupted else 0

    def _run(self) -> None:
        last_saved = last_printed = time.monotonic()
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while self.search.generation < self.options.generations and not self.selection.solved:
                self._last = self.advance()
                self._test_if_due()
                self.folder.append(self._last)
                self._write_log(**self._last)
                self._last_complete = self.state_dict()
                now = time.monotonic()
                if console.is_terminal:
                    live.update(self._line())
                elif now - last_printed > PRINT_INTERVAL_S:
                    last_printed = now
                    console.print(self._line(), soft_wrap=True)
                if now - last_saved > SAVE_INTERVAL_S:
                    last_saved = now
                    self.folder.write_state(self._last_complete, self._policy())

    def advance(self) -> dict[str, float]:
        """Runs one generation; returns its line of metrics.csv."""
        started, norm_state = time.perf_counter(), self._norm_state()
        population = torch.cat([self.search.ask(), self.search.center[None]])
        with self._slow_notice.watch():
            result = self.evaluator(population)
        self.search.tell(result.fitness[:-1].float())
        elapsed = time.perf_counter() - started
        self.steps += result.interactions
        self.seconds += elapsed
        self._steps_per_second = result.interactions / elapsed
        self._mean_generation_s = (
            elapsed if not self._mean_generation_s else 0.8 * self._mean_generation_s + 0.2 * elapsed
        )
        best_index = int(result.returns.argmax())
        self.selection.nominate(
            self._make_saved_policy(population[best_index], norm_state, float(result.returns[best_index]))
        )
        members = result.returns[:-1]
        return {
            "generation": self.search.generation,
            "steps": self.steps,
            "seconds": self.seconds,
            "best": float(members.max()),
            "mean": float(members.mean()),
            "median": float(members.median()),
            "center": float(result.returns[-1]),
            "length": float(result.lengths[:-1].mean()),
            "stdev": float(self.search.stdev.mean()),
            "test": math.nan,
        }

    def _line(self) -> str:
        row, best = self._last, self.selection.best
        test_text = "" if best is None else f"tested [bold]{best.mean_return:.5g}[/]  "
        return (
            f"generation {row['generation']:.0f}/{self.options.generations}  {test_text}best {row['best']:.5g}  "
            f"mean {row['mean']:.5g}  center {row['center']:.5g}  {self._steps_per_second:,.0f} steps/s  "
            f"{row['seconds']:.0f} s{self._remaining(row)}"
        )

    def _remaining(self, row: Mapping[str, float]) -> str:
        """Returns how long the remaining generations take if each takes as long as the mean of the last ones."""
        remaining = self.options.generations - row["generation"]
        if not remaining:
            return ""
        return f", at most {timedelta(seconds=round(remaining * self._mean_generation_s))} more"

    # -- the best policy -----------------------------------------------------------------------------

    def _norm_state(self) -> dict[str, Tensor] | None:
        norm = self.evaluator.norm
        return None if norm is None or norm.stats.empty else {k: v.cpu() for k, v in norm.state_dict().items()}

    def _make_saved_policy(self, vector: Tensor, norm: dict[str, Tensor] | None, mean: float | None) -> SavedPolicy:
        options, policy_io = self.options, self.evaluator.policy_io
        return SavedPolicy(
            options.env,
            options.network,
            policy_io.constants,
            vector.clone(),
            norm,
            OBS_CLIP,
            mean,
            spaces=policy_io.spaces,
        )

    def _center(self) -> SavedPolicy:
        return self._make_saved_policy(self.search.center, self._norm_state(), None)

    def _policy(self) -> SavedPolicy:
        """Returns the policy for best.pt: the best tested one, or the center of the search before the first test."""
        return self.selection.best or self._center()

    def _test_if_due(self) -> None:
        row, goal = self._last, self.options.stop_at
        promising = goal is not None and max(row["center"], row["mean"]) >= goal
        if self.selection.due(self.search.generation, self.steps, promising):
            with self._slow_notice.watch():
                row["test"] = self.selection.test(self.search.generation, self._center())

    def _test_last(self) -> None:
        """Tests the policies since the last test, unless the goal is reached."""
        generation, selection = self.search.generation, self.selection
        if selection.solved or selection.tested_at == generation:
            return
        with status(f"testing on {self.options.test_episodes} episodes"), self._slow_notice.watch():
            mean = selection.test(generation, self._center(), last=True)
        self.folder.record_test(generation, mean)
        self._write_log(generation, test=mean)

    def _report(self) -> float | None:
        if self.selection.best is None:
            return None
        with status(f"running {self.options.test_episodes} fresh episodes"), self._slow_notice.watch():
            reported = self.selection.report()
        self._write_log(self.search.generation, reported=reported)
        return reported

    def _write_log(self, generation: float, **metrics: float) -> None:
        self._log.metrics(metrics, int(generation))

    # -- state and output ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        """Returns everything that later generations depend on, as plain data."""
        return {
            "search": self.search.state_dict(),
            "evaluator": self.evaluator.state_dict(),
            "selection": self.selection.state_dict(),
            "steps": self.steps,
            "seconds": self.seconds,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        try:
            self.search.load_state_dict(state["search"])
            self.evaluator.load_state_dict(state["evaluator"])
            self.selection.load_state_dict(state["selection"])
            self.steps, self.seconds = int(state["steps"]), float(state["seconds"])
        except Exception as error:  # values of other types and shapes may raise anything
            reason = (
                first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
            )
            raise ValueError(
                f"Expected {self.folder.state} to be the state of the run in config.yaml, got another one ({reason}). "
                "Start a new run."
            ) from error

    def _save_last_complete(self) -> None:
        """Writes the state after the last complete generation, if there is one."""
        if not self.search.generation:
            return
        self.folder.rewind(self.search.generation)
        self.folder.write_state(self._last_complete, self._policy())
        draw_curve(self.folder.rows(), self.folder.curve, self.options.env, self.options.stop_at)

    def _can_record(self) -> bool:
        """Returns whether a video can be encoded, and says at the start of a run if it cannot."""
        try:
            require_ffmpeg()
        except ImportError as error:
            console.print(f"[yellow]There will be no video:[/] {escape(str(error))}", soft_wrap=True)
            return False
        return True

    def _record_video(self) -> None:
        options, seed = self.options, seed_for(stream_for(self.options.seed or 0, "video"), 0)
        try:
            with status("recording the best policy"):
                record_video(
                    options.env,
                    [self._policy().module()],
                    self.folder.video,
                    seeds=[seed],
                    env_kwargs=options.env_args,
                    log=self._log,
                )
        except Exception as error:  # a renderer may raise anything, which must not fail the run
            console.print(f"[yellow]No video:[/] {escape(first_line(error))}", soft_wrap=True)

    def _conclude(self, interrupted: bool, reported: float | None) -> None:
        """Prints the result.

        Args:
            reported: mean return of the best policy over fresh episodes; None if there were none.
        """
        generation = self.search.generation
        if interrupted:
            console.print(f"[yellow]Interrupted[/] after {generation} generations; the results are saved.")
        if generation:
            took = f"after {generation} generations, {self.steps:,} steps and {self.seconds:.1f} s"
            console.print(f"{self._verdict(reported)}, {took}", soft_wrap=True)
            if not interrupted and self.options.stop_at is not None and not self.selection.solved:
                console.print(f"[yellow]The goal was not reached.[/] {self._what_to_try()}", soft_wrap=True)
        for name, path in self.folder.existing_files("curve", "metrics", "best", "video"):
            console.print(f"  {name:8} {path}", soft_wrap=True, markup=False)
        if interrupted:
            imports = "".join(f" --import {shlex.quote(name)}" for name in Settings.imports)
            resume = f"vecrl evolve --resume {shlex.quote(str(self.folder.path))}{imports}"
            console.print(f"Resume with: {resume}", soft_wrap=True, markup=False)

    def _what_to_try(self) -> str:
        options = self.options
        advice = ["more --generations", "another --seed", "another --stdev", "a smaller --network"]
        if options.episodes == 1:
            advice.append("--episodes 8 if episodes start differently")
        advice.append("another --algorithm, such as " + ("snes" if options.algorithm != "snes" else "cem"))
        return f"What may help: {', '.join(advice)}."

    def _verdict(self, reported: float | None) -> str:
        chosen = self.selection
        if chosen.best is None:
            return "No policy was tested yet: best.pt holds the center of the search"
        verdict_text = "[green]Solved[/] by best.pt" if chosen.solved else "best.pt"
        test_text = f"{chosen.best.mean_return:.5g} in the test after generation {chosen.chosen_at}"
        if reported is None:
            return f"{verdict_text}: mean return {test_text} ({chosen.episodes} episodes)"
        return (
            f"{verdict_text}: mean return {reported:.5g} over {self.options.test_episodes} fresh episodes ({test_text})"
        )
