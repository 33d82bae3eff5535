"""Entries that are tensorclasses keep their class in every environment."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase, tensorclass

from vecrl.envs import EnvBase, SerialEnv, check_env_specs, make_composite_from_td, step_mdp
from vecrl.envs.transforms import DoubleToFloat, StepCounter, TransformedEnv
from vecrl.specs import Composite, NonTensor, Unbounded


@tensorclass
class View:
    image: torch.Tensor


@tensorclass
class Named:
    image: torch.Tensor
    name: str


class Looks(EnvBase):
    """Observes a tensorclass."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(view=Composite(image=Unbounded((3,)), data_cls=View))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict({"view": View(image=torch.zeros(3), batch_size=[])})  # pyright: ignore[reportCallIssue]

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset().set("done", torch.zeros(1, dtype=torch.bool))

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize(
    "make", [Looks, lambda: TransformedEnv(Looks(), StepCounter()), lambda: TransformedEnv(Looks(), DoubleToFloat())]
)
def test_tensorclasses_keep_their_class(make: Any) -> None:
    env = make()
    check_env_specs(env)
    stepped, rollout = env.rand_step(env.reset()), env.rollout(3)
    sources = (stepped, stepped["next"], env.step_mdp(stepped), rollout, rollout["next"], env.fake_tensordict())
    assert [type(source["view"]) for source in sources] == [View] * 6
    assert rollout["view"].image.shape == (3, 3)


def test_batches_have_their_entries() -> None:
    env = SerialEnv(2, Looks)
    check_env_specs(env)
    assert env.rollout(3)["view", "image"].shape == (2, 3, 3)


def test_step_mdp_keeps_the_class_of_whole_entries() -> None:
    view = View(image=torch.zeros(3), batch_size=[])  # pyright: ignore[reportCallIssue]
    data = TensorDict({"view": view, "next": TensorDict({"view": view})})
    assert type(step_mdp(data)["view"]) is View


def test_specs_of_tensorclasses_with_text() -> None:
    named: Any = Named(image=torch.zeros(3), name="cat", batch_size=[])  # pyright: ignore[reportCallIssue]
    spec = make_composite_from_td(TensorDict({"named": named}))
    assert spec["named"].data_cls is Named
    assert isinstance(spec["named", "name"], NonTensor)
    assert spec["named", "image"].shape == (3,)
    assert spec.is_in(TensorDict({"named": named}))
    assert type(spec.rand()["named"]) is Named
