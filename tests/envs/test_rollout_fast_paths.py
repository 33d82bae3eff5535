"""Fast rollouts equal stepwise rollouts, and are not used if a subclass overrides a method."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.transforms import CASES
from torch import Tensor

from vecrl.envs import EnvBase, GymEnv, GymWrapper, NativeEnv, PendulumEnv, SerialEnv
from vecrl.envs.entries.records import record_steps
from vecrl.envs.rollouts import trajectory_buffers
from vecrl.envs.seed_chain import seed_chain
from vecrl.envs.transforms import (
    CatFrames,
    CatTensors,
    Compose,
    DoubleToFloat,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    RewardSum,
    StepCounter,
    TargetReturn,
    TimeMaxPool,
    Transform,
    TransformedEnv,
    UnsqueezeTransform,
    VecNorm,
    VecNormV2,
)
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, TensorSpec, Unbounded
from vecrl.testing import IndependentRowsEnv

ONE = partial(GymEnv, "CartPole-v1")
MAKERS: dict[str, Any] = {
    "gym": ONE,
    "serial": lambda: SerialEnv(3, ONE),
    "native": lambda: NativeEnv("CartPole-v1", 3),
    "transformed": lambda: TransformedEnv(SerialEnv(3, ONE), StepCounter()),
    "transformed native": lambda: TransformedEnv(NativeEnv("CartPole-v1", 3), RewardSum()),
}
ENDS: dict[str, Any] = {
    "any": {},
    "all": {"break_when_all_done": True},
    "never": {"break_when_any_done": False},
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", MAKERS)
def test_fast_rollouts_stop_like_stepwise_rollouts(name: str, ends: str) -> None:
    quick, slow = MAKERS[name](), MAKERS[name]()
    torch.manual_seed(0)
    actions = torch.stack([quick.action_spec.rand() for _ in range(60)], quick.batch_dims)
    for env in (quick, slow):
        env.set_seed(5)
    actual = quick.rollout(60, actions=actions, **ENDS[ends])
    inputs = iter(actions.unbind(quick.batch_dims))
    expected = slow.rollout(60, lambda td: td.set("action", next(inputs)), **ENDS[ends])
    assert actual.shape == expected.shape
    for key in expected.keys(include_nested=True, leaves_only=True):
        assert actual.get(key).equal(expected.get(key)), key
    quick.close()
    slow.close()


@pytest.mark.parametrize("name", MAKERS)
def test_random_actions_end_a_rollout_when_all_are_done(name: str) -> None:
    env = MAKERS[name]()
    rollout = env.rollout(300, break_when_all_done=True)
    assert rollout.shape[-1] < 300
    assert rollout["next", "done"][..., -1, :].all()
    env.close()


class Choosing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole with another action space; the first number says where to push."""

    def __init__(self, action_space: gymnasium.Space[Any]):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.action_space = action_space

    def step(self, action: Any) -> Any:
        return self.env.step(int(np.ravel(action)[0] > 0))


ACTION_SPACES: dict[str, gymnasium.Space[Any]] = {
    "box": spaces.Box(-1, 1, (2,)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "half bounded": spaces.Box(0, np.inf, (2,)),
    "several": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
}
RANDOM: dict[str, Any] = {
    **MAKERS,
    **{name: partial(lambda space: GymWrapper(Choosing(space)), space) for name, space in ACTION_SPACES.items()},
}


@pytest.mark.parametrize("break_when_any_done", [True, False])
@pytest.mark.parametrize("name", RANDOM)
def test_random_actions_do_not_depend_on_the_limit_of_steps(name: str, break_when_any_done: bool) -> None:
    env = RANDOM[name]()
    steps = {True: (60, 500), False: (60, 60)}[break_when_any_done]
    results: list[tuple[Any, Tensor]] = []
    for max_steps, policy in ((steps[0], None), (steps[1], None), (steps[0], env.rand_action)):
        env.set_seed(5)
        torch.manual_seed(0)
        rollout = env.rollout(max_steps, policy, break_when_any_done=break_when_any_done)
        results.append((rollout, torch.rand(3)))
    (expected, number), *others = results
    assert break_when_any_done == (expected.shape[-1] < 60)
    for rollout, next_number in others:
        assert (rollout == expected).all()
        assert next_number.equal(number)
    env.close()


@pytest.mark.parametrize("kind", [GymEnv, NativeEnv])
def test_overridden_rand_action_is_called(kind: type[EnvBase]) -> None:
    class Left(kind):
        def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
            assert tensordict is not None
            remaining = torch.zeros(self.action_spec.shape, dtype=self.action_spec.dtype)
            remaining[..., 0] = 1
            return tensordict.set("action", remaining)

    env: Any = Left("CartPole-v1") if kind is GymEnv else Left("CartPole-v1", 2)
    assert env.rollout(5)["action"][..., 0].all()


OVERRIDDEN = ["read_reward", "_output_transform", "read_obs", "_reset_env", "_reset", "_step", "step", "step_mdp"]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_methods_are_called(name: str) -> None:
    calls: list[str] = []

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return getattr(GymEnv, name)(self, *args, **kwargs)

    changed: Any = type("Changed", (GymEnv,), {name: method})
    env = changed("CartPole-v1")
    assert env.rollout(3).shape == (3,)
    assert calls
    assert SerialEnv(1, lambda: env).rollout(3).shape == (1, 3)


class Fivefold:
    """Multiplies the rewards of steps by five."""

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = super().step(tensordict)  # pyright: ignore[reportAttributeAccessIssue]
        result["next", "reward"] *= 5
        return result


@pytest.mark.parametrize("break_when_any_done", [True, False])
@pytest.mark.parametrize("policy", [False, True])
@pytest.mark.parametrize("kind", ["gym", "native", "serial"])
def test_an_overridden_step_is_called_at_every_step(kind: str, policy: bool, break_when_any_done: bool) -> None:
    base = {"gym": GymEnv, "native": NativeEnv, "serial": SerialEnv}[kind]
    changed: Any = type("Changed", (Fivefold, base), {})
    arguments = {"gym": ("CartPole-v1",), "native": ("CartPole-v1", 2), "serial": (2, lambda: GymEnv("CartPole-v1"))}
    env = changed(*arguments[kind])
    rollout = env.rollout(30, env.rand_action if policy else None, break_when_any_done=break_when_any_done)
    assert (rollout["next", "reward"] == 5).all()
    env.close()


@pytest.mark.parametrize("name", ["gym", "serial", "native"])
def test_memory_grows_in_rollouts_that_may_end_early(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = []
    for limit in (1, 1 << 31):
        monkeypatch.setattr(trajectory_buffers, "_MAX_PREALLOC_BYTES", limit)
        env = MAKERS[name]()
        env.set_seed(3)
        torch.manual_seed(0)
        rollouts.append(env.rollout(200))
        env.close()
    grown, expected = rollouts
    assert grown.shape == expected.shape
    for key in expected.keys(include_nested=True, leaves_only=True):
        assert grown.get(key).equal(expected.get(key)), key


def test_run_type_checks_applies() -> None:
    env = GymEnv("CartPole-v1", run_type_checks=True)
    env.observation_spec = Composite(observation=Bounded(-1e-9, 1e-9, (4,)))
    with pytest.raises(ValueError, match="observation"):
        env.rollout(3)


@pytest.mark.parametrize("make", [ONE, lambda: SerialEnv(2, ONE)])
def test_empty_actions_raise(make: Any) -> None:
    env = make()
    with pytest.raises(ValueError, match="one step or more"):
        env.rollout(3, actions=torch.zeros(*env.batch_size, 0, 2, dtype=torch.int64))
    env.close()


def test_set_truncated_works_with_generators() -> None:
    env = PendulumEnv().add_truncated_keys()
    actions = (torch.zeros(1) for _ in range(3))
    rollout = env.rollout(10, actions=actions, set_truncated=True)
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [False, False, True]


def test_rollouts_do_not_change_their_input() -> None:
    env = PendulumEnv()
    inputs = env.gen_params(batch_size=[2])
    keys = set(inputs.keys(True, True))
    env.rollout(3, tensordict=inputs)
    assert set(inputs.keys(True, True)) == keys


def test_gradients_flow_through_large_leaves() -> None:
    env = PendulumEnv()
    gain = torch.zeros((), requires_grad=True)

    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", (gain * td["thdot"]).unsqueeze(-1))

    rollout = env.rollout(3, policy, tensordict=env.gen_params(batch_size=[20_000]))
    rollout["next", "reward"].sum().backward()
    assert gain.grad is not None
    assert gain.grad.abs() > 0


def test_changing_dtypes_raise() -> None:
    class Changing(EnvBase):
        def __init__(self) -> None:
            super().__init__(batch_size=[10_000])
            self.observation_spec = Composite(x=Unbounded((10_000, 1), dtype=torch.int64), shape=(10_000,))
            self.action_spec = Unbounded((10_000, 1))
            self.reward_spec = Unbounded((*self.batch_size, 1))
            self.count = 0

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            return TensorDict({"x": torch.zeros(10_000, 1, dtype=torch.int64)}, [10_000])

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            self.count += 1
            x = torch.full((10_000, 1), 0.7) if self.count > 1 else torch.zeros(10_000, 1, dtype=torch.int64)
            return TensorDict({"x": x, "reward": torch.ones(10_000, 1), "done": x > 9}, [10_000])

        def _set_seed(self, seed: int | None) -> None: ...

    with pytest.raises(SpaceError, match=r"torch\.int64 in every step"):
        Changing().rollout(4)


def test_flags_and_rewards_get_their_shapes() -> None:
    class Bare(PendulumEnv):
        batch_locked = True

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            data = super()._step(tensordict)
            flags = {flag: torch.zeros((), dtype=torch.bool) for flag in ("done", "terminated")}
            return data.update(flags)

    assert Bare().rollout(3)["next", "done"].shape == (3, 1)

    class Wide(PendulumEnv):
        batch_locked = True

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("reward", torch.zeros(3))

    with pytest.raises(SpaceError, match=r"'reward' of shape \(1,\), got \(3,\)"):
        Wide().rollout(3)


class Named(torch.nn.Module):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1) * observation.sum()


@pytest.mark.parametrize("policy", [torch.nn.Linear(3, 1), torch.nn.Sequential(torch.nn.Linear(3, 1)), Named()])
def test_modules_over_tensors_are_policies(policy: torch.nn.Module) -> None:
    with torch.no_grad():
        assert GymEnv("Pendulum-v1").rollout(3, policy)["action"].shape == (3, 1)


def test_policies_without_actions_raise() -> None:
    with pytest.raises(KeyError, match=r"actions at .*'action'"):
        GymEnv("CartPole-v1").rollout(3, lambda td: td)


def test_the_first_step_is_checked_against_the_specs() -> None:
    class Double(PendulumEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            data = super()._step(tensordict)
            return data.set("th", data["th"].double())

    with pytest.raises(SpaceError, match=r"'th' .*expected dtype torch\.float32, found torch\.float64"):
        Double().rollout(2)


def test_actions_of_environments_without_a_batch_size_are_in_the_batch_of_the_start() -> None:
    env = PendulumEnv()
    start = env.reset(env.gen_params(batch_size=[4]))
    actions = torch.linspace(-1, 1, 20).reshape(4, 5, 1)
    rollout = env.rollout(9, actions=actions, auto_reset=False, tensordict=start)
    assert rollout.batch_size == (4, 5)
    assert rollout["action"].equal(actions)


# -- rollouts with a policy, over records ----------------------------------------------------------


class _Observes(gymnasium.Env[Any, Any]):
    """An environment of episodes of 3 to 5 steps with observations of any space."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, space: gymnasium.Space[Any]):
        self.observation_space = space
        self.episode, self.count = -1, 0

    def _observe(self) -> Any:
        self.observation_space.seed(10 * self.episode + self.count)
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        length = 3 + self.episode % 3
        return self._observe(), float(action.sum()), self.count == length and length < 5, self.count == 5, {}


class _Acts:
    """A policy that writes the step's number as action, and what `write` writes."""

    def __init__(self, write: Any = None):
        self.calls, self.write = 0, write

    def __call__(self, td: TensorDictBase) -> Any:
        self.calls += 1
        td["action"] = torch.full((2,), self.calls / 100)
        return td if self.write is None else self.write(td, self.calls)


def _keeps_state(td: TensorDictBase, _: int) -> TensorDictBase:
    state = td.get("state", torch.zeros(1))
    td["next", "state"] = state + 1
    return td.set("state", state)


def _returns_another(td: TensorDictBase, count: int) -> TensorDictBase:
    return td.select("action").set("value", torch.tensor(float(count)))


def _counts_roots(td: TensorDictBase, _: int) -> TensorDictBase:
    return td.set("seen", td.get("seen", torch.zeros(1)) + 1)


def _rewards_itself(td: TensorDictBase, _: int) -> TensorDictBase:
    return td.set("reward", td.get("reward", torch.zeros(1)))


_BOX = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
_SPACES = [
    _BOX,
    gymnasium.spaces.Discrete(4),
    gymnasium.spaces.Dict(a=_BOX, b=gymnasium.spaces.Discrete(3)),
    gymnasium.spaces.Dict(a=gymnasium.spaces.Dict(c=_BOX)),
    gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8),
]


@pytest.mark.parametrize("space", _SPACES, ids=str)
@pytest.mark.parametrize("write", [None, _keeps_state, _returns_another, _counts_roots, _rewards_itself])
@pytest.mark.parametrize("options", [{}, {"break_when_any_done": False}, {"break_when_all_done": True}], ids=str)
def test_rollouts_over_records_equal_single_steps(space: Any, write: Any, options: Any) -> None:
    """A callback makes each step a TensorDict."""
    rollouts = [
        GymWrapper(_Observes(space)).rollout(14, _Acts(write), callback, **options)
        for callback in (None, lambda *_: None)
    ]
    entries = [dict(rollout.flatten_keys(".").items()) for rollout in rollouts]
    assert entries[0].keys() == entries[1].keys()
    for key, value in entries[0].items():
        assert value.dtype == entries[1][key].dtype
        assert value.equal(entries[1][key]), key
    assert rollouts[0].names == rollouts[1].names == ["time"]
    assert len(rollouts[0]) == (14 if options == {"break_when_any_done": False} else 3)


def test_rollouts_over_records_keep_gradients_and_results() -> None:
    weight = torch.ones(2, requires_grad=True)
    rollout = GymWrapper(_Observes(_BOX)).rollout(
        6, lambda td: td.set("action", weight * 0.1), break_when_any_done=False
    )
    rollout["action"].sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.full((2,), 0.6))
    assert rollout["observation"][1].equal(rollout["next", "observation"][0])


def test_a_policy_over_records_that_stops_to_act_is_reported() -> None:
    def write(td: TensorDictBase, count: int) -> TensorDictBase:
        return td if count < 4 else td.exclude("action", inplace=True)

    with pytest.raises(SpaceError, match="Expected 'action' in the input of step, got none"):
        GymWrapper(_Observes(_BOX)).rollout(9, _Acts(write), break_when_any_done=False)


@pytest.mark.parametrize("method", ["step_mdp", "maybe_reset", "_reset", "read_obs", "_step"])
def test_overridden_methods_are_called_in_rollouts_with_a_policy(method: str) -> None:
    calls = []

    def overridden(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(method)
        return getattr(GymWrapper, method)(self, *arguments, **options)

    cls = type("Overrides", (GymWrapper,), {method: overridden, "returns_new_tensors": True})
    cls(_Observes(_BOX)).rollout(8, _Acts(), break_when_any_done=False)
    assert len(calls) > 3 if method != "_reset" else len(calls) == 3


class _Doubles(Transform):
    """A transform of a user, with hooks over TensorDicts."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        assert isinstance(next_tensordict, TensorDictBase)
        return next_tensordict.update({"observation": next_tensordict["observation"] * 2})

    _reset = Transform._reset


class _Steps(Transform):
    """A transform of a user with a hook over TensorDicts, to derive from beside another."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        assert isinstance(tensordict, TensorDictBase)
        assert isinstance(next_tensordict, TensorDictBase)
        return super()._step(tensordict, next_tensordict)


class _CastsAndSteps(DoubleToFloat, _Steps):
    """Takes records for its own hooks, but not for those of the second base."""


_CHAINS: dict[str, Callable[[], Any]] = {
    "counters": lambda: Compose(StepCounter(4), RewardSum(), InitTracker()),
    "soft limit": lambda: StepCounter(2, update_done=False),
    "norm": lambda: Compose(ObservationNorm(0.1, 2.0, in_keys=["observation"]), RewardSum(), StepCounter(4)),
    "frames": lambda: Compose(StepCounter(4), CatFrames(2, -1, in_keys=["observation"], out_keys=["last"])),
    "maximum": lambda: TimeMaxPool(["observation"], ["highest"], T=3),
    "statistics": lambda: Compose(VecNorm(in_keys=["observation", "reward"]), StepCounter(4)),
    "later statistics": lambda: VecNormV2(in_keys=["observation"], out_keys=["normal"]),
    "return to go": lambda: TargetReturn(5.0),
    "of a user": lambda: Compose(_Doubles(), StepCounter(4)),
    "of a user, beside vecrl's": lambda: Compose(_CastsAndSteps(), StepCounter(4)),
}


@pytest.mark.parametrize("chain", _CHAINS)
@pytest.mark.parametrize("place", ["around one", "around a batch of one", "around a batch", "in a batch"])
@pytest.mark.parametrize("options", [{}, {"break_when_any_done": False}], ids=str)
def test_rollouts_over_records_under_transforms_equal_single_steps(chain: str, place: str, options: Any) -> None:
    def make() -> Any:
        def one() -> Any:
            return GymWrapper(_Observes(_BOX))

        def transformed_one() -> Any:
            return TransformedEnv(one(), _CHAINS[chain]())

        if place == "around one":
            return transformed_one()
        if place == "in a batch":
            return SerialEnv(3, transformed_one)
        return TransformedEnv(SerialEnv(3 if place == "around a batch" else 1, one), _CHAINS[chain]())

    def act(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", td["observation"][..., :2] * 0.1)

    envs, calls = [make(), make()], (None, lambda *_: None)
    assert (record_steps(envs[0]) is None) == ("of a user" in chain and place != "in a batch")
    for _ in range(2):  # the second rollout starts from what the first one left in transforms
        rollouts = [env.rollout(14, act, callback, **options) for env, callback in zip(envs, calls, strict=True)]
        entries = [dict(rollout.items(True, True)) for rollout in rollouts]
        assert entries[0].keys() == entries[1].keys()
        for key, value in entries[0].items():
            torch.testing.assert_close(value, entries[1][key], rtol=0, atol=0, equal_nan=True)


class _OneAction(IndependentRowsEnv):
    """An environment of one action."""

    def __init__(self, ids: int):
        super().__init__(ids)
        self.full_action_spec = Composite(action=Bounded(-1, 1, (2,)))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict.copy().set("choice", torch.zeros((), dtype=torch.int64)))


_OVER_TENSORDICTS = {
    "ActionDiscretizer",
    "AutoResetTransform",
    "BatchSizeTransform",
    "DataLoadingPrimer",
    "DeviceCastTransform",
    "DeviceCastTransform: of some",
    "ExpandAs: of flags",
    "FrameSkipTransform",
    "FunctionTransform",
    "Hash: of texts",
    "KLRewardTransform",
    "KLRewardTransform: only the penalty",
    "MeanActionSelector",
    "ModuleTransform",
    "ModuleTransform: of actions",
    "MultiAction",
    "MultiAction: of stacked observations",
    "NextObservationDelta",
    "NextStateReconstructor",
    "NoopResetEnv",
    "PinMemoryTransform",
    "RenameTransform: copies",
    "Stack",
    "Stack: of actions",
    "TensorDictPrimer: before resets",
    "TerminateTransform",
    "TerminateTransform: without done",
    "Timer",
    "Tokenizer",
    "VecGymEnvTransform",
}
"""Transforms with functions of a user, and those that need more than entries of one row, or groups."""
_OF_CHOICES = {"ActionMask", "ConditionalPolicySwitch", "ConditionalSkip", "DiscreteActionProjection"}


@pytest.mark.parametrize("name", [name for name in CASES if name.partition(":")[0] not in _OF_CHOICES])
def test_rollouts_over_records_under_each_transform_equal_single_steps(name: str) -> None:
    case = CASES[name]
    one_env = [partial(_OneAction, i) for i in range(2)]
    envs = [case.env(SerialEnv(2, one_env), case.make()) for _ in range(2)]
    actions = envs[0].full_action_spec.zero().apply(lambda action: action + (0.5 if action.is_floating_point() else 1))

    def act(td: TensorDictBase) -> TensorDictBase:
        return td.update(actions)

    keys = (*envs[0].observation_keys, *envs[0].reward_keys, *envs[0].state_keys)
    has_groups = not all(type(key) is str for key in keys)
    assert (record_steps(envs[0]) is None) == (has_groups or name in _OVER_TENSORDICTS)
    for options in ({"break_when_any_done": False}, {}):
        rollouts = []
        for env, callback in zip(envs, (None, lambda *_: None), strict=True):
            torch.manual_seed(5)
            rollouts.append(env.rollout(14, act, callback, **options))
        entries = [dict(rollout.items(True, True)) for rollout in rollouts]
        assert entries[0].keys() == entries[1].keys()
        for key, value in entries[0].items():
            torch.testing.assert_close(value, entries[1][key], rtol=0, atol=0, equal_nan=True)


def test_a_batch_in_a_rollout_is_reset_with_the_seeds_for_its_next_episodes() -> None:
    env = SerialEnv(2, ONE)
    root = env.reset()
    env._seed_next_reset(5)

    def act(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.tensor([[0, 1]] * 2))

    rollout = env.rollout(30, act, auto_reset=False, tensordict=root, break_when_any_done=False)
    for row, seed in enumerate(seed_chain(5, 2)):
        first = int(rollout["next", "done"][row, :, 0].nonzero()[0]) + 1
        expected = gymnasium.make("CartPole-v1").reset(seed=seed)[0]
        np.testing.assert_array_equal(rollout["observation"][row, first].numpy(), expected)


class _StateEnv(EnvBase):
    """Starts at ten times the state "goal" in the input of its reset; ends after some steps."""

    def __init__(self, length: int):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.state_spec = Composite(goal=Unbounded((1,)))
        self.action_spec = Unbounded((2,))
        self.reward_spec = Unbounded((1,))
        self.length, self.count = length, 0

    def _reset(self, tensordict: Any = None, **_: Any) -> TensorDict:
        goal = None if tensordict is None else tensordict.get("goal", None)
        self.count = 0
        return TensorDict({"observation": torch.full((1,), -10.0) if goal is None else 10 * goal})

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.count += 1
        done = torch.tensor([self.count >= self.length])
        return TensorDict({"observation": torch.ones(1), "reward": torch.zeros(1), "done": done, "terminated": done})

    def _set_seed(self, seed: int | None) -> None: ...


def test_rows_that_only_a_transform_ends_are_reset_from_their_states() -> None:
    env = TransformedEnv(SerialEnv(2, [lambda: _StateEnv(2), lambda: _StateEnv(4)]), StepCounter(max_steps=2))
    root = env.reset()
    for _ in range(2):
        action = TensorDict({"goal": torch.full((2, 1), 2.0), "action": torch.zeros(2, 2)}, [2])
        root = env.step_and_maybe_reset(root.update(action))[1]
    assert root["observation"].tolist() == [[20], [20]]


class _Logs(Transform):
    """Takes the logarithm of values, which must be above 0."""

    elementwise = True

    def _apply_transform(self, value: Tensor) -> Tensor:
        if bool((value <= 0).any()):
            raise ValueError("not positive")
        return value.log()

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return Unbounded(spec.shape)


class _Positive(_Observes):
    def _observe(self) -> Any:
        return np.full(3, 1 + self.episode + self.count, np.float32)


def test_a_reset_of_one_row_transforms_only_this_row() -> None:
    def make() -> Any:
        env = _Positive(_BOX)
        env.episode = int(next(episodes))
        return TransformedEnv(GymWrapper(env), _Logs(["observation"]))

    episodes = iter((0, 1))
    rollout = SerialEnv(2, make).rollout(12, _acts_on_two, break_when_any_done=False)
    assert rollout["next", "done"].any(1).all()
    assert (rollout["next", "done"].sum(0) == 1).any()  # one row ended alone


def _acts_on_two(td: TensorDictBase) -> TensorDictBase:
    return td.set("action", torch.zeros(*td.batch_size, 2))


class _SelectsMixin:
    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.select(*next_tensordict.keys())


class _Selects(_SelectsMixin, _Logs):  # pyright: ignore[reportIncompatibleMethodOverride]
    pass


class _EndsAfterReset(Transform):
    preserves_done = True

    def __init__(self) -> None:
        super().__init__(in_keys=["done"])
        self.calls = 0

    def _apply_transform(self, value: Tensor) -> Tensor:
        self.calls += 1
        return value | torch.tensor(self.calls > 4)


def test_hooks_over_tensordicts_never_get_records() -> None:
    def group() -> Compose:
        return Compose(RenameTransform(["observation"], [("a", "x")]), CatTensors([("a", "x")], "both"))

    patched = ObservationNorm(0.0, 1.0, in_keys=["observation"])
    patched._call = lambda td: td.select(*td.keys())  # type: ignore[method-assign]
    for transform in (_Selects([]), group(), patched):
        env = TransformedEnv(GymWrapper(_Observes(_BOX)), transform)
        assert env.rollout(8, _acts_on_two, break_when_any_done=False).shape == (8,)


def test_rows_that_are_done_after_a_reset_are_reported_over_records() -> None:
    with pytest.raises(SpaceError, match="no row to be done after its reset"):
        TransformedEnv(GymWrapper(_Observes(_BOX)), _EndsAfterReset()).rollout(
            9, _acts_on_two, break_when_any_done=False
        )


def test_flags_of_a_reset_are_transformed_once() -> None:
    env = TransformedEnv(GymWrapper(_Observes(_BOX)), UnsqueezeTransform(-1, in_keys=["done"], out_keys=["column"]))
    rollout = env.rollout(8, _acts_on_two, break_when_any_done=False)
    assert rollout["column"].shape == rollout["next", "column"].shape


def test_a_method_set_on_an_environment_is_called_in_rollouts() -> None:
    env: Any = GymWrapper(_Observes(_BOX))
    calls, step_mdp = [], env.step_mdp
    env.step_mdp = lambda td: calls.append(td) or step_mdp(td)
    env.rollout(6, _acts_on_two, break_when_any_done=False)
    assert len(calls) == 5
