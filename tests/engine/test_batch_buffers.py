"""Batch buffers: which rows a worker sees, and that a slot is never written while a result refers to it."""

import copy
import gc
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.interpreter_hooks import HOOKS
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.engine import batch_buffers
from vecrl.engine.batch_buffers import BatchBuffers
from vecrl.engine.pool import Pool
from vecrl.engine.space_layout import Layout

try:
    import torch
except ImportError:  # the newest interpreters are tested without it
    torch = None

OBS = Layout(spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "n": spaces.Discrete(5), "t": spaces.Text(3)}))
ACTION = Layout(spaces.Discrete(2))
N = 6


def test_leaves_are_disjoint_and_aligned() -> None:
    buffers = BatchBuffers(OBS, ACTION, N)
    arrays = [*buffers.actions, *buffers.final_obs, buffers.reset_mask]
    for slot in buffers.slots:
        arrays += [*slot.obs, slot.reward, slot.flags, slot.returns, slot.lengths]
    arrays = [a for a in arrays if a is not None]
    for array in arrays:
        assert array.ctypes.data % 16 == 0
        assert not array.any()
    for i, array in enumerate(arrays):
        array.fill(1)
        for j, other in enumerate(arrays):
            assert i == j or not np.may_share_memory(array, other)
    assert buffers.slots[0].obs[2] is None


def test_two_maps_of_one_file_share_memory() -> None:
    fd = os.memfd_create("test")
    os.ftruncate(fd, BatchBuffers.size(OBS, ACTION, N))
    actual, expected = (BatchBuffers(OBS, ACTION, N, fd=fd) for _ in range(2))
    os.close(fd)
    rows = expected.rows(2, 4)[3]
    rows.obs[0][:] = 7
    rows.reward[:] = 8
    rows.was_reset[:] = True
    slot = actual.slots[3]
    np.testing.assert_array_equal(slot.obs[0][:, 0], [0, 0, 7, 7, 0, 0])
    np.testing.assert_array_equal(slot.reward, [0, 0, 8, 8, 0, 0])
    np.testing.assert_array_equal(slot.was_reset, [False, False, True, True, False, False])
    assert not actual.slots[2].reward.any()


class Nested(FaultyEnv):
    """Observes its counts in a dict of arrays."""

    observation_space = spaces.Dict(
        {"a": spaces.Box(-np.inf, np.inf, (3,), np.float64), "t": spaces.Tuple((spaces.Box(0, 1e9, (2, 2)),))}
    )

    def _observe(self) -> Any:
        return {"a": super()._observe(), "t": (np.full((2, 2), self.count, np.float32),)}


class _OfLibrary:
    """An object of another library with an array's interface."""

    def __init__(self, array: np.ndarray):
        self.__array_interface__ = array.__array_interface__
        self.array = array


HOLDS: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda a: a,
    "a view": lambda a: a[1:],
    "a row": lambda a: a[0],
    "a view of a view": lambda a: a[1:].T[..., ::2].reshape(-1),
    "a strided view": lambda a: np.lib.stride_tricks.as_strided(a, (2, 2)),
    "a view of another dtype": lambda a: a.view(np.uint8),
    "a view of another class": lambda a: a.view(np.ma.MaskedArray),
    "an array of its class's view": lambda a: np.asarray(a.view(np.matrix))[1:],
    "a read-only view": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "a shallow copy": lambda a: copy.copy([a]),
    "an array interface": lambda a: np.asarray(_OfLibrary(a)),
    "a ctypes array": lambda a: np.ctypeslib.as_ctypes(a),
    "an iterator": lambda a: _first_of(a.flat),
    "a memoryview": memoryview,
    "a part of a memoryview": lambda a: memoryview(memoryview(a)[1:]),
    "a buffer's array": lambda a: np.frombuffer(memoryview(a), np.uint8),
    "an array over its buffer": lambda a: np.ndarray((3,), np.float64, memoryview(a)),
    "a list of rows": list,
    "a closure": lambda a: lambda: a,
    "a cycle": lambda a: _cycle(a),
    "another shape": lambda a: _reshaped(a),
    "a dlpack import": np.from_dlpack,
}
if torch is not None:
    HOLDS |= {
        "a tensor": torch.from_numpy,
        "a tensor of a view": lambda a: torch.from_numpy(a)[1:],
        "a tensor's array": lambda a: torch.from_numpy(a).numpy(),
        "a detached tensor": lambda a: torch.as_tensor(a).detach(),
        "a tensor's storage": lambda a: torch.frombuffer(a, dtype=torch.float64).untyped_storage(),
        "a tensor over its buffer": lambda a: torch.frombuffer(memoryview(a), dtype=torch.float64),
        "a tensor's dlpack import": torch.from_dlpack,
        "a tensor's second dlpack import": lambda a: np.from_dlpack(torch.from_dlpack(a)),
    }


def _first_of(values: Any) -> Callable[[], np.ndarray]:
    return lambda: np.array([values[i] for i in range(len(values))])


def _cycle(array: np.ndarray) -> list[Any]:
    cycle: list[Any] = [array]
    cycle.append(cycle)
    return cycle


def _reshaped(array: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of NumPy 2.5
        array.shape = (-1,)
    array.flags.writeable = False
    return array


def _numbers(stored: Any) -> np.ndarray:
    if callable(stored):
        stored = stored()
    if isinstance(stored, list):
        stored = stored[0]
    if torch is not None and isinstance(stored, torch.Tensor):
        stored = stored.numpy()
    return np.array(bytes(stored) if type(stored).__name__ == "UntypedStorage" else stored)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hold", HOLDS)
def test_held_results_are_not_overwritten(hold: str, backend: str) -> None:
    _check_held_results(hold, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hook", [name for name in HOOKS if name != "none"])
def test_held_results_are_not_overwritten_under_debuggers_and_profilers(hook: str, backend: str) -> None:
    for hold in "itself", "a row", "a memoryview":
        with HOOKS[hook]():
            _check_held_results(hold, backend)


def _check_held_results(hold: str, backend: str) -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i) for i in range(4)], backend)
    stored = [HOLDS[hold](pool.reset().obs)]
    before = [_numbers(stored[0])]
    for _ in range(2 * len(pool._buffers.slots)):  # more results than there are slots
        stored.append(HOLDS[hold](pool.step(np.zeros(4, int)).obs))
        before.append(_numbers(stored[-1]))
        after = pool.step(np.zeros(4, int)).obs
        assert after.shape == (4, 3)
        assert after.flags.writeable
    for a, b in zip(stored, before, strict=True):
        np.testing.assert_array_equal(_numbers(a), b)
    pool.close()
    np.testing.assert_array_equal(_numbers(stored[-1]), before[-1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_that_another_thread_releases_is_held_until_then(backend: str) -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i) for i in range(2)], backend)
    results, counts = [pool.reset().obs], []
    taken, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def release() -> None:
        for _ in range(20):
            taken.acquire()
            counts.append(results.pop(0)[:, 2].tolist())
            go_on.release()

    thread = threading.Thread(target=release)
    thread.start()
    for step in range(20):
        results.append(pool.step(np.zeros(2, int)).obs)
        if step >= 3:
            taken.release()  # while this thread steps
    for _ in range(3):
        taken.release()
    thread.join()
    assert counts == [[count, count] for count in range(20)]
    pool.close()


def test_a_result_that_a_finalizer_keeps_is_not_overwritten() -> None:
    class Keeping:
        def __init__(self, array: np.ndarray):
            self.array, self.cycle = array, self

        def __del__(self) -> None:
            kept.append(self.array)

    kept: list[np.ndarray] = []
    pool = make_pool([FaultyEnv] * 2, "serial")
    pool.reset()
    Keeping(pool.step(np.zeros(2, int)).obs)
    gc.collect()
    for _ in range(3):
        pool.step(np.zeros(2, int))
    assert kept[0][:, 2].tolist() == [1, 1]
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_copied_if_numpy_follows_the_base_of_a_view_to_the_memory(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_buffers, "_as_lease_memory", lambda array: array)  # views of which refer to the memory
    assert not batch_buffers._views_refer_to_leases()
    monkeypatch.setattr(batch_buffers, "_HAS_LEASES", batch_buffers._views_refer_to_leases())
    _check_held_results("a row", backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_of_results_do_not_hold_the_slot(backend: str) -> None:
    pool = make_pool([FaultyEnv] * 2, backend)
    pool.reset()
    kept: list[Any] = []
    places = set()
    for _ in range(8):
        obs = pool.step(np.zeros(2, int)).obs
        places.add(obs.ctypes.data)
        kept += [obs.copy(), copy.deepcopy(obs), pickle.loads(pickle.dumps(obs)), obs.tolist()]
        del obs
    assert len(places) == 1
    for i, copied in enumerate(kept):
        assert np.array(copied)[:, 2].tolist() == [1 + i // 4] * 2
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leaf_of_a_nested_result_holds_the_slot(backend: str) -> None:
    pool = make_pool([lambda i=i: Nested(i) for i in range(4)], backend)
    pool.reset()
    stored = [pool.step(np.zeros(4, int)).obs["t"][0][0] for _ in range(8)]
    for count, piece in enumerate(stored, 1):
        np.testing.assert_array_equal(piece, np.full((2, 2), count))
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_restarts_do_not_overwrite_held_results(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    class FailsOnOne(FaultyEnv):
        def step(self, action: Any) -> Any:
            return super().step(action) if action == 0 else self.missing

    pool = make_pool([lambda i=i: FailsOnOne(i) for i in range(2)], backend, on_failure="restart")
    held = [pool.reset().obs] + [pool.step(np.zeros(2, int)).obs for _ in range(len(pool._buffers.slots))]
    pool.step(np.array([1, 0]), reset_done=True)
    pool.step(np.array([1, 0]), reset_done=True)
    assert "2 of 100" in caplog.text
    assert [array.tolist() for array in held] == [[[0, 0, i], [1, 0, i]] for i in range(len(held))]
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_flags_rewards_and_infos_are_copies(backend: str) -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i, length=2) for i in range(4)], backend)
    pool.reset()
    first = pool.step(np.zeros(4, int), reset_done=True)
    second = pool.step(np.zeros(4, int), reset_done=True)
    for _ in range(8):
        pool.step(np.zeros(4, int), reset_done=True)
    np.testing.assert_array_equal(first.reward, 1)
    np.testing.assert_array_equal(first.terminated, False)
    np.testing.assert_array_equal(second.terminated, True)
    np.testing.assert_array_equal(second.final_obs[:, 1:], [[0, 2]] * 4)
    np.testing.assert_array_equal(second.episodes.returns, [3.0] * 4)
    np.testing.assert_array_equal(second.episodes.lengths, [2] * 4)
    assert dict(first.infos.items())[3] == {"count": 1}
    pool.close()


def _addresses(pool: Pool, steps: int) -> set[int]:
    return {pool.step(np.zeros(pool.num_envs, int)).obs.ctypes.data for _ in range(steps)}


def test_released_slots_are_reused() -> None:
    pool = make_pool([FaultyEnv] * 2, "serial")
    pool.reset()
    assert len(_addresses(pool, 20)) == 1
    stored = [pool.step(np.zeros(2, int)).obs for _ in range(10)]
    assert len({array.ctypes.data for array in stored}) == 10, "slots, and copies when there are no more"
    stored.clear()
    gc.collect()
    assert len(_addresses(pool, 20)) == 1
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_actions_are_copies(backend: str) -> None:
    class Keeping(FaultyEnv):
        action_space = spaces.Box(-1, 1, (2,), np.float64)

        def step(self, action: Any) -> Any:
            self.kept = [*getattr(self, "kept", []), action]
            return super().step(action)

        def sums(self) -> list[float]:
            return [float(action.sum()) for action in self.kept]

    pool = make_pool([Keeping] * 3, backend)
    pool.reset()
    actions = np.zeros((3, 2))
    for value in range(4):
        actions[:] = value / 4
        pool.step(actions)
    pool.send([1], actions[:1])
    actions[:] = 9
    pool.recv()
    assert pool.invoke("call", "sums", [((), {})] * 3)[1] == [0.0, 0.5, 1.0, 1.5, 1.5]
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_opaque_observations_are_copies(backend: str) -> None:
    class Growing(FaultyEnv):
        observation_space = spaces.Sequence(spaces.Discrete(100))
        history: Any = ()

        def _observe(self) -> Any:
            self.history = self.history or []
            self.history.append(self.count)
            return self.history

    pool = make_pool([Growing] * 2, backend)
    first = pool.reset().obs
    pool.step(np.zeros(2, int))
    assert first == ([0], [0])
    pool.close()
