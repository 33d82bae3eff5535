"""A population that loses workers is worth what it would have been worth without that, to the bit."""

import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.clusters import TestCluster
from tests.policy.population_envs import Walk

from vecrl.engine.backends.cluster import RayOptions
from vecrl.errors import WorkerCrash, WorkerError
from vecrl.policy import lasting
from vecrl.policy.population import PopulationEvaluator

NET = "RNN(obs_length, 3) >> Linear(3, act_length)"
RULES: dict[str, Any] = {"num_episodes": 3, "obs_norm": True, "action_noise": 0.3, "seed": 5}


class Mortal(Walk):
    """Kills its process at the given moments of its life, each once: a file says which of them came."""

    def __init__(self, folder: str, deaths: dict[str, int]):
        self.folder, self.deaths, self.ages = Path(folder), deaths, {"reset": 0, "step": 0}

    def _live(self, what: str) -> None:
        self.ages[what] += 1
        for place, age in self.deaths.items():
            mark = self.folder / f"{place}-{age}"
            if place.partition(" ")[0] == what and self.ages[what] == age and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, **kwargs: Any) -> Any:
        self._live("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._live("step")
        return super().step(action)


def evaluated(env: Any, **place: Any) -> list[Any]:
    """What two populations are worth, and the statistics afterwards."""
    with PopulationEvaluator(env, NET, 6, **RULES, **place) as evaluate:
        size = (8, evaluate.parameter_length)
        populations = [torch.randn(size, generator=torch.Generator().manual_seed(i)) for i in range(2)]
        results = [evaluate(population) for population in populations]
        assert evaluate.norm is not None
        state = evaluate.norm.state_dict()
    found = [getattr(r, name).tolist() for r in results for name in ("fitness", "returns", "lengths")]
    return [*found, [r.interactions for r in results], {k: v.tolist() for k, v in state.items()}]


@pytest.mark.parametrize(
    "deaths", [{"step": 4}, {"reset": 1}, {"reset": 2}, {"step": 9, "reset": 3, "step again": 10, "step more": 40}]
)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_killed_workers_change_nothing(
    deaths: dict[str, int], workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mortal = partial(Mortal, str(tmp_path), deaths)
    with caplog.at_level(logging.WARNING, "vecrl"):
        found = evaluated(mortal, backend="processes", num_workers=workers)
    assert found == evaluated(Walk)
    assert len(list(tmp_path.iterdir())) == len(deaths), "they were killed"
    assert "was killed by SIGKILL" in caplog.text
    assert "lived through again in others" in caplog.text


def test_what_kills_every_worker_is_told() -> None:
    class Doomed(Walk):
        def step(self, action: Any) -> Any:
            os._exit(3)

    evaluate = PopulationEvaluator(Doomed, NET, 4, seed=1, backend="processes", num_workers=2)
    with pytest.raises(WorkerCrash, match="exited with code 3"):
        evaluate(torch.zeros(4, evaluate.parameter_length))
    evaluate.close()


def test_what_raises_beside_a_death_is_told(tmp_path: Path) -> None:
    """Two members, one a worker: whoever comes first raises, the other is killed."""

    class Either(Mortal):
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


def test_closing_what_is_gone_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Closing(Walk):
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


def test_actions_are_kept_no_longer_than_the_oldest_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    step = lasting.LastingPool.step

    def noting(self: Any, *args: Any) -> Any:
        kept.append(len(self._steps))
        return step(self, *args)

    monkeypatch.setattr(lasting.LastingPool, "step", noting)
    with PopulationEvaluator(Walk, NET, 1, num_episodes=20, seed=1) as evaluate:
        evaluate(torch.zeros(1, evaluate.parameter_length))
    assert max(kept) < 12 < len(kept), "as long as an episode, not as all of them"


@pytest.mark.ray
def test_a_killed_node_changes_nothing(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = evaluated(Walk)
    with cluster.node() as node:
        step, steps = lasting.LastingPool.step, []

        def killing(self: Any, *args: Any) -> Any:
            steps.append(1)
            if len(steps) == 8:
                cluster.kill(node)
            return step(self, *args)

        monkeypatch.setattr(lasting.LastingPool, "step", killing)
        options = RayOptions(placement_strategy="STRICT_SPREAD")
        assert evaluated(Walk, backend="ray", num_workers=2, ray_options=options) == expected
        assert len(steps) > 20
