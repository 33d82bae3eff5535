"""The trainings of `benchmarks.training`, shortened: on vecrl's environments they learn what they do on the peer's."""

import importlib
from typing import Any

import pytest
from benchmarks.training import ROWS, _table
from benchmarks.trainings.log import Log

MARKS = {"main": pytest.mark.peers, "simulators": pytest.mark.torchrl}
SHORT: dict[str, dict[str, Any]] = {
    "ppo-cartpole-4": {"total": 2048},
    "ppo-halfcheetah-1": {"total": 4096, "epochs": 1, "minibatches": 4},
    "ppo-halfcheetah-8": {"total": 8192, "epochs": 1, "minibatches": 4},
    "sb3-ppo-8": {"total": 8192, "n_epochs": 1, "batch_size": 512},
    "sb3-sac-8": {"env": "Pendulum-v1", "total": 2000, "learning_starts": 1900},
    "tianshou-dqn": {"total": 1000, "epochs": 2},
    "tianshou-sac": {"total": 160},
    "torchrl-ppo-8": {"total": 4096},
    "torchrl-pong-8": {"envs": 2, "total": 384, "batch": 128},
    "evotorch-cartpole": {"generations": 2},
    "mappo-vmas": {"total": 3200},
    "ppo-pixels": {"total": 2048, "epochs": 1},
}
EQUAL = ("vecrl, import changed", "vecrl, mujoco::", "vecrl DummyVectorEnv", "vecrl SerialEnv")
PEERS = dict.fromkeys(
    ("torchrl-ppo-8", "torchrl-pong-8"), "TorchRL SerialEnv"
)  # which is faster to start than the first way


def _curve(program: Any, way: str, options: dict[str, Any]) -> list[tuple[int, float]]:
    log = Log()
    program.train(way, 3, log, **options)
    assert 0 < log.stepping < log.result()["seconds"]
    return [(steps, value) for steps, _, value in log.curve]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=MARKS[row.environment]) for row in ROWS])
def test_trainings_learn_the_same_on_environments_of_vecrl(row: Any) -> None:
    program = importlib.import_module(f"benchmarks.trainings.{row.program}")
    options = {**row.options, **SHORT[row.name]}
    ways = [way for way in row.ways if way in EQUAL and not (options.get("env") == "Pendulum-v1" and "mujoco" in way)]
    expected = _curve(program, PEERS.get(row.name, row.ways[0]), options)
    assert expected
    for way in ways:
        found = _curve(program, way, options)
        assert [steps for steps, _ in found] == [steps for steps, _ in expected]
        # `VecMonitor` of SB3, which `mujoco::` needs, adds rewards in float32
        tolerance = 1e-6 if row.program == "sb3" and "mujoco" in way else 0
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=tolerance), way
    for way in [way for way in row.ways if "RolloutWorkers" in way or way.startswith("vecrl, ")]:
        if way not in EQUAL:
            assert _curve(program, way, options)


@pytest.mark.peers
def test_tables_compare_with_the_first_way() -> None:
    def run(seconds: float, value: float) -> dict[str, Any]:
        return {"seconds": seconds, "stepping": seconds / 4, "curve": [[1, 0.1, 2.0], [2, 0.2, value]], "busy": 0.0}

    row = ROWS[0]
    names = [f"{row.name} / {way}" for way in row.ways]
    runs = {names[0]: {"1": run(8.0, 3.0), "2": run(6.0, 4.0)}, names[2]: {"1": run(4.0, 3.0), "2": run(2.0, 4.0)}}
    *_, peer, own = _table(row, runs).splitlines()
    assert peer == f"| {row.ways[0]} | 7.0 (6.0 to 8.0) | 1.00 | 25% | 4 (3 to 4) |"
    assert own == f"| {row.ways[2]} | 3.0 (2.0 to 4.0) | 2.50 | 25% | 4 (3 to 4), equal curves |"
    runs[names[2]]["1"] = run(4.0, 3.5)
    assert "equal" not in _table(row, runs)
