"""Which functions and modules are policies of rollouts, and what they get: a TensorDict or the observations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import StepCounter, TransformedEnv
from vecrl.specs import Composite, Unbounded

PENDULUM = partial(GymEnv, "Pendulum-v1")
MAKERS: dict[str, Callable[[], EnvBase]] = {
    "single": PENDULUM,
    "serial": lambda: SerialEnv(2, PENDULUM),
    "parallel": lambda: ParallelEnv(2, PENDULUM),
    "transformed": lambda: TransformedEnv(PENDULUM(), StepCounter()),
}


class Callable2:
    def __call__(self, observation: Any) -> Any:
        return -observation[..., :1]


def with_default(td: TensorDictBase, scale: float = 1.0) -> Any:
    return -scale * td["observation"][..., :1]


def with_annotation(step: TensorDictBase) -> Any:
    return -step["observation"][..., :1]


def in_place(tensordict: TensorDictBase) -> None:
    tensordict["action"] = -tensordict["observation"][..., :1]


POLICIES: dict[str, Any] = {
    "named": lambda observation: -observation[..., :1],
    "named, with a default": lambda observation, scale=-1.0: scale * observation[..., :1],
    "callable": Callable2(),
    "partial": partial(with_default, scale=1.0),
    "TensorDict": with_default,
    "annotated": with_annotation,
    "in place": in_place,
    "data": lambda data: data.set("action", -data["observation"][..., :1]),
}
POSITIONAL: dict[str, Any] = {
    "another name": lambda obs: -obs[..., :1],
    "any number": lambda *obs: -obs[0][..., :1],
    "tuple": lambda obs: (-obs[..., :1],),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("policy", [*POLICIES, *POSITIONAL])
def test_functions_are_policies(maker: str, policy: str) -> None:
    if maker == "transformed" and policy in ("another name", "tuple"):
        pytest.skip("The function has fewer arguments than there are observations.")
    with MAKERS[maker]() as env:
        data = env.rollout(3, {**POLICIES, **POSITIONAL}[policy])
    assert data["action"].equal(-data["observation"][..., :1])
    assert data["next", "observation"].shape == (*env.batch_size, 3, 3)


class TwoObservations(EnvBase):
    """Has the observations a = 1, 2, … and b = 10, 20, …, by the number of the step."""

    def __init__(self, two_actions: bool = False) -> None:
        super().__init__()
        self.observation_spec = Composite(a=Unbounded((3,)), b=Unbounded((2,)))
        self.action_spec = Unbounded((1,))
        if two_actions:
            self.action_spec = Composite(x=Unbounded((1,)), y=Unbounded((1,)))
        self.reward_spec = Unbounded((1,))
        self.count = 1.0

    def _observation(self) -> TensorDictBase:
        return TensorDict(a=torch.full((3,), self.count), b=torch.full((2,), 10 * self.count))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 1.0
        return self._observation()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        return self._observation().update({"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (lambda x, y: x[..., :1] + y[..., :1], [11.0, 22.0]),
        (lambda x, y, scale=2.0: scale * y[..., :1] - x[..., :1], [19.0, 38.0]),
        (lambda b, a: b[..., :1] - a[..., :1], [9.0, 18.0]),
        (lambda b: b[..., :1], [10.0, 20.0]),
        (lambda *obs: obs[1][..., :1], [10.0, 20.0]),
        (lambda x: x["b"][..., :1], [10.0, 20.0]),
        (lambda x: x.set("action", x["b"][..., :1]), [10.0, 20.0]),
    ],
)
def test_functions_of_several_observations(policy: Any, expected: list[float], batch: bool) -> None:
    env = SerialEnv(2, TwoObservations) if batch else TwoObservations()
    check_env_specs(env)
    assert env.rollout(2, policy)["action"].squeeze(-1).tolist() == ([expected] * 2 if batch else expected)


def test_modules_of_several_observations() -> None:
    bilinear = torch.nn.Bilinear(3, 2, 1)
    data = TwoObservations().rollout(3, bilinear)
    assert data["action"].equal(bilinear(data["a"], data["b"]))


def test_functions_of_several_actions() -> None:
    data = TwoObservations(two_actions=True).rollout(2, lambda a, b: (a[:1], b[:1]))
    assert (data["x"].flatten().tolist(), data["y"].flatten().tolist()) == ([1.0, 2.0], [10.0, 20.0])
    with pytest.raises(TypeError, match=r"Expected the policy to return a TensorDict, got tensor"):
        TwoObservations(two_actions=True).rollout(2, lambda td: td["a"][:1])


def test_functions_without_a_signature_get_the_tensordict() -> None:
    env = PENDULUM()
    assert env.rollout(2, env.rand_action)["action"].shape == (2, 1)
    with pytest.raises(TypeError, match=r"Expected the policy to return a TensorDict, got \{"):
        env.rollout(2, dict)
