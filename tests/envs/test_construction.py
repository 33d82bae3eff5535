"""What happens around the `__init__` of an environment: specs, locks, keywords of every class."""

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from vecrl.envs import EnvBase, ParallelEnv, PendulumEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import RewardSum, StepCounter, TensorDictPrimer, TransformedEnv
from vecrl.errors import LockedError, SpaceError
from vecrl.specs import Categorical, Composite, TensorSpec, Unbounded


class Parent(EnvBase):
    """Returns whatever its specs declare, as zeros, and is done after two steps."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.observation_spec = Composite(position=Unbounded((*self.batch_size, 3)), shape=self.batch_size)
        self.action_spec = Unbounded((*self.batch_size, 1))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.steps = 0
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        done = torch.full((*self.batch_size, 1), self.steps >= 2)
        return self.observation_spec.zero().update(self.full_reward_spec.zero()).set("done", done)

    def _set_seed(self, seed: int | None) -> None: ...


class Child(Parent):
    """Edits what its parent declared."""

    def __init__(self) -> None:
        super().__init__()
        assert self.observation_keys == ["position"]  # reading a spec does not lock it
        self.observation_spec["extra"] = Unbounded((2,))
        self.full_done_spec["truncated"] = Categorical(2, (1,), dtype=torch.bool)


def test_a_subclass_may_edit_the_specs_of_its_parent() -> None:
    env = Child()
    assert set(env.observation_keys) == {"position", "extra"}
    assert set(env.done_keys) == {"done", "terminated", "truncated"}
    check_env_specs(env)


def test_specs_are_locked_after_the_outermost_init() -> None:
    env = Child()
    assert env.is_spec_locked
    for spec in (env.observation_spec, env.full_action_spec, env.full_reward_spec, env.full_done_spec, env.state_spec):
        assert spec.is_locked
    with pytest.raises(LockedError, match="'more'"):
        env.observation_spec["more"] = Unbounded((2,))


def test_an_unlocked_environment_stays_unlocked() -> None:
    env = Parent(spec_locked=False)
    env.observation_spec["more"] = Unbounded((2,))
    assert set(env.observation_keys) == {"position", "more"}
    assert not TransformedEnv(env, StepCounter()).is_spec_locked


@pytest.mark.parametrize("batch", [(), (2,)])
def test_specs_may_be_set_before_the_init_of_the_base(batch: tuple[int, ...]) -> None:
    class Early(Parent):
        def __init__(self) -> None:
            self.observation_spec = Composite(position=Unbounded((*batch, 3)), shape=batch)
            self.action_spec = Unbounded((*batch, 1))
            self.reward_spec = Unbounded((*batch, 1))
            EnvBase.__init__(self, batch_size=batch)

    env = Early()
    assert env.observation_spec.shape == env.full_action_spec.shape == torch.Size(batch)
    check_env_specs(env)


def test_specs_set_before_the_init_must_fit_the_batch_size() -> None:
    class Early(Parent):
        def __init__(self) -> None:
            self.action_spec = Unbounded((3, 1))
            EnvBase.__init__(self, batch_size=[2])

    with pytest.raises(SpaceError, match=r"action_spec to begin with the batch size \(2,\), got \(3, 1\)"):
        Early()


def test_a_bare_observation_spec_is_named_observation() -> None:
    class Bare(Parent):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Unbounded((3,))

    env = Bare()
    assert env.observation_spec == Composite(observation=Unbounded((3,)))
    check_env_specs(env)
    with pytest.raises(TypeError, match="state_spec to be a Composite"):
        env.state_spec = Unbounded((3,))


# -- no reward


def test_without_a_reward_spec_there_is_no_reward() -> None:
    env = Parent()
    assert env.reward_keys == []
    assert env.reward_spec == Composite()
    check_env_specs(env)
    rollout = env.rollout(5)
    assert rollout.shape == (2,)
    assert ("next", "reward") not in rollout.keys(include_nested=True)
    root = env.step_mdp(rollout[-1])
    assert set(root.keys()) == {"position", "done", "terminated"}


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_batches_of_environments_without_a_reward(kind: Any) -> None:
    with kind(2, Parent) as env:
        check_env_specs(env)
        assert env.reward_keys == []
        assert set(env.rollout(5)["next"].keys()) == {"position", "done", "terminated"}
        masked = env.rand_action(env.reset()).set("_step", torch.tensor([True, False]))
        assert set(env.step(masked)["next"].keys()) == {"position", "done", "terminated"}


def test_transforms_over_an_environment_without_a_reward() -> None:
    env = TransformedEnv(Parent(), StepCounter())
    check_env_specs(env)
    assert env.rollout(5)["next", "step_count"].flatten().tolist() == [1, 2]


def test_a_reward_without_a_spec_is_reported() -> None:
    class Undeclared(Parent):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("reward", torch.ones(1))

    with pytest.raises(SpaceError, match="'reward': returned, but there is no spec of this reward"):
        check_env_specs(Undeclared())


# -- keywords of every class


class WithoutKeywords(Parent):
    def __init__(self) -> None:
        super().__init__()


def test_every_class_takes_spec_locked_and_auto_reset() -> None:
    kind: Any = WithoutKeywords
    assert not kind(spec_locked=False).is_spec_locked
    assert kind(spec_locked=True).is_spec_locked
    assert kind(auto_reset=False).rollout(5, break_when_any_done=False).shape == (5,)
    env = kind(auto_reset=True)
    env.observation_spec  # noqa: B018 - specs can be read
    steps = env.rollout(5, break_when_any_done=False)
    assert steps["next", "position"][1].isnan().all()  # the lost final observation
    kept = kind(auto_reset=True, auto_reset_replace=False).rollout(5, break_when_any_done=False)
    assert not kept["next", "position"].isnan().any()


def test_auto_reset_of_wrappers() -> None:
    kind: Any = TransformedEnv
    env = kind(WithoutKeywords(), StepCounter(), auto_reset=True)
    assert env.rollout(5, break_when_any_done=False)["next", "position"][1].isnan().all()
    serial: Any = SerialEnv
    with pytest.raises(TypeError, match="environments of a batch"):
        serial(1, WithoutKeywords, auto_reset=True)


def test_keywords_that_init_names_are_passed_to_it() -> None:
    class Named(Parent):
        def __init__(self, auto_reset: str):
            super().__init__()
            self.name = auto_reset

    assert Named(auto_reset="mine").name == "mine"
    assert list(inspect.signature(Named).parameters) == ["auto_reset"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        WithoutKeywords(size=3)  # pyright: ignore[reportCallIssue]


def test_the_base_environment_may_be_given_by_name() -> None:
    env = Parent()
    assert TransformedEnv(base_env=env, transform=StepCounter()).base_env is env
    assert TransformedEnv(env=env).base_env is env
    with pytest.raises(TypeError, match="env and base_env"):
        TransformedEnv(env, base_env=env)
    with pytest.raises(TypeError, match="environment of vecrl"):
        TransformedEnv()


# -- what belongs to the class


def test_environments_without_step_or_reset_cannot_be_made() -> None:
    class Nothing(EnvBase): ...

    with pytest.raises(TypeError, match="abstract methods _reset, _step"):
        Nothing()  # pyright: ignore[reportAbstractUsage]


@pytest.mark.parametrize("make", [Parent, lambda: TransformedEnv(Parent(), RewardSum()), lambda: SerialEnv(1, Parent)])
def test_batch_locked_cannot_be_set(make: Any) -> None:
    env = make()
    with pytest.raises(RuntimeError, match="set _batch_locked"):
        env.batch_locked = False
    assert env.batch_locked


def test_both_ways_to_declare_batch_locked_and_set_state() -> None:
    class Private(Parent):
        _batch_locked = False
        _supports_set_state = True

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            self.options = kwargs
            return super()._reset(tensordict)

    class Public(Private):
        batch_locked = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    for env in (Private(), Public()):
        assert not env.batch_locked
        env.reset(TensorDict(), set_state=True)
        assert env.options == {"set_state": True}
    assert PendulumEnv().supports_set_state
    assert not Parent().supports_set_state


def test_copies_keep_their_specs_and_the_lock() -> None:
    env = Child()
    for made in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert made.is_spec_locked
        assert isinstance(made.observation_spec, TensorSpec)
        assert made.observation_keys == env.observation_keys
        check_env_specs(made)


class TestCompile:
    """`compile=` of any class, with a stand-in for `torch.compile`, which takes seconds."""

    @pytest.fixture
    def compiled(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def compile_method(method: Any, **options: Any) -> Any:
            def run(*args: Any) -> Any:
                calls.append(options)
                return method(*args)

            return run

        monkeypatch.setattr(torch, "compile", compile_method)
        return calls

    @pytest.mark.parametrize(
        ("value", "options"), [(True, {}), ({"mode": "reduce-overhead"}, {"mode": "reduce-overhead"})]
    )
    def test_step_and_maybe_reset_is_compiled(self, compiled: list[Any], value: Any, options: dict[str, Any]) -> None:
        env = Child(compile=value)
        rollout = env.rollout(3, break_when_any_done=False)
        assert compiled == [options, options]  # the last step needs no reset
        assert (rollout == Child().rollout(3, break_when_any_done=False))["next", "done"].all()

    def test_eager_undoes_it(self, compiled: list[Any]) -> None:
        env = Child(compile=True)
        assert env.eager() is env
        env.rollout(3, break_when_any_done=False)
        assert compiled == []
        assert Child(compile=False).eager().rollout(3).shape == (2,)

    def test_copies_are_compiled_too(self, compiled: list[Any]) -> None:
        env = PendulumEnv(compile={"mode": "default"})
        for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
            compiled.clear()
            copied.rollout(2, break_when_any_done=False)
            assert compiled == [{"mode": "default"}]

    def test_transformed_environments_take_it(self, compiled: list[Any]) -> None:
        env = TransformedEnv(Child(), StepCounter(), compile=True)
        assert env.rollout(3, break_when_any_done=False)["step_count"].flatten().tolist() == [0, 1, 0]
        assert len(compiled) == 2

    def test_a_class_that_names_it_gets_it(self, compiled: list[Any]) -> None:
        class Named(Child):
            def __init__(self, compile: str) -> None:  # noqa: A002
                super().__init__()
                self.value = compile

        assert Named(compile="mine").value == "mine"
        assert "step_and_maybe_reset" not in vars(Named(compile="mine"))


class ByNew(Parent):
    """Reads its arguments in `__new__`, as environments for tests of TorchRL do."""

    def __new__(cls, *args: Any, name: str = "", **kwargs: Any) -> Any:
        env = super().__new__(cls, *args, _batch_locked=False, **kwargs)
        vars(env)["name"] = name
        return env

    def __init__(self, name: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)


def test_classes_may_define_new_with_any_arguments() -> None:
    env = ByNew(name="mine", spec_locked=False)
    assert (vars(env)["name"], env.batch_locked, env.is_spec_locked) == ("mine", False, False)
    assert Parent().batch_locked
    assert copy.deepcopy(env).rollout(2).shape == (2,)
    batch = SerialEnv(2, ByNew, create_env_kwargs={"name": "mine", "spec_locked": False})
    assert batch.rollout(2).shape == (2, 2)
    batch.close()


def test_base_env_is_a_keyword_of_transformed_environments() -> None:
    base = Child()
    env = TransformedEnv(base_env=base, transform=StepCounter())
    assert env.base_env is base
    assert env.rollout(2)["next", "step_count"].flatten().tolist() == [1, 2]


class Recurrent(nn.Module):
    """A policy with a memory, which makes its own primer."""

    def __init__(self, key: str = "memory") -> None:
        super().__init__()
        self.key = key

    def make_tensordict_primer(self) -> TensorDictPrimer:
        return TensorDictPrimer({self.key: Unbounded((3,))})

    def forward(self, td: TensorDict) -> TensorDict:
        td["next", self.key] = td[self.key] + 1
        return td.set("action", torch.zeros(*td.batch_size, 1))


def test_environments_get_the_transforms_of_their_policy() -> None:
    policy = nn.Sequential(Recurrent(), Recurrent("other"))
    for make in (Child, lambda **options: SerialEnv(2, Child, **options)):
        env = make(policy=policy)
        names = [type(part).__name__ for part in env.transform]
        assert names == ["InitTracker", "TensorDictPrimer", "TensorDictPrimer"]
        rollout = env.rollout(2, policy)
        assert (rollout[..., 1]["memory"] == 1).all()
        assert rollout["other"].shape == (*env.batch_size, 2, 3)
        env.close()


def test_transforms_of_a_policy_are_added_once() -> None:
    policy = Recurrent()
    env = SerialEnv(2, lambda: Child(policy=policy), policy=policy)
    assert type(env) is SerialEnv
    assert type(Child(policy=lambda td: td)) is Child
    assert len(TransformedEnv(env, StepCounter(), policy=nn.Sequential(policy, Recurrent("other"))).transform) == 2
    env.close()


def test_a_class_that_names_policy_gets_it() -> None:
    class Named(Child):
        def __init__(self, policy: object) -> None:
            super().__init__()
            self.value = policy

    assert Named(policy=nn.Identity()).value is not None
