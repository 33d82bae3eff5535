"""TorchRL's own collectors and losses over environments of vecrl, where TorchRL is installed: a test environment
of its own (`make test-neighbours`)."""

from functools import partial

import pytest
import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, RandomPolicy, SerialEnv
from vecrl.envs.transforms import Compose, RewardSum, StepCounter, TransformedEnv

pytestmark = [pytest.mark.torchrl, pytest.mark.filterwarnings("ignore")]


def make(kind: str) -> EnvBase:
    one = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
    base = {"single": one, "serial": lambda: SerialEnv(2, one), "parallel": lambda: ParallelEnv(2, one)}[kind]()
    return TransformedEnv(base, Compose(StepCounter(), RewardSum()))


def actor() -> ProbabilisticTensorDictSequential:
    logits = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    drawn = ProbabilisticTensorDictModule(
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    return ProbabilisticTensorDictSequential(logits, drawn)


@pytest.mark.parametrize("kind", ["single", "serial", "parallel"])
@pytest.mark.parametrize("random", [True, False])
def test_collectors(kind: str, random: bool) -> None:
    from torchrl.collectors import Collector

    env = make(kind)
    policy = RandomPolicy(env.full_action_spec) if random else actor()
    collector = Collector(lambda: env, policy, frames_per_batch=60, total_frames=120)
    batches = list(collector)
    collector.shutdown()
    assert [data.numel() for data in batches] == [60, 60]
    data = batches[1]
    following, root = data[..., :-1]["next"], data[..., 1:]
    goes_on = ~following["done"].squeeze(-1)
    assert root["observation"][goes_on].equal(following["observation"][goes_on])
    assert root["step_count"][~goes_on].eq(0).all()
    assert data["next", "episode_reward"].equal(data["next", "step_count"].float())


def test_losses() -> None:
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    env, policy = make("serial"), actor()
    critic = TensorDictModule(nn.Linear(4, 1), in_keys=["observation"], out_keys=["state_value"])
    data = env.rollout(40, policy, break_when_any_done=False)
    GAE(gamma=0.99, lmbda=0.95, value_network=critic)(data)
    losses = ClipPPOLoss(policy, critic)(data.reshape(-1).detach())
    total = sum(value for key, value in losses.items() if key.startswith("loss_"))
    total.backward()
    assert all(weight.grad is not None for weight in policy.parameters())
    env.close()
