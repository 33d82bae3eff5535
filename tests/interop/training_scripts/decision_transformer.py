"""A decision transformer on stored Pendulum episodes: returns to go, targets, stacked steps, parts of a Compose."""

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import (
    CatFrames,
    Compose,
    DoubleToFloat,
    GymEnv,
    InitTracker,
    ObservationNorm,
    Reward2GoTransform,
    RewardScaling,
    RewardSum,
    StepCounter,
    TargetReturn,
    TransformedEnv,
    UnsqueezeTransform,
)

EPISODES, STEPS, CONTEXT, UPDATES = 6, 40, 5, 40


class Network(nn.Module):
    """Predicts the action of each step from returns to go, observations and earlier actions."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(32, 1), nn.Tanh())

    def forward(self, observation, action, return_to_go):
        earlier = torch.cat([torch.zeros_like(action[..., :1, :]), action[..., :-1, :]], -2)
        tokens = self.embed(torch.cat([observation, earlier, return_to_go], -1))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[-2])
        flat = tokens.reshape(-1, *tokens.shape[-2:])
        return 2 * self.head(self.encoder(flat, mask=mask, is_causal=True).reshape(tokens.shape))


def collect(seed: int):
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(STEPS), RewardSum()))
    env.set_seed(seed)
    torch.manual_seed(seed)
    return torch.stack([env.rollout(STEPS) for _ in range(EPISODES)])


def make_buffer(data) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(EPISODES), sampler=SamplerWithoutReplacement(), batch_size=EPISODES
    )
    transforms = Compose(
        RewardScaling(loc=0.0, scale=0.01, in_keys=[("next", "reward")], out_keys=["scaled_reward"]),
        ObservationNorm(loc=0.0, scale=0.5, in_keys=["observation"]),
        DoubleToFloat(in_keys=["observation"]),
    )
    for transform in transforms:
        buffer.append_transform(transform)
    buffer.extend(Reward2GoTransform(in_keys=[("next", "reward")], out_keys=["return_to_go"]).inv(data))
    return buffer


def make_test_env(target: float) -> TransformedEnv:
    return TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(
            InitTracker(),
            TargetReturn(target, out_keys=["return_to_go"]),
            ObservationNorm(loc=0.0, scale=0.5, in_keys=["observation"]),
            UnsqueezeTransform(-2, in_keys=["observation", "return_to_go"], out_keys=["seen", "wanted"]),
            CatFrames(CONTEXT, -2, in_keys=["seen", "wanted"], padding="constant"),
        ),
    )


def main(seed: int) -> list[float]:
    data = collect(seed)
    buffer = make_buffer(data)
    network = Network()
    policy = TensorDictModule(network, ["observation", "action", "return_to_go"], ["predicted"])
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    results = [data["next", "episode_reward"][:, -1].mean().item()]
    for _ in range(UPDATES):
        for sample in buffer:
            loss = (policy(sample)["predicted"] - sample["action"]).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            results.append(loss.item())

    env = make_test_env(-200.0)

    def act(seen, wanted):
        return network(seen, torch.zeros_like(wanted), wanted)[..., -1, :]

    env.set_seed(seed)
    with torch.no_grad():
        played = env.rollout(STEPS, TensorDictModule(act, ["seen", "wanted"], ["action"]))
    results += [played["next", "reward"].sum().item(), played["next", "return_to_go"][-1].sum().item()]
    return results
