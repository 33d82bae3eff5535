"""Transforms of shapes."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.tensordict_envs import BoundedValuesEnv

from vecrl.envs import check_env_specs
from vecrl.envs.transforms import (
    FlattenObservation,
    PermuteTransform,
    SqueezeTransform,
    TransformedEnv,
    UnsqueezeTransform,
)
from vecrl.specs import Bounded, Categorical, OneHot, Unbounded

BATCHES = pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=["single", "batch", "grid"])


@pytest.mark.parametrize(
    ("transform", "key", "shape"),
    [
        (lambda: FlattenObservation(-3, -1, ["image"]), "image", (10,)),
        (lambda: FlattenObservation(0, 1, ["image"], ["flat"], allow_positive_dim=True), "flat", (2, 5)),
        (lambda: SqueezeTransform(-2, in_keys=["image"]), "image", (2, 5)),
        (lambda: SqueezeTransform(1, in_keys=["image"], allow_positive_dim=True), "image", (2, 5)),
        (lambda: SqueezeTransform(-1, in_keys=["image"]), "image", (2, 1, 5)),
        (lambda: UnsqueezeTransform(-1, in_keys=["image"]), "image", (2, 1, 5, 1)),
        (lambda: UnsqueezeTransform(-3, in_keys=["image"]), "image", (2, 1, 1, 5)),
        (lambda: UnsqueezeTransform(0, in_keys=["image"], allow_positive_dim=True), "image", (1, 2, 1, 5)),
        (lambda: PermuteTransform((-1, -3, -2), ["image"]), "image", (5, 2, 1)),
        (lambda: PermuteTransform((-1, -2), ["image"]), "image", (2, 5, 1)),
    ],
)
@BATCHES
def test_shapes_in_environments_and_of_stored_data(batch: Any, transform: Any, key: str, shape: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), transform())
    assert env.observation_spec[key] == Unbounded((*batch, *shape))
    check_env_specs(env)
    image = torch.randn(*batch, 7, 2, 1, 5)
    made = transform()(TensorDict({"image": image}, [*batch, 7]))[key]
    assert made.shape == (*batch, 7, *shape)
    time = len(batch)
    for step in range(7):
        alone = transform()(TensorDict({"image": image.select(time, step)}, batch))[key]
        assert torch.equal(made.select(time, step), alone)


def test_values() -> None:
    image = torch.randn(3, 2, 1, 5)
    data = lambda: TensorDict({"x": image}, [3])  # noqa: E731
    assert torch.equal(FlattenObservation(-3, -2, ["x"])(data())["x"], image.flatten(1, 2))
    assert torch.equal(PermuteTransform((-2, -1, -3), ["x"])(data())["x"], image.permute(0, 2, 3, 1))
    assert torch.equal(SqueezeTransform(-2, in_keys=["x"])(data())["x"], image.squeeze(2))
    assert torch.equal(UnsqueezeTransform(-4, in_keys=["x"])(data())["x"], image.unsqueeze(1))


@pytest.mark.parametrize(
    "transform",
    [
        lambda: UnsqueezeTransform(-1, in_keys_inv=["action"]),
        lambda: UnsqueezeTransform(0, allow_positive_dim=True, in_keys_inv=["action"], out_keys_inv=["wish"]),
        lambda: SqueezeTransform(-2, in_keys_inv=["action"], out_keys_inv=["wish"]),
        lambda: PermuteTransform((-1,), in_keys_inv=["action"]),
        lambda: PermuteTransform((-1, -3, -2), in_keys=["a"], in_keys_inv=["a"]),
    ],
)
def test_inverses_restore_the_shape(transform: Any) -> None:
    value = torch.randn(3, 4, 1, 2)
    made = transform()
    (out_key,), (in_key,) = made.out_keys_inv, made.in_keys_inv
    outer = made._forward_shape(value, 3)
    back = made.inv(TensorDict({out_key: outer}, [3]))[in_key]
    assert torch.equal(back, value)


@BATCHES
def test_inverse_shapes_of_actions(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), UnsqueezeTransform(-1, in_keys_inv=["action"]))
    assert env.action_spec == Bounded(-0.1, 0.1, (*batch, 2, 1))
    env.step(env.rand_action(env.reset()))
    assert env.base_env.given["action"].shape == (*batch, 2)
    check_env_specs(env)


@BATCHES
def test_spec_classes_are_kept_if_possible(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), UnsqueezeTransform(-1, in_keys=["kind", "observation"]))
    assert env.observation_spec["kind"] == Categorical(4, (*batch, 1))
    assert env.observation_spec["observation"] == Bounded(-2, 4, (*batch, 3, 1))
    check_env_specs(env)
    env = TransformedEnv(BoundedValuesEnv(*batch), UnsqueezeTransform(-2, in_keys=["row"]))
    assert env.observation_spec["row"] == OneHot(4, (*batch, 1, 4))
    check_env_specs(env)
    env = TransformedEnv(BoundedValuesEnv(*batch), UnsqueezeTransform(-1, in_keys=["row"]))
    assert env.observation_spec["row"] == Unbounded((*batch, 4, 1), dtype=torch.bool)
    check_env_specs(env)


def test_invalid_dimensions_raise() -> None:
    for make in (
        lambda: FlattenObservation(0, -1, ["x"]),
        lambda: UnsqueezeTransform(0, in_keys=["x"]),
        lambda: SqueezeTransform(1, in_keys=["x"]),
    ):
        with pytest.raises(ValueError, match="allow_positive_dim=True"):
            make()
    with pytest.raises(ValueError, match=r"permutation of \(-2, -1\)"):
        PermuteTransform((0, 1), ["x"])
    for kind in (SqueezeTransform, UnsqueezeTransform):
        with pytest.raises(TypeError, match="Expected dim"):
            kind(in_keys=["x"])
    with pytest.raises(KeyError, match="'pixels'"):
        FlattenObservation(-2, -1)(TensorDict({"x": torch.zeros(2)}))
