"""Actor-critic on pixels with an LSTM: gray frames of two CartPoles, and a memory that ends with the episode."""

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from torch import nn
from torch.distributions import Categorical

ENVS, STEPS, UPDATES = 2, 24, 3


def make_env():
    env = wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1", render_mode="rgb_array"))
    env = wrappers.GrayscaleObservation(wrappers.AddRenderObservation(env))
    env = wrappers.TransformObservation(env, lambda obs: obs[::10, ::15], Box(0, 255, (40, 40), np.uint8))
    return wrappers.FrameStackObservation(env, 2)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(2, 8, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(648, 32), nn.ReLU())
        self.memory, self.actor, self.critic = nn.LSTMCell(32, 32), nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, obs, done, state):
        keep = (1.0 - done)[:, None]
        state = self.memory(self.encoder(torch.Tensor(obs) / 255), (state[0] * keep, state[1] * keep))
        return Categorical(logits=self.actor(state[0])), self.critic(state[0]).flatten(), state


def main(seed):
    torch.manual_seed(seed)
    envs = SyncVectorEnv([make_env for _ in range(ENVS)])
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    obs, _ = envs.reset(seed=seed)
    done, state = torch.zeros(ENVS), (torch.zeros(ENVS, 32), torch.zeros(ENVS, 32))
    results = [float(obs.mean())]
    for _ in range(UPDATES):
        state = (state[0].detach(), state[1].detach())
        log_probs, values, rewards, dones = [], [], [], []
        for _ in range(STEPS):
            policy, value, state = agent(obs, done, state)
            action = policy.sample()
            obs, reward, terminations, truncations, infos = envs.step(action.numpy())
            done = torch.Tensor(np.logical_or(terminations, truncations))
            log_probs.append(policy.log_prob(action))
            values.append(value)
            rewards.append(torch.tensor(reward).float())
            dones.append(done)
            if "episode" in infos:
                results += infos["episode"]["l"][infos["_episode"]].tolist()
        with torch.no_grad():
            following = agent(obs, done, state)[1]
        loss = torch.zeros(())
        for log_prob, value, reward, ended in reversed([*zip(log_probs, values, rewards, dones, strict=True)]):
            following = reward + 0.99 * following * (1 - ended)
            advantage = following - value
            loss = loss + (advantage.square() - log_prob * advantage.detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results += [loss.item(), float(obs.mean())]
    envs.close()
    return results
