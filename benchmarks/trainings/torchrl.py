"""PPO of TorchRL's parts on its environments and on vecrl's, collected by its Collector, or by vecrl's workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import torch
import torchrl.envs
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torchrl.collectors import Collector
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import vecrl.envs
from vecrl.vector import RolloutWorkers

from .log import Log

ENVIRONMENTS = {
    "TorchRL SerialEnv": (torchrl.envs, "SerialEnv"),
    "TorchRL ParallelEnv": (torchrl.envs, "ParallelEnv"),
    "vecrl SerialEnv": (vecrl.envs, "SerialEnv"),
    "vecrl ParallelEnv": (vecrl.envs, "ParallelEnv"),
}
WORKERS = "vecrl, RolloutWorkers"


class Policy(nn.Module):
    """A Gaussian policy: the mean and the deviation."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.mean, self.log_std = network(inputs, outputs), nn.Parameter(torch.zeros(outputs))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(obs)
        return mean, self.log_std.exp().expand_as(mean)


class WorkerPolicy(nn.Module):
    """The same policy for workers, which also returns log-probabilities."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy

    @torch.no_grad()
    def forward(self, obs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        distribution = Independent(Normal(*self.policy(torch.as_tensor(obs, dtype=torch.float32))), 1)
        action = distribution.sample()
        return action, {"action_log_prob": distribution.log_prob(action)}


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def train(way: str, seed: int, log: Log, *, env: str, envs: int, total: int) -> None:
    """Trains for `total` frames, 2,048 between two updates."""
    torch.manual_seed(seed)
    with gymnasium.make(env) as one:
        inputs, outputs = one.observation_space.shape[0], one.action_space.shape[0]
    policy, critic_network = Policy(inputs, outputs), network(inputs, 1)
    critic = TensorDictModule(critic_network, in_keys=["observation"], out_keys=["state_value"])
    module = TensorDictModule(policy, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(module, in_keys=["loc", "scale"], distribution_class=_independent, return_log_prob=True)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_bonus=False, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)
    steps, batches = 0, _batches(way, seed, log, env, envs, total, actor, policy)
    next(batches)  # makes the environments ready
    log.start()
    for data in batches:
        steps += data.numel()
        log.add(steps, 1000 * float(data["next", "reward"].mean()))
        learn(loss, optimizer, advantage(data).reshape(-1), epochs=10, minibatches=32, norm=0.5)


def learn(loss: Any, optimizer: Any, data: Any, *, epochs: int, minibatches: int, norm: float) -> None:
    """Minimizes a PPO loss over minibatches, with gradients of at most this norm."""
    for _ in range(epochs):
        for rows in torch.randperm(len(data)).chunk(minibatches):
            losses = loss(data[rows])
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"]).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), norm)
            optimizer.step()


def _independent(loc: Tensor, scale: Tensor) -> Any:
    return Independent(Normal(loc, scale), 1)


def _batches(
    way: str, seed: int, log: Log, env: str, envs: int, total: int, actor: Any, policy: Policy
) -> Iterator[Any]:
    """Yields None when the environments are ready, and then batches of 2,048 frames."""
    if way == WORKERS:
        worker_policy = WorkerPolicy(policy)
        make = [partial(gymnasium.make, env)] * envs
        with RolloutWorkers(make, worker_policy, num_workers=2, seed=seed) as workers:
            rollout = log.timed(workers.rollout)
            yield None
            for _ in range(total // 2048):
                data = rollout(2048 // envs, worker_policy.state_dict()).to_tensordict()
                for part in (data, data["next"]):
                    part["observation"] = part["observation"].float()
                yield data
        return
    library, cls = ENVIRONMENTS[way]
    made: Any = getattr(library, cls)(envs, partial(library.GymEnv, env))
    made = library.TransformedEnv(made, library.DoubleToFloat())
    yield from collect(made, actor, seed, log, 2048, total)


def collect(env: Any, actor: Any, seed: int, log: Log, batch: int, total: int) -> Iterator[Any]:
    """Yields None when the environment is ready, and then the batches of a Collector, of which it logs the time."""
    env.set_seed(seed)
    env.reset()
    yield None
    collector = Collector(env, actor, frames_per_batch=batch, total_frames=total, auto_register_policy_transforms=False)
    batches, advance = iter(collector), log.timed(next)
    while (data := advance(batches, None)) is not None:
        yield data
    collector.shutdown()
