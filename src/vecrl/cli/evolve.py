"""`vecrl evolve`: a population search on any environment, kept in a run folder and resumable to the bit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.live import Live
from rich.markup import escape
from torch import Tensor

from vecrl.cli.console import INTERRUPTED, console, first_line
from vecrl.cli.media import draw_curve, film
from vecrl.cli.options import CHANGEABLE, Options
from vecrl.cli.runs import RunFolder
from vecrl.policy.population import CLIP
from vecrl.policy.saved import SavedPolicy
from vecrl.policy.search import PopulationSearch
from vecrl.seeding import seed_for, stream_for

SAVE_EVERY = 5.0  # seconds between two states on disk
SAY_EVERY = 5.0  # seconds between two lines where the output is no terminal
PATIENCE = 3  # generations between two tests


class Evolution:
    """A run: the search, the evaluator, the best policy so far and the folder.

    Args:
        options: with a seed.
        folder: where everything goes.
        state: to go on from; None begins.
    """

    def __init__(self, options: Options, folder: RunFolder, state: Mapping[str, Any] | None = None):
        torch.set_num_threads(options.threads)
        self.options, self.folder = options, folder
        self.best: SavedPolicy | None = None
        self.steps, self.seconds, self.solved = 0, 0.0, False
        self._tested_at = -PATIENCE
        self._last: dict[str, float] = {}
        self._rate = 0.0
        self._kept: tuple[dict[str, Any], SavedPolicy | None] | None = None  # as of the last whole generation
        self._resumed = False
        self.evaluator = options.evaluator()
        try:
            self.search = self._new_search()
            if state is not None:
                self._load(state)
        except BaseException:
            self.evaluator.close()
            raise

    def _new_search(self) -> PopulationSearch:
        options, center = self.options, torch.zeros(self.evaluator.parameter_length)
        seed = stream_for(options.seed or 0, "search") >> 1
        return PopulationSearch(center, options.popsize, stdev=options.stdev, max_speed=options.max_speed, seed=seed)

    @classmethod
    def begin(cls, options: Options, parent: Path) -> Evolution:
        """A new run in a new folder of `parent`."""
        if options.seed is None:
            options = replace(options, seed=int(np.random.SeedSequence().generate_state(1)[0]))
        run = cls(options, RunFolder(parent))  # before there is a folder, so that a typing error leaves none
        run.folder = RunFolder.new(parent, options.env)
        run.folder.write_state(run.state_dict(), None)  # first: what has a config.yaml can go on
        run._write_config()
        return run

    @classmethod
    def resume(cls, path: Path, changes: Mapping[str, Any]) -> Evolution:
        """The run in the folder `path`, with a few options changed."""
        folder = RunFolder(path)
        config, state = folder.read_config(), folder.read_state()
        config.pop("vecrl", None)
        fixed = set(changes) - CHANGEABLE
        if fixed:
            allowed = ", ".join(sorted(CHANGEABLE))
            raise ValueError(f"A run that goes on keeps its {', '.join(sorted(fixed))}; only {allowed} can change.")
        options = replace(Options.of(config, folder.config), **changes)
        run = cls(options, folder, state)
        run._resumed = True
        return run

    def _write_config(self) -> None:
        import vecrl

        config = asdict(self.options)
        if self.options.alive_bonus is not None:
            config["alive_bonus"] = list(self.options.alive_bonus)
        self.folder.write_config({"vecrl": vecrl.__version__, **config})

    # -- the run -------------------------------------------------------------------------------------

    def show(self) -> int:
        """Run until the goal, the last generation or an interrupt; keep and show what was reached. An exit code."""
        try:
            with self.folder.locked():
                if self._resumed:
                    self.folder.rewind(self.search.generation)
                    self._write_config()
                return self._show()
        finally:
            self.evaluator.close()

    def _show(self) -> int:
        options, interrupted = self.options, False
        console.print(
            f"[bold]{options.env}[/]: {self.search.popsize} members of {self.evaluator.parameter_length} parameters, "
            f"seed {options.seed}, in {self.folder.path}",
            soft_wrap=True,
        )
        try:
            self._run()
            self._kept = self.state_dict(), self.best
            if not self.solved:
                self._choose_best()
            self._kept = self._kept[0], self.best
        except KeyboardInterrupt:
            interrupted = True
        try:
            self._keep()
            self.evaluator.close()
            if self.best is not None and options.video and not interrupted:
                self._film(self.best)
        except KeyboardInterrupt:
            interrupted = True
        self._conclude(interrupted)
        return INTERRUPTED if interrupted else 0

    def _run(self) -> None:
        saved = said = time.monotonic()
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while self.search.generation < self.options.generations and not self.solved:
                self._last = self.advance()
                self.folder.append(self._last)
                self._test_if_promising()  # before the state is kept: who goes on from there need not test again
                self._kept = self.state_dict(), self.best
                now = time.monotonic()
                if console.is_terminal:
                    live.update(self._line())
                elif now - said > SAY_EVERY:
                    said = now
                    console.print(self._line(), soft_wrap=True)
                if now - saved > SAVE_EVERY:
                    saved = now
                    self.folder.write_state(*self._kept)

    def advance(self) -> dict[str, float]:
        """One generation; its line of metrics.csv."""
        begun, layer_of = time.perf_counter(), self._norm_state()
        population = torch.cat([self.search.ask(), self.search.center[None]])
        result = self.evaluator(population)
        self.search.tell(result.fitness[:-1].float())
        taken = time.perf_counter() - begun
        self.steps += result.interactions
        self.seconds += taken
        self._rate = result.interactions / taken
        top = int(result.returns.argmax())
        if self.best is None or result.returns[top] > (self.best.mean_return or -np.inf):
            self.best = self._saved(population[top], layer_of, float(result.returns[top]))
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
        }

    def _line(self) -> str:
        row = self._last
        return (
            f"generation {row['generation']:.0f}/{self.options.generations}  best [bold]{row['best']:.5g}[/]  "
            f"mean {row['mean']:.5g}  centre {row['center']:.5g}  {self._rate:,.0f} steps/s  "
            f"{row['seconds']:.0f} s"
        )

    # -- the best policy -----------------------------------------------------------------------------

    def _norm_state(self) -> dict[str, Tensor] | None:
        norm = self.evaluator.norm
        return None if norm is None or norm.stats.empty else {k: v.cpu() for k, v in norm.state_dict().items()}

    def _saved(self, vector: Tensor, norm: dict[str, Tensor] | None, mean: float) -> SavedPolicy:
        options = self.options
        return SavedPolicy(
            options.env, options.network, self.evaluator.interface.constants, vector.clone(), norm, CLIP, mean
        )

    def _test(self, policy: SavedPolicy) -> SavedPolicy:
        """The policy with its mean return over fresh episodes."""
        layer = policy.obs_layer()
        if layer is not None and self.options.device is not None:
            layer = layer.to(self.options.device)
        result = self.evaluator.test(policy.parameters, self.options.test_episodes, obs_layer=layer)
        return replace(policy, mean_return=float(result.returns.mean()))

    def _test_if_promising(self) -> None:
        goal, generation = self.options.stop_at, self.search.generation
        if goal is None or max(self._last["center"], self._last["mean"]) < goal:
            return
        if generation - self._tested_at < PATIENCE and generation < self.options.generations:
            return
        self._tested_at = generation
        tested = self._test(self._saved(self.search.center, self._norm_state(), 0.0))
        if tested.mean_return is not None and tested.mean_return >= goal:
            self.best, self.solved = tested, True

    def _choose_best(self) -> None:
        """Test the search's centre and the member that did best: one lucky episode is no proof."""
        if self.best is None:
            return
        with console.status(f"testing on {self.options.test_episodes} fresh episodes"):
            center = self._test(self._saved(self.search.center, self._norm_state(), 0.0))
            member = self._test(self.best)
        self.best = max(center, member, key=lambda policy: policy.mean_return or -np.inf)
        goal = self.options.stop_at
        self.solved = goal is not None and (self.best.mean_return or -np.inf) >= goal

    # -- keeping -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that goes on from here, as plain data."""
        return {
            "search": self.search.state_dict(),
            "evaluator": self.evaluator.state_dict(),
            "best": None if self.best is None else asdict(self.best),
            "steps": self.steps,
            "seconds": self.seconds,
            "tested_at": self._tested_at,
            "solved": self.solved,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        try:
            self.search.load_state_dict(state["search"])
            self.evaluator.load_state_dict(state["evaluator"])
            self.best = None if state["best"] is None else SavedPolicy.of(state["best"])
            numbers = int(state["steps"]), float(state["seconds"]), int(state["tested_at"])
            solved = bool(state["solved"])
        except Exception as error:  # whatever values of other kinds and shapes raise where they are put to use
            said = (
                first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
            )
            raise ValueError(
                f"{self.folder.state} does not go with config.yaml, or is no state of a run ({said}); begin a new run."
            ) from error
        self.steps, self.seconds, self._tested_at = numbers
        goal, reached = self.options.stop_at, None if self.best is None else self.best.mean_return
        self.solved = solved and goal is not None and reached is not None and reached >= goal

    def _keep(self) -> None:
        """Write what an interrupt in the middle of a generation leaves whole."""
        if self._kept is None:
            return
        state, best = self._kept
        self.folder.rewind(state["search"]["generation"])
        self.folder.write_state(state, best)
        draw_curve(self.folder.rows(), self.folder.curve, self.options.env, self.options.stop_at)

    def _film(self, best: SavedPolicy) -> None:
        seed = seed_for(stream_for(self.options.seed or 0, "video"), 0)
        try:
            with console.status("filming the best policy"):
                film(self.options.env, best.module(), self.folder.video, seed=seed, env_kwargs=self.options.env_args)
        except Exception as error:  # whatever a renderer may raise, the run is not lost for it
            console.print(f"[yellow]No video:[/] {escape(first_line(error))}", soft_wrap=True)

    def _conclude(self, interrupted: bool) -> None:
        options, generation = self.options, self.search.generation
        if interrupted and self._kept is not None:
            generation = self._kept[0]["search"]["generation"]
        if interrupted:
            console.print(f"[yellow]Interrupted[/] after {generation} generations; what was reached is kept.")
        reached = None if self.best is None else self.best.mean_return
        if reached is not None:
            tested = "" if interrupted else f" over {options.test_episodes} fresh episodes"
            verdict = "[green]Solved[/]: mean" if self.solved else "Best: mean" if not interrupted else "Best:"
            console.print(
                f"{verdict} return {reached:.5g}{tested}, after {generation} generations, "
                f"{self.steps:,} steps and {self.seconds:.1f} s",
                soft_wrap=True,
            )
        for name, path in self.folder.listing("curve", "metrics", "best", "video"):
            console.print(f"  {name:8} {path}", soft_wrap=True)
        if interrupted:
            console.print(f"Go on with: vecrl evolve --resume {self.folder.path}", soft_wrap=True)
