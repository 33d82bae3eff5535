"""The suites of `vecrl.testing` notice simulators that are wrong, and show the values when they do."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.engine.simulator import BatchStep
from vecrl.envs.transforms import Transform
from vecrl.testing import BatchSimulatorConformance, TransformConformance


class Drift:
    """A `BatchSimulator` without a base class: a point on a line; the action moves it, and the episode ends beyond 3 or
    after 20 steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    metadata = {"render_modes": []}
    render_mode = None

    def __init__(self, num_envs: int, device: str = "cpu"):
        self.num_envs, self.device = num_envs, device
        self.position = torch.zeros(num_envs, 1, device=device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.episodes = torch.zeros(num_envs, dtype=torch.int64)
        self.seeds = torch.randint(2**62, (num_envs,))

    def reset(self, seeds: Any = None, options: Any = None) -> torch.Tensor:
        for row, seed in enumerate(seeds or ()):
            if seed is not None:  # None continues the row's stream
                self.seeds[row], self.episodes[row] = seed, 0
        return self.reset_where(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))

    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        self.position, self.steps = self.position.clone(), self.steps * ~mask
        for row in mask.nonzero().flatten().tolist():
            stream = np.random.default_rng([int(self.seeds[row]), int(self.episodes[row])])
            self.position[row] = stream.uniform(-1, 1)
            self.episodes[row] += 1
        return self.position.clone()

    def step(self, actions: torch.Tensor) -> Any:
        self.position, self.steps = self.position + actions, self.steps + 1
        terminated = self.position.abs().squeeze(-1) > 3
        return BatchStep(self.position.clone(), -self.position.abs().squeeze(-1), terminated, self.steps >= 20)

    def render(self, row: int) -> Any:
        return None

    def get_state(self) -> Any:
        return {name: getattr(self, name).clone() for name in ("position", "steps", "episodes", "seeds")}

    def set_state(self, state: Any) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone())

    def close(self) -> None:
        pass


class ResetsItself(Drift):
    """Returns the first observation of the next episode as the last of this one."""

    def step(self, actions: torch.Tensor) -> Any:
        step = super().step(actions)
        return replace(step, next_obs=self.reset_where(step.terminated | step.truncated))


class ResetsItselfOnly(ResetsItself):
    """Resets rows itself, and ignores masks of rows that it has reset."""

    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        return super().reset_where(mask & (self.steps > 0))


class ResetsItselfToZero(ResetsItself):
    """Every episode begins at zero."""

    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        super().reset_where(mask)
        self.position = torch.where(mask[:, None], 0.0, self.position)
        return self.position.clone()


class ResetsAll(Drift):
    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        return super().reset_where(mask | mask.any())


class IgnoresSeeds(Drift):
    def reset(self, seeds: Any = None, options: Any = None) -> torch.Tensor:
        return super().reset()


class HasADefaultSeed(Drift):
    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.seeds = torch.arange(num_envs)


class RepeatsItsSeed(Drift):
    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        self.episodes[:] = 0
        return super().reset_where(mask)


class SeedsByRow(Drift):
    def reset(self, seeds: Any = None, options: Any = None) -> torch.Tensor:
        return super().reset([None if seed is None else seed + row for row, seed in enumerate(seeds or ())] or None)


class SharesItsState(Drift):
    def get_state(self) -> Any:
        return {name: getattr(self, name) for name in ("position", "steps", "episodes", "seeds")}

    def step(self, actions: torch.Tensor) -> Any:
        self.position += actions
        self.position -= actions
        return super().step(actions)

    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        before = self.episodes
        return super().reset_where(mask) if before is self.episodes else self.position


class ForgetsSteps(Drift):
    def get_state(self) -> Any:
        return {name: value for name, value in super().get_state().items() if name != "steps"}


class OverwritesResults(Drift):
    def step(self, actions: torch.Tensor) -> Any:
        self.buffer = getattr(self, "buffer", torch.zeros(self.num_envs, 1))
        step = super().step(actions)
        self.buffer.copy_(step.next_obs)
        return replace(step, next_obs=self.buffer)


class ChangesActions(Drift):
    def step(self, actions: torch.Tensor) -> Any:
        return super().step(actions.mul_(0.5))


class MixesRows(Drift):
    def step(self, actions: torch.Tensor) -> Any:
        step = super().step(actions)
        return replace(step, reward=step.reward + step.reward.mean())


class TakesTheFirstAction(Drift):
    def step(self, actions: torch.Tensor) -> Any:
        return super().step(actions[:1])


class ReturnsDoubles(Drift):
    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        return super().reset_where(mask).double()


class ReturnsColumns(Drift):
    def step(self, actions: torch.Tensor) -> Any:
        step = super().step(actions)
        return replace(step, reward=step.reward[:, None])


class NeverEnds(Drift):
    def step(self, actions: torch.Tensor) -> Any:
        no = torch.zeros(self.num_envs, dtype=torch.bool)
        return replace(super().step(actions), terminated=no, truncated=no)


class DrawsWithoutAMode(Drift):
    def render(self, row: int) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)


class ClosesOnce(Drift):
    closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


WRONG: dict[type, str] = {
    ResetsItself: "test_final_observations_are_those_of_the_step",
    ResetsItselfOnly: "test_final_observations_are_those_of_the_step",
    ResetsItselfToZero: "test_final_observations_are_those_of_the_step",
    ResetsAll: "test_reset_where_resets_masked_rows_only",
    IgnoresSeeds: "test_equal_seeds_give_equal_episodes",
    HasADefaultSeed: "test_without_seeds_simulators_differ",
    RepeatsItsSeed: "test_a_row_without_a_seed_continues_its_stream",
    SeedsByRow: "test_a_row_without_a_seed_continues_its_stream",
    SharesItsState: "test_states_restore_the_same_future",
    ForgetsSteps: "test_states_restore_the_same_future",
    OverwritesResults: "test_results_do_not_change_later",
    ChangesActions: "test_actions_are_neither_kept_nor_changed",
    TakesTheFirstAction: "test_rows_do_not_depend_on_each_other",
    MixesRows: "test_rows_do_not_depend_on_each_other",
    ReturnsDoubles: "test_results_have_the_declared_shapes",
    ReturnsColumns: "test_results_have_the_declared_shapes",
    NeverEnds: "test_episodes_end_and_are_not_reset_by_the_step",
    DrawsWithoutAMode: "test_frames_are_images",
    ClosesOnce: "test_close_may_be_called_twice",
}


@pytest.mark.parametrize(("kind", "name"), WRONG.items(), ids=lambda value: getattr(value, "__name__", None))
def test_a_wrong_simulator_is_noticed(kind: Any, name: str) -> None:
    class Suite(BatchSimulatorConformance):
        deterministic_reset = kind is ResetsItselfToZero

        def make(self, num_envs: int) -> Any:
            return kind(num_envs)

    with pytest.raises(AssertionError):
        getattr(Suite(), name)()


@pytest.mark.parametrize(
    "name", ["test_a_row_without_a_seed_continues_its_stream", "test_without_seeds_simulators_differ"]
)
def test_equal_first_observations_must_be_declared(name: str) -> None:
    class StartsAtZero(Drift):
        def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
            super().reset_where(mask)
            self.position[mask] = 0.0
            return self.position.clone()

    class Suite(BatchSimulatorConformance):
        def make(self, num_envs: int) -> Any:
            return StartsAtZero(num_envs)

    with pytest.raises(AssertionError, match="or set deterministic_reset = True if all episodes begin alike"):
        getattr(Suite(), name)()
    Suite.deterministic_reset = True
    getattr(Suite(), name)()


def test_a_simulator_with_one_observation_conforms() -> None:
    """Final observations that equal first ones are right if the observation never changes."""

    class Blind(Drift):
        def step(self, actions: torch.Tensor) -> Any:
            return replace(super().step(actions), next_obs=torch.zeros(self.num_envs, 1))

        def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
            return 0 * super().reset_where(mask)

    class Suite(BatchSimulatorConformance):
        def make(self, num_envs: int) -> Any:
            return Blind(num_envs)

    Suite().test_final_observations_are_those_of_the_step()


def run_pytest(folder: Path, text: str) -> str:
    (folder / "test_mine.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_mine.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_failures_show_the_values(tmp_path: Path) -> None:
    """In the project of a user, where pytest does not rewrite assertions of installed packages by itself."""
    imports = """
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from vecrl.engine.simulator import BatchStep
"""
    suites = """
from vecrl.testing import BackendConformance, BatchSimulatorConformance, TransformConformance


class Columns(Drift):
    def step(self, actions):
        step = super().step(actions)
        return BatchStep(step.next_obs, step.reward[:, None], step.terminated, step.truncated)


class TestDrift(BatchSimulatorConformance):
    def make(self, num_envs):
        return Columns(num_envs)


class TestBackend(BackendConformance):
    backend = "serial"
    options = {"infos": False}
"""
    text = run_pytest(tmp_path, imports + inspect.getsource(Drift) + suites)
    assert "Expected the reward to be 1 floats, got float32 (1, 1)" in text
    assert "At index 0 diff" in text  # transitions without infos, compared with those of the serial backend
    assert "PytestAssertRewriteWarning" not in text


def test_suites_can_be_imported_without_pytest() -> None:
    code = "import sys; from vecrl.testing import EnvConformance; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class Half(Transform):
    """Halves observations, as the transform of extending.md does, or in place."""

    def __init__(self, in_place: str = ""):
        super().__init__(in_keys=["observation"], in_keys_inv=["action"])
        self.in_place = in_place

    def _halve(self, value: torch.Tensor, name: str) -> torch.Tensor:
        return value.div_(2) if self.in_place == name else value / 2

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return self._halve(value, "outputs")

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return self._halve(value, "inputs")


@pytest.mark.parametrize("in_place", ["", "outputs", "inputs"])
def test_transforms_that_write_in_place_are_noticed(in_place: str) -> None:
    suite = TransformConformance()
    suite.make = lambda: Half(in_place)
    if in_place:
        with pytest.raises(AssertionError, match="was changed in place: return a copy"):
            suite.test_tensors_are_not_written_in_place()
    else:
        suite.test_tensors_are_not_written_in_place()
