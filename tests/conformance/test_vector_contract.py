"""What every class of vector environments guarantees: copies of results, closing, and errors for wrong factories."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gymnasium.error import ClosedEnvironmentError
from tensordict import TensorDictBase
from tests.fixtures.batch_simulators import CountingBatch
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import CountingEnv, counting, echoes

from vecrl.envs import EnvBase, GymWrapper, ParallelEnv, SerialEnv
from vecrl.errors import ClosedError, SpaceError
from vecrl.vector import AsyncVectorEnv, BatchedVectorEnv, SyncVectorEnv, VectorEnv
from vecrl.venv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv


def batch_of(kind: Any, makers: list[Any]) -> Any:
    """Returns a batch of TensorDict environments over gymnasium environments."""
    return kind(len(makers), [lambda make=make: GymWrapper(make()) for make in makers])


PLACES = {"threads": {"backend": "threads", "num_workers": 2}, "processes": {"backend": "processes", "num_workers": 2}}
VECTORS: dict[str, Callable[[list[Any]], Any]] = {
    "VectorEnv": VectorEnv,
    **{f"VectorEnv, {name}": partial(VectorEnv, **place) for name, place in PLACES.items()},
    "AsyncVectorEnv": partial(AsyncVectorEnv, **PLACES["threads"]),
    "SyncVectorEnv": SyncVectorEnv,
    "SyncVectorEnv, episodes": partial(SyncVectorEnv, num_episodes=3),
    "SyncVectorEnv, device": partial(SyncVectorEnv, device="cpu"),
    "SyncVectorEnv, episodes, device": partial(SyncVectorEnv, num_episodes=3, device="cpu"),
}
VENVS: dict[str, Callable[[list[Any]], Any]] = {
    "DummyVectorEnv": DummyVectorEnv,
    "DummyVectorEnv, 2 workers": partial(DummyVectorEnv, num_workers=2),
    "ShmemVectorEnv": ShmemVectorEnv,
    "ShmemVectorEnv, 1 worker": partial(ShmemVectorEnv, num_workers=1),
    "SubprocVectorEnv": SubprocVectorEnv,
}
TENSORDICTS: dict[str, Callable[[list[Any]], Any]] = {
    "GymWrapper": lambda makers: GymWrapper(VectorEnv(makers, autoreset_mode="same_step")),
    "SerialEnv": partial(batch_of, SerialEnv),
    "ParallelEnv": partial(batch_of, ParallelEnv),
}
ARRAYS = VECTORS | VENVS


class ReusedArrays(CountingEnv):
    """Returns the same observation, info and array in the info each time, and writes new values to them."""

    def __init__(self, env_id: int, name: str):
        super().__init__(env_id, 3)
        self.row = np.zeros(3)
        self.info: dict[str, Any] = {"row": self.row}
        if name in VENVS:
            self.info["deep"] = {"list": [self.row]}
        elif not name.startswith("SyncVectorEnv"):
            self.info["deep"] = {"row": self.row}

    def observe(self) -> np.ndarray:
        self.row[:] = super().observe()
        return self.row

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        return *result, self.info


def arrays(result: Any) -> Any:
    """Returns a result with NumPy arrays that share the memory of its tensors."""
    if isinstance(result, TensorDictBase):
        return {key: value.numpy() for key, value in result.items(True, True)}
    if isinstance(result, tuple | list) or (isinstance(result, np.ndarray) and result.dtype == object):
        return [arrays(part) for part in result]
    if isinstance(result, dict):
        return {key: arrays(value) for key, value in result.items()}
    return result.numpy() if isinstance(result, torch.Tensor) else result


def results(envs: Any, steps: int) -> Iterator[Any]:
    root = envs.reset()
    yield root
    for _ in range(steps):
        if isinstance(envs, EnvBase):
            result, root = envs.step_and_maybe_reset(envs.rand_action(root))
        else:
            result = envs.step([0, 0])
        yield result


@pytest.mark.parametrize("name", ARRAYS | TENSORDICTS)
def test_later_calls_do_not_change_results(name: str) -> None:
    """The environments reuse the arrays that they return, also deep in infos as far as a class copies these."""
    saved, copies = [], []
    envs = (ARRAYS | TENSORDICTS)[name]([partial(ReusedArrays, i, name) for i in range(2)])
    for result in results(envs, 12):
        saved.append(arrays(result))
        copies.append(copy.deepcopy(saved[-1]))
    envs.close()
    assert_same(saved, copies)
    assert len({str(step) for step in saved[1:4]}) == 3


@pytest.mark.parametrize("name", ARRAYS)
def test_writing_to_results_does_not_change_later_ones(name: str) -> None:
    with ARRAYS[name](counting(2, 3)) as envs:
        for obs, *arrays_of_step in results(envs, 12):
            for part in (obs, *arrays_of_step[:-1]):
                part[:] = 1
        envs.reset()
        assert arrays(envs.step([0, 0])[0])[:, 2].tolist() == [1, 1]


USES: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step([0, 0]),
}
RENDER = {"render": lambda envs: envs.render()}
VECTOR_USES = USES | {
    "call": lambda envs: envs.call("label"),
    "get_attr": lambda envs: envs.get_attr("label"),
    "set_attr": lambda envs: envs.set_attr("label", 1),
}
VENV_USES = (
    USES
    | RENDER
    | {
        "reset of some": lambda envs: envs.reset([0]),
        "step of some": lambda envs: envs.step([0], [0]),
        "step(None)": lambda envs: envs.step(None),
        "seed": lambda envs: envs.seed(),
        "get_env_attr": lambda envs: envs.get_env_attr("label"),
        "set_env_attr": lambda envs: envs.set_env_attr("label", 1),
        "metadata": lambda envs: envs.metadata,
        "action_space": lambda envs: envs.action_space,
        "spec": lambda envs: envs.spec,
        "reward_range": lambda envs: envs.reward_range,
    }
)


ASYNC_USES = (
    VECTOR_USES
    | RENDER
    | {
        "reset_wait": lambda envs: envs.reset_wait(),
        "step_wait": lambda envs: envs.step_wait(),
        "call_wait": lambda envs: envs.call_wait(),
    }
)
SYNC_USES = USES | RENDER | {"seed": lambda envs: envs.seed(1)}
USES_OF = {"VectorEnv": VECTOR_USES, "AsyncVectorEnv": ASYNC_USES, "SyncVectorEnv": SYNC_USES}


@pytest.mark.parametrize("name", [*ARRAYS, "BatchedVectorEnv"])
def test_use_after_close_raises(name: str) -> None:
    """A second `close` has no effect."""
    simulator = CountingBatch(2)
    envs: Any = BatchedVectorEnv(simulator) if name == "BatchedVectorEnv" else ARRAYS[name](counting(2))
    envs.reset()
    envs.close()
    envs.close()
    assert envs.is_closed if name in VENVS else envs.closed
    assert len(envs) == 2 if name in VENVS else envs.num_envs == 2
    assert simulator.closed == (name == "BatchedVectorEnv")
    gymnasium_error = ClosedEnvironmentError if name == "AsyncVectorEnv" else ClosedError
    uses = VENV_USES if name in VENVS else USES_OF.get(name.partition(",")[0], USES | RENDER)
    for use in uses.values():
        with pytest.raises(ClosedError, match="closed") as exc_info:
            use(envs)
        assert isinstance(exc_info.value, gymnasium_error)


@pytest.mark.parametrize("name", ["VectorEnv", "AsyncVectorEnv", "SyncVectorEnv", "DummyVectorEnv", "SerialEnv"])
def test_environments_are_closed_once(name: str) -> None:
    """A block closes them, and a further `close` does not."""
    envs, makers = echoes(2)
    with (ARRAYS | TENSORDICTS)[name](makers) as vector:
        vector.reset()
    vector.close()
    assert [env.calls[-1] for env in envs] == ["close", "close"]
    assert [env.calls.count("close") for env in envs] == [1, 1]


@pytest.mark.parametrize("name", [*VECTORS, "ShmemVectorEnv", "DummyVectorEnv", "ParallelEnv"])
def test_unreferenced_environments_end_their_workers(name: str) -> None:
    envs = (ARRAYS | TENSORDICTS)[name](counting(2))
    root = envs.reset()
    pool, me = weakref.ref(envs._pool), psutil.Process().pid
    workers = [psutil.Process(info.pid) for info in envs._pool.worker_infos if info.pid != me]
    del envs
    gc.collect()
    assert pool() is None
    assert not psutil.wait_procs(workers, 5)[1]
    values = root["observation"] if isinstance(root, TensorDictBase) else root[0]
    assert values.tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("name", ["VectorEnv", "AsyncVectorEnv", "SyncVectorEnv", "DummyVectorEnv", "ShmemVectorEnv"])
def test_invalid_factories_raise(name: str) -> None:
    make = ARRAYS[name]
    with pytest.raises(SpaceError, match="at least one function"):
        make([])
    environment: Any = CountingEnv(0)
    with pytest.raises(SpaceError, match=r"functions that make environments.*Give `lambda: gymnasium.make"):
        make([environment])
    for other, advice in (("CartPole-v1", r"gymnasium\.make\('CartPole-v1'\)"), (CountingEnv, "function")):
        with pytest.raises(SpaceError, match=rf"Expected a list of functions.*{advice}"):
            make(other)
    with pytest.raises(SpaceError, match=r"environment 1: Expected an environment with reset and step, got None"):
        make([partial(CountingEnv, 0), lambda: None])


@pytest.mark.parametrize("name", ["VectorEnv", "SyncVectorEnv", "DummyVectorEnv", "SerialEnv", "ParallelEnv"])
@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copying_raises(copied: Callable[[Any], Any], name: str) -> None:
    """Copies would lose the shared memory of caller and workers, and observe zeros."""
    envs = (ARRAYS | TENSORDICTS)[name](counting(2))
    with pytest.raises(TypeError, match=r"cannot be copied or pickled.* another"):
        copied(envs)
    envs.close()
