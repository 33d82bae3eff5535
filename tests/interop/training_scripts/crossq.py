"""CrossQ on two Pendulums: Q networks with batch renormalization and no target networks."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import Compose, GymEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, BatchRenorm1d, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import CrossQLoss

FRAMES, BATCH = 1000, 50


def make_network(in_features: int, out_features: int) -> MLP:
    return MLP(
        in_features,
        out_features,
        num_cells=[64, 64],
        activation_class=nn.ReLU,
        norm_class=BatchRenorm1d,
        norm_kwargs={"momentum": 0.01, "num_features": 64, "warmup_steps": 100},
    )


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("Pendulum-v1")), Compose(StepCounter(100), RewardSum()))
    env.set_seed(seed)
    spec = env.action_spec_unbatched

    actor = ProbabilisticActor(
        TensorDictModule(nn.Sequential(make_network(3, 2), NormalParamExtractor()), ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.full_action_spec_unbatched,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )
    qvalue = ValueOperator(make_network(4, 1), in_keys=["action", "observation"])

    collector = Collector(env, actor.eval(), frames_per_batch=BATCH, total_frames=FRAMES, init_random_frames=200)
    buffer = ReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=64)
    loss_module = CrossQLoss(actor, qvalue, num_qvalue_nets=2, action_spec=spec)
    loss_module.make_value_estimator(gamma=0.98)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3, betas=(0.5, 0.999))

    results = []
    for data in collector:
        buffer.extend(data.reshape(-1))
        actor.train()
        for _ in range(5):
            losses = loss_module(buffer.sample())
            loss = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        actor.eval()
        done = data["next", "done"]
        results += [loss.item(), *data["next", "episode_reward"][done].tolist()]
    collector.shutdown()
    return results


if __name__ == "__main__":
    print(main(seed=0))
