"""Transforms between the actions of a policy and those of the environment."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    ActionDiscretizer,
    ActionScaling,
    Compose,
    DiscreteActionProjection,
    FlattenAction,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded

UNSUPPORTED = (
    Unbounded((2,)),
    Bounded(0, torch.inf, (2,)),
    Bounded(1, 1, (2,)),
    Bounded(0, 9, (2,), dtype=torch.int64),
)
STRATEGIES = ActionDiscretizer.SamplingStrategy


class ActionRecorder(EnvBase):
    """Records the last action that it got."""

    def __init__(self, spec: Any, batch: tuple[int, ...] = ()):
        super().__init__(batch_size=batch)
        self.observation_spec = Composite(observation=Unbounded((*batch, 1)), shape=batch)
        self.action_spec = spec
        self.reward_spec = Unbounded((*batch, 1))
        self.action: Any = None

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.action = tensordict["action"]
        specs = (self.full_observation_spec, self.full_reward_spec, self.full_done_spec)
        return TensorDict({key: value for spec in specs for key, value in spec.zero().items()}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None: ...


def taken(env: EnvBase, action: Any, key: str = "action") -> Any:
    """Returns the action that the base environment gets for an action of the user."""
    env.step(env.reset().set(key, torch.as_tensor(action)))
    return env.base_env.action  # pyright: ignore[reportAttributeAccessIssue]


class TestActionDiscretizer:
    low, high = torch.tensor([0.0, 10.0]), torch.tensor([1.0, 30.0])

    def env(self, *args: Any, batch: tuple[int, ...] = (), **kwargs: Any) -> TransformedEnv:
        spec = Bounded(self.low, self.high, (*batch, 2))
        return TransformedEnv(ActionRecorder(spec, batch), ActionDiscretizer(*args, **kwargs))

    @pytest.mark.parametrize(
        ("sampling", "first", "last"),
        [
            (STRATEGIES.MEDIAN, [0.25, 12.5], [0.75, 27.5]),
            (STRATEGIES.LOW, [0.0, 10.0], [0.5, 25.0]),
            (STRATEGIES.HIGH, [0.5, 15.0], [1.0, 30.0]),
        ],
    )
    def test_intervals(self, sampling: Any, first: list[float], last: list[float]) -> None:
        env = self.env(torch.tensor([2, 4]), sampling=sampling)
        assert taken(env, [0, 0]).tolist() == first
        assert taken(env, [1, 3]).tolist() == last

    def test_random_samples_stay_in_their_interval(self) -> None:
        env = self.env(torch.tensor([2, 4]), sampling=STRATEGIES.RANDOM)
        actions = torch.stack([taken(env, [1, 0]) for _ in range(200)])
        assert (actions >= torch.tensor([0.5, 10.0])).all()
        assert (actions <= torch.tensor([1.0, 15.0])).all()
        assert actions[:, 1].max() - actions[:, 1].min() > 4

    def test_one_hot_rows(self) -> None:
        env = self.env(torch.tensor([2, 4]), categorical=False, out_action_key="choice")
        assert env.full_action_spec["choice"] == MultiOneHot((2, 4))
        assert list(env.full_action_spec.keys()) == ["choice"]
        choice = torch.tensor([0, 1, 0, 0, 1, 0]).bool()
        assert taken(env, choice, "choice").tolist() == [0.75, 22.5]

    def test_batches(self) -> None:
        env = self.env(torch.tensor([2, 4]), batch=(3,))
        assert env.action_spec == MultiCategorical((2, 4), (3, 2))
        assert taken(env, [[0, 0], [1, 1], [0, 3]]).tolist() == [[0.25, 12.5], [0.75, 17.5], [0.25, 27.5]]
        assert env.rollout(2)["action"].shape == (3, 2, 2)

    def test_actions_of_other_dimensions(self) -> None:
        scalar = TransformedEnv(ActionRecorder(Bounded(-1, 1, ())), ActionDiscretizer(4))
        assert scalar.action_spec == Categorical(4)
        assert taken(scalar, 3).tolist() == 0.75
        scalar = TransformedEnv(ActionRecorder(Bounded(-1, 1, ())), ActionDiscretizer(4, categorical=False))
        assert scalar.action_spec == OneHot(4)
        matrix = TransformedEnv(ActionRecorder(Bounded(-1, 1, (2, 3))), ActionDiscretizer(torch.tensor([2, 3, 4])))
        assert taken(matrix, [[0, 0, 0], [1, 2, 3]]).tolist()[1] == pytest.approx([0.5, 2 / 3, 0.75])

    def test_a_subclass_chooses_the_positions(self) -> None:
        class Squared(ActionDiscretizer):
            def custom_arange(self, nint: int, device: Any) -> torch.Tensor:
                return (torch.arange(nint, device=device) / nint) ** 2

        env = TransformedEnv(ActionRecorder(Bounded(0, 1, (2,))), Squared(4))
        assert taken(env, [1, 3]).tolist() == [0.0625, 0.5625]

    def test_stored_data_is_unchanged(self) -> None:
        assert ActionDiscretizer(3)(TensorDict(action=torch.ones(2)))["action"].tolist() == [1, 1]

    def test_errors(self) -> None:
        for number in (0, -1, 2.5, torch.tensor([[2]]), torch.tensor([3, 0])):
            with pytest.raises(ValueError, match="Expected num_intervals to be an int of 1 or more"):
                ActionDiscretizer(number)  # pyright: ignore[reportArgumentType]
        with pytest.raises(SpaceError, match="a tensor of 2 ints, one per element"):
            self.env(torch.tensor([2, 3, 4])).action_spec  # noqa: B018
        for spec in (
            Unbounded((2,)),
            Categorical(3),
            Bounded(0, torch.inf, (2,)),
            Bounded(0, 9, (2,), dtype=torch.int64),
        ):
            with pytest.raises(SpaceError, match="a floating-point action with finite bounds"):
                TransformedEnv(ActionRecorder(spec), ActionDiscretizer(2)).action_spec  # noqa: B018
        with pytest.raises(SpaceError, match="an action at 'force', got only actions at \\['action'\\]"):
            GymEnv("Pendulum-v1").append_transform(ActionDiscretizer(2, "force")).action_spec  # noqa: B018
        with pytest.raises(RuntimeError, match="index 7 is out of bounds"):
            taken(self.env(4), [7, 0])
        with pytest.raises(RuntimeError, match="Put it into a TransformedEnv"):
            ActionDiscretizer(2).inv(TensorDict(action=torch.zeros(2, dtype=torch.int64)))

    @pytest.mark.parametrize("batch", [None, SerialEnv, ParallelEnv])
    @pytest.mark.parametrize("place", ["alone", "first", "last", "inner"])
    def test_the_continuous_action_is_beside_the_discrete_one(self, batch: Any, place: str) -> None:
        make = lambda: GymEnv("Pendulum-v1")  # noqa: E731
        discrete = ActionDiscretizer(5, out_action_key="discrete", sampling=STRATEGIES.RANDOM)
        base = make() if batch is None else batch(2, make)
        parts = {"first": [discrete, StepCounter()], "last": [StepCounter(), discrete]}
        with TransformedEnv(base, Compose(parts[place]) if place in parts else discrete) as inner:
            env = TransformedEnv(inner, RewardSum()) if place == "inner" else inner
            check_env_specs(env)
            assert env.action_keys == ["discrete"]
            for stop in (True, False):
                data = env.rollout(4, break_when_any_done=stop)
                assert data["action"].equal(played(base, data))
                assert ((data["action"] + 2) / 0.8).clamp(max=4.99).long().equal(data["discrete"])
            stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
            assert {"action", "discrete"} <= set(stepped.keys())
            for next_root in (root, env.step_mdp(stepped)):
                assert not {"action", "discrete"} & set(next_root.keys())
            if batch is not None:
                step = env.rand_action(root).set("_step", torch.tensor([True, False]))
                assert env.step(step)["action"].shape == (2, 1)

    def test_the_continuous_action_is_not_written_for_the_same_key(self) -> None:
        data = TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(5)).rollout(2)
        assert data["action"].dtype == torch.int64


def played(env: EnvBase, data: TensorDictBase) -> torch.Tensor:
    """Returns the actions of a rollout of Pendulum, from its rewards and observations."""
    x, y, speed = data["observation"].unbind(-1)
    cost = torch.atan2(y, x) ** 2 + 0.1 * speed**2 + data["next", "reward"].squeeze(-1)
    magnitude = (-cost / 0.001).clamp(min=0).sqrt().unsqueeze(-1)
    torch.testing.assert_close(magnitude, data["action"].abs(), atol=0.05, rtol=0.05)
    return data["action"]


class TestActionScaling:
    spec = Bounded(torch.tensor([-2.0, 0.0]), torch.tensor([4.0, 10.0]))

    def env(self, *args: Any, **kwargs: Any) -> TransformedEnv:
        return TransformedEnv(ActionRecorder(self.spec), ActionScaling(*args, **kwargs))

    @pytest.mark.parametrize(
        ("options", "action", "stored"),
        [
            ({}, [2.5, 6.25], [1.0, 0.0]),
            ({"standard_normal": False}, [1.0, 2.5], [1.0, 0.5]),
            ({"loc": 1.0, "scale": 2.0}, [2.0, 1.5], [1.5, 2.0]),
            ({"loc": 1.0, "scale": 2.0, "standard_normal": False}, [1.0, 0.0], [1.25, 1.5]),
        ],
    )
    def test_values(self, options: dict[str, Any], action: list[float], stored: list[float]) -> None:
        env = self.env(**options)
        low = -1.0 if options.get("standard_normal", True) else 0.0
        assert env.action_spec == Bounded(low, 1, (2,))
        assert taken(env, [0.5, 0.25]).tolist() == action
        assert env.transform(TensorDict(action=torch.tensor([4.0, 5.0])))["action"].tolist() == stored

    def test_bounds_are_mapped_to_bounds(self) -> None:
        assert taken(self.env(), [-1.0, 1.0]).tolist() == [-2.0, 10.0]
        assert taken(self.env(standard_normal=False), [1.0, 0.0]).tolist() == [4.0, 0.0]

    def test_another_key(self) -> None:
        env = self.env("action", "unit")
        assert list(env.full_action_spec.keys()) == ["unit"]
        assert taken(env, [0.5, 0.25], "unit").tolist() == [2.5, 6.25]
        assert env.transform(TensorDict(action=torch.tensor([4.0, 5.0])))["unit"].tolist() == [1.0, 0.0]

    def test_a_round_trip_of_stored_data(self) -> None:
        scaling = ActionScaling(loc=1.0, scale=2.0)
        data = TensorDict(action=torch.rand(5, 2))
        torch.testing.assert_close(scaling(scaling.inv(data))["action"], data["action"])
        assert sorted(scaling.state_dict()) == ["loc", "scale"]

    def test_loc_and_scale_are_those_of_the_environment(self) -> None:
        scaling = ActionScaling()
        assert scaling.loc is scaling.scale is None
        env = TransformedEnv(ActionRecorder(self.spec), Compose(scaling))
        assert scaling.loc.tolist() == [1.0, 5.0]
        assert scaling.scale.tolist() == [3.0, 5.0]
        env.base_env.action_spec = Bounded(0.0, 2.0, (2,))
        assert scaling.loc.tolist() == scaling.scale.tolist() == [1.0, 1.0]
        assert self.env(loc=2, scale=3).transform.loc == 2

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("ends", [(-2.0, 1), (-1, 2.0), (-1, 1)])
    def test_the_largest_number_is_no_bound(self, dtype: torch.dtype, ends: tuple[float, float]) -> None:
        low, high = (end * torch.finfo(dtype).max if abs(end) == 1 else end for end in ends)
        spec = Bounded(torch.tensor([-2.0, low], dtype=dtype), torch.tensor([2.0, high], dtype=dtype), dtype=dtype)
        for transform in (ActionScaling(), Compose(ActionScaling()), ActionDiscretizer(3)):
            for env in (ActionRecorder(spec), SerialEnv(2, lambda: ActionRecorder(spec))):
                with pytest.raises(SpaceError, match="the largest number of a dtype is no bound"):
                    TransformedEnv(env, transform.clone()).rollout(2)

    def test_errors(self) -> None:
        for spec in (
            Unbounded((2,)),
            Bounded(0, torch.inf, (2,)),
            Bounded(1, 1, (2,)),
            Bounded(0, 3, (2,), dtype=torch.int64),
        ):
            with pytest.raises(SpaceError, match="a floating-point action with finite bounds, low < high"):
                TransformedEnv(ActionRecorder(spec), ActionScaling()).action_spec  # noqa: B018
        unbounded = TransformedEnv(ActionRecorder(Unbounded((2,))), ActionScaling(loc=0, scale=2))
        assert unbounded.action_spec == Bounded(-1, 1, (2,))
        with pytest.raises(ValueError, match="Expected loc and scale, or neither"):
            ActionScaling(loc=1.0)
        with pytest.raises(ValueError, match="Expected a scale without zeros"):
            ActionScaling(loc=1.0, scale=torch.tensor([1.0, 0.0]))
        with pytest.raises(ValueError, match="Use one ActionScaling per action"):
            ActionScaling(["a", "b"])
        with pytest.raises(RuntimeError, match="Give both"):
            ActionScaling()(TensorDict(action=torch.zeros(2)))


class TestDiscreteActionProjection:
    def test_one_hot_rows(self) -> None:
        projection = DiscreteActionProjection(2, 4)
        for dtype in (torch.int64, torch.bool, torch.float32):
            actions = projection.inv(TensorDict(action=torch.eye(4).to(dtype)))["action"]
            assert actions.dtype == dtype
            assert actions[:2].equal(torch.eye(2).to(dtype))
            assert actions.sum(-1).tolist() == [1] * 4
            padded = projection(TensorDict(action=torch.eye(2).to(dtype)))["action"]
            assert padded.equal(torch.eye(4)[:2].to(dtype))

    def test_actions_that_are_missing_are_drawn_uniformly(self) -> None:
        torch.manual_seed(0)
        choice = torch.tensor([0, 0, 0, 1]).expand(1000, 4)
        drawn = DiscreteActionProjection(2, 4).inv(TensorDict(action=choice))["action"]
        assert abs(drawn[:, 0].float().mean() - 0.5) < 0.05

    def test_environments(self) -> None:
        for spec in (OneHot(2), OneHot(2, (3, 2)), Categorical(2), Categorical(2, (3,))):
            batch = spec.shape[:-1] if isinstance(spec, OneHot) else spec.shape
            env = TransformedEnv(ActionRecorder(spec, tuple(batch)), DiscreteActionProjection(2, 4))
            wider = OneHot(4, (*batch, 4)) if isinstance(spec, OneHot) else Categorical(4, batch)
            assert env.action_spec == wider
            for action in wider.rand((20,)):
                spec.assert_is_in(taken(env, action))
        env = TransformedEnv(ActionRecorder(Categorical(2)), DiscreteActionProjection(2, 4))
        assert [int(taken(env, i)) for i in (0, 1)] == [0, 1]

    def test_without_forward(self) -> None:
        projection = DiscreteActionProjection(2, 4, include_forward=False)
        assert projection(TensorDict(action=torch.eye(2)))["action"].equal(torch.eye(2))

    def test_errors(self) -> None:
        for effective, maximum in ((4, 2), (0, 4)):
            with pytest.raises(ValueError, match="1 <= num_actions_effective <= max_actions"):
                DiscreteActionProjection(effective, maximum)
        for spec in (OneHot(3), MultiCategorical((2, 2)), Unbounded((2,))):
            with pytest.raises(SpaceError, match="an environment with 2 actions"):
                TransformedEnv(ActionRecorder(spec), DiscreteActionProjection(2, 4)).action_spec  # noqa: B018


class TestFlattenAction:
    def env(self, shape: tuple[int, ...], *args: Any, **kwargs: Any) -> TransformedEnv:
        batch = kwargs.pop("batch", ())
        return TransformedEnv(ActionRecorder(Bounded(-1, 1, (*batch, *shape)), batch), FlattenAction(*args, **kwargs))

    def test_shapes(self) -> None:
        for batch in ((), (4,)):
            env = self.env((3, 5), batch=batch)
            assert env.action_spec == Bounded(-1, 1, (*batch, 15))
            action = torch.rand(*batch, 15)
            assert taken(env, action).equal(action.reshape(*batch, 3, 5))
            assert env.rollout(2)["action"].shape == (*batch, 2, 15)
            assert self.env((3, 5, 2), -3, -2, batch=batch).action_spec.shape == (*batch, 15, 2)
            positive = self.env((3, 5, 2), 0, 1, allow_positive_dim=True, batch=batch)
            assert positive.action_spec.shape == (*batch, 15, 2)
            assert taken(positive, torch.rand(*batch, 15, 2)).shape == (*batch, 3, 5, 2)

    def test_discrete_actions(self) -> None:
        env = TransformedEnv(ActionRecorder(Categorical(3, (3, 5))), FlattenAction())
        assert env.action_spec == Categorical(3, (15,))
        assert env.rollout(2)["action"].shape == (2, 15)

    def test_stored_data(self) -> None:
        flatten = FlattenAction(-3, -2, action_shape=(3, 5))
        data = TensorDict(action=torch.rand(7, 3, 5, 2), batch_size=[7])
        flat = flatten(data.copy())
        assert flat["action"].shape == (7, 15, 2)
        assert flatten.inv(flat)["action"].equal(data["action"])

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="Expected a negative first_dim"):
            FlattenAction(0, 1)
        with pytest.raises(ValueError, match="Expected first_dim <= last_dim"):
            FlattenAction(-1, -2)
        with pytest.raises(SpaceError, match="got 1 dimensions after the batch"):
            self.env((3,)).action_spec  # noqa: B018
        with pytest.raises(SpaceError, match="an action at 'x'"):
            self.env((3, 5), in_keys_inv=["x"]).action_spec  # noqa: B018
        with pytest.raises(RuntimeError, match="to have action_shape"):
            FlattenAction().inv(TensorDict(action=torch.zeros(15)))
