"""A population that loses workers has bit-identical results to one that does not."""

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.ray_cluster import TestCluster
from tests.fixtures.walk_envs import WalkEnv

from vecrl.engine.backends.processes import ProcessBackend
from vecrl.engine.backends.worker_options import RayOptions
from vecrl.errors import WorkerCrash, WorkerError
from vecrl.policy.population import PopulationEvaluator

NET = "RNN(obs_length, 3) >> Linear(3, act_length)"
RULES: dict[str, Any] = {"num_episodes": 3, "obs_norm": True, "action_noise": 0.3, "seed": 5}


class KilledEnv(WalkEnv):
    """Kills its process at the given moments, each once. Files record which moments have come."""

    def __init__(self, folder: str, kills: dict[str, int]):
        self.folder, self.kills, self.calls = Path(folder), kills, {"reset": 0, "step": 0}

    def _kill_if_due(self, what: str) -> None:
        self.calls[what] += 1
        for place, number in self.kills.items():
            mark = self.folder / f"{place}-{number}"
            if place.partition(" ")[0] == what and self.calls[what] == number:
                with suppress(FileExistsError):
                    mark.touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, **kwargs: Any) -> Any:
        self._kill_if_due("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._kill_if_due("step")
        return super().step(action)


def evaluated(env: Any, subbatch_size: int = 128, **place: Any) -> list[Any]:
    """Returns the fitness of two populations and the final statistics."""
    with PopulationEvaluator(env, NET, 6, **RULES, subbatch_size=subbatch_size, **place) as evaluate:
        size = (8, evaluate.parameter_length)
        populations = [torch.randn(size, generator=torch.Generator().manual_seed(i)) for i in range(2)]
        results = [evaluate(population) for population in populations]
        assert evaluate.norm is not None
        state = evaluate.norm.state_dict()
    found = [getattr(r, name).tolist() for r in results for name in ("fitness", "returns", "lengths")]
    return [*found, [r.interactions for r in results], {k: v.tolist() for k, v in state.items()}]


@pytest.mark.parametrize(
    "kills", [{"step": 4}, {"reset": 1}, {"reset": 2}, {"step": 9, "reset": 3, "step again": 10, "step more": 40}]
)
@pytest.mark.parametrize(("workers", "size"), [(1, 128), (2, 128), (3, 128), (3, 4), (1, 4), (2, 3), (3, 1)])
def test_killed_workers_do_not_change_results(
    kills: dict[str, int], workers: int, size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers environments stepped by this process (the first four cases) and workers that evaluate whole subbatches."""
    killed_env = partial(KilledEnv, str(tmp_path), kills)
    with caplog.at_level(logging.WARNING, "vecrl"):
        found = evaluated(killed_env, size, backend="processes", num_workers=workers)
    assert found == evaluated(WalkEnv, size)
    assert len(list(tmp_path.iterdir())) == len(kills), "they were killed"
    assert "was killed by SIGKILL" in caplog.text
    assert "evaluated again in other workers" in caplog.text


def test_members_that_kill_every_worker_raise() -> None:
    class ExitingEnv(WalkEnv):
        def step(self, action: Any) -> Any:
            os._exit(3)

    evaluate = PopulationEvaluator(ExitingEnv, NET, 4, seed=1, backend="processes", num_workers=2)
    with pytest.raises(WorkerCrash, match="exited with code 3"):
        evaluate(torch.zeros(4, evaluate.parameter_length))
    evaluate.close()


@pytest.mark.parametrize("size", [2, 128])
def test_failed_restarts_raise_and_the_next_call_retries(size: int, tmp_path: Path) -> None:
    class FailingRestartEnv(KilledEnv):
        def __init__(self):
            super().__init__(str(tmp_path), {"step": 2})
            if (tmp_path / "step-2").exists() and not (tmp_path / "well").exists():
                raise ArithmeticError("not now")

    place: dict[str, Any] = {"backend": "processes", "num_workers": 2, "subbatch_size": size}
    with PopulationEvaluator(FailingRestartEnv, NET, 4, seed=1, **place) as evaluate:
        population = torch.zeros(4, evaluate.parameter_length)
        for _ in range(2):
            with pytest.raises(WorkerError, match="not now") as exc_info:
                evaluate(population)
            assert isinstance(exc_info.value.__cause__, ArithmeticError)
        (tmp_path / "well").touch()
        assert evaluate(population).interactions > 12


@pytest.mark.parametrize("size", [2, 128])
def test_interrupts_during_worker_replacement_are_harmless(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_env = partial(KilledEnv, str(tmp_path), {"step": 2})
    place: dict[str, Any] = {"backend": "processes", "num_workers": 2, "subbatch_size": size}
    with PopulationEvaluator(killed_env, NET, 4, seed=1, **place) as evaluate:
        population = torch.zeros(4, evaluate.parameter_length)
        with monkeypatch.context() as patch:
            patch.setattr(ProcessBackend, "respawn", interrupted)
            with pytest.raises(KeyboardInterrupt):
                evaluate(population)
        assert evaluate(population).interactions > 12


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_exceptions_together_with_crashes_raise(tmp_path: Path) -> None:
    """Two members, each in its own worker: the first to reach the step raises, the other is killed."""

    class Either(KilledEnv):
        def step(self, action: Any) -> Any:
            try:
                (self.folder / "taken").touch(exist_ok=False)
            except FileExistsError:
                return super().step(action)
            raise ArithmeticError("on purpose")

    either = partial(Either, str(tmp_path), {"step": 1})
    evaluate = PopulationEvaluator(either, NET, 2, backend="processes", num_workers=2)
    with pytest.raises(WorkerError, match="ArithmeticError: on purpose"):
        evaluate(torch.zeros(2, evaluate.parameter_length))
    evaluate.close()


def test_closing_crashed_workers_does_not_raise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Closing(WalkEnv):
        def close(self) -> None:
            if not (tmp_path / "closed").exists():
                (tmp_path / "closed").touch()
                os._exit(3)
            raise ArithmeticError("on purpose")

    with PopulationEvaluator(Closing, NET, 1, backend="processes"), caplog.at_level(logging.WARNING, "vecrl"):
        pass
    assert "exited with code 3" in caplog.text
    with pytest.raises(WorkerError, match="on purpose"), PopulationEvaluator(Closing, NET, 1, backend="processes"):
        pass


def test_only_members_of_lost_workers_are_evaluated_again(tmp_path: Path) -> None:
    """Each environment records its steps in a file of its process. Other workers repeat only the steps of the killed
    one."""

    class Noted(KilledEnv):
        def step(self, action: Any) -> Any:
            with (tmp_path / f"steps {os.getpid()}").open("a") as file:
                file.write(".")
            return super().step(action)

    noted = partial(Noted, str(tmp_path), {"step": 2})
    place: dict[str, Any] = {"backend": "processes", "num_workers": 3, "subbatch_size": 2}
    with PopulationEvaluator(noted, NET, 6, seed=1, **place) as evaluate:
        result = evaluate(torch.zeros(6, evaluate.parameter_length))
    killed, *others = sorted(path.stat().st_size for path in tmp_path.glob("steps *"))
    assert killed in (3, 4), "two environments' first steps, and the second of one or both"
    assert sum(others) == result.interactions


def test_failing_members_are_reported_by_index(tmp_path: Path) -> None:
    """The failing member is in the third of three subbatches of two, with one to three workers."""

    class Failing(WalkEnv):
        def step(self, action: Any) -> Any:
            if action[0] > 0:
                raise ArithmeticError("on purpose")
            return super().step(action)

    for workers in (1, 2, 3):
        place: dict[str, Any] = {"backend": "processes", "num_workers": workers, "subbatch_size": 2}
        with PopulationEvaluator(Failing, "Linear(obs_length, act_length)", 6, seed=1, **place) as evaluate:
            population = torch.zeros(6, 3)
            population[5, 2] = 1.0  # the bias
            with pytest.raises(WorkerError, match="on purpose") as exc_info:
                evaluate(population)
            assert exc_info.value.env_ids == (5,)
            assert "The next call resets everything" in str(exc_info.value)
            assert evaluate(-population).interactions > 6, "the evaluator goes on"


def test_workers_make_as_many_environments_as_there_are_members(tmp_path: Path) -> None:
    """Ten members in five subbatches of two, since four subbatches of three would not divide better."""

    class Counted(WalkEnv):
        def __init__(self) -> None:
            with open(tmp_path / "made", "a") as file:
                file.write("x")

    for popsize, size, workers, made in ((10, 4, 2, 12), (10, 2, 3, 10), (300, 128, 2, 300)):
        place: dict[str, Any] = {"backend": "processes", "num_workers": workers, "subbatch_size": size}
        with PopulationEvaluator(Counted, "Linear(obs_length, act_length)", popsize, seed=1, **place) as evaluate:
            for members in (popsize, 1, popsize - 1, popsize // 2 + 1):
                assert len(evaluate(torch.zeros(members, evaluate.parameter_length)).returns) == members
        assert (tmp_path / "made").stat().st_size == made
        (tmp_path / "made").unlink()


@pytest.mark.parametrize("size", [2, 128])
def test_interrupted_evaluations_do_not_wait_for_hung_workers(size: int, tmp_path: Path) -> None:
    class Stuck(WalkEnv):
        def step(self, action: Any) -> Any:
            if not (tmp_path / "on").exists():
                time.sleep(600)
            return super().step(action)

    place: dict[str, Any] = {"backend": "processes", "num_workers": 2, "subbatch_size": size}
    with PopulationEvaluator(Stuck, NET, 4, seed=1, **place) as evaluate:
        population = torch.zeros(4, evaluate.parameter_length)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            evaluate(population)
        timer.join()
        (tmp_path / "on").touch()
        assert evaluate(population).interactions > 12


def test_interrupted_evaluations_stop_immediately() -> None:
    class Slow(WalkEnv):
        def step(self, action: Any) -> Any:
            if action[0] > 0:
                time.sleep(60.0)
            return super().step(action)

    place: dict[str, Any] = {"backend": "processes", "num_workers": 2, "subbatch_size": 2}
    with PopulationEvaluator(Slow, "Linear(obs_length, act_length)", 4, seed=1, **place) as evaluate:
        expected = evaluate(torch.zeros(4, 3)).returns
        evaluate.calls = 0
        began = time.monotonic()
        timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            evaluate(torch.tensor([0.0, 0.0, 1.0]).expand(4, 3))
        assert torch.equal(evaluate(torch.zeros(4, 3)).returns, expected)
        assert time.monotonic() - began < 50.0, "no call waited for the full minute"


class Waiting(WalkEnv):
    """Creates a file at its first step and waits there until a second file exists."""

    def __init__(self, folder: Path):
        self.folder = folder

    def step(self, action: Any) -> Any:
        if self.t == 2 and not (self.folder / "on").exists():
            (self.folder / "here").touch()
            while not (self.folder / "on").exists():
                time.sleep(0.01)
        return super().step(action)


@pytest.mark.ray
@pytest.mark.parametrize("size", [128, 3, 1])
def test_killed_nodes_do_not_change_results(
    size: int, cluster: TestCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = evaluated(WalkEnv, size)
    with cluster.node() as node:

        def kill() -> None:
            while not (tmp_path / "here").exists():
                time.sleep(0.01)
            cluster.kill(node)
            (tmp_path / "on").touch()

        killer = threading.Thread(target=kill)
        killer.start()
        options = RayOptions(placement_strategy="STRICT_SPREAD")
        place: dict[str, Any] = {"backend": "ray", "num_workers": 2, "ray_options": options}
        with caplog.at_level(logging.WARNING, "vecrl"):
            assert evaluated(partial(Waiting, tmp_path), size, **place) == expected
        killer.join()
        assert "evaluated again in other workers" in caplog.text
