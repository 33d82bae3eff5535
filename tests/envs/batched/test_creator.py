"""What the environments of one `EnvCreator` share."""

import copy
import gc
import pickle
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.tensordict_envs import CountingRowsEnv

from vecrl.envs import EnvBase, EnvCreator, GymEnv, ParallelEnv, SerialEnv, env_creator, get_env_metadata
from vecrl.envs.transforms import Compose, StepCounter, TrajCounter, TransformedEnv, VecNorm
from vecrl.errors import SpaceError
from vecrl.specs import Composite, Unbounded

BACKENDS = [
    pytest.param(SerialEnv, id="serial"),
    pytest.param(partial(ParallelEnv, backend="threads", envs_per_worker=1), id="threads"),
    pytest.param(partial(ParallelEnv, envs_per_worker=1), id="processes"),
    pytest.param(partial(ParallelEnv, backend="ray", envs_per_worker=1), id="ray", marks=pytest.mark.ray),
]


def counted(max_steps: int = 2, front: bool = False) -> EnvBase:
    more = [StepCounter(max_steps=9, step_count_key="other")] if front else []
    return TransformedEnv(CountingRowsEnv(20), Compose(*more, StepCounter(max_steps=max_steps), TrajCounter()))


def normed(shapes: Any = None) -> EnvBase:
    keys = None if shapes is None else ["observation"]
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(VecNorm(keys, decay=1.0, shapes=shapes)))


def numbers(env: EnvBase, steps: int) -> list[list[int]]:
    return env.rollout(steps, break_when_any_done=False)["traj_count"].reshape(-1, steps).tolist()


@pytest.mark.parametrize("batch", BACKENDS)
def test_trajectory_numbers_are_unique_across_workers_and_variants(batch: Any) -> None:
    creator = EnvCreator(counted)
    env = batch(3, [creator, creator.make_variant(max_steps=3, front=True), creator.make_variant(max_steps=6)])
    rows = [[row[step] for step in range(0, 6, length)] for row, length in zip(numbers(env, 6), (2, 3, 6), strict=True)]
    assert sorted(number for row in rows for number in row) == list(range(6))
    env.close()
    env.start()
    assert sorted(number for row in numbers(env, 1) for number in row) == [6, 7, 8]
    env.close()


@pytest.mark.parametrize("batch", BACKENDS)
def test_workers_share_statistics(batch: Any) -> None:
    env = batch(2, EnvCreator(normed))
    env.set_seed(0)
    env.rollout(5, break_when_any_done=False)
    counts = {float(value.max()) for key, value in _flat(env.state_dict()).items() if key.endswith("observation_count")}
    assert counts == {12.0}  # two resets and ten steps
    env.close()


def _flat(state: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    return {name: leaf for key, value in state.items() for name, leaf in _flat(value, f"{prefix}.{key}").items()}


def test_concurrent_threads_share_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    both, make = threading.Barrier(2), tempfile.mkdtemp

    def mkdtemp(**arguments: Any) -> str:
        with suppress(threading.BrokenBarrierError):  # the other thread waits here for this one
            both.wait(timeout=0.2)
        return make(**arguments)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    folder = EnvCreator(counted)._folder
    with ThreadPoolExecutor(2) as threads:
        assert len(set(threads.map(lambda _: folder.path, range(2)))) == 1


def test_share_memory_can_be_turned_off() -> None:
    creator = EnvCreator(counted, share_memory=False)
    assert [int(creator().reset()["traj_count"]) for _ in range(2)] == [0, 0]
    assert [int(EnvCreator(counted)().reset()["traj_count"]) for _ in range(2)] == [0, 0]


def test_copies_share_the_creators_memory() -> None:
    creator = EnvCreator(counted, max_steps=4)
    envs = [make() for make in (creator, pickle.loads(pickle.dumps(creator)), copy.deepcopy(creator))]
    assert [int(env.reset()["traj_count"]) for env in envs * 2] == list(range(6))


def test_folder_exists_while_an_environment_uses_it() -> None:
    creator = EnvCreator(counted)
    folder: Path = creator._folder.path
    env = creator()
    del creator
    gc.collect()
    assert int(env.reset()["traj_count"]) == 0
    assert folder.exists()
    del env
    gc.collect()
    assert not folder.exists()


def test_copies_on_another_machine_count_separately() -> None:
    creator = EnvCreator(counted)
    creator._folder._path = "/nowhere"
    assert [int(creator().reset()["traj_count"]) for _ in range(2)] == [0, 0]


def test_set_state_does_not_repeat_trajectory_numbers() -> None:
    creator = EnvCreator(counted)
    first, second = creator(), creator()
    state = first.get_state()
    assert [int(env.reset()["traj_count"]) for env in (first, second)] == [0, 1]
    first.set_state(state)
    assert int(first.reset()["traj_count"]) == 2
    later = EnvCreator(counted)()
    later.set_state(first.get_state())
    assert int(later.reset()["traj_count"]) == 3


def test_statistics_of_the_first_environment_are_shared() -> None:
    learnt = normed()
    learnt.rollout(7)
    state = learnt.transform[0].get_extra_state()

    def make() -> EnvBase:
        env = normed()
        env.transform[0].set_extra_state(state)
        return env

    creator = EnvCreator(make)
    first, second = creator().transform[0], creator().transform[0]
    assert torch.equal(second.loc["observation"], learnt.transform[0].loc["observation"])
    assert first.loc["observation"].data_ptr() != second.loc["observation"].data_ptr()


def test_statistics_of_different_shapes_are_not_shared() -> None:
    creator = EnvCreator(normed)
    item, other = creator(), creator.make_variant(shapes=[(4,)])()
    item.rollout(3)
    assert other.transform[0].get_extra_state() == {}


def test_statistics_of_dynamic_shapes_raise() -> None:
    def make() -> EnvBase:
        env = CountingRowsEnv(3)
        env.set_spec_lock_(False)
        env.observation_spec = Composite(observation=Unbounded((1, -1)), shape=(1,))
        return TransformedEnv(env, VecNorm(["observation"]))

    with pytest.raises(SpaceError, match="fixed shapes"):
        EnvCreator(make)()
    assert isinstance(EnvCreator(make, share_memory=False)().transform, VecNorm)


def test_env_creator_is_a_decorator() -> None:
    @env_creator
    def make() -> EnvBase:
        return CountingRowsEnv(3)

    assert isinstance(make, EnvCreator)
    assert isinstance(make(), CountingRowsEnv)


def test_metadata_of_an_environment_or_a_function() -> None:
    created: list[EnvBase] = []

    def make(limit: int = 3) -> EnvBase:
        created.append(CountingRowsEnv(*[limit] * limit))
        return created[-1]

    assert get_env_metadata(make).batch_size == (3,)
    assert get_env_metadata(make, {"limit": 2}).batch_size == (2,)
    assert all(env.is_closed for env in created)
    assert get_env_metadata(EnvCreator(make, limit=4)).batch_size == (4,)
    env = make()
    assert get_env_metadata(env).tensordict is not None
    assert not env.is_closed

    def refuse(checked: EnvBase) -> None:
        raise KeyError(type(checked).__name__)

    for given in (env, make):
        with pytest.raises(KeyError, match="CountingRowsEnv"):
            get_env_metadata(given, env_validator=refuse)
    assert not env.is_closed
    assert created[-1].is_closed
    for wrong in (3, lambda: 3):
        with pytest.raises(TypeError, match=r"Expected .* got .*3\."):
            get_env_metadata(wrong)


@pytest.mark.parametrize("batch", [BACKENDS[0], BACKENDS[2]])
def test_the_state_of_a_creator_is_what_its_environments_share(batch: Any) -> None:
    creator = EnvCreator(lambda: TransformedEnv(normed(), Compose(StepCounter(), TrajCounter())))
    key = "base_env.transform.transforms.0._extra_state"
    assert list(creator.state_dict()) == [key, "transform.transforms.1._extra_state"]
    assert creator.state_dict()[key] == {}
    env = batch(2, creator)
    env.rollout(5, break_when_any_done=False)
    state = creator.state_dict()
    assert state[key]["observation_count"].eq(12).all()  # two rows, with their resets
    creator.load_state_dict({key: {name: torch.full_like(value, 9) for name, value in state[key].items()}})
    [norm] = [value for name, value in env.state_dict().items() if name == f"worker1.{key}"]
    assert all(value.eq(9).all() for value in norm.values())
    env.close()
    with pytest.raises(RuntimeError, match="other"):
        creator.load_state_dict({"other": 1})
    assert EnvCreator(normed, share_memory=False).state_dict() == {}
    assert EnvCreator(lambda: CountingRowsEnv(3)).state_dict() == {}
