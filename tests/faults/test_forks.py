"""In a fork of the process that made a pool, each call raises a `ForkedError`, and changes nothing in either process.

The forks are made in scripts, since a process that has rendered cannot fork.
"""

from pathlib import Path

import pytest
from tests.fixtures.scripts import Script

FORK = """
import gc
import warnings
import gymnasium
import torch
from functools import partial
from vecrl.errors import ForkedError

# Of Python 3.12 and newer, for each fork of a process with threads
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

def in_fork(calls):
    # Returns what each call does in a fork: the name of its error, or None.
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        names = []
        for call in calls:
            try:
                call()
                names.append("none")
            except BaseException as error:
                names.append(type(error).__name__)
        os.write(write_end, " ".join(names).encode())
        os.close(write_end)
        gc.collect()
        sys.exit()  # finalizers and all
    os.close(write_end)
    with os.fdopen(read_end) as results:
        names = results.read().split()
    assert os.waitpid(pid, 0)[1] == 0
    return names
"""


def run(body: str, folder: Path) -> None:
    code, out, err = Script(FORK + body, folder).finish(180.0)
    assert (code, out, err) == (0, "done\n", ""), err


@pytest.mark.parametrize("backend", ["processes", "threads"])
def test_every_call_of_a_pool(tmp_path: Path, backend: str) -> None:
    run(
        f"""
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import make_pool

pool = make_pool([FaultyEnv] * 4, {backend!r}, 2)
pool.reset()
actions = np.zeros(4, int)
calls = [
    pool.reset, lambda: pool.reset(ids=[1]), lambda: pool.step(actions), pool.reset_async,
    lambda: pool.step_async(actions), pool.wait, lambda: pool.send_reset([0]), lambda: pool.send([0], actions[:1]),
    pool.recv, lambda: pool.invoke("get", "spec"), pool.get_state, lambda: pool.cancel([0]), pool.respawn_crashed,
    pool.drain, lambda: pool.recover(1.0), pool.close, lambda: pool.in_use,
]
assert (names := in_fork(calls)) == ["ForkedError"] * len(calls), names
assert pool.step(actions).reward.tolist() == [1.0] * 4
pool.step_async(actions)  # a pending command too
assert (names := in_fork(calls)) == ["ForkedError"] * len(calls), names
assert pool.wait().reward.tolist() == [2.0] * 4
pool.send([2, 0], actions[:2])
assert (names := in_fork(calls)) == ["ForkedError"] * len(calls), names
assert pool.recv().reward.tolist() == [3.0] * 2
pool.close()
say("done")
""",
        tmp_path,
    )


def test_every_dialect(tmp_path: Path) -> None:
    run(
        """
from vecrl.envs import AsyncEnvPool, GymEnv, ParallelEnv
from vecrl.policy import PopulationEvaluator
from vecrl.vector import AsyncVectorEnv, RolloutWorkers, SyncVectorEnv, VectorEnv
from vecrl.venv import SubprocVectorEnv

make = partial(gymnasium.make, "CartPole-v1")
actions = np.zeros(2, int)
vector = VectorEnv([make] * 2, backend="processes")
sync = SyncVectorEnv([make] * 2, backend="processes")
venv = SubprocVectorEnv([make] * 2)
parallel = ParallelEnv(2, partial(GymEnv, "CartPole-v1"))
asynchronous = AsyncEnvPool([partial(GymEnv, "CartPole-v1")] * 2)
rollouts = RolloutWorkers([make] * 2, lambda obs: np.zeros(len(obs), int))
evaluate = PopulationEvaluator("CartPole-v1", "Linear(4, 2)", 2, backend="processes", max_steps=5)
every = [vector, sync, venv, parallel, asynchronous, rollouts, evaluate]
for each in every[:-1]:
    each.reset()
calls = [
    lambda: vector.step(actions), lambda: sync.step(actions), lambda: venv.step(actions),
    lambda: parallel.rollout(2), asynchronous.reset, lambda: rollouts.rollout(2),
    lambda: evaluate(torch.zeros(2, evaluate.parameter_length)), *(each.close for each in every),
]
names = in_fork(calls)
assert names == ["ForkedError"] * len(calls), names
assert vector.step(actions)[1].tolist() == venv.step(actions)[1].tolist() == [1.0] * 2
assert parallel.rollout(2).shape == (2, 2)
assert rollouts.rollout(2).reward.shape == (2, 2)
evaluate(torch.zeros(2, evaluate.parameter_length))
for each in every:
    each.close()
say("done")
""",
        tmp_path,
    )


def test_a_fork_has_environments_of_the_serial_backend_and_makes_others(tmp_path: Path) -> None:
    run(
        """
from vecrl.vector import VectorEnv

make = partial(gymnasium.make, "CartPole-v1")
serial, processes = VectorEnv([make] * 2), VectorEnv([make] * 2, backend="processes")
serial.reset(seed=1)

def use():
    serial.step(np.zeros(2, int))
    with VectorEnv([make] * 2, backend="processes") as own:
        own.reset()

def in_grandchild():
    pid = os.fork()
    if pid == 0:
        try:
            processes.reset()
        except ForkedError as error:
            os._exit(0 if f"process {owner}, which" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0

owner = os.getpid()
assert in_fork([in_grandchild]) == ["none"]
assert in_fork([use, serial.close]) == ["none", "none"]
assert in_fork([processes.reset]) == ["ForkedError"]
first = serial.step(np.zeros(2, int))[0]
serial.reset(seed=1)
assert (serial.step(np.zeros(2, int))[0] == first).all()
processes.reset()
processes.close()
say("done")
""",
        tmp_path,
    )


def test_a_fork_is_not_locked_by_a_thread_of_its_parent(tmp_path: Path) -> None:
    run(
        """
import threading
from vecrl.vector import VectorEnv

slow = VectorEnv([partial(FaultyEnv, 0, "step", lambda env: time.sleep(1.0))])
slow.reset()
thread = threading.Thread(target=lambda: slow.step(np.zeros(1, int)))
thread.start()
time.sleep(0.3)
assert in_fork([lambda: signal.alarm(5), slow.reset]) == ["none", "none"]
thread.join()
slow.close()
say("done")
""",
        tmp_path,
    )
