"""Results of environments do not change later, also if the environments update their buffers in place."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase, lazy_stack, tensorclass
from tests.fixtures.interpreter_hooks import HOOKS

from vecrl.envs import (
    EnvBase,
    FinancialRegimeEnv,
    GymEnv,
    GymWrapper,
    NativeEnv,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    SimulatorEnv,
    StepCounter,
    TicTacToeEnv,
    TransformedEnv,
)
from vecrl.envs.entries.shared_entries import copy_entries
from vecrl.specs import Composite, Unbounded
from vecrl.vector import VectorEnv

ZERO = torch.zeros(1)


class InPlace(EnvBase):
    """Counts to 3 in its own buffer, which it returns in one of the `WAYS`; rewards are in a second buffer."""

    def __init__(self, way: str):
        super().__init__()
        self.observation_spec = Composite(group=Composite(count=Unbounded((1,))))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.memory = np.zeros(1, np.float32)
        self.count = torch.from_numpy(self.memory) if way == "array" else torch.zeros(1)
        self.paid, self.way = torch.zeros(1), way
        self.known = TensorDict({"group": TensorDict({"count": self.count})})

    def _look(self) -> TensorDict:
        if self.way == "held group":
            return TensorDict({"group": self.known["group"]})
        return TensorDict({"group": TensorDict({"count": WAYS[self.way](self.count)})})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count.zero_()
        data = self.known if self.way == "held whole" else self._look()
        return data.set("done", torch.zeros(1, dtype=torch.bool))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        self.paid += 1
        data = self.known if self.way == "held whole" else self._look()
        return data.update({"reward": self.paid, "done": self.count >= 3})

    def _set_seed(self, seed: int | None) -> None: ...


WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda count: count,
    "a view": lambda count: count[:],
    "detached": lambda count: count.detach(),
    "its data": lambda count: count.data,
    "array": lambda count: torch.from_numpy(count.numpy()),
    "held group": lambda count: count,
    "held whole": lambda count: count,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [
        InPlace,
        lambda way: TransformedEnv(InPlace(way), StepCounter()),
        lambda way: SerialEnv(1, partial(InPlace, way)),
        lambda way: ParallelEnv(1, partial(InPlace, way)),
    ],
    ids=["single", "transformed", "serial", "parallel"],
)
def test_rollouts_hold_the_values_of_their_steps(make: Callable[[str], EnvBase], way: str) -> None:
    with make(way) as env:
        for _ in range(2):
            rollout = env.rollout(5, lambda td: td.set("action", torch.zeros(*td.shape, 1)), break_when_any_done=False)
            assert rollout["group", "count"].flatten().tolist() == [0, 1, 2, 0, 1]
            assert rollout["next", "group", "count"].flatten().tolist() == [1, 2, 3, 1, 2]
            assert rollout["next", "reward"].flatten().diff().eq(1).all()


@pytest.mark.parametrize("way", WAYS)
def test_step_results_do_not_change_later(way: str) -> None:
    _check_results(InPlace(way))


def _check_results(env: EnvBase) -> None:
    first = env.reset()
    item = env.step(first.copy().set("action", ZERO))
    two = env.step(env.step_mdp(item).set("action", ZERO))
    assert [td["group", "count"].item() for td in (first, item["next"], two["next"])] == [0, 1, 2]
    with torch.inference_mode():
        three = env.step(env.step_mdp(two).set("action", ZERO))
        env.reset()
    assert three["next", "group", "count"].item() == 3


@pytest.mark.parametrize("hook", [name for name in HOOKS if name != "none"])
@pytest.mark.parametrize("way", WAYS)
def test_results_do_not_change_later_under_debuggers_and_profilers(way: str, hook: str) -> None:
    with HOOKS[hook]():
        test_step_results_do_not_change_later(way)
        test_rollouts_hold_the_values_of_their_steps(InPlace, way)
        test_rollouts_hold_the_values_of_their_steps(partial(_in_serial, InPlace), way)


def _in_serial(make: Callable[[str], EnvBase], way: str) -> EnvBase:
    return SerialEnv(1, partial(make, way))


@tensorclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def test_all_entries_but_those_of_the_input_are_copied() -> None:
    params = TensorDict({"mass": torch.ones(2)})
    inputs = TensorDict({"passed on": torch.zeros(2), "params": params, "group": {"passed on": torch.zeros(1)}})
    weight = torch.ones(3, requires_grad=True)
    data = TensorDict(
        {
            "tensor": torch.zeros(2),
            "expanded": torch.zeros(1).expand(3, 1),
            "array": torch.from_numpy(np.zeros(2)),
            "differentiable": weight * 2,
            "group": TensorDict({"held": torch.zeros(1), "passed on": inputs["group", "passed on"]}).lock_(),
            "stack": lazy_stack([TensorDict({"x": torch.zeros(size)}) for size in (1, 2)]),
            "pair": Pair(torch.zeros(1), torch.ones(1)),
            "text": NonTensorData("hello"),
            "passed on": inputs["passed on"],
            "params": params,
        }
    )
    copied = copy_entries(data.lock_(), inputs)
    assert not copied.is_locked
    assert not copied["group"].is_locked
    assert list(copied.keys()) == list(data.keys())
    assert copied["params"] is params
    passed_on: list[Any] = ["passed on", ("group", "passed on"), ("params", "mass")]
    for key, value in data.exclude("stack").items(True, True):
        if isinstance(value, torch.Tensor):
            assert torch.equal(copied[key], value)
            assert (copied[key].data_ptr() == value.data_ptr()) == (key in passed_on), key
    assert copied["text"] == "hello"
    assert isinstance(copied["pair"], Pair)
    assert copied["pair"].left.data_ptr() != data["pair"].left.data_ptr()
    assert isinstance(copied["stack"], LazyStackedTensorDict)
    rows = zip(data["stack"].unbind(0), copied["stack"].unbind(0), strict=True)
    assert all(torch.equal(a["x"], b["x"]) and a["x"].data_ptr() != b["x"].data_ptr() for a, b in rows)
    copied["differentiable"].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]
    named = copy_entries(TensorDict({"x": torch.zeros(2, 3)}, [2, 3], names=["row", None]), None)
    assert named.names == ["row", None]
    assert torch.vmap(lambda x: copy_entries(TensorDict({"x": x}), None)["x"])(torch.ones(3)).tolist() == [1, 1, 1]


class Declared(InPlace):
    """Returns new tensors, as it declares."""

    returns_new_tensors = True

    def __init__(self, way: str = "itself"):
        super().__init__(way)
        self.places: list[int] = []

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._new(super()._reset(tensordict, **kwargs))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._new(super()._step(tensordict))

    def _new(self, data: TensorDictBase) -> TensorDictBase:
        data = data.clone()
        self.places.append(data["group", "count"].data_ptr())
        return data


class Locking(Declared):
    """Returns locked TensorDicts, to which no done flags could be added."""

    returns_new_tensors = True

    def _new(self, data: TensorDictBase) -> TensorDictBase:
        return super()._new(data).lock_()


class Overriding(Declared):
    """Declares nothing for its own step."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).update({"reward": self.paid})


def test_results_of_environments_that_declare_new_tensors_are_not_copied() -> None:
    env = Declared()
    first = env.reset()
    step = env.step(first.copy().set("action", ZERO))
    assert env.places == [first["group", "count"].data_ptr(), step["next", "group", "count"].data_ptr()]
    _check_results(env)
    _check_results(Locking())


def test_a_declaration_does_not_hold_for_the_methods_of_a_subclass() -> None:
    env = Overriding()
    rollout = env.rollout(3, lambda td: td.set("action", torch.zeros(1)), break_when_any_done=False)
    assert rollout["next", "reward"].flatten().tolist() == [1, 2, 3]
    step = env.step(env.reset().set("action", ZERO))
    env.step(env.step_mdp(step).set("action", ZERO))
    assert step["next", "reward"].item() == 4


class ReadsOwnBuffer(GymEnv):
    """Returns observations in its own buffer."""

    def read_obs(self, observations: object) -> dict[str, Any]:
        entries = super().read_obs(observations)
        if not hasattr(self, "buffer"):
            self.buffer = torch.zeros_like(entries["observation"])
        return {"observation": self.buffer.copy_(entries["observation"])}


def test_observations_of_an_overridden_method_do_not_change_later() -> None:
    env, other = ReadsOwnBuffer("CartPole-v1"), GymEnv("CartPole-v1")
    results: list[list[torch.Tensor]] = []
    for each in env, other:
        each.set_seed(0)
        root = each.reset()
        observations = [root["observation"]]
        for _ in range(3):
            root = each.step(root.set("action", torch.tensor([0, 1])))
            observations.append(root["next", "observation"])
            root = each.step_mdp(root)
        results.append(observations)
    assert [obs.tolist() for obs in results[0]] == [obs.tolist() for obs in results[1]]


def test_infos_do_not_change_later() -> None:
    class WithInfo(InPlaceGym):
        total = torch.zeros(1)

        def step(self, action: Any) -> Any:
            self.total += 1
            return (*super().step(action)[:4], {"total": self.total, "count": self.count})

    def read(info: Any, data: TensorDictBase) -> None:
        data.set("total", info.get("total", torch.zeros(1)))

    env = GymWrapper(WithInfo())
    env.set_info_dict_reader(read)
    env.auto_register_info_dict()
    env.reset()
    WithInfo.total.zero_()
    steps = [env.step(TensorDict({"action": ZERO}))["next"] for _ in range(3)]
    assert [step["total"].item() for step in steps] == [1, 2, 3]
    assert [step["count"].item() for step in steps] == [1, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: GymEnv("Pendulum-v1"),
        lambda: GymEnv("CartPole-v1", num_envs=2),
        lambda: NativeEnv("CartPole-v1", 3, arrays="numpy"),
        lambda: NativeEnv("CartPole-v1", 3, arrays="torch"),
        lambda: NativeEnv("MountainCarContinuous-v0", 3, arrays="torch"),
        lambda: SimulatorEnv("native::Acrobot-v1", 3, arrays="torch"),
        lambda: PendulumEnv(seed=0),
        lambda: FinancialRegimeEnv(seed=0),
        lambda: TicTacToeEnv(single_player=True),
    ],
    ids=["gym", "gym batch", "native", "native torch", "native car", "simulator", "pendulum", "trading", "game"],
)
def test_results_that_are_not_copied_are_independent_of_the_environment(make: Callable[[], EnvBase]) -> None:
    """Later steps do not write to results, and a caller that writes to results does not change later steps."""
    env, other = make(), make()
    for each in env, other:
        each.set_seed(0)
    root, kept, results = env.reset(), list[TensorDictBase](), list[TensorDictBase]()
    other_root = other.reset()
    for _ in range(3):
        root = env.rand_action(root)
        other_root.update(root.select(*env.action_keys))
        step, other_step = env.step(root.copy()), other.step(other_root.clone())
        kept.append(step.clone())
        results.append(step)
        assert (step["next"] == other_step["next"]).all()
        root, other_root = env.step_mdp(step), other.step_mdp(other_step.clone())
        for value in other_step["next"].exclude("params").values(True, True):
            value.zero_()
    for before, after in zip(kept, results, strict=True):
        assert (before == after).all()


class InPlaceGym(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-9, 9, (1,))
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,))
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count[:] = 0
        return self.count, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.count, 0.0, bool(self.count[0] >= 3), False, {}


@pytest.mark.parametrize("policy", [None, lambda td: td.set("action", torch.zeros(*td.shape, 1))], ids=["none", "some"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: GymWrapper(InPlaceGym()),
        lambda: SerialEnv(1, lambda: GymWrapper(InPlaceGym())),
        lambda: SerialEnv(2, lambda: GymWrapper(InPlaceGym())),
        lambda: ParallelEnv(1, lambda: GymWrapper(InPlaceGym())),
    ],
    ids=["single", "serial of 1", "serial of 2", "parallel"],
)
def test_gymnasium_rollouts_hold_final_observations(make: Callable[[], EnvBase], policy: Any) -> None:
    with make() as env:
        rollout = env.rollout(4, policy, break_when_any_done=False).reshape(-1, 4)[0]
    assert rollout["observation"].flatten().tolist() == [0, 1, 2, 0]
    assert rollout["next", "observation"].flatten().tolist() == [1, 2, 3, 1]


@pytest.mark.parametrize("count", [1, 2])
def test_same_step_autoreset_keeps_final_observations(count: int) -> None:
    with VectorEnv([InPlaceGym] * count, autoreset_mode="same_step") as env:
        env.reset()
        for _ in range(3):
            obs, *_, info = env.step(np.zeros((count, 1), np.float32))
    assert obs.tolist() == [[0]] * count
    assert [final.tolist() for final in info["final_obs"]] == [[3]] * count
