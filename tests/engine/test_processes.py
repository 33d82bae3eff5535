"""Worker processes: what they inherit from the caller, what is separate, and how they start."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import psutil
import pytest
from tests.fixtures.equality import assert_same
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.gym_envs import counting
from tests.fixtures.pools import make_pool

from vecrl.engine.backends.protocol import spin_seconds
from vecrl.engine.backends.worker_connection import WorkerConnection
from vecrl.engine.backends.worker_options import Wait
from vecrl.engine.backends.worker_programs import modules_in
from vecrl.engine.pool import Pool
from vecrl.errors import WorkerCrash
from vecrl.vector import VectorEnv

STARTS = ["forkserver", "spawn"]


class ProcessInfoEnv(FaultyEnv):
    """Answers questions about its process."""

    def ask(self, question: str) -> Any:
        return eval(question, {"os": os, "sys": sys, "np": np, "random": random, "time": time})

    def torch_threads(self) -> int:
        import torch

        return torch.get_num_threads()


def _query(pool: Pool, question: str) -> list[Any]:
    return pool.invoke("call", "ask", [((question,), {})] * pool.num_envs)


@pytest.mark.parametrize("start_method", STARTS)
def test_workers_inherit_environment_folder_and_path(
    start_method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED", "here")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/a/path/of/ours")
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # not text: imports skip it, the engine too
    pool = make_pool([ProcessInfoEnv] * 2, "processes", start_method=start_method)
    assert (
        _query(pool, "os.environ['ASKED'], os.environ.get('HOME'), os.getcwd()") == [("here", None, str(tmp_path))] * 2
    )
    assert _query(pool, "sys.path[0]") == ["/a/path/of/ours"] * 2
    assert os.getpid() not in _query(pool, "os.getpid()")
    assert _query(pool, "sys.stdin.read()") == ["", ""], "workers do not read the caller's input"
    pool.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_numerical_libraries_respect_thread_limits(threads: int) -> None:
    pool = make_pool([ProcessInfoEnv] * 2, "processes", threads_per_worker=threads)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    assert _query(pool, f"[os.environ[name] for name in {names}]") == [[str(threads)] * 3] * 2
    assert pool.invoke("call", "torch_threads", [((), {})] * 2) == [threads] * 2
    pool.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_pinned_workers_share_out_the_cores_that_this_process_may_use(threads: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    pool = make_pool([ProcessInfoEnv] * 3, "processes", 3, threads_per_worker=threads, pin_workers=True)
    own = [{cores[i % len(cores)] for i in range(w * threads, (w + 1) * threads)} for w in range(3)]
    assert _query(pool, "os.sched_getaffinity(0)") == own
    assert sorted(os.sched_getaffinity(0)) == cores
    pool.close()


@pytest.mark.parametrize("wait", get_args(Wait))
def test_ways_to_wait_give_the_same_results_and_report_a_crash_at_once(wait: Wait) -> None:
    trajectories = []
    for options in ({"backend": "serial"}, {"backend": "processes", "num_workers": 2}):
        env = VectorEnv(counting(4), **options, wait=wait)
        trajectories.append([env.reset(seed=1), *(env.step(np.ones(4, int)) for _ in range(30))])
        env.close()
    assert_same(*trajectories)
    pool = make_pool([ProcessInfoEnv] * 2, "processes", 2, wait=wait)
    first, _ = _query(pool, "os.getpid()")
    os.kill(first, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(WorkerCrash):
        _query(pool, "os.getpid()")
    assert time.monotonic() - start < 1.0
    pool.close()


def test_waiting_workers_and_their_caller_go_to_sleep() -> None:
    pool = make_pool([ProcessInfoEnv] * 2, "processes", 2, wait="spin")
    before, own = _query(pool, "time.process_time()"), time.process_time()
    time.sleep(0.5)
    _query(pool, "time.sleep(0.5)")
    after = _query(pool, "time.process_time()")
    assert all(late - early < 0.2 for early, late in zip(before, after, strict=True))
    assert time.process_time() - own < 0.2
    pool.close()


@pytest.mark.parametrize("num_workers", [1, 10**6])
def test_processes_poll_only_if_there_is_a_core_for_each_worker(num_workers: int) -> None:
    assert [spin_seconds(wait, num_workers) > 0 for wait in get_args(Wait)] == [False, *[num_workers == 1] * 2]


@pytest.mark.parametrize("start_method", STARTS)
def test_workers_have_different_random_states(start_method: Any) -> None:
    pool = make_pool([ProcessInfoEnv] * 4, "processes", 4, start_method=start_method)
    for question in ("random.random()", "float(np.random.rand())", "float(np.random.default_rng().random())"):
        samples = _query(pool, question)
        assert len(set(samples)) == 4
    pool.close()


def test_workers_start_with_their_modules_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server imports a factory's module once; its forks do not import it."""
    importers = tmp_path / "importers"
    (tmp_path / "recorded_module.py").write_text(
        f"import os\nwith open({str(importers)!r}, 'a') as file:\n    file.write(f'{{os.getpid()}}\\n')\n"
        "from tests.fixtures.faulty_envs import FaultyEnv\nclass Recorded(FaultyEnv):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from recorded_module import Recorded  # pyright: ignore[reportMissingImports]

    for _ in range(2):
        pool = make_pool([Recorded] * 8, "processes", 8)
        workers = {info.pid for info in pool.worker_infos}
        pool.close()
        assert len(workers) == 8
        assert not workers.intersection(map(int, importers.read_text().split()))
    assert len(importers.read_text().split()) == 2, "this process and the fork server"


def test_preload_adds_modules() -> None:
    pool = make_pool([ProcessInfoEnv] * 2, "processes", preload=["wave"])
    assert _query(pool, "'wave' in sys.modules") == [True, True]
    pool.close()
    with pytest.raises(ModuleNotFoundError, match="got 'this_is_not_there'"):
        make_pool([ProcessInfoEnv] * 2, "processes", preload=["this_is_not_there"])


def test_spawned_workers_import_preloaded_modules() -> None:
    pool = make_pool([ProcessInfoEnv] * 2, "processes", preload=["wave"], start_method="spawn")
    assert _query(pool, "'wave' in sys.modules") == [True, True]
    pool.close()


STARTS_WORKERS = """
from vecrl.vector import RolloutWorkers
print("imported", flush=True)
options = {{"num_envs": 2, "num_workers": 1, "preload": [{name!r}]}}
with RolloutWorkers("CartPole-v1", lambda obs: [0] * len(obs), **options) as workers:
    print(workers.rollout(3).reward.shape, flush=True)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("script", "ValueError: Expected preload to name other modules than the running script, got 'script'"),
        ("__main__", "ValueError: Expected preload to name other modules than the running script, got '__main__'"),
        ("other", "RuntimeError: Expected the import of a module for workers to start no worker processes"),
    ],
)
def test_preloaded_modules_start_no_workers(name: str, message: str, tmp_path: Path) -> None:
    for file in ("script", "other"):
        (tmp_path / f"{file}.py").write_text(STARTS_WORKERS.format(name=name))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout.count("imported") <= 3  # by the script, a fork server and the worker
    assert message in done.stderr


def test_modules_that_start_threads_get_new_interpreters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {process.pid for process in psutil.Process().children()}
    pool = make_pool([ProcessInfoEnv] * 2, "processes", preload=["threaded"], threads_per_worker=3)
    assert _query(pool, "sys.modules['threading'].active_count() > 1") == [True, True], (
        "workers import it, and are not forked from a process with threads, which would have none"
    )
    assert pool.reset().obs.shape == (2, 3)
    pool.close()
    for fork_server in psutil.Process().children():  # later tests must not be affected
        if fork_server.pid not in before:
            fork_server.kill()


def test_modules_are_found_in_pickled_factories() -> None:
    import cloudpickle

    def make() -> Any:
        return gymnasium.make("CartPole-v1")

    found = modules_in(cloudpickle.dumps((make, FaultyEnv, cloudpickle.dumps(np.random.default_rng))))
    assert {"gymnasium", "tests.fixtures.faulty_envs", "gymnasium.envs.classic_control.cartpole"} <= found
    assert any(name.startswith("numpy.random") for name in found), "in a pickle within the pickle"
    assert "__main__" not in found


@pytest.mark.parametrize("start_method", STARTS)
def test_invalid_arguments_raise(start_method: Any) -> None:
    with pytest.raises(ValueError, match="start_method to be 'forkserver' or 'spawn', got 'thread'"):
        make_pool([FaultyEnv], "processes", 1, start_method="thread")
    with pytest.raises(ValueError, match="backend to be 'serial', 'threads', 'processes' or 'ray', got 'rays'"):
        make_pool([FaultyEnv], "rays", 1, start_method=start_method)


def test_replies_and_commands_may_exceed_pipe_buffers() -> None:
    pool = make_pool([ProcessInfoEnv] * 3, "processes", 3)
    big = "x" * 3_000_000
    pool.invoke("set", "big", [big] * 3)
    assert pool.invoke("get", "big") == [big] * 3
    pool.close()


def test_pools_outlive_the_thread_that_made_them() -> None:
    import threading

    made: list[Pool] = []
    thread = threading.Thread(target=lambda: made.append(make_pool([FaultyEnv] * 2, "processes")))
    thread.start()
    thread.join()
    made[0].reset()
    assert made[0].step(np.zeros(2, int)).reward.tolist() == [1, 1]
    made[0].close()


def test_no_worker_is_awaited_alone_while_a_long_command_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller would sleep, with the rest of the command unsent."""
    wait, unsent = WorkerConnection.wait_for_reply, []
    pool: Any = make_pool([ProcessInfoEnv] * 2, "processes")

    def waits(connection: WorkerConnection, *arguments: Any) -> bool:
        unsent.extend(other.has_unsent for other in pool._backend._connections)
        return wait(connection, *arguments)

    monkeypatch.setattr(WorkerConnection, "wait_for_reply", waits)
    pool.invoke("set", "note", [bytes(4_000_000)] * 2)
    assert not any(unsent)
    assert _query(pool, "0") == [0, 0]
    assert unsent, "short commands are awaited so"
    assert [len(note) for note in pool.invoke("get", "note")] == [4_000_000] * 2
