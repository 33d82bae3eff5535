"""Rules that hold for every transform. A new transform must be added to `all_transforms.py`."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDictBase

from vecrl.envs import ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import TransformedEnv

from ..independent_rows_env import IndependentRowsEnv
from .all_transforms import BASES, CASES, exported

ALL = pytest.mark.parametrize("name", sorted(CASES))
INDEPENDENT = pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if not case.shared))


def make(name: str, ids: Any) -> TransformedEnv:
    return CASES[name].env(IndependentRowsEnv(ids), CASES[name].make())


def test_every_transform_has_a_case() -> None:
    assert exported() - BASES == {name.partition(":")[0] for name in CASES}


@ALL
@pytest.mark.parametrize("ids", [0, (0,), (0, 1, 2)], ids=["single", "one row", "rows"])
def test_specs_agree_with_data(name: str, ids: Any) -> None:
    check_env_specs(make(name, ids), break_when_any_done="both")


def equal(a: TensorDictBase, b: TensorDictBase, what: str) -> None:
    keys = set(a.keys(include_nested=True, leaves_only=True))
    assert keys == set(b.keys(include_nested=True, leaves_only=True)), what
    for key in keys:
        assert torch.equal(a.get(key), b.get(key)) or torch.allclose(
            a.get(key), b.get(key), rtol=0, atol=0, equal_nan=True
        ), f"{what}: {key}"


def seeded(seed: int, function: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a function under a fixed seed, for transforms that draw random numbers."""
    torch.manual_seed(seed)
    return function(*args)


moves = st.lists(
    st.tuples(st.sampled_from(["step", "reset"]), st.lists(st.booleans(), min_size=3, max_size=3)), max_size=12
)


@INDEPENDENT
@settings(max_examples=40, deadline=None)
@given(moves=moves, seed=st.integers(0, 99))
def test_rows_are_independent_environments(name: str, moves: list[tuple[str, list[bool]]], seed: int) -> None:
    """For any sequence of partial steps and resets, a batch equals as many environments of one row."""
    torch.manual_seed(seed)
    batch, singles = make(name, (0, 1, 2)), [make(name, (i,)) for i in range(3)]
    root: Any = batch.reset()
    roots = [env.reset() for env in singles]
    for kind, chosen in moves:
        mask = torch.tensor(chosen)
        if kind == "reset":
            root = batch.reset(root.set("_reset", mask.unsqueeze(-1)))
            roots = [env.reset(r) if m else r for env, r, m in zip(singles, roots, chosen, strict=True)]
        elif mask.any():
            with_action = batch.rand_action(root.copy())
            root = batch.step_mdp(batch.step(with_action.copy().set("_step", mask)))
            for i in range(3):
                if chosen[i]:
                    alone = roots[i].update(with_action[i : i + 1].select(*batch.action_keys))
                    roots[i] = singles[i].step_mdp(singles[i].step(alone))
        for i in range(3):
            equal(root[i : i + 1], roots[i], f"after {kind} of {chosen}, row {i}")


def batch_of(name: str) -> TransformedEnv:
    return CASES[name].env(SerialEnv(3, [partial(IndependentRowsEnv, i) for i in range(3)]), CASES[name].make())


@ALL
@pytest.mark.parametrize("within", [lambda name: make(name, (0, 1, 2)), batch_of], ids=["rows", "a batch"])
def test_set_state_round_trips(name: str, within: Callable[[str], TransformedEnv]) -> None:
    reset_td, second = within(name), within(name)
    item, two = seeded(0, reset_td.reset), seeded(0, second.reset)
    for number in range(12):
        with_action = reset_td.rand_action(item)
        two = two.update(with_action.select(*reset_td.action_keys))
        step_td, item = seeded(number, reset_td.step_and_maybe_reset, with_action)
        torch.manual_seed(number)
        other = second.step(two)
        two = second.maybe_reset(second.step_mdp(other))
        equal(step_td["next"], other["next"], f"step {number}")
        equal(item, two, f"root {number}")


@ALL
def test_state_dict_restores_the_transform(name: str) -> None:
    torch.manual_seed(0)
    env, other = make(name, (0, 1, 2)), make(name, (0, 1, 2))
    root = env.reset()
    other.reset()
    for _ in range(4):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    other.transform.load_state_dict(copy.deepcopy(env.transform.state_dict()))
    other.base_env.ticks, other.base_env.episode = env.base_env.ticks.clone(), env.base_env.episode.clone()
    other.base_env.moved = env.base_env.moved.clone()
    repeated = root.clone()
    for number in range(6):
        with_action = env.rand_action(root)
        repeated = repeated.update(with_action.select(*env.action_keys))
        step_td, root = seeded(number, env.step_and_maybe_reset, with_action)
        followed, repeated = seeded(number, other.step_and_maybe_reset, repeated)
        equal(step_td, followed, f"step {number}")


@ALL
def test_clones_have_no_container_and_share_buffers(name: str) -> None:
    env = make(name, (0, 1))
    with pytest.raises(AttributeError, match="clone"):
        TransformedEnv(IndependentRowsEnv((0, 1)), env.transform)
    clone = env.transform.clone()
    assert clone.container is None
    assert clone.parent is None
    own_value = dict(env.transform.named_buffers())
    assert all(own_value[key] is value for key, value in clone.named_buffers())
    check_env_specs(CASES[name].env(IndependentRowsEnv((0, 1)), clone))


@ALL
def test_transforms_can_be_sent_to_processes(name: str) -> None:
    import cloudpickle

    env = pickle.loads(cloudpickle.dumps(make(name, (0, 1))))
    assert env.transform.parent.base_env is env.base_env
    check_env_specs(env)


@ALL
def test_earlier_values_do_not_change(name: str) -> None:
    env = make(name, (0, 1, 2))
    torch.manual_seed(0)
    rollout = env.rollout(8, break_when_any_done=False)
    torch.manual_seed(0)
    repeated = make(name, (0, 1, 2))
    root, saved = repeated.reset(), []
    for _ in range(8):
        step_td, root = repeated.step_and_maybe_reset(repeated.rand_action(root))
        saved.append((step_td, step_td.clone()))
    for step_td, copied in saved:
        equal(step_td, copied, "a step is not changed by later ones")
    equal(rollout, torch.stack([step_td for step_td, _ in saved], 1), "rollout")


def within(name: str, i: int) -> TransformedEnv:
    return make(name, i)


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if not case.shared and not case.needs))
@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_equal_inside_and_outside_a_batch(name: str, kind: type[SerialEnv]) -> None:
    """A batch of environments that each have a transform equals a batch under one transform."""
    inside = kind(3, [partial(within, name, i) for i in range(3)])
    outside = CASES[name].env(kind(3, [partial(IndependentRowsEnv, i) for i in range(3)]), CASES[name].make())
    try:
        torch.manual_seed(0)
        item, two = inside.reset(), outside.reset()
        for number in range(8):
            with_action = inside.rand_action(item)
            two = two.update(with_action.select(*inside.action_keys))
            step_td, item = inside.step_and_maybe_reset(with_action)
            other, two = outside.step_and_maybe_reset(two)
            equal(step_td["next"], other["next"], f"step {number}")
            equal(item, two, f"root {number}")
    finally:
        inside.close()
        outside.close()


class Ready(IndependentRowsEnv):
    """Has a fast path for rollouts."""

    def _rollout_at_once(self, steps: int, actions: Any, stop: bool) -> TensorDictBase | None:
        plain = IndependentRowsEnv(self.ids.tolist() if self.ids.ndim else int(self.ids))
        root, found = plain.reset(), []
        for _ in range(steps):
            step_td, root = plain.step_and_maybe_reset(plain.rand_action(root))
            found.append(step_td)
            if stop and plain.any_done(step_td["next"]):
                break
        result = torch.stack(found, plain.batch_dims)
        result.names = [None] * plain.batch_dims + ["time"]
        return result


@ALL
@pytest.mark.parametrize("ids", [1, (0, 1, 2)], ids=["single", "rows"])
def test_fast_rollouts_equal_stepwise_rollouts(name: str, ids: Any) -> None:
    at_once = CASES[name].env(Ready(ids), CASES[name].make())
    if not at_once.transform.supports_rollout:
        assert at_once._rollout_at_once(3, None, False) is None
        return
    torch.manual_seed(3)
    complete = at_once.rollout(15, break_when_any_done=False)
    torch.manual_seed(3)
    stepwise = make(name, ids).rollout(15, break_when_any_done=False)
    assert complete.names == stepwise.names
    equal(complete, stepwise, "rollout")
