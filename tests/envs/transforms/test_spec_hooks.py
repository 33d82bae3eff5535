"""`transform_*_spec` of the spec of one entry, and `in_keys` that do not exist."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from vecrl.envs.transforms.transforms import _apply_to_composite, _apply_to_composite_inv

import vecrl.envs.transforms as t
from vecrl.envs import GymEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import Compose, Transform, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, TensorSpec, Unbounded
from vecrl.testing import IndependentRowsEnv

VECTOR, IMAGE, ACTION = Unbounded((3,)), Unbounded((3, 4, 4)), Bounded(-2.0, 4.0, (3, 5))
SCREEN = Bounded(0, 255, (4, 5, 3), dtype=torch.uint8)
DOUBLE = Unbounded((3,), dtype=torch.float64)

LEAVES: dict[str, tuple[Callable[[], Transform], str, TensorSpec, TensorSpec]] = {
    "RewardScaling": (lambda: t.RewardScaling(1.0, 2.0), "reward", Bounded(0.0, 1.0, (1,)), Bounded(1.0, 3.0, (1,))),
    "RewardScaling: observation": (lambda: t.RewardScaling(0.0, 2.0), "observation", VECTOR, VECTOR),
    "RewardScaling: other key": (
        lambda: t.RewardScaling(1.0, 2.0, ["pay"]),
        "reward",
        Bounded(0.0, 1.0, (1,)),
        Bounded(1.0, 3.0, (1,)),
    ),
    "RewardClipping": (lambda: t.RewardClipping(-1, 1), "reward", Unbounded((1,)), Bounded(-1.0, 1.0, (1,))),
    "BinarizeReward": (t.BinarizeReward, "reward", Unbounded((1,)), Binary(shape=(1,))),
    "ToTensorImage": (t.ToTensorImage, "observation", SCREEN, Bounded(0.0, 1.0, (3, 4, 5))),
    "ToTensorImage: reward": (t.ToTensorImage, "reward", VECTOR, VECTOR),
    "Resize": (lambda: t.Resize(2, 2), "observation", IMAGE, Unbounded((3, 2, 2))),
    "GrayScale": (t.GrayScale, "observation", IMAGE, Unbounded((1, 4, 4))),
    "CenterCrop": (lambda: t.CenterCrop(2, 3), "observation", IMAGE, Unbounded((3, 2, 3))),
    "FlattenObservation": (lambda: t.FlattenObservation(-2, -1), "observation", IMAGE, Unbounded((3, 16))),
    "UnsqueezeTransform": (lambda: t.UnsqueezeTransform(-1, in_keys=["x"]), "observation", VECTOR, Unbounded((3, 1))),
    "SqueezeTransform: action": (
        lambda: t.SqueezeTransform(-1, in_keys_inv=["force"]),
        "action",
        Unbounded((3, 1)),
        Unbounded((3,)),
    ),
    "PermuteTransform": (
        lambda: t.PermuteTransform((-1, -3, -2), in_keys=["x"]),
        "observation",
        SCREEN,
        Bounded(0, 255, (3, 4, 5), dtype=torch.uint8),
    ),
    "CatFrames": (lambda: t.CatFrames(3, -1, in_keys=["x"]), "observation", VECTOR, Unbounded((9,))),
    "TimeMaxPool": (lambda: t.TimeMaxPool(T=3), "observation", VECTOR, VECTOR),
    "ObservationNorm": (
        lambda: t.ObservationNorm(1.0, 2.0, ["x"], ["y"]),
        "observation",
        Bounded(0.0, 1.0, (3,)),
        Bounded(1.0, 3.0, (3,)),
    ),
    "ClipTransform": (lambda: t.ClipTransform(["x"], low=-1, high=1), "observation", VECTOR, Bounded(-1.0, 1.0, (3,))),
    "SignTransform": (lambda: t.SignTransform(["x"]), "observation", VECTOR, Bounded(-1.0, 1.0, (3,))),
    "UnaryTransform": (
        lambda: t.UnaryTransform(["x"], ["y"], fn=lambda x: x.sum(-1)),
        "observation",
        VECTOR,
        Unbounded(()),
    ),
    "VecNorm: reward": (t.VecNorm, "reward", DOUBLE, DOUBLE),
    "VecNorm": (t.VecNorm, "observation", Categorical(5, (2,)), Unbounded((2,))),
    "DoubleToFloat": (t.DoubleToFloat, "observation", DOUBLE, VECTOR),
    "DoubleToFloat: action": (t.DoubleToFloat, "action", DOUBLE, VECTOR),
    "DoubleToFloat: of a key": (lambda: t.DoubleToFloat(in_keys_inv=["force"]), "action", DOUBLE, VECTOR),
    "DeviceCastTransform": (lambda: t.DeviceCastTransform("cpu", in_keys=["x"]), "observation", VECTOR, VECTOR),
    "RenameTransform": (lambda: t.RenameTransform(["x"], ["y"]), "observation", VECTOR, VECTOR),
    "SelectTransform": (lambda: t.SelectTransform("x"), "observation", VECTOR, VECTOR),
    "CatTensors": (lambda: t.CatTensors(["x"]), "observation", VECTOR, VECTOR),
    "FrameSkipTransform": (
        lambda: t.FrameSkipTransform(2),
        "reward",
        Bounded(0.0, 1.0, (1,)),
        Bounded(0.0, 2.0, (1,)),
    ),
    "RewardSum": (t.RewardSum, "reward", VECTOR, VECTOR),
    "StepCounter": (t.StepCounter, "observation", VECTOR, VECTOR),
    "ActionMask": (lambda: t.ActionMask("move"), "action", Categorical(3), Categorical(3)),
    "ActionScaling": (t.ActionScaling, "action", ACTION, Bounded(-1.0, 1.0, (3, 5))),
    "FlattenAction": (t.FlattenAction, "action", ACTION, Bounded(-2.0, 4.0, (15,))),
    "ActionDiscretizer": (lambda: t.ActionDiscretizer(4), "action", ACTION, MultiCategorical([4] * 5, (3, 5))),
    "DiscreteActionProjection": (lambda: t.DiscreteActionProjection(2, 4), "action", OneHot(2), OneHot(4)),
    "Compose": (
        lambda: Compose(t.RewardScaling(0.0, 2.0), t.ToTensorImage(), t.GrayScale(), t.StepCounter()),
        "observation",
        Unbounded((4, 5, 3), dtype=torch.uint8),
        Unbounded((1, 4, 5)),
    ),
}


@pytest.mark.parametrize("case", LEAVES)
def test_the_spec_of_one_entry_is_transformed(case: str) -> None:
    make, kind, leaf, expected = LEAVES[case]
    before = leaf.clone()
    assert getattr(make(), f"transform_{kind}_spec")(leaf) == expected
    assert leaf == before


def test_the_spec_of_one_entry_has_the_batch_size_of_the_environment() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), t.FlattenObservation(0, 1, ["pixels"], allow_positive_dim=True))
    leaf = env.base_env.observation_spec["pixels"]
    assert env.transform.transform_observation_spec(leaf) == env.observation_spec["pixels"]


@pytest.mark.parametrize("make", [t.Timer, lambda: t.TensorDictPrimer(hidden=VECTOR)])
def test_new_entries_need_a_composite(make: Callable[[], Transform]) -> None:
    with pytest.raises(SpaceError, match="Put it into a Composite"):
        make().transform_observation_spec(VECTOR)  # pyright: ignore[reportArgumentType]


# -- keys that do not exist

MISSPELT: dict[str, tuple[Callable[[], Transform], str, str]] = {
    "norm": (lambda: t.ObservationNorm(0.0, 1.0, ["observaton"]), "in_keys", "'observaton'"),
    "frames": (lambda: t.CatFrames(2, -1, ["observaton"]), "in_keys", "'observaton'"),
    "rename": (lambda: t.RenameTransform(["observaton"], ["o"]), "in_keys", "'observaton'"),
    "in a Compose": (lambda: Compose(t.StepCounter(), t.VecNorm(["observaton"])), "in_keys", "'observaton'"),
    "of another transform": (
        lambda: Compose(t.UnaryTransform(["reward"], ["reward_sign"], fn=torch.sign), t.SignTransform(["reward_sin"])),
        "in_keys",
        "'reward_sin'",
    ),
    "reward": (lambda: t.RewardSum(["rewad"], ["sum"]), "in_keys", "'rewad'"),
    "input": (lambda: t.DTypeCastTransform(torch.int64, torch.int32, in_keys_inv=["acton"]), "in_keys_inv", "'acton'"),
}


@pytest.mark.parametrize("case", MISSPELT)
def test_misspelt_keys_raise_with_the_specs(case: str) -> None:
    make, name, key = MISSPELT[case]
    env = TransformedEnv(GymEnv("CartPole-v1"), make())
    with pytest.raises(KeyError, match=f"Expected {name} of .* got {key}. Did you mean '"):
        env.reset()


def test_the_entries_are_listed_without_a_similar_one() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), t.SignTransform(["pixels"]))
    with pytest.raises(KeyError, match=r"entries are \['observation'.*'action'\]. Call set_missing_tolerance\(True\)"):
        _ = env.observation_spec


def test_missing_entries_can_be_tolerated() -> None:
    for transform in (t.SignTransform(["pixels"]), Compose(t.CatTensors(["pixels"])), t.CatFrames(2, -1, ["pixels"])):
        env = TransformedEnv(GymEnv("CartPole-v1"), transform)
        env.set_missing_tolerance(True)
        assert transform.missing_tolerance
        assert "pixels" not in env.rollout(2)
        env.set_missing_tolerance()
        with pytest.raises(KeyError):
            env.reset()


def test_keys_of_inputs_and_of_single_rows_exist() -> None:
    """A transform may name entries of inputs, done flags and groups."""
    env = TransformedEnv(
        SerialEnv(2, lambda: GymEnv("CartPole-v1").append_transform(t.StepCounter())),
        t.RenameTransform(["done", "step_count"], ["over", "count"], create_copy=True),
    )
    assert {"over", "count", "step_count"} <= set(env.rollout(2)["next"].keys())
    env.close()


def test_specs_of_inputs_may_lack_states() -> None:
    specs = Composite(full_action_spec=Composite(action=DOUBLE), full_state_spec=None)
    cast: Any = t.DoubleToFloat(in_keys_inv=["action"]).transform_input_spec(specs)
    assert cast["full_action_spec", "action"] == VECTOR
    assert cast["full_state_spec"] is None


def test_missing_entries_of_stored_data_are_not_moved() -> None:
    move = t.DeviceCastTransform("cpu", "cpu", in_keys=["a", "b"], in_keys_inv=["c"])
    assert list(move(TensorDict(a=torch.ones(1))).keys()) == ["a"]
    assert list(move.inv(TensorDict(a=torch.ones(1))).keys()) == ["a"]


# -- properties of transforms


def test_invertible_transforms_are_known_without_an_instance() -> None:
    assert t.DoubleToFloat.invertible
    assert t.ActionScaling(loc=0.0, scale=1.0).invertible
    assert not any(kind.invertible for kind in (Transform, Compose, t.RewardSum, t.ActionMask))


def test_inputs_of_resets_are_changed_on_request() -> None:
    class Halved(Transform):
        def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
            return value / 2

    found = []
    for enabled in (False, True):
        halved = Halved(in_keys_inv=["x"])
        halved.enable_inv_on_reset = enabled
        found.append(float(halved._reset_env_preprocess(TensorDict(x=torch.tensor(4.0)))["x"]))  # pyright: ignore[reportOptionalSubscript]
    assert found == [4.0, 2.0]
    assert not Transform.enable_inv_on_reset


class _Double(Transform):
    """Written as in TorchRL's tutorials: the methods for specs take that of one entry."""

    def _apply_transform(self, value: Tensor) -> Tensor:
        return 2 * value

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value / 2

    @_apply_to_composite
    def transform_observation_spec(self, observation_spec: Bounded) -> Bounded:
        return Bounded(2 * observation_spec.low, 2 * observation_spec.high)

    @_apply_to_composite_inv
    def transform_action_spec(self, action_spec: Bounded) -> Bounded:
        return Bounded(2 * action_spec.low, 2 * action_spec.high)


def test_methods_for_one_spec_take_composites_by_a_decorator() -> None:
    double = _Double(in_keys=["x", "missing"], out_keys=["y", "z"], in_keys_inv=["force"], out_keys_inv=["push"])
    spec, doubled = Bounded(-1.0, 1.0, (3,)), Bounded(-2.0, 2.0, (3,))
    assert double.transform_observation_spec(spec) == doubled
    assert double.transform_observation_spec(Composite(x=spec)) == Composite(x=spec, y=doubled)
    assert double.transform_action_spec(spec) == doubled
    assert double.transform_action_spec(Composite(force=spec, other=spec)) == Composite(other=spec, push=doubled)


def test_decorated_methods_give_the_specs_of_an_environment() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), _Double(in_keys=["observation"], in_keys_inv=["action"]))
    check_env_specs(env)
    assert env.observation_spec["observation"].high.tolist() == [2, 2, 16]
    assert env.action_spec == Bounded(-4, 4, (1,))
