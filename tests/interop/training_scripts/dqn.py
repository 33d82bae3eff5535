"""DQN on CartPole: an epsilon-greedy QValueActor, a Collector and a replay buffer."""

import torch
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

FRAMES, BATCH = 1500, 100


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(max_steps=200), RewardSum()))
    env.set_seed(seed)

    network = MLP(in_features=4, out_features=env.action_spec.shape[-1], num_cells=[64, 64], activation_class=nn.ReLU)
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=FRAMES // 2)
    policy = TensorDictSequential(actor, explore)

    collector = Collector(env, policy, frames_per_batch=BATCH, total_frames=FRAMES, init_random_frames=2 * BATCH)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), sampler=RandomSampler(), batch_size=64)
    loss_module = DQNLoss(actor, action_space=env.action_spec, double_dqn=True)
    loss_module.make_value_estimator(gamma=0.99)
    target_update = SoftUpdate(loss_module, eps=0.95)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for data in collector:
        buffer.extend(data.reshape(-1))
        explore.step(data.numel())
        for _ in range(8):
            loss = loss_module(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_update.step()
        done = data["next", "done"].squeeze(-1)
        results += [loss.item(), *data["next", "episode_reward"][done].flatten().tolist()]
    collector.shutdown()
    return results


if __name__ == "__main__":
    print(main(seed=0))
