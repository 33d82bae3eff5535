"""DDPG on Pendulum without a collector: a loop of `step` and `step_mdp`, and Ornstein-Uhlenbeck noise."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, InitTracker, RewardScaling, StepCounter, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.envs.utils import step_mdp
from torchrl.modules import MLP, OrnsteinUhlenbeckProcessModule, TanhModule, ValueOperator
from torchrl.objectives import DDPGLoss, SoftUpdate

EPISODES, STEPS = 5, 200


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(
        GymEnv("Pendulum-v1", frame_skip=1),
        Compose(InitTracker(), StepCounter(max_steps=STEPS), RewardScaling(loc=0.0, scale=0.1)),
    )
    env.set_seed(seed)

    network = MLP(3, 1, num_cells=[64, 64], activation_class=nn.ReLU)
    actor = TensorDictSequential(
        TensorDictModule(network, in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=env.full_action_spec["action"]),
    )
    noise = OrnsteinUhlenbeckProcessModule(spec=env.action_spec, annealing_num_steps=EPISODES * STEPS)
    policy = TensorDictSequential(actor, noise)
    qvalue = ValueOperator(MLP(4, 1, num_cells=[64, 64], activation_class=nn.ReLU), in_keys=["observation", "action"])

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(EPISODES * STEPS), batch_size=64)
    loss_module = DDPGLoss(actor, qvalue, delay_actor=True, delay_value=True)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, eps=0.98)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for _ in range(EPISODES):
        state, episode_return, done = env.reset(), 0.0, False
        while not done:
            with torch.no_grad():
                transition = env.step(policy(state))
            buffer.add(transition)
            noise.step(1)
            episode_return += transition["next", "reward"].item()
            done = transition["next", "done"].item()
            state = step_mdp(transition)
            if len(buffer) < 64 or len(buffer) % 4:
                continue
            losses = loss_module(buffer.sample())
            optimizer.zero_grad()
            (losses["loss_actor"] + losses["loss_value"]).backward()
            optimizer.step()
            target_update.step()
        results += [losses["loss_value"].item(), episode_return]
    return results


if __name__ == "__main__":
    print(main(seed=0))
