"""DQN with an LSTM on CartPole: the LSTM's own primer puts its memory into the environment's TensorDicts."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, RewardScaling, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, LSTMModule, QValueModule, set_recurrent_mode
from torchrl.objectives import DQNLoss, SoftUpdate

FRAMES, LENGTH = 1000, 50


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(
        GymEnv("CartPole-v1"),
        Compose(InitTracker(), StepCounter(), RewardSum(), RewardScaling(loc=0.0, scale=0.1)),
    )
    lstm = LSTMModule(input_size=4, hidden_size=32, in_key="observation", out_key="embedding")
    env.append_transform(lstm.make_tensordict_primer())
    env.set_seed(seed)

    values = MLP(in_features=32, out_features=env.action_spec.shape[-1], num_cells=[32])
    actor = TensorDictSequential(
        lstm,
        TensorDictModule(values, in_keys=["embedding"], out_keys=["action_value"]),
        QValueModule(spec=env.action_spec),
    )
    explore = EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.05, annealing_num_steps=FRAMES)
    policy = TensorDictSequential(actor, explore)

    collector = Collector(env, policy, frames_per_batch=LENGTH, total_frames=FRAMES)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES // LENGTH), batch_size=4, prefetch=None)
    loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, tau=0.05)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=2e-3)

    results = []
    for data in collector:
        buffer.extend(data.unsqueeze(0).to_tensordict())
        explore.step(data.numel())
        with set_recurrent_mode(True):
            for _ in range(2):
                loss = loss_module(buffer.sample())["loss"]
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
                optimizer.step()
                target_update.step()
        done = data["next", "done"].squeeze(-1)
        memory = data["next", "recurrent_state_h"].abs().mean()
        results += [loss.item(), memory.item(), *data["next", "episode_reward"][done].flatten().tolist()]
    collector.shutdown()
    return results


if __name__ == "__main__":
    print(main(seed=0))
