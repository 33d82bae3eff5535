"""Masks of partial resets and steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict
from tests.fixtures.tensordict_envs import CountingRowsEnv, CountingTensorDictEnv, GroupsEnv

from vecrl.envs import EnvBase, SerialEnv
from vecrl.envs.entries.row_masks import RowMasks
from vecrl.errors import SpaceError


def _mask(*rows: bool) -> torch.Tensor:
    return torch.tensor(rows).unsqueeze(-1)


def test_only_masked_rows_are_reset() -> None:
    data = TensorDict({"count": torch.ones(2, 1, dtype=torch.int64), "_reset": _mask(False, True)}, [2])
    assert CountingRowsEnv(5, 5).reset(data) is data
    assert data["count"].flatten().tolist() == [1, 0]
    assert data.get("_reset", None) is None


def test_rows_without_previous_values_are_zero() -> None:
    class Tens(CountingRowsEnv):
        def _reset(self, tensordict=None, **kwargs):
            return super()._reset(tensordict).set("count", torch.full((2, 1), 10))

    data = TensorDict({"_reset": _mask(True, False)}, [2])
    assert Tens(5, 5).reset(data)["count"].flatten().tolist() == [10, 0]


def test_empty_masks_reset_nothing() -> None:
    env = CountingRowsEnv(5, 5)
    data = TensorDict({"count": torch.ones(2, 1, dtype=torch.int64), "_reset": _mask(False, False)}, [2])
    assert env.reset(data)["count"].flatten().tolist() == [1, 1]
    assert env.resets == 0


def test_invalid_masks_raise() -> None:
    env = CountingRowsEnv(5, 5)
    with pytest.raises(SpaceError, match="Expected a mask beside one of the done flags"):
        env.reset(TensorDict({"nested": {"_reset": _mask(True, False)}}, [2]))
    with pytest.raises(SpaceError, match="to be a bool tensor"):
        env.reset(TensorDict({"_reset": torch.ones(2, 1)}, [2]))
    with pytest.raises(SpaceError, match="done after its reset"):
        _Born().reset()


class _Born(CountingRowsEnv):
    def __init__(self):
        super().__init__(5, 5)

    def _reset(self, tensordict=None, **kwargs):
        return super()._reset(tensordict).set("done", _mask(True, False))


def test_rows_done_after_their_reset_raise() -> None:
    data = TensorDict({"count": torch.ones(2, 1, dtype=torch.int64), "_reset": _mask(False, True)}, [2])
    assert _Born().reset(data)["done"].flatten().tolist() == [False, False]


def test_masks_of_groups_and_the_root() -> None:
    def data(**root: torch.Tensor) -> TensorDict:
        groups = {"a": _mask(False, True), "b": _mask(True, False)}
        inner = {name: TensorDict({"val": torch.ones(2, 3), "_reset": mask}, [2]) for name, mask in groups.items()}
        return TensorDict({**inner, "val": torch.ones(3), **root})

    env = GroupsEnv(("a", "b"), root=True)
    nested = env.reset(data())
    assert nested["a", "val"][:, 0].tolist() == [1, 0]
    assert nested["b", "val"][:, 0].tolist() == [0, 1]
    assert nested["val"].tolist() == [0, 0, 0], "no mask at the root: the whole of it"
    assert env.reset(data(_reset=torch.tensor([True])))["a", "val"].eq(0).all(), "the root overrides"
    saved = env.reset(data(_reset=torch.tensor([False])))
    assert all(saved[key].eq(1).all() for key in ("val", ("a", "val"), ("b", "val")))
    assert not [key for key in saved.keys(True) if "_reset" in key]


masks = st.one_of(st.none(), st.lists(st.booleans(), min_size=2, max_size=2))


@given(root=st.one_of(st.none(), st.booleans()), groups=st.dictionaries(st.sampled_from("abc"), masks, min_size=1))
def test_masks_may_be_nested(root: bool | None, groups: dict[str, list[bool] | None]) -> None:
    env = GroupsEnv(tuple(groups), root=True)
    data = TensorDict({"val": torch.ones(3)})
    for name, mask in groups.items():
        data[name] = TensorDict({"val": torch.ones(2, 3)}, [2])
        if mask is not None:
            data[name, "_reset"] = _mask(*mask)
    if root is not None:
        data["_reset"] = torch.tensor([root])
    result = env.reset(data)
    assert result["val"].eq(0).all() == (root is not False)
    for name, mask in groups.items():
        meant = [root] * 2 if root is not None else ([True] * 2 if mask is None else mask)
        assert result[name, "val"][:, 0].eq(0).tolist() == meant
    assert not [key for key in result.keys(True) if "_reset" in key]


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=8))
def test_partial_steps_equal_independent_environments(rounds: list[list[bool]]) -> None:
    env = CountingRowsEnv(99, 99, 99)
    root = env.reset()
    for mask in rounds:
        step_td = env.step(env.rand_action(root).set("_step", torch.tensor(mask)))
        before = root["count"].flatten()
        assert step_td["next", "count"].flatten().equal(before + torch.tensor(mask))
        assert step_td["next", "reward"].flatten().tolist() == [float(row) for row in mask]
        root = env.step_mdp(step_td)
    assert root["count"].flatten().tolist() == [sum(rows) for rows in zip(*rounds, strict=True)] or not rounds


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=12))
def test_partial_resets_equal_independent_environments(rounds: list[list[bool]]) -> None:
    env = CountingRowsEnv(99, 99, 99)
    root = env.reset()
    expected = [0, 0, 0]
    for mask in rounds:
        root = env.step_mdp(env.rand_step(root))
        root = env.reset(root.set("_reset", _mask(*mask)))
        expected = [0 if reset else count + 1 for count, reset in zip(expected, mask, strict=True)]
        assert root["count"].flatten().tolist() == expected


def test_batch_unlocked_environments_step_only_masked_rows() -> None:
    seen = []

    class Free(EnvBase):
        batch_locked = False

        def _reset(self, tensordict=None, **kwargs): ...

        def _step(self, tensordict):
            seen.append(tensordict.batch_size)
            count = tensordict["count"] + 1
            return TensorDict(
                {"count": count, "reward": torch.ones_like(count), "done": count > 9}, tensordict.batch_size
            )

    data = TensorDict({"count": torch.zeros(4, 1), "_step": torch.tensor([True, False, False, True])}, [4])
    assert Free().step(data)["next", "count"].flatten().tolist() == [1, 0, 0, 1]
    assert seen == [(2,)]


def test_masks_select_objects() -> None:
    new = TensorDict({"text": NonTensorStack("a", "b")}, [2])
    old = TensorDict({"text": NonTensorStack("x", "y")}, [2])
    merged = RowMasks({(): _mask(True, False)}, [()]).select(new, old)
    assert merged["text"] == ["a", "y"]


@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 2)])
def test_masks_have_the_shape_of_the_specs_where_there_are_no_flags(shape: tuple[int, ...]) -> None:
    env = CountingRowsEnv(3, 3)
    env.reset()
    with pytest.raises(SpaceError, match=r"'_reset' to have the shape \(2, 1\)"):
        env.reset(TensorDict({"_reset": torch.ones(shape, dtype=torch.bool)}, [2]))
    data = env.rand_action(TensorDict({"_step": torch.ones(shape, dtype=torch.bool)}, [2]))
    with pytest.raises(SpaceError, match=r"'_step' to have the shape \(2, 1\)"):
        env.step(data)


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_masks_may_omit_the_last_dimension(shape: tuple[int, ...]) -> None:
    env = SerialEnv(2, CountingTensorDictEnv)
    root = env.step_mdp(env.rand_step(env.reset()))
    reset_td = env.reset(root.exclude("done", "terminated").set("_reset", torch.tensor([True, False]).reshape(shape)))
    assert reset_td["count"].flatten().tolist() == [0, 1]
