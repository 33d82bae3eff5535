"""What `docs/faults.md` promises holds, in every dialect and on every backend: its two tables are read here."""

import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.fixtures.faulty_envs import (
    FaultyEnv,
    OnceFaultyEnv,
    env_fns_with_fault,
    exits,
    raises,
    returns_value,
    sleeps,
)

from vecrl import errors
from vecrl.envs import GymWrapper, ParallelEnv
from vecrl.vector import VectorEnv
from vecrl.venv import BaseVectorEnv

pytestmark = pytest.mark.usefixtures("nothing_left")
PAGE = (Path(__file__).parents[2] / "docs/faults.md").read_text()
N = 3
RAY = pytest.param("ray", marks=pytest.mark.ray)


def _rows(heading: str) -> dict[str, list[str]]:
    """Returns the cells of the table with this heading, by the first cell of their row."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: others for first, *others in cells}


def _errors_in(cell: str) -> tuple[type[BaseException], ...]:
    """Returns the errors of vecrl that a cell names."""
    names = re.findall(r"`(\w+)`", cell)
    return tuple(getattr(errors, name) for name in names if hasattr(errors, name))


FAULTS = _rows("| what happens |")
RECOVERY = _rows('| | `"raise"`')


class Arrays:
    """Environments of dialect 1 or 2, which step arrays."""

    def __init__(self, kind: Any, env_fns: Sequence[Any], backend: str, **options: Any):
        workers = {} if backend == "serial" else {"num_workers": len(env_fns)}
        self.envs = kind(env_fns, backend=backend, **workers, **options)
        self.action, self.wrong_action = np.zeros(len(env_fns), int), np.zeros((len(env_fns), 2), int)

    def reset(self) -> None:
        self.envs.reset()

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns rewards and truncated flags."""
        _, reward, _, truncated, _ = self.envs.step(self.action)
        return reward, truncated


class TensorDicts:
    """Environments of dialect 3, which step TensorDicts."""

    def __init__(self, env_fns: Sequence[Any], backend: str, **options: Any):
        makers = [lambda fn=fn: GymWrapper(fn(), categorical_action_encoding=True) for fn in env_fns]
        self.envs = ParallelEnv(len(makers), makers, backend=backend, envs_per_worker=1, **options)  # type: ignore[arg-type]
        self.action = torch.zeros(len(makers), dtype=torch.int64)
        self.wrong_action = self.action[:, None].repeat(1, 2)

    def reset(self) -> None:
        self.root = self.envs.reset()

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        after, self.root = self.envs.step_and_maybe_reset(self.root.set("action", self.action))
        return after["next", "reward"][:, 0].numpy(), after["next", "truncated"][:, 0].numpy()


Dialect = Callable[..., Any]
DIALECTS: dict[str, Dialect] = {
    "vector": partial(Arrays, VectorEnv),
    "venv": partial(Arrays, BaseVectorEnv),
    "tensordict": TensorDicts,
}


# -- the first table: each function leads to what its row says --------------------------------------


def _commits(fault: Any, make: Dialect, backend: str, **options: Any) -> None:
    """Environment 1 commits a fault in its first step. If its worker does not end, the environments are usable."""
    made = make(env_fns_with_fault("step", fault), backend, **options)
    try:
        made.reset()
        made.step()
    except errors.WorkerCrash:
        with pytest.raises(errors.WorkerCrash):
            made.step()
        raise
    except (errors.WorkerError, errors.StepTimeout):
        made.reset()
        assert made.step()[0].tolist() == [1.0] * N
        raise
    finally:
        made.envs.close()


def _cannot_be_pickled(make: Dialect, backend: str) -> None:
    lock = threading.Lock()
    make([lambda: FaultyEnv(int(lock.locked()))] * N, backend)


def _differ(make: Dialect, backend: str) -> None:
    def other() -> FaultyEnv:
        env = FaultyEnv()
        env.observation_space = spaces.Box(0, 1, (2,))
        return env

    make([FaultyEnv, other], backend)


def _has_another_shape(make: Dialect, backend: str) -> None:
    made = make([FaultyEnv] * N, backend)
    made.reset()
    action, made.action = made.action, made.wrong_action
    try:
        made.step()
    finally:
        made.action = action
        assert made.step()[0].tolist() == [1.0] * N, "nothing has changed"
        made.envs.close()


def _is_closed(make: Dialect, backend: str) -> None:
    made = make([FaultyEnv] * N, backend)
    made.reset()
    made.envs.close()
    made.step()


ANY = ("vector", "venv", "tensordict")
HERE = ("serial", "threads", "processes")
slow = partial(sleeps, seconds=2.0)
WRONG_SHAPE = returns_value((np.zeros(4), 0.0, False, False, {}))
NAN = returns_value((np.full(3, np.nan), 0.0, False, False, {}))
# by the beginning of the row: (scenario, dialects, backends), or the test that checks it
SCENARIOS: dict[str, Any] = {
    "a constructor, `reset`": (partial(_commits, raises), ANY, (*HERE, RAY)),
    "an observation has another shape": (partial(_commits, WRONG_SHAPE), ("vector", "tensordict"), HERE),
    "NaN in an observation": (partial(_commits, NAN, check_nan=True), ("vector", "venv"), HERE),
    "a worker process exits": (partial(_commits, exits), ANY, ("processes", RAY)),
    "no reply within": (partial(_commits, slow, step_timeout=0.5), ANY, HERE),
    "a module exits": "test_imports.py::test_only_the_pool_that_asked_for_an_import_is_affected",
    "a fork server is stopped": "test_imports.py::test_stopped_fork_servers_are_continued",
    "a fork server may start no more": "test_imports.py::test_workers_that_cannot_be_started_fail_alone",
    "a factory cannot be pickled": (_cannot_be_pickled, ANY, ("processes",)),
    "spaces that differ": (_differ, ("vector",), HERE),
    "actions of another shape": (_has_another_shape, ANY, HERE),
    "a call after `close`": (_is_closed, ANY, HERE),
    "a call while another command": "../vector/test_async_env.py::test_one_call_at_a_time",
    "any call in a fork": "test_forks.py::test_every_dialect",
    "`close` in one thread": "test_closing.py::test_close_ends_waiting_calls_of_every_class",
}


def _name_and_marks(backend: Any) -> tuple[str, Any]:
    return (backend, ()) if isinstance(backend, str) else (backend.values[0], backend.marks)


def _cases() -> list[Any]:
    cases: list[Any] = []
    for row, scenario in SCENARIOS.items():
        if isinstance(scenario, tuple):
            act, dialects, backends = scenario
            for backend in backends:
                name, marks = _name_and_marks(backend)
                cases += [
                    pytest.param(row, act, dialect, name, marks=marks, id=f"{row}-{dialect}-{name}")
                    for dialect in dialects
                ]
    return cases


def test_every_row_is_checked() -> None:
    for row in FAULTS:
        assert sum(row.startswith(beginning) for beginning in SCENARIOS) == 1, row
    for beginning, scenario in SCENARIOS.items():
        assert any(row.startswith(beginning) for row in FAULTS), beginning
        if isinstance(scenario, str):
            file, _, name = scenario.partition("::")
            assert f"def {name}(" in (Path(__file__).parent / file).read_text(), scenario


@pytest.mark.parametrize(("row", "act", "dialect", "backend"), _cases())
def test_faults_lead_to_what_the_table_says(row: str, act: Any, dialect: str, backend: str) -> None:
    (cell, _), *_ = [cells for first, cells in FAULTS.items() if first.startswith(row)]
    assert _errors_in(cell)
    with pytest.raises(_errors_in(cell)):
        act(DIALECTS[dialect], backend)


# -- the second table -------------------------------------------------------------------------------

FAILURES = {
    "an environment raises": (raises, {}, (*HERE, RAY)),
    "a worker crashes": (exits, {}, ("processes", RAY)),
    "a worker exceeds `step_timeout`": (slow, {"step_timeout": 0.5}, ("processes",)),
}


def _recoveries() -> list[Any]:
    cases: list[Any] = []
    for row, (fault, options, backends) in FAILURES.items():
        for backend in backends:
            name, marks = _name_and_marks(backend)
            dialects = ANY if isinstance(backend, str) else ("vector",)
            cases += [
                pytest.param(row, fault, options, dialect, name, marks=marks, id=f"{row}-{dialect}-{name}")
                for dialect in dialects
            ]
    return cases


def test_every_failure_is_checked() -> None:
    assert [*FAILURES, "afterwards"] == list(RECOVERY)


@pytest.mark.parametrize("mode", ["raise", "restart", "mask"])
@pytest.mark.parametrize(("row", "fault", "options", "dialect", "backend"), _recoveries())
def test_failures_are_handled_as_the_table_says(
    row: str, fault: Any, options: Any, dialect: str, backend: str, mode: str, tmp_path: Path
) -> None:
    env_fns: list[Callable[[], gymnasium.Env]] = [partial(OnceFaultyEnv, i, tmp_path, fault) for i in range(N)]
    made = DIALECTS[dialect](env_fns, backend, on_failure=mode, **options)
    made.reset()
    if mode == "raise":
        named = _errors_in(RECOVERY[row][0])
        assert named
        with pytest.raises(named):
            made.step()
    else:
        reward, truncated = made.step()
        assert (reward.tolist(), truncated.tolist()) == ([1.0, 0.0, 1.0], [False, True, False])
        made.step()  # row 1 is reset, or is excluded
        reward, truncated = made.step()
        assert not truncated.any()
        assert (reward[1] > 0) == (mode == "restart")
        assert reward[[0, 2]].tolist() == [3.0, 3.0]
    made.envs.close()
