"""DQN on one CartPole with same-step auto-reset: true next observations are in the infos of the step."""

import random

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

TOTAL, START, BATCH, GAMMA = 600, 100, 32, 0.99


def main(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.action_space.seed(seed)
    network, target = (nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 2)) for _ in range(2))
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    memory, results = [], []
    obs, _ = envs.reset(seed=seed)
    for step in range(TOTAL):
        if random.random() < max(0.05, 1 - step / 300):
            actions = envs.action_space.sample()
        else:
            actions = network(torch.Tensor(obs)).argmax(1).numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for row in np.flatnonzero(terminations | truncations):
            real_next_obs[row] = infos["final_obs"][row]
        memory.append((obs[0], actions[0], rewards[0], real_next_obs[0], terminations[0]))
        obs = next_obs
        if step >= START and step % 4 == 0:
            rows = generator.integers(len(memory), size=BATCH)
            entries = (torch.from_numpy(np.stack(column)) for column in zip(*(memory[i] for i in rows), strict=True))
            x, action, reward, after, terminated = entries
            with torch.no_grad():
                best = reward.float() + GAMMA * target(after).amax(1) * ~terminated
            loss = nn.functional.mse_loss(network(x).gather(1, action[:, None]).squeeze(1), best)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            results.append(loss.item())
        if step % 100 == 0:
            target.load_state_dict(network.state_dict())
    envs.close()
    return [*results, len(memory), float(sum(entry[2] for entry in memory))]
