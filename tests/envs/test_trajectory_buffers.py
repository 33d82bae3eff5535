"""Steps of a rollout as one TensorDict."""

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from tests.fixtures.tensordict_envs import CountingRowsEnv, GroupsEnv

from vecrl.envs import GymEnv, NativeEnv, RandomPolicy, SerialEnv, StepCounter, TransformedEnv
from vecrl.envs.rollouts import trajectory_buffers
from vecrl.envs.rollouts.trajectory_buffers import Column, TensorDictBuffer, time_last
from vecrl.errors import SpaceError


def _step(number: int, agents: int = 3) -> TensorDict:
    inner = TensorDict({"seen": torch.full((2, agents, 4), float(number))}, [2, agents])
    next_td = TensorDict({"agents": inner + 1, "reward": torch.full((2, 1), float(number))}, [2])
    return TensorDict({"agents": inner, "action": torch.full((2,), number), "next": next_td}, [2])


def _recorded(steps: list[TensorDict], most: int, exactly: bool, dim: int = 1) -> TensorDict:
    used = TensorDictBuffer(dim, most, exactly)
    for step in steps:
        used.add(step)
    return used.to_tensordict()


@pytest.mark.parametrize("large", [0, 1 << 15])
@pytest.mark.parametrize(("most", "exactly"), [(5, True), (5, False), (9, False)])
@pytest.mark.parametrize("stacked", [1, 2, 5, 64])
def test_trajectory_equals_stacked_steps(
    large: int, most: int, exactly: bool, stacked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory_buffers, "_MIN_PREALLOC_BYTES", large)
    monkeypatch.setattr(trajectory_buffers, "_STACKED_STEPS", stacked)
    steps = [_step(i) for i in range(5)]
    rollout, expected = _recorded(steps, most, exactly), torch.stack(steps, 1)
    assert rollout.batch_size == (2, 5)
    assert rollout.names == [None, "time"]
    assert rollout["next", "agents"].batch_size == (2, 5, 3)
    assert sorted(rollout.keys(True, True), key=str) == sorted(expected.keys(True, True), key=str)
    for key in expected.keys(True, True):
        assert rollout[key].equal(expected[key])
        assert rollout[key].is_contiguous()


@pytest.mark.parametrize("changed", [1, 2, 3])
def test_tensors_and_objects_at_one_key_raise(changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_buffers, "_STACKED_STEPS", 2)
    values = [torch.zeros(2)] * changed + [NonTensorData("text")] * (4 - changed)
    for mixed in (values, values[::-1]):
        with pytest.raises(SpaceError, match="Expected tensors in all steps at 'x', or in none, got both"):
            _recorded([TensorDict({"x": value}) for value in mixed], 4, True, 0)


def test_objects_are_stacked_too() -> None:
    steps = [TensorDict({"text": NonTensorData(f"at {i}"), "x": torch.zeros(())}) for i in range(3)]
    assert _recorded(steps, 3, True, 0)["text"] == ["at 0", "at 1", "at 2"]
    steps = [TensorDict({"text": NonTensorStack("a", "b")}, [2]) for _ in range(3)]
    assert _recorded(steps, 3, True)["text"] == [["a"] * 3, ["b"] * 3]


def test_changing_entries_raise() -> None:
    with pytest.raises(SpaceError, match=r"'extra' at step 1"):
        _recorded([_step(0), _step(1).set("extra", torch.zeros(2))], 2, True)
    with pytest.raises(SpaceError, match="at step 2"):
        _recorded([_step(0), _step(1), _step(2).exclude("action")], 3, True)


@pytest.mark.parametrize("large", [0, 1 << 15])
def test_entries_that_become_nested_raise(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_buffers, "_MIN_PREALLOC_BYTES", large)
    flat = TensorDict({"x": torch.zeros(2, 3)}, [2])
    nested = TensorDict({"x": TensorDict({"y": torch.zeros(2)}, [2])}, [2])
    for first, second in ((flat, nested), (nested, flat)):
        with pytest.raises(SpaceError, match=r"'x', 'x\.y' at step 1"):
            _recorded([first, second], 2, True)


def test_changing_shapes_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_buffers, "_MIN_PREALLOC_BYTES", 0)
    with pytest.raises(SpaceError, match=r"Expected shape \(2, 3, 4\) in every step, got \(2, 1, 4\)"):
        _recorded([_step(0), _step(1, agents=1)], 2, True)


@pytest.mark.parametrize("changed", [1, 2, 3])  # in the first block, between blocks, in the second
def test_changing_shapes_of_stacked_steps_raise(changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_buffers, "_STACKED_STEPS", 2)
    steps = [TensorDict({"next": TensorDict({"x": torch.zeros(2 if i < changed else 1)}, [])}, []) for i in range(4)]
    with pytest.raises(SpaceError, match=r"equal shapes in all steps at 'next\.x', got \(2,\) and \(1,\)"):
        _recorded(steps, 4, True, 0)


@pytest.mark.parametrize(("large", "stacked"), [(0, 64), (1 << 15, 64), (1 << 15, 2)])
def test_gradients_flow_through_trajectories(large: int, stacked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_buffers, "_MIN_PREALLOC_BYTES", large)
    monkeypatch.setattr(trajectory_buffers, "_STACKED_STEPS", stacked)
    weight = torch.ones(2, requires_grad=True)
    rollout = _recorded([TensorDict({"action": weight * i}, [2]) for i in range(3)], 3, True)
    rollout["action"].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]


def test_callbacks_may_add_entries() -> None:
    rollout = CountingRowsEnv(9, 9).rollout(3, callback=lambda env, td: td.set("twice", td["count"] * 2))
    assert rollout["twice"].flatten().tolist() == [0, 2, 4] * 2


@pytest.mark.parametrize("rows", [(), (3,), (256,), (16, 20)])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 2), (0,), (17,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.bfloat16])
def test_columns_of_few_and_many_rows_hold_what_was_written(rows: Any, shape: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.randint(0, 2, (70, *rows, *shape), generator=generator).to(dtype)
    column = Column(torch.zeros((*rows, 70, *shape), dtype=dtype), len(rows))
    written = [*range(40), *range(45, 70)]  # not all steps
    for t in written:
        column[t] = expected[t]
    column.flush()
    expected[40:45] = 0
    assert column.memory.equal(expected.movedim(0, len(rows)))
    assert column.steps[50].equal(expected[50])


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 3, 2), (5, 3, 2, 2), (5, 300, 2, 3), (5, 0, 2)])
def test_time_is_moved_behind_the_rows(dim: int, shape: tuple[int, ...]) -> None:
    value = torch.rand(shape)
    for given in (value, value.movedim(0, 1).contiguous().movedim(1, 0)):
        moved = time_last(given, dim)
        assert moved.equal(value.movedim(0, dim))
        assert moved.is_contiguous()


@pytest.mark.parametrize("time_first", [True, False])
def test_gradients_of_given_actions_are_kept(time_first: bool) -> None:
    actions = torch.zeros((5, 4, 1) if time_first else (4, 5, 1), requires_grad=True)
    rollout = NativeEnv("Pendulum-v1", num_envs=4).rollout(5, actions=actions.movedim(0, 1) if time_first else actions)
    rollout["action"].sum().backward()
    assert actions.grad is not None


@pytest.mark.parametrize("any_done", [True, False])
def test_rollouts_of_many_rows_equal_single_steps(any_done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for limit in (1 << 31, 1 << 16):  # with enough memory from the start, and with memory that grows
        monkeypatch.setattr(trajectory_buffers, "_MAX_PREALLOC_BYTES", limit)
        env = NativeEnv("CartPole-v1", num_envs=300)
        env.set_seed(0)
        torch.manual_seed(0)
        actions = env.full_action_spec[env.action_key].rand((50,)).movedim(0, 1)
        results.append(env.rollout(50, actions=actions, break_when_any_done=any_done))
        env.set_seed(0)
        results.append(env.rollout(50, actions=list(actions.unbind(1)), break_when_any_done=any_done))
    for key in results[0].keys(True, True):
        for result in results[1:]:
            assert result[key].equal(results[0][key]), key


@pytest.mark.parametrize("env", [CountingRowsEnv(2, 3), GroupsEnv(("a", "b"), True)])
def test_preallocated_and_stacked_rollouts_are_equal(env: Any) -> None:
    torch.manual_seed(0)
    rollout = env.rollout(7, break_when_any_done=False)
    torch.manual_seed(0)
    saved = env.rollout(7, break_when_any_done=False, return_contiguous=False)
    for key in rollout.keys(True, True):
        assert rollout[key].equal(saved[key])


@pytest.mark.parametrize(
    "options", [{}, {"break_when_any_done": False}, {"set_truncated": True}, {"policy": RandomPolicy}]
)
@pytest.mark.parametrize("name", ["serial", "transformed", "native", "vector"])
def test_rollouts_of_batches_are_contiguous_by_default(name: str, options: dict[str, Any]) -> None:
    env = {
        "serial": lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
        "transformed": lambda: TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), StepCounter()),
        "native": lambda: NativeEnv("CartPole-v1", num_envs=2),
        "vector": lambda: GymEnv("CartPole-v1", num_envs=2, backend="serial"),
    }[name]()
    if "policy" in options:
        options = {"policy": RandomPolicy(env.full_action_spec)}
    rollout = env.rollout(40, **options)
    env.close()
    assert all(value.is_contiguous() for value in rollout.values(True, True))
    assert rollout.view(-1).batch_size == (rollout.numel(),)
