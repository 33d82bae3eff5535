"""REDQ on Pendulum: an ensemble of Q networks, of which a random pair gives each target."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ClipTransform, Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import REDQLoss, SoftUpdate

FRAMES, BATCH = 800, 50


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(StepCounter(100), RewardSum(), ClipTransform(in_keys=["observation"], low=-5.0, high=5.0)),
    )
    env.set_seed(seed)
    spec = env.action_spec

    network = nn.Sequential(MLP(3, 2, num_cells=[64, 64], activation_class=nn.ReLU), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )
    qvalue = ValueOperator(MLP(4, 1, num_cells=[64, 64], activation_class=nn.ReLU), in_keys=["action", "observation"])

    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=FRAMES, init_random_frames=200)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=64)
    loss_module = REDQLoss(actor, qvalue, num_qvalue_nets=4, sub_sample_len=2, action_spec=spec)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, tau=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for data in collector:
        buffer.extend(data)
        for _ in range(8):
            losses = loss_module(buffer.sample())
            loss = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_update.step()
        done = data["next", "done"]
        results += [loss.item(), *data["next", "episode_reward"][done].tolist()]
    collector.shutdown()
    return results


if __name__ == "__main__":
    print(main(seed=0))
