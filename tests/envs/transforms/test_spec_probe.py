"""Specs of transformed values with dynamic sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    CatTensors,
    CenterCrop,
    ClipTransform,
    Compose,
    FlattenObservation,
    GrayScale,
    ObservationNorm,
    Resize,
    ToTensorImage,
    Transform,
    TransformedEnv,
    UnaryTransform,
)
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Categorical, Composite, Unbounded


class Growing(EnvBase):
    """Observes more rows with every step."""

    def __init__(self) -> None:
        super().__init__()
        image = Bounded(0, 255, (-1, -1, 3), dtype=torch.uint8)
        self.observation_spec = Composite(o=Bounded(0, 2, (-1, 2)), p=Unbounded((-1, 3)), image=image)
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((*self.batch_size, 1))

    def _seen(self) -> dict[str, Any]:
        image = torch.full((1 + self.k, 2 + self.k, 3), 7, dtype=torch.uint8)
        return {"o": torch.ones(1 + self.k, 2), "p": torch.ones(1 + self.k, 3), "image": image}

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        self.k = 0
        return TensorDict(self._seen())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.k += 1
        return TensorDict(self._seen() | {"reward": torch.ones(1), "done": torch.tensor([self.k >= 4])})

    def _set_seed(self, seed: int | None) -> None: ...


class Twice(Transform):
    """A user-defined transform with only the required method."""

    def _apply_transform(self, value: Any) -> Any:
        return 2 * value


def add_sums(td: TensorDictBase) -> None:
    td.set("sums", td["o"].sum(-1)).set("o", td["o"].flatten())


IMAGE: dict[str, Any] = {"in_keys": ["image"]}
CASES: list[tuple[Callable[[], Any], dict[str, tuple[int, ...]]]] = [
    (lambda: Twice(["o"], ["twice"]), {"twice": (-1, 2)}),
    (lambda: add_sums, {"sums": (-1,), "o": (-1,), "p": (-1, 3)}),
    (lambda: UnaryTransform(["o"], ["u"], fn=lambda value: value.mean(0)), {"u": (2,)}),
    (lambda: CatTensors(["o", "p"], "c"), {"c": (-1, 5)}),
    (lambda: CatTensors(["o"], "c", dim=0), {"c": (-1, 2)}),
    (lambda: FlattenObservation(-2, -1, in_keys=["p"]), {"p": (-1,)}),
    (lambda: Compose(ClipTransform(["o"], high=0.5), ObservationNorm(1.0, 2.0, in_keys=["o"])), {"o": (-1, 2)}),
    (lambda: ToTensorImage(**IMAGE), {"image": (3, -1, -1)}),
    (lambda: Compose(ToTensorImage(**IMAGE), GrayScale(**IMAGE)), {"image": (1, -1, -1)}),
    (lambda: Compose(ToTensorImage(**IMAGE), Resize(4, 5, **IMAGE)), {"image": (3, 4, 5)}),
    (lambda: Compose(ToTensorImage(**IMAGE), CenterCrop(2, 3, **IMAGE)), {"image": (3, 2, 3)}),
]


@pytest.mark.parametrize(("make", "shapes"), CASES)
def test_dynamic_sizes_stay_dynamic(make: Callable[[], Any], shapes: dict[str, tuple[int, ...]]) -> None:
    env = TransformedEnv(Growing(), make())
    assert {key: tuple(env.observation_spec[key].shape) for key in shapes} == shapes
    check_env_specs(env)
    batch = SerialEnv(2, lambda: TransformedEnv(Growing(), make()))
    check_env_specs(batch)
    assert batch.rollout(3)[1][2][next(iter(shapes))].ndim == len(next(iter(shapes.values())))


def test_varying_dimension_counts_raise() -> None:
    env = TransformedEnv(Growing(), UnaryTransform(["o"], ["u"], fn=lambda value: value.squeeze(0)))
    with pytest.raises(SpaceError, match=r"\(2,\) and \(7, 2\).*transform_observation_spec"):
        check_env_specs(env)
