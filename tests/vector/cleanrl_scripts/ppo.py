"""PPO on four CartPoles: next-step auto-reset, masks of value targets by the flags of the step before."""

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

ENVS, STEPS, UPDATES, EPOCHS, MINIBATCH = 4, 64, 6, 3, 64
GAMMA, DECAY, CLIP = 0.99, 0.95, 0.2


def make_env():
    return RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


def mlp(outputs, std):
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, outputs)]
    nn.init.orthogonal_(layers[-1].weight, std)
    return nn.Sequential(*layers)


def main(seed):
    torch.manual_seed(seed)
    envs = SyncVectorEnv([make_env for _ in range(ENVS)])
    actor, critic = mlp(envs.single_action_space.n, 0.01), mlp(1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
    obs = torch.zeros(STEPS, ENVS, 4)
    actions, logprobs, rewards, dones, values = (torch.zeros(STEPS, ENVS) for _ in range(5))
    next_obs, _ = envs.reset(seed=seed)
    next_obs, next_done = torch.Tensor(next_obs), torch.zeros(ENVS)
    results = []
    for _ in range(UPDATES):
        for step in range(STEPS):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                policy = Categorical(logits=actor(next_obs))
                actions[step] = action = policy.sample()
                logprobs[step], values[step] = policy.log_prob(action), critic(next_obs).flatten()
            next_obs, reward, terminations, truncations, infos = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward)
            next_obs, next_done = torch.Tensor(next_obs), torch.Tensor(np.logical_or(terminations, truncations))
            if "episode" in infos:
                results += infos["episode"]["r"][infos["_episode"]].tolist()
        with torch.no_grad():
            next_value, last, advantages = critic(next_obs).flatten(), torch.zeros(ENVS), torch.zeros(STEPS, ENVS)
            for t in reversed(range(STEPS)):
                goes_on = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
                after = next_value if t == STEPS - 1 else values[t + 1]
                delta = rewards[t] + GAMMA * after * goes_on - values[t]
                advantages[t] = last = delta + GAMMA * DECAY * goes_on * last
        batch = [x.reshape(-1, *x.shape[2:]) for x in (obs, actions, logprobs, advantages, advantages + values)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(STEPS * ENVS).split(MINIBATCH):
                x, action, old, advantage, target = (entry[rows] for entry in batch)
                policy = Categorical(logits=actor(x))
                ratio = (policy.log_prob(action) - old).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                surrogate = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
                value_loss = 0.5 * (critic(x).flatten() - target).square().mean()
                loss = value_loss - surrogate - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        results.append(loss.item())
    envs.close()
    return results
