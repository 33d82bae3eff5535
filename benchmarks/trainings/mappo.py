"""MAPPO of TorchRL's parts on a VMAS scenario, in TorchRL's environment and in vecrl's."""

from __future__ import annotations

from typing import Any

import torch
import torchrl.envs
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, TanhNormal
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import vecrl.envs

from .log import Log
from .torchrl import learn

WAYS = {"TorchRL VmasEnv": torchrl.envs.VmasEnv, "vecrl VmasEnv": vecrl.envs.VmasEnv}
REWARD, DONE, TERMINATED = ("agents", "reward"), ("agents", "done"), ("agents", "terminated")


class Actor(nn.Module):
    """The means and the deviations of the actions of each agent; all agents share the network."""

    def __init__(self, inputs: int, outputs: int, agents: int):
        super().__init__()
        options = {"centralized": False, "share_params": True, "num_cells": (64, 64)}
        self.network = MultiAgentMLP(inputs, 2 * outputs, agents, **options)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = self.network(obs).chunk(2, -1)
        return loc, nn.functional.softplus(scale) + 1e-3


def train(way: str, seed: int, log: Log, *, scenario: str, rows: int, total: int, steps: int, epochs: int = 10) -> None:
    """Trains for `total` steps of all rows, `steps` of each between two updates."""
    torch.manual_seed(seed)
    env: Any = WAYS[way](scenario, num_envs=rows, max_steps=100, seed=seed)
    env = (torchrl.envs if way.startswith("TorchRL") else vecrl.envs).TransformedEnv(env)
    observation, action = env.observation_spec["agents", "observation"], env.full_action_spec["agents", "action"]
    agents, inputs = observation.shape[-2:]
    module = TensorDictModule(
        Actor(inputs, action.shape[-1], agents),
        in_keys=[("agents", "observation")],
        out_keys=[("agents", "loc"), ("agents", "scale")],
    )
    actor = ProbabilisticActor(
        module,
        in_keys=[("agents", "loc"), ("agents", "scale")],
        out_keys=[("agents", "action")],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": action.space.low[0], "high": action.space.high[0]},
        return_log_prob=True,
    )
    critic = TensorDictModule(
        MultiAgentMLP(inputs, 1, agents, centralized=True, share_params=True, num_cells=(64, 64)),
        in_keys=[("agents", "observation")],
        out_keys=[("agents", "state_value")],
    )
    advantage = GAE(gamma=0.99, lmbda=0.9, value_network=critic)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_bonus=False, normalize_advantage=False)
    names = {"reward": REWARD, "done": DONE, "terminated": TERMINATED, "value": ("agents", "state_value")}
    advantage.set_keys(**names)
    loss.set_keys(**names, action=("agents", "action"))
    optimizer = torch.optim.Adam(loss.parameters(), 3e-4)
    env.reset()
    env.step_and_maybe_reset = log.timed(env.step_and_maybe_reset)  # which collectors call
    collector = Collector(
        env, actor, frames_per_batch=rows * steps, total_frames=total, auto_register_policy_transforms=False
    )
    log.start()
    for number, data in enumerate(collector, 1):
        log.add(number * rows * steps, float(data["next", "agents", "reward"].sum(1).mean()))
        shape = data["next", "agents", "reward"].shape
        for key in ("done", "terminated"):
            data["next", "agents", key] = data["next", key].unsqueeze(-1).expand(shape)
        with torch.no_grad():
            data = advantage(data).reshape(-1)
        learn(loss, optimizer, data, epochs=epochs, minibatches=4, norm=1.0)
    collector.shutdown()
