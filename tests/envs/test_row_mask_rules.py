"""The rules of partial resets and steps, for any nesting of done flags, masks and previous entries."""

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, assert_close
from tests.fixtures.nested_done_env import FRESH, ROWS, STEPPED, NestedDoneEnv, Place, former, sizes, tree

from vecrl.envs import GymEnv, SerialEnv
from vecrl.envs.entries.keys import split_key
from vecrl.envs.transforms import StepCounter, TransformedEnv
from vecrl.errors import SpaceError

PLACES: list[Place] = [(), ("a",), ("b",), ("a", "sub"), ("b", "sub")]

nestings = st.sets(st.sampled_from(PLACES), min_size=1).map(lambda places: tuple(sorted(places)))


def _masks(draw: Any, places: tuple[Place, ...]) -> dict[Place, torch.Tensor]:
    """Returns a mask beside some of the done flags, with or without a trailing dimension of size 1."""
    found: dict[Place, torch.Tensor] = {}
    for place in draw(st.sets(st.sampled_from(places))):
        shape = torch.Size(sizes(place))
        bits = draw(st.lists(st.booleans(), min_size=shape.numel(), max_size=shape.numel()))
        mask = torch.tensor(bits).reshape(shape)
        found[place] = mask.unsqueeze(-1) if draw(st.booleans()) else mask
    return found


@st.composite
def cases(draw: Any) -> tuple[NestedDoneEnv, TensorDict, dict[Place, torch.Tensor]]:
    env = tree(draw(nestings))
    keys = [*env.observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)]
    stored = set(keys) - draw(st.sets(st.sampled_from(keys), max_size=4))
    return env, former(env, stored, draw(st.booleans())), _masks(draw, env.places)


def _selected(
    key: Any, masks: dict[Place, torch.Tensor], places: tuple[Place, ...], leaf: torch.Tensor
) -> torch.Tensor:
    """Returns the selected elements of a leaf: the mask nearest to the root decides, and without a mask all are
    selected."""
    place = split_key(key)[0]
    for length in range(len(place) + 1):
        if place[:length] in masks:
            mask = masks[place[:length]].reshape(sizes(place[:length]))
            return mask.reshape(*mask.shape, *[1] * (leaf.ndim - mask.ndim)).expand(leaf.shape)
    if not any(place[:length] in places for length in range(len(place) + 1)) and masks:
        return _all_of_row(place, masks, places, leaf)
    return torch.ones_like(leaf, dtype=torch.bool)


def _all_of_row(place: Place, masks: Any, places: tuple[Place, ...], leaf: torch.Tensor) -> torch.Tensor:
    """For entries beside no flags and below none: a row is selected if all its elements are."""
    while not any(other[: len(place)] == place for other in places):
        place = place[:-1]
    shape = sizes(place)
    below = [other for other in places if other[: len(place)] == place]
    flags = [_selected((*other, "done"), masks, places, torch.zeros(*sizes(other), 1)) for other in below]
    rows = torch.stack([flag.reshape(*shape, -1).all(-1) for flag in flags]).all(0)
    return rows.reshape(*shape, *[1] * (leaf.ndim - len(shape))).expand(leaf.shape)


def _expected(key: Any, new: float, masks: Any, places: Any, before: Any, leaf: torch.Tensor) -> torch.Tensor:
    old = torch.zeros_like(leaf) if before is None else before
    return torch.where(_selected(key, masks, places, leaf), torch.full_like(leaf, new), old)


@settings(max_examples=600)
@given(cases())
def test_partial_resets(case: tuple[NestedDoneEnv, TensorDict, dict[Place, torch.Tensor]]) -> None:
    """Selected elements are reset, the others keep their previous values or zeros, and the masks are removed."""
    env, before, masks = case
    data = before.clone()
    for place, mask in masks.items():
        data[(*place, "_reset")] = mask
    none_selected = all(any(place[:n] in masks for n in range(len(place) + 1)) for place in env.places) and not any(
        bool(mask.any()) for place, mask in masks.items() if not any(place[:n] in masks for n in range(len(place)))
    )
    result = env.reset(data)
    assert result is data
    assert not [key for key in result.keys(True, True) if split_key(key)[1] == "_reset"]
    for key in env.observation_spec.keys(True, True):
        if none_selected and before.get(key, None) is None:
            continue  # an empty mask resets nothing and adds no entries
        leaf = env.observation_spec[key].zero()
        assert result[key].equal(_expected(key, FRESH, masks, env.places, before.get(key, None), leaf)), key
    for key in env.full_done_spec.keys(True, True):
        leaf = env.full_done_spec[key].zero()
        if before.get(key, None) is not None:
            assert result[key].equal(_expected(key, False, masks, env.places, before[key], leaf)), key
        assert result[key].dtype == torch.bool


@settings(max_examples=400)
@given(cases(), st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), st.booleans(), st.booleans())
def test_partial_steps(case: Any, rows: list[bool], trailing: bool, locked: bool) -> None:
    """Selected elements are stepped, the others keep their values with zero reward, and the mask is removed."""
    env, before, _ = case
    env = tree(env.places, locked)
    mask = torch.tensor(rows)
    data = before.clone().set("_step", mask.unsqueeze(-1) if trailing else mask)
    next_td = env.step(data)["next"]
    assert data.get("_step", None) is None
    for spec in (env.observation_spec, env.full_reward_spec, env.full_done_spec):
        for key in spec.keys(True, True):
            leaf = spec[key].zero(() if locked else (ROWS,))
            new = 0.0 if leaf.dtype == torch.bool else STEPPED
            assert next_td[key].equal(_expected(key, new, {(): mask}, env.places, before.get(key, None), leaf)), key


@settings(max_examples=100)
@given(nestings, st.sampled_from([*PLACES, ("c",)]))
def test_masks_without_done_flags_raise(places: tuple[Place, ...], place: Place) -> None:
    assume(place not in places)
    env = tree(places)
    data = former(env, set(env.full_done_spec.keys(True, True)), False)
    data[(*place, "_reset")] = torch.ones(*(sizes(place) if place in PLACES else [ROWS]), 1, dtype=torch.bool)
    with pytest.raises(SpaceError, match="Expected a mask beside one of the done flags"):
        env.reset(data)


@settings(max_examples=100)
@given(nestings, st.data())
def test_masks_of_wrong_dtype_or_shape_raise(places: tuple[Place, ...], data: st.DataObject) -> None:
    env = tree(places)
    stored = former(env, set(env.full_done_spec.keys(True, True)), False)
    place = data.draw(st.sampled_from(places))
    with pytest.raises(SpaceError, match="to be a bool tensor"):
        env.reset(stored.clone().set((*place, "_reset"), torch.ones(*sizes(place), 1)))
    with pytest.raises(SpaceError, match="to have the shape"):
        env.reset(stored.set((*place, "_reset"), torch.ones(*sizes(place), 5, dtype=torch.bool)))


@settings(max_examples=100)
@given(cases())
def test_rows_done_after_their_reset_raise(case: Any) -> None:
    """Raises if a selected row is done; other rows may have been done before."""
    env, before, masks = case

    class Born(NestedDoneEnv):
        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            return super()._reset(tensordict).update(self.full_done_spec.one())

    flags = [key for key in env.full_done_spec.keys(True, True) if split_key(key)[1] == "done"]
    meant = any(bool(_selected(key, masks, env.places, env.full_done_spec[key].zero()).any()) for key in flags)
    data = before.clone()
    for place, mask in masks.items():
        data[(*place, "_reset")] = mask
    if meant:
        with pytest.raises(SpaceError, match="done after its reset"):
            Born(env.places).reset(data)
    else:
        Born(env.places).reset(data)


@pytest.mark.parametrize(
    "make",
    [GymEnv, lambda name: SerialEnv(2, lambda: GymEnv(name)), lambda name: TransformedEnv(GymEnv(name), StepCounter())],
)
@pytest.mark.parametrize("select", [True, False])
def test_select_reset_only_changes_nothing(make: Any, select: bool) -> None:
    results = []
    for options in ({"select_reset_only": select}, {}):
        env = make("Pendulum-v1")
        env.set_seed(0)
        mask = torch.ones(*env.batch_size, 1, dtype=torch.bool)
        mask.view(-1)[1:] = False
        root = env.rand_action(env.reset()).set("_reset", mask).set("extra", torch.zeros(env.batch_size))
        results.append(env.reset(root, **options).exclude("action"))
    assert "extra" in results[0].keys()  # noqa: SIM118 - a TensorDict is no dict
    assert_close(*results, rtol=0, atol=0)
    assert "observation" in make("Pendulum-v1").reset(select_reset_only=select).keys()  # noqa: SIM118
