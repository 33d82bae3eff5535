"""`step_mdp` with all options, compared with a model over flat keys."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict

from vecrl.envs.utils import step_mdp

GROUPS: list[tuple[str, ...]] = [(), ("a",), ("b",), ("a", "sub")]
NAMES = ["obs", "reward", "done", "action", "other"]
KEYS = [(*group, name) for group in GROUPS for name in NAMES]

some = st.sets(st.sampled_from(KEYS))
switches = st.fixed_dictionaries(
    {name: st.booleans() for name in ("keep_other", "exclude_reward", "exclude_done", "exclude_action")}
)


def _of(name: str) -> st.SearchStrategy[list[Any]]:
    return st.sets(st.sampled_from([key for key in KEYS if key[-1] == name])).map(
        lambda keys: [key if len(key) > 1 else key[0] for key in sorted(keys)]
    )


def _data(root: set[Any], next_td: set[Any], rows: int) -> TensorDict:
    def filled(keys: set[Any], value: float) -> TensorDict:
        data = TensorDict({}, [rows])
        for key in sorted(keys):
            data[key] = torch.full((rows, 1), value)
        return data

    return filled(root, 0.0).set("next", filled(next_td, 1.0))


def _model(
    root: set[Any], next_td: set[Any], switches: dict[str, bool], keys: dict[str, list[Any]]
) -> dict[Any, float]:
    """Returns the keys of the result, and whether each value is from the root (0) or from "next" (1)."""
    as_tuples = {name: {key if isinstance(key, tuple) else (key,) for key in found} for name, found in keys.items()}
    removed = {key for name in ("reward", "done") if switches[f"exclude_{name}"] for key in as_tuples[f"{name}_keys"]}
    behind = as_tuples["action_keys"] if switches["exclude_action"] else set()
    saved = root if switches["keep_other"] else root & (as_tuples["action_keys"] - behind)
    return dict.fromkeys(saved - removed - behind, 0.0) | dict.fromkeys(next_td - removed, 1.0)


def _leaves(data: Any) -> dict[Any, float]:
    found = data.keys(include_nested=True, leaves_only=True)
    return {key if isinstance(key, tuple) else (key,): data[key].mean().item() for key in found}


@settings(max_examples=800)
@given(some, some, switches, _of("reward"), _of("done"), _of("action"), st.booleans())
def test_options_and_nested_keys_equal_the_model(
    root: set[Any], next_td: set[Any], switches: dict[str, bool], reward: Any, done: Any, action: Any, write: bool
) -> None:
    data = _data(root, next_td, 2)
    keys = {"reward_keys": reward, "done_keys": done, "action_keys": action}
    existing = TensorDict({}, [2]) if write else None
    result = step_mdp(data, existing, **switches, **keys)
    assert _leaves(result) == _model(root, next_td, switches, keys)
    assert result.batch_size == (2,)
    assert existing is None or result is existing
    assert _leaves(data.get("next")) == dict.fromkeys(next_td, 1.0), "what it was given stays as it was"


@settings(max_examples=200)
@given(some, some, some, switches, st.sampled_from([0, 1]))
def test_lazy_stacks_are_stepped_part_by_part(
    first: set[Any], second: set[Any], next_td: set[Any], switches: dict[str, bool], dim: int
) -> None:
    """Each part of a stack is stepped separately, for every stack dimension."""
    keys = {
        f"{name}_keys": [(*group, name) if group else name for group in GROUPS] for name in ("reward", "done", "action")
    }
    parts = [_data(first, next_td, 2), _data(second, next_td, 2)]
    result = step_mdp(LazyStackedTensorDict.lazy_stack(parts, dim), **switches, **keys)
    assert isinstance(result, LazyStackedTensorDict)
    for part, root in zip(result.unbind(dim), (first, second), strict=True):
        assert _leaves(part) == _model(root, next_td, switches, keys)
