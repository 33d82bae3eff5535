"""MAPPO on three agents that must meet on a line: groups, sums of the rewards of agents, a critic that sees all."""

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.data.tensor_specs import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import Compose, EnvBase, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, TanhNormal
from torchrl.objectives import ClipPPOLoss, ValueEstimators

AGENTS, FRAMES, BATCH, EPOCHS = 3, 480, 160, 3


class Meeting(EnvBase):
    """Each agent sees its own position and those of all; its reward is minus the distance from their mean."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(
            agents=Composite(observation=Unbounded((AGENTS, AGENTS + 1)), shape=(AGENTS,))
        )
        self.full_action_spec = Composite(agents=Composite(action=Bounded(-1, 1, (AGENTS, 1)), shape=(AGENTS,)))
        self.full_reward_spec = Composite(agents=Composite(reward=Unbounded((AGENTS, 1)), shape=(AGENTS,)))
        self.full_done_spec = Composite(
            done=Categorical(2, (1,), dtype=torch.bool), terminated=Categorical(2, (1,), dtype=torch.bool)
        )
        self.generator = torch.Generator()

    def _observe(self, **entries):
        seen = torch.cat([self.positions, self.positions.T.expand(AGENTS, AGENTS)], -1)
        done = (self.positions.abs() > 5).any().reshape(1)
        agents = TensorDict({"observation": seen, **entries}, [AGENTS])
        return TensorDict({"agents": agents, "done": done, "terminated": done.clone()})

    def _reset(self, tensordict=None, **kwargs):
        self.positions = torch.rand(AGENTS, 1, generator=self.generator) * 4 - 2
        return self._observe()

    def _step(self, tensordict):
        self.positions = self.positions + tensordict["agents", "action"] * 0.5
        return self._observe(reward=-(self.positions - self.positions.mean()).abs())

    def _set_seed(self, seed):
        self.generator.manual_seed(seed)


def make_env():
    reward_sum = RewardSum(in_keys=[("agents", "reward")], out_keys=[("agents", "episode_reward")])
    return TransformedEnv(SerialEnv(2, Meeting), Compose(reward_sum, StepCounter(20)))


def make_network(outputs: int, centralised: bool) -> MultiAgentMLP:
    return MultiAgentMLP(
        AGENTS + 1, outputs, AGENTS, centralized=centralised, share_params=True, depth=1, num_cells=32,
        activation_class=nn.Tanh,
    )  # fmt: skip


def main(seed: int) -> list[float]:
    env = make_env()
    env.set_seed(seed)
    torch.manual_seed(seed)
    network = nn.Sequential(make_network(2, False), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, [("agents", "observation")], [("agents", "loc"), ("agents", "scale")]),
        spec=env.full_action_spec_unbatched,
        in_keys=[("agents", "loc"), ("agents", "scale")],
        out_keys=[("agents", "action")],
        distribution_class=TanhNormal,
        return_log_prob=True,
        log_prob_key=("agents", "sample_log_prob"),
    )
    critic = TensorDictModule(make_network(1, True), [("agents", "observation")], [("agents", "state_value")])
    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=FRAMES)
    loss_module = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=1e-3, normalize_advantage=False)
    loss_module.set_keys(
        reward=("agents", "reward"),
        action=("agents", "action"),
        sample_log_prob=("agents", "sample_log_prob"),
        value=("agents", "state_value"),
        done=("agents", "done"),
        terminated=("agents", "terminated"),
    )
    loss_module.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.9)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(BATCH), sampler=SamplerWithoutReplacement(), batch_size=40)

    results = []
    for data in collector:
        shape = data["next", "agents", "reward"].shape
        for flag in ("done", "terminated"):
            data["next", "agents", flag] = data["next", flag].unsqueeze(-1).expand(shape)
        with torch.no_grad():
            loss_module.value_estimator(
                data, params=loss_module.critic_network_params, target_params=loss_module.target_critic_network_params
            )
        buffer.extend(data.reshape(-1))
        for _ in range(EPOCHS):
            for sample in buffer:
                losses = loss_module(sample)
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        collector.update_policy_weights_()
        done = data["next", "agents", "done"]
        results += [loss.item(), data["next", "agents", "episode_reward"][done].mean().item()]
    collector.shutdown()
    return results
