"""PPO on two Pendulums under the usual stack of wrappers of each environment, which normalizes and clips."""

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.vector import SyncVectorEnv
from torch import nn
from torch.distributions import Normal

ENVS, STEPS, UPDATES, EPOCHS, GAMMA = 2, 128, 4, 4, 0.9


def make_env():
    env = gymnasium.make("Pendulum-v1", max_episode_steps=60)
    env = wrappers.RecordEpisodeStatistics(wrappers.FlattenObservation(env))
    env = wrappers.NormalizeObservation(wrappers.ClipAction(env))
    env = wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), env.observation_space)
    env = wrappers.NormalizeReward(env, gamma=GAMMA)
    return wrappers.TransformReward(env, lambda reward: float(np.clip(reward, -10, 10)))


def main(seed):
    torch.manual_seed(seed)
    envs = SyncVectorEnv([make_env for _ in range(ENVS)])
    actor = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
    critic = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
    log_std = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_std], lr=1e-3)
    obs, _ = envs.reset(seed=seed)
    obs, done = torch.Tensor(obs), torch.zeros(ENVS)
    results = []
    for _ in range(UPDATES):
        steps = []
        for _ in range(STEPS):
            with torch.no_grad():
                policy = Normal(actor(obs), log_std.exp())
                action = policy.sample()
                log_prob, value = policy.log_prob(action).sum(1), critic(obs).flatten()
            next_obs, reward, terminations, truncations, infos = envs.step(action.numpy())
            steps.append((obs, action, log_prob, torch.tensor(reward).float(), done, value))
            obs, done = torch.Tensor(next_obs), torch.Tensor(np.logical_or(terminations, truncations))
            if "episode" in infos:
                results += infos["episode"]["r"][infos["_episode"]].tolist()
        all_obs, actions, old, rewards, dones, values = map(torch.stack, zip(*steps, strict=True))
        with torch.no_grad():
            returns, following = torch.zeros(STEPS, ENVS), critic(obs).flatten() * (1 - done)
            for t in reversed(range(STEPS)):
                returns[t] = rewards[t] + GAMMA * following
                following = returns[t] * (1 - dones[t])
        for _ in range(EPOCHS):
            policy = Normal(actor(all_obs), log_std.exp())
            ratio = (policy.log_prob(actions).sum(-1) - old).exp()
            advantage = returns - values
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = 0.5 * (critic(all_obs).squeeze(-1) - returns).square().mean() - surrogate
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append(loss.item())
    envs.close()
    return results
