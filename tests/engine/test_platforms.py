"""What works where the platform is not Linux: on an interpreter that looks like one there, as far as that goes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = [
    "numpy",
    "gymnasium",
    "gymnasium.envs.classic_control",
    "cloudpickle",
    "multiprocessing",
    "uuid",
    "asyncio",
]
LIBRARIES_OF_TORCH = ["torch", "torch._dynamo", "tensordict"]
STEP = """
from functools import partial
import gymnasium, numpy as np
from vecrl.vector import VectorEnv

def steps(backend, workers):
    envs = VectorEnv([partial(gymnasium.make, "CartPole-v1")] * 4, backend=backend, num_workers=workers)
    sums = [envs.reset(seed=1)[0].sum()] + [envs.step(np.ones(4, int))[0].sum() for _ in range(60)]
    envs.close()
    return sums
"""


def _start(platform: str, libraries: list[str], code: str, folder: Path) -> subprocess.Popen[str]:
    """Starts a program; it and all Python processes that it starts are changed first."""
    change = f"from tests.fixtures.other_platforms import become\nbecome({platform!r}, {libraries})\n"
    (folder / "sitecustomize.py").write_text(change)
    variables = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT / 'src'}:{ROOT}"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code], env=variables, stdout=pipe, stderr=pipe, text=True, cwd=folder
    )


def _run(platform: str, libraries: list[str], code: str, folder: Path) -> str:
    with _start(platform, libraries, code, folder) as program:
        printed, errors = program.communicate(timeout=100)
    assert program.returncode == 0, errors
    return printed


def test_worker_processes_are_spawned_on_macos(tmp_path: Path) -> None:
    code = f"""{STEP}
import sys
assert sys.platform == "darwin"
serial = steps("serial", 1)
assert serial == steps("threads", 2) == steps("processes", 2)
print("equal")
"""
    assert _run("darwin", LIBRARIES, code, tmp_path) == "equal\n"


def test_crashes_are_reported_and_restarted_on_macos(tmp_path: Path) -> None:
    code = """
import os, signal, time
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from vecrl.errors import WorkerCrash
from vecrl.vector import VectorEnv

class Mortal(CartPoleEnv):
    def step(self, action):
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

def make(**options):
    envs = VectorEnv([Mortal] * 2, backend="processes", num_workers=2, **options)
    envs.reset(seed=1)
    return envs

envs = make()
start = time.monotonic()
try:
    envs.step(np.array([0, 1]))
except WorkerCrash as error:
    assert time.monotonic() - start < 5
    print(sorted(error.env_ids), "SIGKILL" in str(error))
envs.close()
envs = make(on_failure="restart")
print(envs.step(np.array([0, 1]))[3].tolist())
print(envs.step(np.array([0, 0]))[3].tolist())
envs.close()
"""
    assert _run("darwin", LIBRARIES, code, tmp_path) == "[1] True\n[False, True]\n[False, False]\n"


@pytest.mark.timeout(120)
def test_workers_end_with_a_killed_caller_on_macos(tmp_path: Path) -> None:
    """Also one that is within a step."""
    code = """
import os, time
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from vecrl.vector import VectorEnv

class Slow(CartPoleEnv):
    def step(self, action):
        os.write(1, b"%d\\n" % os.getpid())  # in one call, so that the lines of two processes do not mix
        time.sleep(1000)

envs = VectorEnv([Slow] * 2, backend="processes", num_workers=2)
envs.reset(seed=1)
envs.step(np.array([0, 0]))
"""
    with _start("darwin", LIBRARIES, code, tmp_path) as program:
        assert program.stdout is not None
        workers = [int(program.stdout.readline()) for _ in range(2)]
        assert all(psutil.pid_exists(worker) for worker in workers)
        program.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while any(psutil.pid_exists(worker) for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_windows_has_serial_and_threads(tmp_path: Path) -> None:
    code = f"""{STEP}
from vecrl.errors import PlatformError
assert steps("serial", 1) == steps("threads", 2)
for backend in ("processes", "ray"):
    try:
        steps(backend, 2)
    except PlatformError as error:
        print(error)
"""
    advice = "Use 'serial' or 'threads', or run vecrl in WSL."
    assert _run("win32", LIBRARIES, code, tmp_path).splitlines() == [
        f"Expected Linux or macOS for backend='{backend}', got win32. {advice}" for backend in ("processes", "ray")
    ]


def test_windows_has_tensors_but_writes_no_files(tmp_path: Path) -> None:
    code = """
from vecrl.envs import GymEnv, StepCounter, TransformedEnv
from vecrl.errors import PlatformError
from vecrl.policy import Policy
from vecrl.snapshot.atomic_write import write_atomically
from vecrl.vector import make_vector_env

make_vector_env("native::CartPole-v1", num_envs=3).reset(seed=1)
print(TransformedEnv(GymEnv("CartPole-v1"), StepCounter()).rollout(5)["next", "step_count"].flatten().tolist())
try:
    write_atomically("file", [b"content"])
except PlatformError as error:
    print(error)
"""
    expected = "Files are written on Linux and macOS only, where they can be locked, got win32."
    printed = _run("win32", LIBRARIES + LIBRARIES_OF_TORCH, code, tmp_path)
    assert printed.splitlines() == ["[1, 2, 3, 4, 5]", expected]
    assert sorted(path.name for path in tmp_path.glob("*file*")) == []
