"""`SyncVectorEnv`: counted episodes, infos and devices."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import EchoEnv, counting, echoes, ones

from vecrl.errors import WorkerError
from vecrl.vector import SyncVectorEnv, VectorEnv, arrays
from vecrl.vector.arrays import copy_to_device, to_device

INTEGERS = spaces.Box(0, 9, (2,), np.int32)


# -- episodes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1, 1.5])
def test_num_episodes_is_positive(number):
    """Other values are a ValueError."""
    with pytest.raises(ValueError, match="num_episodes"):
        SyncVectorEnv(counting(1), num_episodes=number)


def test_environments_stop_after_num_episodes():
    """After n episodes (n-1 auto-resets): both flags, reward nan and a dummy observation until `reset`."""
    envs, makers = echoes(1, length=2)
    late, late_makers = echoes(1, length=3)
    with SyncVectorEnv(makers + late_makers, num_episodes=2) as env:
        for _ in range(2):  # twice: a `reset` restarts the count
            for sub in envs + late:
                sub.calls.clear()
            env.reset()
            results = [env.step(ones(2)) for _ in range(8)]
            counts = [obs[:, 0].tolist() for obs, *_ in results]
            nan = pytest.approx(np.nan, nan_ok=True)
            assert counts[:4] == [[1, 1], [0, 2], [1, 0], [2, 1]]  # row 0 ends its last episode with the real 2
            assert counts[4:6] == [[nan, 2], [nan, 3]]
            assert counts[6:] == [[nan, nan], [nan, nan]]
            rewards = [reward.tolist() for _, reward, *_ in results]
            assert rewards == [[1, 1]] * 4 + [[nan, 1]] * 2 + [[nan, nan]] * 2
            ends = [terminated.tolist() for _, _, terminated, *_ in results]
            assert ends[:4] == [[False, False], [True, False], [False, True], [True, False]]
            assert ends[4:] == [[True, False], [True, True], [True, True], [True, True]]
            assert results[3][3].tolist() == [False, False]
            assert results[4][3].tolist() == [True, False]
            resets = [sum(isinstance(call, dict) for call in sub.calls) for sub in envs + late]
            steps = [sum(isinstance(call, np.ndarray) for call in sub.calls) for sub in envs + late]
            assert resets == [2, 2]
            assert steps == [4, 6]


def test_dummy_observation_of_integers_is_zero():
    """A dummy observation is nan for floats, 0 for integers."""
    with SyncVectorEnv([lambda: EchoEnv(INTEGERS, length=1)], num_episodes=1) as env:
        env.reset()
        assert env.step(ones(1))[0].tolist() == [[1, 1]]
        obs, *_, info = env.step(ones(1))
    assert obs.dtype == np.int32
    assert obs.tolist() == [[0, 0]]
    assert info == {}


def test_infos_of_the_last_step_are_kept():
    """The step that ends the last episode returns the real observation and info."""
    with SyncVectorEnv(counting(2, 1), num_episodes=1) as env:
        env.reset()
        obs, *_, info = env.step([0, 0])
        assert obs.tolist() == [[0, 0, 1], [1, 0, 1]]
        assert info["count"].tolist() == [1, 1]
        assert info["_final_obs"].tolist() == [True, False]
        assert info["final_obs"][0].tolist() == [0, 0, 1]
        assert info["final_info"]["count"].tolist() == [1, 0]
        *_, info = env.step([0, 0])
        assert info["count"] == [None, 2]


@pytest.mark.parametrize("place", [{}, {"backend": "processes", "num_workers": 2}], ids=["serial", "processes"])
def test_failures_do_not_lose_episode_counts(place):
    """Episodes that end while another environment raises are counted."""
    makers = [partial(EchoEnv, length=1), partial(EchoEnv, length=9, fault_at=1)]
    with SyncVectorEnv(makers, num_episodes=1, **place) as env:
        env.reset()
        with pytest.raises(WorkerError, match="environment 1 ") as exc_info:
            env.step(ones(2))
        assert exc_info.value.env_ids == (1,)
        assert "requested failure" in str(exc_info.value)
        assert "Traceback" in str(exc_info.value)
        assert isinstance(exc_info.value.__cause__, ZeroDivisionError)
        assert env._episodes_left.tolist() == [0, 1]
        env.reset()
        assert env._episodes_left.tolist() == [1, 1]


# -- infos -----------------------------------------------------------------------------------------


def test_empty_info_gives_empty_dicts():
    """With `empty_info=True`, infos are {}."""
    with SyncVectorEnv(counting(2, 1), empty_info=True) as env:
        assert env.reset()[1] == {}
        assert env.step([0, 0])[-1] == {}


def test_empty_info_does_not_read_infos():
    """With `empty_info=True`, the infos of environments are not read."""

    class Unread(dict):
        def values(self):
            raise AssertionError("values were read")

        items = keys = __iter__ = __getitem__ = values

    makers = [lambda: EchoEnv(infos=[Unread(x=1)], length=2)] * 2
    with SyncVectorEnv(makers, empty_info=True) as env:
        env.reset()
        assert [env.step(ones(2))[-1] for _ in range(3)] == [{}] * 3
    with SyncVectorEnv(makers) as env:
        env.reset()
        with pytest.raises((AssertionError, WorkerError), match="values were read"):
            env.step(ones(2))


INFOS: dict[str, tuple[Any, Any, Any]] = {  # key: the values of the two environments, and the merged value
    "integers": (1, 2, np.array([1, 2])),
    "mixed numbers": (1, 0.5, np.array([1.0, 0.5])),
    "bools": (True, False, np.array([True, False])),
    "numpy": (np.float32(1), np.float32(2), np.array([1, 2], np.float32)),
    "arrays": (np.zeros(2, np.int8), np.ones(2, np.int8), np.array([[0, 0], [1, 1]], np.int8)),
    "ragged": (np.zeros(2), np.ones(3), [np.zeros(2), np.ones(3)]),
    "array and number": (np.zeros(2), 1.0, [np.zeros(2), 1.0]),
    "text": ("a", "b", ["a", "b"]),
    "dicts": ({"x": 1}, {"x": 2}, [{"x": 1}, {"x": 2}]),
    "lists": ([1], [2], [[1], [2]]),
    "none": (None, 1, [None, 1]),
}


@pytest.mark.parametrize("cls", [SyncVectorEnv, VectorEnv])
def test_nested_infos_are_copied(cls):
    """An environment may change the dicts and lists in its infos later."""
    info = {"nested": {"deep": {"n": 1, "a": np.ones(1)}}, "items": [[1]], "mixed": {"n": 1}}
    other = {**info, "mixed": 3}
    with cls([lambda: EchoEnv(infos=[info]), lambda: EchoEnv(infos=[other])]) as env:
        env.reset()
        *_, received = env.step(ones(2))
    before = repr(received)
    info["nested"]["deep"]["n"] = 5
    info["nested"]["deep"]["a"] += 5
    info["items"][0].append(5)
    info["mixed"]["n"] = 5
    assert repr(received) == before


@pytest.mark.parametrize("key", INFOS)
def test_infos_are_merged_key_by_key(key):
    """Numbers or arrays of one shape in every environment become one array; any other key becomes a list."""
    first, second, merged = INFOS[key]
    both = {"always": 1} if key == "none" else {"always": 1, "only first": 2}
    makers = [lambda: EchoEnv(infos=[{key: first} | both]), lambda: EchoEnv(infos=[{key: second, "always": 2}])]
    with SyncVectorEnv(makers) as env:
        env.reset()
        *_, info = env.step(ones(2))
    assert_same(info[key], merged)
    assert info["always"].tolist() == [1, 2]
    assert info.get("only first", [2, None]) == [2, None]
    assert not any(name.startswith("_") for name in info)


def test_info_has_final_observations_and_infos():
    """`final_obs`, `final_info` and their masks are in info, unless `empty_info`."""
    with SyncVectorEnv(counting(3, 2)) as env:
        env.reset()
        assert "final_obs" not in env.step([0] * 3)[-1]
        *_, info = env.step([0] * 3)
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [True, False, False]
    assert info["final_obs"].dtype == object
    assert info["final_obs"][0].tolist() == [0, 0, 2]
    assert info["final_obs"][1:].tolist() == [None, None]
    assert info["final_info"]["count"].tolist() == [2, 0, 0]
    assert info["final_info"]["_count"].tolist() == [True, False, False]


# -- device ----------------------------------------------------------------------------------------


def test_results_are_tensors_on_the_device():
    """Observations, rewards, flags and numeric infos are tensors on the device."""
    with SyncVectorEnv(counting(2, 2), device="cpu") as env:
        obs, info = env.reset()
        assert obs.dtype == torch.float64
        assert info["episode_index"].tolist() == [0, 0]
        env.step(torch.zeros(2, dtype=torch.int64))
        obs, reward, terminated, truncated, info = env.step(torch.tensor([0, 0]))
    assert [part.dtype for part in (obs, reward, terminated, truncated)] == [torch.float64] * 2 + [torch.bool] * 2
    assert obs.tolist() == [[0, 1, 0], [1, 0, 2]]
    assert info["episode_index"] == [1, None]
    assert isinstance(info["_final_obs"], torch.Tensor)
    assert info["final_obs"][0].tolist() == [0, 0, 2]
    assert isinstance(info["final_obs"][0], torch.Tensor)
    assert info["final_info"]["count"].tolist() == [2, 0]


def test_results_are_transferred_in_one_copy():
    """All arrays are parts of one block, which is moved in one transfer."""
    arrays = [np.arange(5, dtype=dtype) for dtype in ("u1", "i2", "f4", "f8", "i8")] + [np.array([True, False])]
    arrays += [np.zeros((0, 3)), np.arange(6.0).reshape(2, 3).T]
    parts = copy_to_device(arrays, torch.device("cpu"))
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    for part, array in zip(parts, arrays, strict=True):
        assert_same(part.numpy(), np.ascontiguousarray(array))
    objects = np.full(2, None, object)
    objects[1] = np.ones(2)
    tree = {"x": (np.zeros(2), "text", [np.zeros(1)]), "names": np.array(["a"]), "n": objects}
    changed = to_device(tree, torch.device("meta"))
    assert changed["x"][0].device.type == "meta"
    assert changed["n"][1].shape == (2,)
    assert changed["n"][0] is None
    assert changed["x"][1:] == tree["x"][1:]
    assert changed["names"] is tree["names"]


def test_calls_use_one_transfer(monkeypatch):
    """The observations, rewards, flags and infos of a call are moved in one transfer."""
    changed = []
    monkeypatch.setattr(
        arrays,
        "copy_to_device",
        lambda arrays, device: changed.append(len(arrays)) or copy_to_device(arrays, device),
    )
    with SyncVectorEnv(counting(2, 2), device="meta") as env:
        obs, _ = env.reset()
        *_, info = env.step(np.zeros(2, int))
    assert changed == [2, 5]
    assert obs.device.type == info["count"].device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_results_equal_host_results():
    """On a real device, each result stays correct after later steps."""
    with SyncVectorEnv(counting(3, 2), device="cuda") as on_device, SyncVectorEnv(counting(3, 2)) as on_host:
        pairs = [(on_device.reset()[0], on_host.reset()[0])]
        for _ in range(20):
            action = torch.ones(3, dtype=torch.int64, device="cuda")
            pairs.append((on_device.step(action)[0], on_host.step(action.cpu())[0]))
    for actual, expected in pairs:
        assert actual.is_cuda
        assert actual.cpu().numpy().tolist() == expected.tolist()
