"""TD3 on Pendulum: deterministic actor, Gaussian exploration, delayed updates of the actor and multi-step returns."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import CatTensors, Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss

FRAMES, BATCH = 1000, 50


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(StepCounter(max_steps=100), RewardSum(), CatTensors(in_keys=["observation"], out_key="state")),
    )
    env.set_seed(seed)
    spec = env.action_spec

    network = MLP(3, 1, num_cells=[64, 64], activation_class=nn.ReLU)
    actor = TensorDictSequential(
        TensorDictModule(network, in_keys=["state"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=spec),
    )
    qvalue = ValueOperator(MLP(4, 1, num_cells=[64, 64], activation_class=nn.ReLU), in_keys=["action", "state"])
    noise = AdditiveGaussianModule(spec=spec, sigma_init=0.5, sigma_end=0.1, annealing_num_steps=FRAMES)
    policy = TensorDictSequential(actor, noise)

    collector = Collector(env, policy, frames_per_batch=BATCH, total_frames=FRAMES, init_random_frames=200)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=64)
    loss_module = TD3Loss(actor, qvalue, action_spec=spec, num_qvalue_nets=2, policy_noise=0.2)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, eps=0.99)
    actor_optimizer = torch.optim.Adam(loss_module.actor_network_params.flatten_keys().values(), lr=1e-3)
    qvalue_optimizer = torch.optim.Adam(loss_module.qvalue_network_params.flatten_keys().values(), lr=1e-3)

    results = []
    for data in collector:
        buffer.extend(data)
        noise.step(data.numel())
        for update in range(6):
            sample = buffer.sample()
            loss = loss_module(sample)["loss_qvalue"]
            qvalue_optimizer.zero_grad()
            loss.backward()
            qvalue_optimizer.step()
            if update % 2:
                actor_optimizer.zero_grad()
                loss_module(sample)["loss_actor"].backward()
                actor_optimizer.step()
                target_update.step()
        done = data["next", "done"]
        results += [loss.item(), *data["next", "episode_reward"][done].tolist()]
    collector.shutdown()
    return results


if __name__ == "__main__":
    print(main(seed=0))
