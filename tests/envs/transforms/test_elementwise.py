"""Elementwise transforms of numbers."""

from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, is_non_tensor
from tests.fixtures.tensordict_envs import BoundedValuesEnv

from vecrl.envs import EnvBase, GymEnv, check_env_specs
from vecrl.envs.transforms import (
    ClipTransform,
    Compose,
    ObservationNorm,
    ObservationTransform,
    RewardClipping,
    RewardSum,
    SignTransform,
    StepCounter,
    TransformedEnv,
    UnaryTransform,
)
from vecrl.envs.transforms.elementwise import map_bounds
from vecrl.specs import Bounded, Composite, NonTensor, Unbounded
from vecrl.testing import IndependentRowsEnv

BATCHES = pytest.mark.parametrize("batch", [(), (4,)], ids=["single", "batch"])


def ends(spec: Bounded) -> tuple[float, float]:
    return spec.low.min().item(), spec.high.max().item()


def stored(**entries: Any) -> TensorDict:
    """Returns a batch of two trajectories of three steps."""
    return TensorDict({key: torch.as_tensor(value) for key, value in entries.items()}, [2, 3])


# -- ObservationNorm


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"loc": 1.0, "scale": 2.0}, (-3.0, 9.0)),
        ({"loc": 1.0, "scale": 2.0, "standard_normal": True}, (-1.5, 1.5)),
        ({"loc": 1.0, "scale": -2.0}, (-7.0, 5.0)),
        ({"loc": 0.0, "scale": 0.0, "standard_normal": True}, (-2e6, 4e6)),
    ],
)
@BATCHES
def test_norm_maps_bounds(batch: Any, arguments: Any, expected: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), ObservationNorm(in_keys=["observation"], **arguments))
    assert ends(env.observation_spec["observation"]) == pytest.approx(expected)
    check_env_specs(env)


def test_norm_values() -> None:
    value = torch.randn(2, 3, 4)
    loc, scale = torch.randn(4), torch.rand(4) + 1
    for normal, expected in ((False, value * scale + loc), (True, (value - loc) / scale)):
        norm = ObservationNorm(loc, scale, ["x"], standard_normal=normal)
        assert torch.equal(norm(stored(x=value))["x"], expected)


def test_norm_defaults_to_floating_observations() -> None:
    env = TransformedEnv(IndependentRowsEnv(), Compose(StepCounter(), RewardSum(), ObservationNorm(0.0, 2.0)))
    assert env.transform[2].in_keys == ["episode_reward", "observation", "position"]
    check_env_specs(env)


def test_norm_without_keys_or_environment_raises() -> None:
    with pytest.raises(ValueError, match="have in_keys"):
        ObservationNorm(0.0, 1.0)(stored(x=torch.zeros(2, 3, 1)))


@pytest.mark.parametrize("normal", [False, True])
def test_norm_inverse(normal: bool) -> None:
    norm = ObservationNorm(0.5, 2.0, [], in_keys_inv=["action"], out_keys_inv=["wish"], standard_normal=normal)
    env = TransformedEnv(BoundedValuesEnv(4), norm)
    assert env.action_keys == ["wish"]
    assert ends(env.action_spec) == pytest.approx((-0.3, -0.2) if normal else (0.3, 0.7))
    root = env.step(env.rand_action(env.reset()))
    inner = env.base_env.given["action"]
    assert torch.allclose(norm._apply_transform(inner), root["wish"])
    assert torch.all(inner.abs() < 0.1001)
    check_env_specs(env)


def test_norm_needs_loc_and_scale_or_neither() -> None:
    for arguments in ({"loc": 1.0}, {"scale": 1.0}):
        with pytest.raises(ValueError, match="loc and scale, or neither"):
            ObservationNorm(in_keys=["observation"], **arguments)


@pytest.mark.parametrize("normal", [False, True])
def test_init_stats_is_mean_and_deviation_of_a_rollout(normal: bool) -> None:
    env = TransformedEnv(BoundedValuesEnv(4), ObservationNorm(in_keys=["observation"], standard_normal=normal))
    torch.manual_seed(0)
    env.transform.init_stats(5, reduce_dim=(0, 1), cat_dim=1)
    torch.manual_seed(0)
    values = BoundedValuesEnv(4).rollout(5)["observation"]
    mean, deviation = values.mean((0, 1)), values.std((0, 1))
    loc, scale = (mean, deviation) if normal else (-mean / deviation, 1 / deviation)
    assert torch.allclose(env.transform.loc, loc)
    assert torch.allclose(env.transform.scale, scale)
    check_env_specs(env)
    rollout = env.rollout(50)["observation"]
    assert rollout.mean().abs() < 0.5
    assert 0.6 < rollout.std() < 1.4


def test_init_stats_spans_episodes_and_keeps_dimensions() -> None:
    env = TransformedEnv(IndependentRowsEnv(), ObservationNorm(in_keys=["observation"]))
    env.transform.init_stats(30)
    assert env.transform.loc.shape == (3,)
    env = TransformedEnv(BoundedValuesEnv(4), ObservationNorm(in_keys=["observation"]))
    env.transform.init_stats(3, reduce_dim=(0, -2), cat_dim=1, keep_dims=(0,))
    assert env.transform.loc.shape == (1, 3)


def test_init_stats_errors() -> None:
    env = TransformedEnv(BoundedValuesEnv(4), ObservationNorm(in_keys=["observation", "image"]))
    with pytest.raises(RuntimeError, match="init_stats first"):
        env.reset()
    with pytest.raises(ValueError, match="key"):
        env.transform.init_stats(3)
    with pytest.raises(ValueError, match="cat_dim"):
        env.transform.init_stats(3, (0, 1), key="observation")
    with pytest.raises(RuntimeError, match="two values"):
        env.transform.init_stats(1, 1, key="observation")
    with pytest.raises(RuntimeError, match="already"):
        ObservationNorm(0.0, 1.0, ["x"]).init_stats(3)


def test_norm_state_dict_initializes_another() -> None:
    reset_td, second = (TransformedEnv(BoundedValuesEnv(4), ObservationNorm(in_keys=["observation"])) for _ in range(2))
    reset_td.transform.init_stats(5, (0, 1), 1)
    assert isinstance(second.observation_spec["observation"], Bounded)
    second.load_state_dict(reset_td.state_dict())
    assert torch.equal(second.transform.loc, reset_td.transform.loc)
    assert second.observation_spec == reset_td.observation_spec
    check_env_specs(second)


# -- ClipTransform and SignTransform


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(-1, 2, (-1, 2)), (None, 1.5, (-2, 1.5)), (0, None, (0, 4)), (5, 6, (5, 5))]
)
@BATCHES
def test_clip_maps_bounds(batch: Any, low: Any, high: Any, expected: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), ClipTransform(["observation", "index", "image"], low=low, high=high))
    assert ends(env.observation_spec["observation"]) == expected
    assert env.observation_spec["index"].dtype == (torch.float32 if high == 1.5 else torch.int64)
    assert isinstance(env.observation_spec["image"], Bounded)
    check_env_specs(env)


def test_clip_values() -> None:
    value = torch.randn(2, 3, 4) * 3
    low, high = torch.tensor([-1.0, -2.0, 0.0, 1.0]), torch.tensor(2.0)
    assert torch.equal(ClipTransform(["x"], low=low, high=high)(stored(x=value))["x"], value.clamp(low, high))
    complete = torch.arange(6).reshape(2, 3, 1)
    assert ClipTransform(["x"], high=3)(stored(x=complete))["x"].flatten().tolist() == [0, 1, 2, 3, 3, 3]


def test_clip_inverse() -> None:
    env = TransformedEnv(BoundedValuesEnv(4), ClipTransform(in_keys_inv=["action"], low=-0.05))
    env.step(env.reset().set("action", torch.full((4, 2), -0.1)))
    assert torch.all(env.base_env.given["action"] == -0.05)
    check_env_specs(env)


def test_clip_needs_a_bound() -> None:
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="got neither"):
            ClipTransform(["x"])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.1, 0.1, [0, 0.1]), (0.5, None, [0.5, 1]), (300, None, [300, 300]), (None, -7.5, [-7.5, -7.5])],
)
def test_bounds_outside_an_integer_dtype_give_floats(dtype: Any, low: Any, high: Any, expected: list[float]) -> None:
    value = torch.tensor([0, 1], dtype=dtype)
    clip, rewards = ClipTransform(["x"], low=low, high=high), RewardClipping(low, high, in_keys=["x"])
    for transform in (clip, rewards):
        clipped = transform(TensorDict({"x": value.clone()}))["x"]
        assert torch.equal(clipped, torch.tensor(expected, dtype=torch.float32))
        for spec in (Unbounded((2,), dtype=dtype), Bounded(0, 1, (2,), dtype=dtype)):
            assert transform._spec(spec).is_in(clipped)


@BATCHES
def test_sign_values(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), SignTransform(["observation", "reward", "image"]))
    assert ends(env.observation_spec["observation"]) == ends(env.reward_spec) == (-1, 1)
    rollout = env.rollout(5)
    assert set(rollout["next", "reward"].flatten().tolist()) <= {-1.0, 0.0, 1.0}
    check_env_specs(env)
    assert SignTransform(["x"])(stored(x=torch.tensor([[-3, 0, 7]] * 2)))["x"][0].tolist() == [-1, 0, 1]


# -- UnaryTransform


@BATCHES
def test_unary_values(batch: Any) -> None:
    env = TransformedEnv(
        BoundedValuesEnv(*batch), UnaryTransform(["image"], ["mean"], fn=lambda x: x.mean((-3, -2, -1)))
    )
    assert env.observation_spec["mean"] == Unbounded(batch)
    rollout = env.rollout(3)
    assert torch.allclose(rollout["next", "mean"], rollout["next", "image"].mean((-3, -2, -1)))
    check_env_specs(env)


def test_unary_inverse() -> None:
    half = UnaryTransform([], [], ["action"], ["wish"], fn=lambda x: x * 2, inv_fn=lambda x: x / 2)
    env = TransformedEnv(BoundedValuesEnv(4), half)
    root = env.step(env.rand_action(env.reset()))
    assert torch.equal(env.base_env.given["action"], root["wish"] / 2)
    assert env.action_keys == ["wish"]
    check_env_specs(env)
    with pytest.raises(ValueError, match="inv_fn"):
        UnaryTransform([], [], ["action"], ["wish"], fn=lambda x: x)


class Words(EnvBase):
    def __init__(self, *batch: int):
        super().__init__(batch_size=batch)
        self.observation_spec = Composite(word=NonTensor(batch, example_data="start"), shape=batch)
        self.action_spec = Unbounded((*batch, 1))
        self.reward_spec = Unbounded((*self.batch_size, 1))

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        if not self.batch_size:
            return TensorDict({"word": "start"})
        return TensorDict({"word": NonTensorStack(*["start"] * self.batch_size[0])}, self.batch_size)

    def _step(self, tensordict: Any) -> TensorDict:
        zero = torch.zeros(*self.batch_size, 1)
        return self._reset().update({"reward": zero, "done": zero.bool()})

    def _set_seed(self, seed: int | None) -> None: ...


def lengths(words: Any) -> torch.Tensor:
    return torch.tensor(len(words) if isinstance(words, str) else [len(word) for word in words])


@pytest.mark.parametrize(("batch", "expected"), [((), 5), ((2,), [5, 5])])
def test_unary_of_non_tensors(batch: Any, expected: Any) -> None:
    env = TransformedEnv(Words(*batch), UnaryTransform(["word"], ["n"], fn=lengths))
    assert env.reset()["n"].tolist() == expected
    assert env.observation_spec["n"].dtype == torch.int64
    uppercase = UnaryTransform(["word"], ["word"], fn=_uppercase)
    env = TransformedEnv(Words(*batch), uppercase)
    assert env.reset()["word"] == ("START" if not batch else ["START", "START"])
    assert isinstance(env.observation_spec["word"], NonTensor)
    raw = TransformedEnv(Words(*batch), UnaryTransform(["word"], ["n"], fn=_length_of_raw, use_raw_nontensor=True))
    assert raw.reset()["n"].tolist() == expected


def test_texts_made_from_tensors_have_the_batch_size_in_specs() -> None:
    transform = UnaryTransform(["observation"], ["text"], fn=str)
    env = GymEnv("Pendulum-v1").append_transform(transform)
    assert env.observation_spec["text"].shape == ()
    check_env_specs(env)


def _length_of_raw(words: Any) -> Any:
    assert is_non_tensor(words)
    return lengths(words.tolist())


def _uppercase(words: Any) -> Any:
    return words.upper() if isinstance(words, str) else [word.upper() for word in words]


# -- ObservationTransform


def test_observation_transforms_default_to_all_observations() -> None:
    class Doubled(ObservationTransform):
        def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
            return value * 2

    env = TransformedEnv(IndependentRowsEnv((0, 1)), Doubled(out_keys=None))
    assert env.transform.in_keys == ["action_mask", "observation", "pixels", "position", "ticks"]
    with pytest.raises(KeyError, match="'seen'"):
        Doubled(["seen"])(stored(x=torch.zeros(2, 3, 1)))


def test_integers_are_clipped_exactly() -> None:
    large = torch.tensor([2**24 + 1, -(2**53) - 1, 7])
    clip = ClipTransform(["x"], low=1, high=2**60)
    assert clip(TensorDict({"x": large.clone()}))["x"].tolist() == [2**24 + 1, 1, 7]
    low = ClipTransform(["x"], low=-5)
    assert low(TensorDict({"x": torch.tensor([3, 250], dtype=torch.uint8)}))["x"].tolist() == [3, 250]
    rewards = RewardClipping(clamp_min=0)
    assert rewards(TensorDict({"reward": large.clone()}))["reward"].tolist() == [2**24 + 1, 0, 7]
    spec = low._spec(Unbounded((1,), dtype=torch.int64))
    assert (spec.low.item(), spec.high.item()) == (-5, torch.iinfo(torch.int64).max)


def test_infinite_bounds_stay_infinite() -> None:
    spec = map_bounds(Bounded(-torch.inf, torch.inf, (1,)), lambda value: 2 * value)
    assert (spec.low.item(), spec.high.item()) == (-torch.inf, torch.inf)
