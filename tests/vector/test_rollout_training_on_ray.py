"""A training with workers on two nodes of Ray goes on when one node is lost."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.fixtures.ray_cluster import TestCluster
from torch import nn

from vecrl.engine.backends.worker_options import RayOptions
from vecrl.errors import WorkerCrash
from vecrl.vector import Rollout, RolloutWorkers

pytestmark = pytest.mark.ray
GAMMA, STEPS, UPDATES = 0.99, 64, 25


class Agent(nn.Module):
    """A policy and a value function of CartPole."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def policy(self, obs: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.actor(obs))

    @torch.no_grad()
    def forward(self, obs: np.ndarray) -> Any:
        policy = self.policy(torch.from_numpy(obs))
        action = policy.sample()
        return action, {"log_prob": policy.log_prob(action), "value": self.value(obs)}

    @torch.no_grad()
    def value(self, obs: np.ndarray) -> torch.Tensor:
        return self.critic(torch.from_numpy(obs)).squeeze(-1)


def _cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def _learn(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout) -> None:
    delta = rollout.reward + GAMMA * rollout.next_value() * ~rollout.terminated - rollout.extras["value"]
    advantages, last = np.zeros_like(delta), np.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        last = advantages[t] = delta[t] + GAMMA * 0.95 * last * ~(rollout.terminated | rollout.truncated)[t]
    flat = {name: torch.as_tensor(rows) for name, rows in rollout.flat().items()}
    advantage = torch.from_numpy(advantages.reshape(-1)).float()
    target = advantage + flat["value"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(4):
        ratio = (agent.policy(flat["obs"]).log_prob(flat["action"]) - flat["log_prob"]).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = loss + 0.5 * (agent.critic(flat["obs"]).squeeze(-1) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_training_goes_on_without_a_lost_node(cluster: TestCluster) -> None:
    """The first half with rollouts of all workers, the second one with those of single workers."""
    torch.manual_seed(0)
    agent, returns, lost = Agent(), list[float](), 0
    optimizer = torch.optim.Adam(agent.parameters(), 5e-3)
    options = RayOptions(placement_strategy="STRICT_SPREAD")
    make = [_cartpole] * 8
    with (
        cluster.node() as node,
        RolloutWorkers(make, Agent(), backend="ray", num_workers=2, seed=1, ray_options=options) as workers,
    ):
        while not lost:
            if workers.version == UPDATES:
                cluster.kill(node)
            try:
                rollout = workers.rollout(STEPS, agent.state_dict())
            except WorkerCrash:
                lost += 1
                workers.reset()
            else:
                assert rollout.version == workers.version
                _learn(agent, optimizer, rollout)
                returns += rollout.returns.tolist()
        assert cluster.notices(node)
        for rollout in workers.rollouts(STEPS, count=2 * UPDATES):
            assert UPDATES <= rollout.version <= workers.version, "the parameters were kept"
            _learn(agent, optimizer, rollout)
            returns += rollout.returns.tolist()
            workers.set_parameters(agent.state_dict())
        assert workers.rollout(1).env_ids.tolist() == list(range(8)), "all environments are there again"
    assert np.mean(returns[:20]) < 50
    assert np.mean(returns[-20:]) > 2 * np.mean(returns[:20]), "it has learned"
