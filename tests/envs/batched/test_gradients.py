"""Gradients through batches: `SerialEnv` passes them like single environments; other batches detach them."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, ParallelEnv, SerialEnv, StepCounter, TransformedEnv
from vecrl.specs import Composite, Unbounded


class Smooth(EnvBase):
    """Doubles its value and adds the action; the reward is the new value. Done after `limit` steps."""

    def __init__(self, limit: int = 99, *, stateful: bool = True, dynamic: bool = False, batch: tuple[int, ...] = ()):
        super().__init__(batch_size=batch)
        spec = Composite(value=Unbounded((*batch, -1 if dynamic else 1)), shape=batch)
        self.observation_spec = spec.clone().set("count", Unbounded((*batch, 1)))
        if stateful:
            self.state_spec = spec
        self.action_spec = Unbounded((*batch, 1))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.limit = limit
        self.start = torch.nn.Parameter(torch.tensor(3.0))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        zero = torch.zeros(*self.batch_size, 1)
        return TensorDict({"value": zero + self.start, "count": zero}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        value, count = tensordict["value"] * 2 + tensordict["action"], tensordict["count"] + 1
        entries = {"value": value, "count": count, "reward": value * 1, "done": count >= self.limit}
        return TensorDict(entries, self.batch_size)

    def _set_seed(self, seed: int | None) -> None: ...


def _gradients(env: EnvBase, steps: int = 5, **how: Any) -> tuple[list[float], float]:
    """Returns rewards and the gradient of their sum with respect to a policy's parameter."""
    weight = torch.ones(1, requires_grad=True)
    with env:
        rollout = env.rollout(steps, lambda td: td.set("action", weight * torch.ones(*td.shape, 1)), **how)
        reward = rollout.get(("next", "reward"))
        if not reward.requires_grad:
            return reward.flatten().tolist(), 0.0
        reward.sum().backward()
    assert weight.grad is not None
    return reward.flatten().tolist(), weight.grad.item()


HOW: dict[str, dict[str, Any]] = {
    "usual": {},
    "past ends": {"break_when_any_done": False},
    "lazily stacked": {"return_contiguous": False},
}
KINDS: dict[str, dict[str, Any]] = {
    "stateful": {},
    "by its observation": {"stateful": False},
    "dynamic": {"dynamic": True},
    "a batch": {"batch": (2,)},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", KINDS)
def test_serial_env_gradients_equal_single_environment_gradients(kind: str, how: str) -> None:
    make, switches = partial(Smooth, 3, **KINDS[kind]), HOW[how]
    rewards, gradient = _gradients(make(), **switches)
    batches: list[EnvBase] = [
        SerialEnv(2, make),
        SerialEnv(2, make, envs_per_worker=1),
        SerialEnv(2, lambda: SerialEnv(1, make)),
        SerialEnv(2, lambda: TransformedEnv(make(), StepCounter())),
        TransformedEnv(SerialEnv(2, make), StepCounter()),
        ParallelEnv(2, make, backend="serial"),
    ]
    for batch in batches:
        found = _gradients(batch, **switches)
        assert found == (rewards * 2, gradient * 2)
        assert gradient > 0


def test_gradients_with_episodes_of_different_lengths() -> None:
    singles = [_gradients(Smooth(limit), limit)[1] for limit in (2, 4)]
    batch = SerialEnv(2, [partial(Smooth, 2), partial(Smooth, 4)])
    assert _gradients(batch, break_when_all_done=True)[1] == sum(singles)


@pytest.mark.parametrize("stateful", [True, False])
def test_detaching_the_root_cuts_the_graph(stateful: bool) -> None:
    def truncated(env: EnvBase) -> list[float]:
        weight, found = torch.ones(1, requires_grad=True), []
        td = env.reset().detach()
        for _ in range(2):
            rewards: list[torch.Tensor] = []
            for _ in range(2):
                td = env.step(td.set("action", weight * torch.ones(*td.shape, 1)))
                rewards.append(td["next", "reward"].sum())
                td = env.step_mdp(td)
            [gradient] = torch.autograd.grad(sum(rewards, torch.zeros(())), weight)
            found.append(gradient.item())
            td = td.detach()
        return found

    single = truncated(Smooth(stateful=stateful))
    with SerialEnv(2, partial(Smooth, stateful=stateful)) as env:
        assert truncated(env) == [2 * gradient for gradient in single]


def test_gradients_reach_environment_parameters_through_resets() -> None:
    made: list[Smooth] = []
    with SerialEnv(2, lambda: made.append(Smooth()) or made[-1]) as env:
        root = env.reset()
        root["_reset"] = torch.tensor([[True], [False]])
        root = env.reset(root)
        root["value"].sum().backward()
    assert [env.start.grad.item() for env in made if env.start.grad is not None] == [1.0, 1.0]


def test_no_graph_is_kept_without_grad() -> None:
    with SerialEnv(2, Smooth) as env, torch.no_grad():
        assert not env.rollout(3).get(("next", "value")).requires_grad
    with SerialEnv(2, Smooth) as env:
        assert env.rollout(2).get("value").requires_grad
        with torch.no_grad():
            assert not env.rollout(2).get("value").requires_grad


@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_other_batches_detach_gradients(backend: Any, dynamic: bool) -> None:
    make = partial(Smooth, dynamic=dynamic)
    with ParallelEnv(2, make, backend=backend) as env:
        rewards, gradient = _gradients(env, 3)
    assert (rewards, gradient) == (_gradients(make(), 3)[0] * 2, 0.0)
