"""`Transform`, `Compose` and `TransformedEnv`: containers and parents, the order of calls, and derived specs."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv, PendulumEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    ActionDiscretizer,
    ClipTransform,
    Compose,
    ConditionalSkip,
    DTypeCastTransform,
    FrameSkipTransform,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
    UnaryTransform,
    UnsqueezeTransform,
)
from vecrl.errors import ClosedError
from vecrl.specs import Bounded, Composite, Unbounded
from vecrl.testing import IndependentRowsEnv


class Add(Transform):
    """Adds a number to an output entry, and another to an input entry."""

    def __init__(self, amount: float = 1.0, in_keys: Any = ("observation",), in_keys_inv: Any = None, **kwargs: Any):
        super().__init__(in_keys=list(in_keys), in_keys_inv=in_keys_inv, **kwargs)
        self.amount = amount

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.amount

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.amount


def test_apply_transform_runs_on_resets_and_steps() -> None:
    plain, env = IndependentRowsEnv((0, 1)), TransformedEnv(IndependentRowsEnv((0, 1)), Add(5))
    torch.manual_seed(0)
    expected = plain.rollout(3)
    torch.manual_seed(0)
    rollout = env.rollout(3)
    assert rollout["observation"].equal(expected["observation"] + 5)
    assert rollout["next", "observation"].equal(expected["next", "observation"] + 5)


def test_in_keys_and_out_keys() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Add(out_keys=["more"]))
    root = env.reset()
    assert root["more"].equal(root["observation"] + 1)
    assert env.observation_spec["more"] == Unbounded((2, 3))


def test_overridden_call_applies_to_steps_only() -> None:
    class Doubled(Transform):
        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            return next_tensordict.set("reward", next_tensordict["reward"] * 2)

    root, plain = TransformedEnv(IndependentRowsEnv(), Doubled()).rollout(2), IndependentRowsEnv().rollout(2)
    assert root.get("reward", None) is None
    assert root["next", "reward"].shape == plain["next", "reward"].shape


def test_inverses_run_in_reverse_order() -> None:
    seen: list[float] = []

    class Sees(IndependentRowsEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            seen.append(tensordict["action"].mean().item())
            return super()._step(tensordict)

    class Times(Add):
        def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
            return value * self.amount

    env = TransformedEnv(Sees(), Compose(Add(1, (), ["action"]), Times(10, (), ["action"])))
    given_td = env.rand_action(env.reset()).set("action", torch.ones(2))
    step_td = env.step(given_td)
    assert seen == [11.0]
    assert step_td["action"].tolist() == [1.0, 1.0], "the caller's own action stays"


def test_in_keys_inv_and_out_keys_inv() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Add(1, (), ["action"], out_keys_inv=["wanted"]))
    assert set(env.action_keys) == {"wanted", "choice"}
    check_env_specs(env)


def test_functions_can_be_transforms() -> None:
    env = IndependentRowsEnv((0, 1)).append_transform(lambda td: td.set("twice", td["observation"] * 2))
    check_env_specs(env)
    assert env.rollout(2)["next", "twice"].shape == (2, 2, 3)
    with pytest.raises(TypeError, match="function from TensorDict"):
        TransformedEnv(IndependentRowsEnv(), 3)


def test_parent_is_the_environment_up_to_the_transform() -> None:
    env = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), RewardSum(), InitTracker()))
    parent = env.transform[1].parent
    assert isinstance(parent, TransformedEnv)
    assert [type(t) for t in parent.transform] == [StepCounter]
    assert parent.base_env is env.base_env
    assert "step_count" in parent.observation_spec
    assert "episode_reward" not in parent.observation_spec
    assert env.transform[1].parent is parent, "it is made once"
    assert env.transform.parent is not None
    assert not len(env.transform.parent.transform)


def test_parents_in_nested_composes() -> None:
    env = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), Compose(RewardSum(), InitTracker())))
    assert [type(t) for t in env.transform[1][1].parent.transform] == [StepCounter, RewardSum]
    assert [type(t) for t in env.transform[1].parent.transform] == [StepCounter]


def test_slices_are_clones_without_container() -> None:
    norm = ObservationNorm(0.0, 1.0, in_keys=["observation"])
    env = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), norm, InitTracker()))
    last = env.transform[-2:]
    assert isinstance(last, Compose)
    assert last.parent is None
    assert last[0] is not norm
    assert last[0].loc is norm.loc
    assert env.transform[1] is norm


def test_transforms_have_one_container() -> None:
    env = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), RewardSum()))
    with pytest.raises(AttributeError, match=r"transform\.clone\(\)"):
        TransformedEnv(IndependentRowsEnv(), env.transform[1])
    with pytest.raises(AttributeError, match=r"transform\.clone\(\)"):
        Compose(env.transform[1])
    TransformedEnv(IndependentRowsEnv(), env.transform[1].clone())


def test_parts_of_a_compose_without_environment_can_be_moved() -> None:
    clone = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), RewardSum())).transform.clone()
    count, total = clone
    longer = Compose(InitTracker(), *clone)
    assert [*longer][1:] == [count, total]
    assert len(clone) == 0
    assert count.container is longer
    env = TransformedEnv(IndependentRowsEnv(), longer[1])
    assert len(longer) == 2
    assert count.parent.base_env is env.base_env
    with pytest.raises(AttributeError, match="to belong to no environment"):
        Compose(count)


def test_transforms_stay_in_training_mode() -> None:
    """In TorchRL they are in evaluation mode once they belong to an environment, where VecNorm would not learn."""
    env = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), RewardSum()))
    assert all(part.training for part in env.modules())
    assert not any(part.training for part in env.eval().transform.modules())


def test_specs_follow_every_edit() -> None:
    base = IndependentRowsEnv((0, 1))
    env = TransformedEnv(base, StepCounter())
    assert isinstance(env.transform, StepCounter)
    assert "step_count" in env.observation_spec
    assert env.append_transform(RewardSum()) is env
    assert "episode_reward" in env.observation_spec
    assert "episode_reward" in env.state_keys
    env.insert_transform(0, InitTracker())
    assert [type(t) for t in env.transform] == [InitTracker, StepCounter, RewardSum]
    check_env_specs(env)
    counter = env.transform.pop(1)
    assert counter.parent is None
    assert "step_count" not in env.observation_spec
    base.observation_spec = base.observation_spec.clone().exclude("pixels")
    assert "pixels" not in env.observation_spec
    assert "pixels" not in env.transform[1].parent.observation_spec
    with pytest.raises(AttributeError, match="base_env"):
        env.reward_spec = Unbounded((2, 1))


def test_invalid_indices_raise() -> None:
    with pytest.raises(IndexError, match="between -1 and 1"):
        Compose(StepCounter()).insert(2, RewardSum())


def test_in_keys_and_out_keys_have_equal_lengths() -> None:
    with pytest.raises(ValueError, match="a key in out_keys for each in in_keys"):
        Transform(in_keys=["a", "b"], out_keys=["c"])


def test_missing_entries_raise() -> None:
    with pytest.raises(KeyError, match=r"Add expects an entry 'observation', but there are only \['x'\]"):
        Add()(TensorDict({"x": torch.zeros(1)}))


def test_attributes_are_forwarded() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1", g=5.0), StepCounter())
    assert env.base_env is env.append_transform(RewardSum()).base_env
    assert env.frame_skip == 1
    with pytest.raises(AttributeError):
        env.nothing_of_that_name  # noqa: B018
    env.close()
    assert env.is_closed


def test_environments_are_garbage_collected() -> None:
    """Neither a transform nor a reference cycle keeps an environment alive."""
    env = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), RewardSum()))
    env.rollout(2)
    saved, base = env.transform[0], weakref.ref(env.base_env)
    gc.collect()
    gc.disable()
    try:
        del env
        assert saved.parent is None
        assert base() is None
    finally:
        gc.enable()


def test_step_counter_truncates_batches() -> None:
    """In one call of the batch, environments reset some rows themselves and the time limit truncates others."""
    env = TransformedEnv(SerialEnv(3, [lambda i=i: IndependentRowsEnv(i) for i in range(3)]), StepCounter(max_steps=2))
    rollout = env.rollout(8, break_when_any_done=False)
    assert rollout["next", "step_count"].max() == 2
    done = rollout["next", "done"]
    assert rollout["step_count"][:, 1:][done[:, :-1]].eq(0).all()
    assert rollout["next", "truncated"].any()
    assert rollout["next", "terminated"].any()


class Skip(Transform):
    """Steps only some rows."""

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("_step", tensordict["ticks"] < 1)


def test_transforms_can_request_partial_steps() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Compose(StepCounter(), Skip()))
    root = env.reset()
    step_td = env.step(env.rand_action(root))
    assert step_td["next", "ticks"].squeeze(-1).tolist() == [1, 1]
    repeated = env.step(env.rand_action(env.step_mdp(step_td)))
    assert repeated["next", "ticks"].squeeze(-1).tolist() == [1, 1]
    assert repeated["next", "step_count"].squeeze(-1).tolist() == [1, 1]
    assert repeated.get("_step", None) is None


def test_self_resetting_environments_can_be_transformed() -> None:
    class Renewing(EnvBase):
        def __init__(self) -> None:
            super().__init__(auto_reset=True)
            self.observation_spec = Composite(observation=Unbounded((1,)))
            self.action_spec = Bounded(-1, 1, (1,))
            self.reward_spec = Unbounded((*self.batch_size, 1))
            self.ticks = 0

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            self.ticks = 0
            return TensorDict({"observation": torch.zeros(1)})

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            self.ticks = (self.ticks + 1) % 3
            done = torch.tensor([self.ticks == 0])
            return TensorDict({"observation": torch.tensor([float(self.ticks)]), "reward": torch.ones(1), "done": done})

        def _set_seed(self, seed: int | None) -> None: ...

    rollout = TransformedEnv(Renewing(), Compose(Add(10), StepCounter())).rollout(7, break_when_any_done=False)
    assert rollout["observation"].squeeze(-1).tolist() == [10, 11, 12, 10, 11, 12, 10]
    assert rollout["step_count"].squeeze(-1).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rollout["next", "observation"].squeeze(-1)[:2].tolist() == [11, 12]
    assert rollout["next", "observation"][2].isnan().all()


def _flat(transform: Any) -> list[Transform]:
    return [leaf for part in transform for leaf in (_flat(part) if isinstance(part, Compose) else [part])]


@pytest.mark.parametrize("backwards", [False, True])
def test_parents_do_not_depend_on_access_order(backwards: bool) -> None:
    env = TransformedEnv(
        IndependentRowsEnv(), Compose(StepCounter(), Compose(RewardSum(), InitTracker()), ObservationNorm(0.0, 1.0))
    )
    reset_request = {
        env.transform[1][1]: [StepCounter, RewardSum],
        env.transform[2]: [StepCounter, RewardSum, InitTracker],
    }
    for transform, expected in sorted(reset_request.items(), key=lambda item: len(item[1]), reverse=backwards):
        assert [type(part) for part in _flat(transform.parent.transform)] == expected


def test_inverse_runs_once_per_step() -> None:
    passed = []

    class Counts(Transform):
        def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
            passed.append(1)
            return tensordict

    for base in (IndependentRowsEnv((0, 1)), SerialEnv(2, IndependentRowsEnv)):
        env = TransformedEnv(base, Counts())
        passed.clear()
        root = env.reset()
        for _ in range(4):
            _, root = env.step_and_maybe_reset(env.rand_action(root))
        assert len(passed) == 4


class Twice(Add):
    elementwise = True

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return super()._reset(tensordict, super()._reset(tensordict, tensordict_reset))


class Clipped(ClipTransform):
    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset


class FromTen(StepCounter):
    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        made = super()._reset(tensordict, tensordict_reset)
        return made.set("step_count", made["step_count"] + 10)


def test_overridden_resets_apply_in_fast_rollouts() -> None:
    assert ClipTransform(["observation"], low=0).supports_rollout
    assert StepCounter().supports_rollout
    assert not Clipped(["observation"], low=0).supports_rollout
    assert not Twice().supports_rollout
    rollout = GymEnv("CartPole-v1").append_transform(FromTen()).rollout(3)
    assert rollout["step_count"].squeeze(-1).tolist() == [10, 11, 12]


def test_custom_environments_can_hold_transforms() -> None:
    class Mine(TransformedEnv):
        def __init__(self, rows: int):
            super().__init__(IndependentRowsEnv(tuple(range(rows))), RewardSum())

    check_env_specs(Mine(2))


def test_copies_have_a_clone_of_the_transform() -> None:
    for transform in (RewardSum(), Compose(StepCounter(), RewardSum())):
        env = TransformedEnv(IndependentRowsEnv((0, 1)), transform)
        other = copy.copy(env)
        assert env.transform is transform
        assert transform.container is env
        assert other.transform is not transform
        assert other.transform.container is other
        assert other.base_env is env.base_env
        other.append_transform(InitTracker())
        assert "is_init" not in env.observation_spec
        check_env_specs(env)
        check_env_specs(other)
    compose = Compose(StepCounter())
    copy.copy(compose)
    assert compose[0].container is compose


def test_transforms_can_be_replaced() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), StepCounter())
    before_value = env.transform
    assert "step_count" in env.observation_spec
    env.transform = RewardSum()
    assert before_value.container is None
    assert env.transform.container is env
    assert "step_count" not in env.observation_spec
    check_env_specs(env)
    with pytest.raises(AttributeError, match="clone"):
        TransformedEnv(IndependentRowsEnv()).transform = env.transform
    env.base_env = IndependentRowsEnv((0, 1, 2))
    assert env.batch_size == (3,)
    check_env_specs(env)


def test_parents_are_cached() -> None:
    base = IndependentRowsEnv((0, 1))
    base.set_spec_lock_(False)
    env = TransformedEnv(base, FrameSkipTransform(2))
    env.rollout(8, break_when_any_done=False)
    assert env.transform.parent is env.transform.parent
    for _ in range(3):
        env.append_transform(StepCounter(step_count_key="count"))
        env.observation_spec  # noqa: B018
        env.transform.pop()
    gc.collect()
    assert len(base._dependents) <= 2


def test_specs_follow_keys_that_are_set_later() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Add(1, (), None))
    env.reset()
    env.rand_step()
    env.transform.in_keys_inv = ["action"]
    env.transform.out_keys_inv = ["wanted"]
    env.transform.in_keys = ["observation"]
    env.transform.out_keys = ["more"]
    assert "wanted" in env.action_keys
    check_env_specs(env)
    assert env.rollout(2)["more"].shape == (2, 2, 3)


def test_set_state_reaches_the_environment() -> None:
    env = TransformedEnv(PendulumEnv(), StepCounter())
    assert env.supports_set_state
    state = env.reset()
    repeated = env.reset(state.copy(), set_state=True)
    assert repeated["th"].equal(state["th"])
    assert not env.reset(state.copy(), set_state=False)["th"].equal(state["th"])
    with pytest.raises(NotImplementedError, match="set_state"):
        TransformedEnv(IndependentRowsEnv()).reset(set_state=True)


def test_batches_can_be_configured_and_restarted() -> None:
    env = TransformedEnv(TransformedEnv(SerialEnv(2, IndependentRowsEnv), StepCounter()), RewardSum())
    assert env.configure_parallel(non_blocking=False) is env
    assert env.is_closed
    assert env.base_env.base_env.non_blocking is False
    assert env.reset()["step_count"].shape == (2, 1)
    env.close()
    with pytest.raises(ClosedError, match="reset"):
        env.step(env.fake_tensordict())
    plain = TransformedEnv(IndependentRowsEnv(), StepCounter())
    root = plain.reset()
    plain.close()
    with pytest.raises(ClosedError, match="reset"):
        plain.rand_step(root)
    assert plain.rollout(3)["next", "step_count"][..., -1, 0].unique() == 3
    assert not plain.is_closed


class Own(Add):
    """Returns specs that another object holds."""

    specs = Composite(observation=Unbounded((2, 3)), shape=(2,))

    def __init__(self, parents: bool):
        super().__init__(0)
        self.parents = parents

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        return self._require_parent().full_observation_spec if self.parents else self.specs


@pytest.mark.parametrize("parents", [False, True])
def test_returned_specs_are_neither_changed_nor_locked(parents: bool) -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Compose(Own(parents), StepCounter(), InitTracker()))
    assert {"step_count", "is_init"} <= set(env.observation_spec.keys())
    assert "step_count" not in env.base_env.observation_spec
    assert list(Own.specs.keys()) == ["observation"]
    assert TransformedEnv(IndependentRowsEnv((0, 1)), Own(parents)).observation_spec.is_locked
    assert not Own.specs.is_locked


# -- transforms of TorchRL


def torchrl_class(name: str, *bases: type, module: str = "torchrl.envs.transforms.transforms") -> Any:
    return type(name, bases or (torch.nn.Module,), {"__module__": module, "forward": lambda _, td: td})


def test_torchrl_transforms_without_an_adapter_raise_with_their_name() -> None:
    base = torchrl_class("Transform")
    primer, other = torchrl_class("TensorDictPrimer", base), torchrl_class("AddedLater", base)
    custom_class = torchrl_class("Mine", primer, module="__main__")
    stored = torch.nn.ModuleList([torch.nn.Identity(), primer(), other()])
    cases = [
        (primer(), r"TorchRL's TensorDictPrimer\. Use vecrl\.envs\.TensorDictPrimer\.$"),
        (custom_class(), r"Use vecrl\.envs\.TensorDictPrimer\.$"),
        (other(), r"TorchRL's AddedLater\. vecrl has no AddedLater yet"),
        (torch.nn.Sequential(primer()), r"Use vecrl\.envs\.TensorDictPrimer\.$"),
        (stored, r"TensorDictPrimer, AddedLater\. Use vecrl\.envs\.TensorDictPrimer\. vecrl has no AddedLater yet"),
    ]
    env = TransformedEnv(IndependentRowsEnv((0, 1)))
    for transform, message in cases:
        for use in (
            env.append_transform,
            Compose,
            lambda part: TransformedEnv(IndependentRowsEnv((0, 1)), part),
        ):
            with pytest.raises(TypeError, match=message):
                use(transform)
    assert len(env.transform) == 0


def test_other_torchrl_modules_count_as_functions() -> None:
    module = torchrl_class("TensorDictModule", module="torchrl.modules")()
    env = TransformedEnv(IndependentRowsEnv((0, 1)), module)
    assert env.reset()["observation"].shape == (2, 3)


def test_state_dicts_of_torchrl_load() -> None:
    def make() -> TransformedEnv:
        norms = [ObservationNorm(loc=0.0, scale=1.0, in_keys=["observation"]) for _ in range(2)]
        return TransformedEnv(GymEnv("Pendulum-v1"), Compose(*norms))

    def nested(env: EnvBase) -> torch.nn.Module:
        return torch.nn.ModuleDict({"env": env})

    numbers = {"0.loc": 2.0, "0.scale": 3.0, "1.loc": 4.0, "1.scale": 5.0}
    saved = {f"transforms.{key}": torch.tensor(value) for key, value in numbers.items()}
    saved |= {f"transforms.{index}.standard_normal": torch.tensor(True) for index in range(2)}  # as TorchRL 0.13 has it
    env, other = make(), make()
    env.load_state_dict(saved)
    nested(other).load_state_dict({f"env.{key}": value for key, value in saved.items()})
    for each in (env, other):
        assert [float(each.transform[index].loc) for index in range(2)] == [2, 4]
        assert [float(each.transform[index].scale) for index in range(2)] == [3, 5]
    third = make()
    third.load_state_dict(env.state_dict())
    assert float(third.transform[1].scale) == 5, "vecrl's own keys"
    with pytest.raises(RuntimeError, match=r"Missing key.*transform\.transforms\.1\.loc"):
        third.load_state_dict({key: value for key, value in saved.items() if key != "transforms.1.loc"})
    assert "transforms.1.loc" in saved, "the caller's dictionary is not changed"


class Misspelt(Transform):
    """Calls a method that tensors do not have."""

    def _apply_transform(self, value: Any) -> Any:
        return value.nope()


def test_an_attribute_error_of_a_transform_is_not_hidden() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), Misspelt(in_keys=["observation"], out_keys=["y"]))
    for use in (lambda: env.observation_spec, env.reset):
        with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nope'"):
            use()


def test_an_attribute_error_of_a_property_is_not_hidden() -> None:
    class Broken(PendulumEnv):
        @property
        def gravity(self) -> Any:
            return self.nope

    for env in (Broken(), TransformedEnv(Broken())):
        with pytest.raises(AttributeError, match="'Broken' object has no attribute 'nope'"):
            _ = env.gravity  # type: ignore[attr-defined]
        assert not hasattr(env, "gravity")


class Echo(Transform):
    """Writes the action that it gets as input into its output."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.set("echo", tensordict["action"].clone())

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset.set("echo", torch.zeros(*tensordict_reset.batch_size, 1))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["echo"] = Unbounded((*observation_spec.shape, 1))
        return observation_spec


def input_transforms() -> dict[str, Transform]:
    """Returns transforms that change inputs, most of them under another key for the user."""
    actions: Any = {"in_keys": [], "in_keys_inv": ["action"], "out_keys_inv": ["act"]}
    random = ActionDiscretizer.SamplingStrategy.RANDOM
    return {
        "unary": UnaryTransform([], [], ["action"], ["act"], fn=lambda x: x + 1, inv_fn=lambda x: x - 1),
        "clip": ClipTransform(**actions, low=-0.1, high=0.1),
        "same key": ClipTransform(in_keys_inv=["action"], low=-0.1, high=0.1),
        "random": ActionDiscretizer(4, out_action_key="interval", sampling=random),
        "cast": DTypeCastTransform(torch.float32, torch.float64, **actions),
        "rename": RenameTransform([], [], ["action"], ["act"]),
        "norm": ObservationNorm(1.0, 2.0, **actions),
        "shape": UnsqueezeTransform(-1, **actions),
        "frames": FrameSkipTransform(2),
        "skip": ConditionalSkip(lambda td: td["observation"][..., :1] > 0),
        "nested": Compose(RenameTransform([], [], ["action"], ["act"]), RenameTransform([], [], ["act"], ["a"])),
    }


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("name", input_transforms())
def test_a_transform_gets_what_the_inverses_after_it_return(name: str, batch: int) -> None:
    rollouts: list[TensorDictBase] = []
    for nested in (False, True):
        make, transform = lambda: GymEnv("Pendulum-v1"), input_transforms()[name]
        env = SerialEnv(batch, make) if batch else make()
        env = (
            TransformedEnv(TransformedEnv(env, Echo()), transform)
            if nested
            else TransformedEnv(env, Compose(Echo(), transform))
        )
        env.set_seed(0)
        torch.manual_seed(0)
        rollouts.append(env.rollout(4))
    assert set(rollouts[0].keys(True, True)) == set(rollouts[1].keys(True, True))
    for key, value in rollouts[0].items(True, True):
        torch.testing.assert_close(value, rollouts[1][key])
