"""A world model of Pendulum, and an actor that learns from rollouts within it, by gradients through the model."""

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.tensor_specs import Bounded, Composite, Unbounded
from torchrl.envs import Compose, DoubleToFloat, GymEnv, ModelBasedEnvBase, StepCounter, TransformedEnv
from torchrl.modules import MLP, WorldModelWrapper

STEPS, ROUNDS, HORIZON, ROWS = 100, 4, 6, 16


class Imagined(ModelBasedEnvBase):
    """Begins in observations that were seen."""

    def __init__(self, model: WorldModelWrapper, buffer: TensorDictReplayBuffer):
        super().__init__(model, batch_size=torch.Size([ROWS]))
        self.buffer = buffer
        self.observation_spec = Composite(observation=Unbounded((ROWS, 3)), shape=(ROWS,))
        self.state_spec = Composite(observation=Unbounded((ROWS, 3)), shape=(ROWS,))
        self.action_spec = Bounded(-2.0, 2.0, (ROWS, 1))
        self.reward_spec = Unbounded((ROWS, 1))

    def _reset(self, tensordict: TensorDictBase, **kwargs: object) -> TensorDictBase:
        seen = self.buffer.sample(ROWS).select("observation")
        return self.full_done_spec.zero().update(seen)


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(DoubleToFloat(), StepCounter()))
    env.set_seed(seed)
    transition = MLP(in_features=4, out_features=3, num_cells=[48], activation_class=nn.Tanh)
    reward = MLP(in_features=4, out_features=1, num_cells=[48], activation_class=nn.Tanh)
    model = WorldModelWrapper(
        TensorDictModule(transition, in_keys=["observation", "action"], out_keys=["observation"]),
        TensorDictModule(reward, in_keys=["observation", "action"], out_keys=["reward"]),
    )
    head = nn.Sequential(MLP(in_features=3, out_features=1, num_cells=[32], activation_class=nn.Tanh), nn.Tanh())
    raw = TensorDictModule(head, in_keys=["observation"], out_keys=["raw_action"])
    actor = TensorDictSequential(raw, TensorDictModule(lambda x: 2 * x, in_keys=["raw_action"], out_keys=["action"]))
    noisy = TensorDictSequential(
        raw,
        TensorDictModule(
            lambda x: (2 * x + 0.5 * torch.randn_like(x)).clamp(-2, 2), in_keys=["raw_action"], out_keys=["action"]
        ),
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(STEPS * ROUNDS), batch_size=64)
    imagined = Imagined(model, buffer)
    model_optimizer = torch.optim.Adam([*transition.parameters(), *reward.parameters()], lr=2e-3)
    actor_optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)

    results = []
    for _ in range(ROUNDS):
        with torch.no_grad():
            data = env.rollout(STEPS, noisy, break_when_any_done=False)
        buffer.extend(data.select("observation", "action", ("next", "observation"), ("next", "reward")))
        for _ in range(20):
            batch = buffer.sample()
            after = transition(batch["observation"], batch["action"])
            model_loss = (after - batch["next", "observation"]).square().mean()
            guess = reward(batch["observation"], batch["action"])
            model_loss = model_loss + 0.1 * (guess - batch["next", "reward"]).square().mean()
            model_optimizer.zero_grad()
            model_loss.backward()
            model_optimizer.step()
        for _ in range(5):
            dream = imagined.rollout(HORIZON, actor, auto_cast_to_device=False)
            actor_loss = -dream["next", "reward"].sum(1).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
        results += [model_loss.item(), actor_loss.item(), data["next", "reward"].mean().item()]
    return results


if __name__ == "__main__":
    print(main(seed=0))
