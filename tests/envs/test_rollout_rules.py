"""Rollouts with all options, compared with a plain loop over numbers, and rollouts with entries of changing sizes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict
from tests.fixtures.tensordict_envs import CountingRowsEnv

from vecrl.envs import EnvBase, check_env_specs
from vecrl.specs import Bounded, Composite, Unbounded

torch.set_num_threads(1)


def _plain(limits: list[int], steps: int, stop: str, initial_counts: list[int]) -> list[dict[str, list[Any]]]:
    """Returns the values of rows that count to their limits, in plain numbers, step by step."""
    count, done, rollout = list(initial_counts), [False] * len(limits), []
    for _ in range(steps):
        step_td = [stop != "all" or not is_over for is_over in done]
        next_td = [c + 1 if go else c for c, go in zip(count, step_td, strict=True)]
        ended = [n >= limit if go else True for n, limit, go in zip(next_td, limits, step_td, strict=True)]
        reward = [1.0 if go else 0.0 for go in step_td]
        rollout.append({"count": count, "done": done, "next count": next_td, "next done": ended, "reward": reward})
        if (stop == "any" and any(ended)) or (stop == "all" and all(ended)):
            break
        count, done = next_td, ended
        if stop == "none":
            count = [0 if is_over else c for c, is_over in zip(count, done, strict=True)]
            done = [False] * len(limits)
    return rollout


@settings(max_examples=400)
@given(
    limits=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    steps=st.integers(1, 12),
    stop=st.sampled_from(["any", "all", "none"]),
    contiguous=st.sampled_from([None, True, False]),
    acting=st.sampled_from(["random", "policy", "given"]),
    truncate=st.booleans(),
    go_on=st.booleans(),
)
def test_rollouts_equal_a_plain_loop(
    limits: list[int], steps: int, stop: str, contiguous: Any, acting: str, truncate: bool, go_on: bool
) -> None:
    env = CountingRowsEnv(*limits).add_truncated_keys()
    seen: list[int] = []
    switches: dict[str, Any] = {
        "any": {},
        "all": {"break_when_all_done": True},
        "none": {"break_when_any_done": False},
    }[stop]
    if acting == "policy":
        switches["policy"] = lambda td: td.set("action", torch.full((len(limits), 2), 0.5))
    elif acting == "given":
        switches["actions"] = torch.full((len(limits), steps, 2), 0.5)
    initial_counts = [0] * len(limits)
    if go_on:
        initial_counts = [limit - 1 for limit in limits]
        root = env.reset().set("count", torch.tensor(initial_counts).unsqueeze(-1))
        switches |= {"auto_reset": False, "tensordict": root}
    rollout = env.rollout(
        steps,
        callback=lambda _, data: seen.append(int(data["next", "count"].sum())),
        return_contiguous=contiguous,
        set_truncated=truncate,
        **switches,
    )
    expected = _plain(limits, steps, stop, initial_counts)
    assert rollout.shape == (len(limits), len(expected))
    assert rollout.names == [None, "time"]
    assert isinstance(rollout, LazyStackedTensorDict) == (contiguous is False)
    assert seen == [sum(step["next count"]) for step in expected]
    for name in ("count", "done", "next count", "next done", "reward"):
        key: Any = ("next", name.removeprefix("next ")) if name.startswith("next") or name == "reward" else name
        rows = rollout[key].squeeze(-1).T.tolist()
        requested = [list(step[name]) for step in expected]
        if truncate and name == "next done" and len(requested) == steps:
            requested[-1] = [True] * len(limits)
        assert rows == requested, name
    cut = truncate and len(expected) == steps
    assert rollout["next", "truncated"].any().item() == cut
    assert bool(rollout["next", "truncated"][:, -1].all()) == cut
    if acting != "random":
        assert rollout["action"].eq(0.5).all()


@settings(max_examples=50)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=2), st.integers(1, 8))
def test_rollouts_into_out(limits: list[int], steps: int) -> None:
    env = CountingRowsEnv(*limits)
    made = env.rollout(steps, break_when_any_done=False)
    existing = torch.zeros_like(made)
    assert env.rollout(steps, break_when_any_done=False, out=existing) is existing
    assert (existing.exclude("action") == made.exclude("action")).all()


class Growing(EnvBase):
    """Observes one more row with every step, `sizes[t]` in total."""

    def __init__(self, sizes: list[int]):
        super().__init__()
        self.observation_spec = Composite(rows=Unbounded((-1, 2)), count=Unbounded((1,), dtype=torch.int64))
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.sizes = sizes

    def _seen(self, count: int) -> TensorDict:
        return TensorDict({"rows": torch.full((self.sizes[count], 2), float(count)), "count": torch.tensor([count])})

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return self._seen(0)

    def _step(self, tensordict: Any) -> Any:
        count = int(tensordict["count"]) + 1
        done = torch.tensor([count == len(self.sizes) - 1])
        return self._seen(count).update({"reward": torch.ones(1), "done": done})

    def _set_seed(self, seed: int | None) -> None: ...


@settings(max_examples=100)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=6), st.integers(1, 12), st.booleans())
def test_dynamic_specs_are_rolled_out(sizes: list[int], steps: int, stop: bool) -> None:
    env = Growing(sizes)
    assert env.has_dynamic_specs
    rollout = env.rollout(steps, break_when_any_done=stop)
    period = len(sizes) - 1
    assert rollout.shape == (min(steps, period) if stop else steps,)
    for t, step in enumerate(rollout.unbind(0)):
        assert step["rows"].shape == (sizes[t % period], 2)
        assert step["next", "rows"].shape == (sizes[t % period + 1], 2)
        assert step["next", "rows"].eq(t % period + 1).all()


def test_dynamic_specs_are_checked() -> None:
    check_env_specs(Growing([1, 2, 3, 4, 5]))
    check_env_specs(Growing([3, 3, 3, 3, 3]), return_contiguous=False)


def test_changing_keys_raise_with_their_name() -> None:
    class ChangingKeysEnv(Growing):
        def _step(self, tensordict: Any) -> Any:
            next_td = super()._step(tensordict)
            return next_td.exclude("rows") if int(next_td["count"]) % 2 else next_td

    with pytest.raises(Exception, match="'rows'"):
        check_env_specs(ChangingKeysEnv([1, 2, 3, 4, 5]))
