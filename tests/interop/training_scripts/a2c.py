"""A2C on two CartPoles in a ParallelEnv: a categorical policy and GAE on short batches."""

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import OneHotCategorical
from torchrl.collectors import Collector
from torchrl.envs import Compose, EnvCreator, ParallelEnv, RewardScaling, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.envs.utils import check_env_specs
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss
from torchrl.objectives.value import GAE

FRAMES, BATCH = 2000, 100


def make_env() -> TransformedEnv:
    return TransformedEnv(GymEnv("CartPole-v1"), RewardScaling(loc=0.0, scale=0.1))


def main(seed: int) -> list[float]:
    env = TransformedEnv(ParallelEnv(2, EnvCreator(make_env)), Compose(StepCounter(max_steps=200), RewardSum()))
    check_env_specs(env)
    env.set_seed(seed)
    torch.manual_seed(seed)

    logits = MLP(in_features=4, out_features=env.action_spec.shape[-1], num_cells=[64, 64])
    actor = ProbabilisticActor(
        TensorDictModule(logits, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        out_keys=["action"],
        spec=env.full_action_spec_unbatched,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[64, 64]), in_keys=["observation"])
    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=FRAMES)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_module = A2CLoss(actor, critic, entropy_coeff=0.01, critic_coeff=0.5, loss_critic_type="l2")
    optimizer = torch.optim.RMSprop(loss_module.parameters(), lr=2e-3)

    results = []
    for data in collector:
        advantage(data)
        losses = loss_module(data)
        loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = data["next", "done"]
        results += [loss.item(), *data["next", "episode_reward"][done].tolist()]
    collector.shutdown()
    if not env.is_closed:
        env.close()
    return results


if __name__ == "__main__":
    print(main(seed=0))
