"""Rollouts of workers in TorchRL's advantages and losses."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from vecrl.vector import RolloutWorkers

pytestmark = pytest.mark.peers
GAMMA, DECAY = 0.97, 0.9


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, obs: np.ndarray) -> Any:
        policy = torch.distributions.Categorical(logits=self.actor(torch.from_numpy(obs)))
        action = policy.sample()
        return {"action": action, "action_log_prob": policy.log_prob(action), "state_value": self.value(obs)}

    def value(self, obs: np.ndarray) -> Any:
        return self.critic(torch.from_numpy(obs)).squeeze(-1)


def test_advantages_and_losses_take_rollouts() -> None:
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    agent = Agent()
    make = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30)] * 6
    with RolloutWorkers(make, agent, backend="serial", num_workers=2, seed=1) as workers:
        rollout = workers.rollout(80)
    assert rollout.truncated.any()
    assert rollout.terminated.any()
    data = GAE(gamma=GAMMA, lmbda=DECAY, value_network=None)(rollout.to_tensordict())
    delta = rollout.reward + GAMMA * rollout.next_value("state_value") * ~rollout.terminated
    delta -= rollout.extras["state_value"]
    last = np.zeros(6)
    for t in reversed(range(80)):
        last = delta[t] + GAMMA * DECAY * last * ~(rollout.terminated | rollout.truncated)[t]
        assert np.allclose(data["advantage"][:, t, 0], last, atol=1e-4)
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(agent.actor, ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ),
    )
    loss = ClipPPOLoss(actor, TensorDictModule(agent.critic, ["observation"], ["state_value"]))
    losses = loss(data.reshape(-1))
    assert data["action_log_prob"].shape == data["next", "reward"].shape[:2]
    assert losses["kl_approx"].abs() < 1e-5, "the log-probabilities are those of the policy"
    assert torch.allclose(losses["loss_objective"], -data["advantage"].mean(), atol=1e-5), "all ratios are 1"
    (losses["loss_objective"] + losses["loss_critic"]).backward()
    assert agent.actor.weight.grad is not None
