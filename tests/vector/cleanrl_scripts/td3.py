"""TD3 on two Pendulums in worker processes: twin critics, delayed and smoothed targets."""

import copy

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from torch import nn

TOTAL, START, BATCH, GAMMA, TAU = 260, 60, 32, 0.98, 0.01


def mlp(inputs):
    return nn.Sequential(nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, 1))


def main(seed):
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    make = [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=50)] * 2
    envs = AsyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.action_space.seed(seed)
    limit = float(envs.single_action_space.high[0])
    actor, critics = mlp(3), nn.ModuleList([mlp(4), mlp(4)])
    target_actor, target_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=1e-3)
    memory, results = [], []
    obs, _ = envs.reset(seed=seed)
    for step in range(TOTAL):
        if step < START:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = (torch.tanh(actor(torch.Tensor(obs))) * limit + 0.2 * torch.randn(2, 1)).clamp(-limit, limit)
            actions = actions.numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        after = next_obs.copy()
        for row in np.flatnonzero(truncations):
            after[row] = infos["final_obs"][row]
        rows = zip(obs, actions, rewards.astype(np.float32), after, terminations, strict=True)
        memory += [tuple(np.array(value) for value in row) for row in rows]
        obs = next_obs
        if step < START:
            continue
        rows = generator.integers(len(memory), size=BATCH)
        entries = (torch.from_numpy(np.stack(column)) for column in zip(*(memory[i] for i in rows), strict=True))
        x, action, reward, after, terminated = entries
        with torch.no_grad():
            noise = (0.2 * torch.randn(BATCH, 1)).clamp(-0.5, 0.5)
            smoothed = ((torch.tanh(target_actor(after)) + noise) * limit).clamp(-limit, limit)
            following = torch.min(*(critic(torch.cat([after, smoothed], 1)) for critic in target_critics)).squeeze(1)
            goal = reward + GAMMA * following * ~terminated
        loss = sum((critic(torch.cat([x, action], 1)).squeeze(1) - goal).square().mean() for critic in critics)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if step % 2 == 0:
            actor_loss = -critics[0](torch.cat([x, torch.tanh(actor(x)) * limit], 1)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            for target, source in ((target_actor, actor), (target_critics, critics)):
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.data.lerp_(new.data, TAU)
        results.append(loss.item())
    envs.close()
    return results
