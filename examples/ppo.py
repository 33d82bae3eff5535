"""PPO on a MuJoCo task with worker processes, in one file: `python examples/ppo.py --env InvertedPendulum-v5`."""

from __future__ import annotations

import argparse
from functools import partial

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Normal

from vecrl.envs import GymEnv, ParallelEnv
from vecrl.envs.transforms import Compose, DoubleToFloat, RewardSum, StepCounter, TransformedEnv, VecNorm


class Agent(nn.Module):
    """A Gaussian policy and a value function over TensorDicts."""

    def __init__(self, observations: int, actions: int):
        super().__init__()
        self.mean = _mlp(observations, actions, last_gain=0.01)
        self.value = _mlp(observations, 1, last_gain=1.0)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def act(self, obs: Tensor) -> Normal:
        return Normal(self.mean(obs), self.log_std.exp())

    def forward(self, td: TensorDict) -> TensorDict:
        obs = td["observation"]
        chosen = self.act(obs)
        action = chosen.sample()
        return td.update(
            {"action": action, "log_prob": chosen.log_prob(action).sum(-1, keepdim=True), "value": self.value(obs)}
        )


def _mlp(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def advantages(rollout: TensorDict, agent: Agent, gamma: float = 0.99, decay: float = 0.95) -> Tensor:
    """Returns generalised advantage estimates `[envs, time, 1]`; "next" has the true successors, also final ones."""
    next_td = rollout["next"]
    with torch.no_grad():
        next_value = agent.value(next_td["observation"]) * ~next_td["terminated"]
    delta = next_td["reward"] + gamma * next_value - rollout["value"]
    estimate, estimates = torch.zeros_like(delta[:, 0]), []
    for t in reversed(range(delta.shape[1])):
        estimate = delta[:, t] + gamma * decay * estimate * ~next_td["done"][:, t]
        estimates.append(estimate)
    return torch.stack(estimates[::-1], 1)


def learn(agent: Agent, optimizer: torch.optim.Optimizer, rollout: TensorDict, epochs: int = 10) -> None:
    """Runs several epochs over a rollout, in minibatches."""
    gain = advantages(rollout, agent)
    rollout = rollout.select("observation", "action", "log_prob", "value")
    data = rollout.set("gain", gain).set("target", gain + rollout["value"]).reshape(-1)
    for _ in range(epochs):
        for batch in data[torch.randperm(len(data))].split(256):
            chosen = agent.act(batch["observation"])
            ratio = (chosen.log_prob(batch["action"]).sum(-1, keepdim=True) - batch["log_prob"]).exp()
            scaled = (batch["gain"] - batch["gain"].mean()) / (batch["gain"].std() + 1e-8)
            policy_loss = -torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
            value_loss = (agent.value(batch["observation"]) - batch["target"]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main() -> None:
    """Trains the agent, and prints the returns of the episodes that ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="InvertedPendulum-v5")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=128, help="steps of each environment between two updates")
    parser.add_argument("--updates", type=int, default=50)
    options = parser.parse_args()

    torch.manual_seed(0)
    env = TransformedEnv(
        ParallelEnv(options.envs, partial(GymEnv, options.env)),
        Compose(DoubleToFloat(), VecNorm(in_keys=["observation"]), RewardSum(), StepCounter()),
    )
    env.set_seed(0)
    agent = Agent(env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1])
    optimizer = torch.optim.Adam(agent.parameters(), 3e-4, eps=1e-5)
    root = env.reset()
    for update in range(1, options.updates + 1):
        with torch.no_grad():
            rollout = env.rollout(options.steps, agent, auto_reset=False, tensordict=root, break_when_any_done=False)
        root = env.maybe_reset(env.step_mdp(rollout[:, -1].clone()))
        learn(agent, optimizer, rollout)
        ended = rollout["next", "done"]
        if ended.any():
            returns = rollout["next", "episode_reward"][ended]
            print(f"update {update}: {len(returns)} episodes, mean return {returns.mean():.1f}", flush=True)
    env.close()


if __name__ == "__main__":
    main()
