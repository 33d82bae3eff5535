"""PPO with TorchRL's collector, loss and advantages, on environments of vecrl or TorchRL: only an import differs."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from benchmarks.implementation import RunFactory

torch.set_num_threads(1)


def ppo(library: str, num_envs: int, frames: int, train: bool = True) -> RunFactory:
    """A unit collects `frames` frames and takes 16 optimizer steps on them (4 epochs of 4 minibatches)."""
    torch.manual_seed(0)
    envs = import_module(f"{library}.envs")
    env = envs.SerialEnv(num_envs, partial(envs.GymEnv, "CartPole-v1", categorical_action_encoding=True))
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(_mlp(2), in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        ),
    )
    critic = TensorDictModule(_mlp(1), in_keys=["observation"], out_keys=["state_value"])
    loss, advantage = ClipPPOLoss(actor, critic), GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    collector = Collector(env, actor, frames_per_batch=frames, total_frames=-1)
    batches = iter(collector)

    def run(units: int) -> None:
        for _ in range(units):
            batch = next(batches)
            if not train:
                continue
            with torch.no_grad():
                data = advantage(batch).reshape(-1)
            for _ in range(4):
                for rows in torch.randperm(len(data)).chunk(4):
                    values = loss(data[rows])
                    optimizer.zero_grad()
                    sum(value for name, value in values.items() if name.startswith("loss_")).backward()
                    optimizer.step()

    yield run
    collector.shutdown()


def _mlp(out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))
