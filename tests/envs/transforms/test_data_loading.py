"""Entries from data loaders."""

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from vecrl.envs import GymEnv, ParallelEnv, TransformedEnv, check_env_specs
from vecrl.envs.transforms import Compose, DataLoadingPrimer, StepCounter
from vecrl.specs import Composite, Unbounded
from vecrl.testing import IndependentRowsEnv


class Loader:
    """A loader of given batches, with a `batch_size` if one is given."""

    def __init__(self, batches: list[Any], batch_size: int | None = None) -> None:
        self.batches = batches
        if batch_size is not None:
            self.batch_size = batch_size

    def __iter__(self) -> Any:
        return iter(self.batches)


def numbers(count: int = 3) -> Loader:
    """Returns a loader of batches of two rows: 0, 1; 10, 11; 20, 21."""
    return Loader([{"n": torch.tensor([10 * i, 10 * i + 1])} for i in range(count)], 2)


def env(primer: Any, ids: Any = (0, 1)) -> TransformedEnv:
    return TransformedEnv(IndependentRowsEnv(ids), primer)


def drawn(primer: Any, ids: Any, count: int, key: str = "n") -> list[Any]:
    """Returns an entry after each of `count` resets."""
    resets = env(primer, ids)
    return [resets.reset()[key].tolist() for _ in range(count)]


def test_rows_are_taken_in_turn_whatever_the_sizes() -> None:
    assert drawn(DataLoadingPrimer(numbers()), (0, 1), 4) == [[0, 1], [10, 11], [20, 21], [0, 1]]
    assert drawn(DataLoadingPrimer(numbers()), (0, 1, 2), 3) == [[0, 1, 10], [11, 20, 21], [0, 1, 10]]
    assert drawn(DataLoadingPrimer(numbers()), 0, 4) == [0, 1, 10, 11]


def test_repeats() -> None:
    assert drawn(DataLoadingPrimer(numbers(), repeats=2), (0, 1), 3) == [[0, 0], [1, 1], [10, 10]]
    assert DataLoadingPrimer(numbers(), repeats=2).batch_size == (2,)
    grouped = DataLoadingPrimer(numbers(), repeats=3, group_repeats=True)
    assert grouped.batch_size == grouped.primers.shape == (6,)
    assert grouped(TensorDict(batch_size=[6]))["n"].tolist() == [0, 0, 0, 1, 1, 1]


def test_only_rows_that_are_reset_take_new_ones() -> None:
    played = env(DataLoadingPrimer(numbers()), (0, 1, 2))
    root = played.reset()
    root = played.reset(root.set("_reset", torch.tensor([[False], [True], [False]])))
    assert root["n"].tolist() == [0, 11, 10]
    root = played.reset(root.set("_reset", torch.tensor([[True], [False], [True]])))
    assert root["n"].tolist() == [20, 11, 21]


def test_entries_stay_during_an_episode() -> None:
    played = env(Compose(DataLoadingPrimer(numbers()), StepCounter(max_steps=3)), 0)
    rollout = played.rollout(7, break_when_any_done=False)
    episode = rollout["next", "done"].flatten().cumsum(0).roll(1)
    episode[0] = 0
    expected = torch.tensor([0, 1, 10, 11, 20, 21])[episode]
    assert len(expected.unique()) > 2
    assert rollout["n"].equal(expected)
    assert rollout["next", "n"].equal(expected)


def test_stored_data_get_rows() -> None:
    primer = DataLoadingPrimer(numbers())
    assert primer(TensorDict(batch_size=[2, 2]))["n"].tolist() == [[0, 1], [10, 11]]
    assert int(primer(TensorDict())["n"]) == 20


def test_torch_loaders_with_text() -> None:
    rows = [{"n": torch.tensor(i), "text": f"text {i}"} for i in range(3)]
    loader: Any = DataLoader(rows, batch_size=2)  # pyright: ignore[reportArgumentType]
    played = env(DataLoadingPrimer(loader))
    assert [played.reset()["text"] for _ in range(2)] == [["text 0", "text 1"], ["text 2", "text 0"]]
    check_env_specs(played, seed=None)


def test_rows_of_unlike_lengths() -> None:
    loader = Loader([{"x": torch.arange(size)} for size in (1, 2, 3, 4)], 0)
    assert DataLoadingPrimer(loader).batch_size == ()
    with pytest.raises(ValueError, match=r'rows with equal shapes .*stack_method="as_padded_tensor"'):
        env(DataLoadingPrimer(loader)).reset()
    assert drawn(DataLoadingPrimer(loader), 0, 3, "x") == [[0], [0, 1], [0, 1, 2]]
    padded = DataLoadingPrimer(loader, stack_method="as_padded_tensor")
    assert drawn(padded, (0, 1), 2, "x") == [[[0, 0], [0, 1]], [[0, 0, 1, 2], [0, 1, 2, 3]]]
    nested = DataLoadingPrimer(loader, stack_method="as_nested_tensor")(TensorDict(batch_size=[2]))["x"]
    assert [row.tolist() for row in nested.unbind(0)] == [[0], [0, 1]]
    same = Loader([{"x": torch.full((2,), i)} for i in range(2)], 0)
    assert drawn(DataLoadingPrimer(same, stack_method=torch.stack), (0, 1), 1, "x") == [[[0, 0], [1, 1]]]


def test_mappings_in_mappings_and_tensordicts() -> None:
    item = {"a": {"x": torch.arange(2), "t": ["p", "q"]}}
    for batch in (item, TensorDict(item, [2])):
        data = DataLoadingPrimer(Loader([batch], 2))(TensorDict(batch_size=[2]))
        assert data["a", "x"].tolist() == [0, 1]
        assert data["a", "t"] == ["p", "q"]


def test_specs() -> None:
    loader = Loader([{"x": torch.zeros(2, 3), "n": torch.zeros(2, dtype=torch.int64)}], 2)
    specs = env(DataLoadingPrimer(loader)).observation_spec
    assert specs["x"] == Unbounded((2, -1))
    assert specs["n"] == Unbounded((2,), dtype=torch.int64)
    for primers in (Composite(x=Unbounded((3,))), Composite(x=Unbounded((2, 3)), shape=[2])):
        primer = DataLoadingPrimer(Loader([{"x": torch.zeros(2, 3)}], 2), primers=primers)
        assert primer.primers["x"] == Unbounded((2, 3))
        assert env(primer, (0, 1, 2)).full_state_spec["x"] == Unbounded((3, 3))


def test_the_loader_is_restarted_on_request() -> None:
    primer = DataLoadingPrimer(numbers())
    first = primer(TensorDict())["n"]
    primer(TensorDict())
    primer.reset_dataloader()
    assert primer(TensorDict())["n"].equal(first)


@pytest.mark.parametrize("loader", [iter(numbers().batches), (batch for batch in numbers().batches)])
def test_an_iterator_is_exhausted(loader: Any) -> None:
    primer = DataLoadingPrimer(loader)
    for _ in range(6):
        primer(TensorDict())
    with pytest.raises(RuntimeError, match=r"got 0, and none when it was iterated again\. Give a loader"):
        primer(TensorDict())


@pytest.mark.parametrize("batches", [[], [{"n": torch.zeros(0)}]])
def test_an_empty_loader(batches: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="Expected 1 rows from the data loader, got 0"):
        DataLoadingPrimer(Loader(batches, 2))


def test_copies_start_at_the_first_row() -> None:
    primer = DataLoadingPrimer(dataloader_factory=numbers)
    primer(TensorDict())
    for copied in (copy.deepcopy(primer), pickle.loads(pickle.dumps(primer))):
        assert int(copied(TensorDict())["n"]) == 0
    assert int(primer.clone()(TensorDict())["n"]) == 1
    assert int(primer(TensorDict())["n"]) == 10


def _numbered_env() -> TransformedEnv:
    return env(DataLoadingPrimer(dataloader_factory=numbers), 0)


def test_in_processes() -> None:
    batch = ParallelEnv(2, _numbered_env)
    try:
        assert [batch.reset()["n"].tolist() for _ in range(2)] == [[0, 0], [1, 1]]
    finally:
        batch.close()


def test_devices() -> None:
    assert DataLoadingPrimer(numbers(), device="cpu")(TensorDict())["n"].device.type == "cpu"
    assert DataLoadingPrimer(numbers(), device="meta").primers["n"].device.type == "meta"


def test_errors() -> None:
    for arguments in ({}, {"dataloader": numbers(), "dataloader_factory": numbers}):
        with pytest.raises(ValueError, match="either dataloader or dataloader_factory"):
            DataLoadingPrimer(**arguments)
    for repeats in (0, 1.5):
        with pytest.raises(ValueError, match=f"repeats to be an int of 1 or more, or None, got {repeats}"):
            DataLoadingPrimer(numbers(), repeats=repeats)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="stack_method to be None, 'as_nested_tensor' or 'as_padded_tensor', got 'x'"):
        DataLoadingPrimer(numbers(), stack_method="x")
    with pytest.raises(TypeError, match="to give mappings or TensorDicts, got 'a'"):
        DataLoadingPrimer(["a"])
    with pytest.raises(ValueError, match="entries of the data loader with one row each"):
        DataLoadingPrimer([{"a": torch.zeros(2), "b": torch.zeros(3)}])


def test_the_position_in_a_loader_is_part_of_the_state() -> None:
    def make() -> TransformedEnv:
        loader = [{"number": torch.tensor([3 * i, 3 * i + 1, 3 * i + 2])} for i in range(3)]
        return GymEnv("CartPole-v1").append_transform(DataLoadingPrimer(loader))

    env, other = make(), make()
    taken = [env.reset()["number"].item() for _ in range(4)]
    other.set_state(env.get_state())
    expected = [env.reset()["number"].item() for _ in range(9)]
    assert taken == [0, 1, 2, 3]
    assert expected == [4, 5, 6, 7, 8, 0, 1, 2, 3]
    assert [other.reset()["number"].item() for _ in range(9)] == expected
