"""A world model of CartPole, learned from random actions and used to plan: `python examples/world_model.py`."""

from __future__ import annotations

import argparse

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.nn import functional

from vecrl.envs import EnvBase, ModelBasedEnvBase, NativeEnv
from vecrl.envs.model_based import WorldModelWrapper


class Dynamics(nn.Module):
    """Predicts the next observation."""

    def __init__(self, size: int, actions: int):
        super().__init__()
        self.change = _mlp(size + actions, size)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return obs + self.change(torch.cat([obs, action.to(obs.dtype)], -1))


class Survival(nn.Module):
    """Predicts the probability that the episode goes on: the reward of a step in imagination."""

    def __init__(self, size: int):
        super().__init__()
        self.logit = _mlp(size, 1)

    def forward(self, obs: Tensor) -> Tensor:
        return self.logit(obs).sigmoid()


class ImaginedCartPole(ModelBasedEnvBase):
    """Steps by the world model, from observations that the caller gives to `reset`."""

    def __init__(self, model: WorldModelWrapper, batch_size: tuple[int, ...]):
        super().__init__(model, batch_size=batch_size)
        self.set_specs_from_env(NativeEnv("CartPole-v1", batch_size=batch_size))
        self.state_spec = self.observation_spec.clone()

    def _reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.select("observation")


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, outputs))


def learn(model: WorldModelWrapper, data: TensorDictBase, updates: int) -> None:
    """Fits the model to steps of the environment, in minibatches."""
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    dynamics, survival = model.get_transition_model_operator().module, model.get_reward_operator().module
    for update in range(1, updates + 1):
        batch = data[torch.randint(len(data), (256,))]
        next_obs = batch["next", "observation"]
        change_error = dynamics(batch["observation"], batch["action"]) - next_obs
        end_error = functional.binary_cross_entropy_with_logits(
            survival.logit(next_obs), (~batch["next", "terminated"]).float()
        )
        loss = 100 * change_error.square().mean() + end_error
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % max(updates // 5, 1) == 0:
            print(f"update {update}: error {change_error.square().mean():.1e}, of ends {end_error:.3f}", flush=True)


@torch.no_grad()
def plan(imagined: EnvBase, obs: Tensor, horizon: int, iterations: int = 3) -> Tensor:
    """Returns the next action of each row of `obs`, by the cross-entropy method over sequences of actions.

    All candidates of all rows are one batch of the world model.
    """
    rows, candidates = imagined.batch_size
    push_right = torch.full((rows, 1, horizon), 0.5)  # the probability of the second action at each time
    for _ in range(iterations):
        choices = torch.bernoulli(push_right.expand(rows, candidates, horizon)).long()
        start = TensorDict({"observation": obs[:, None].expand(rows, candidates, -1)}, [rows, candidates])
        rollout = imagined.rollout(horizon, actions=functional.one_hot(choices, 2), tensordict=start)
        survived = rollout["next", "reward"].squeeze(-1).cumprod(-1).sum(-1)
        centered = -rollout["next", "observation"][..., [0, 2]].square().sum((-1, -2))
        best = (survived + 0.1 * centered).topk(candidates // 8, 1).indices
        elites = choices.gather(1, best[..., None].expand(-1, -1, horizon))
        push_right = elites.float().mean(1, keepdim=True).clamp(0.05, 0.95)
    return functional.one_hot((push_right[:, 0, 0] > 0.5).long(), 2)


def mean_return(env: EnvBase, steps: int, policy: object = None) -> float:
    """Returns the mean number of steps that the first episode of each row lasts, up to `steps`."""
    played = env.rollout(steps, policy, break_when_all_done=True)
    is_first = played["next", "done"].cumsum(1) - played["next", "done"].long() == 0
    return float((played["next", "reward"] * is_first).sum(1).mean())


def main() -> None:
    """Learns the model, plans with it, and prints the mean return beside that of random actions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=16, help="environments in which the planner acts at the same time")
    parser.add_argument("--data", type=int, default=20_000, help="steps with random actions to learn from")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--horizon", type=int, default=15, help="steps to plan ahead")
    parser.add_argument("--candidates", type=int, default=64, help="sequences of actions of each plan")
    parser.add_argument("--steps", type=int, default=200, help="longest episode of the test")
    options = parser.parse_args()

    torch.manual_seed(0)
    collector = NativeEnv("CartPole-v1", num_envs=64)
    data = collector.rollout(options.data // 64, break_when_any_done=False).reshape(-1)
    dynamics = TensorDictModule(Dynamics(4, 2), ["observation", "action"], ["observation"])
    model = WorldModelWrapper(dynamics, TensorDictModule(Survival(4), ["observation"], ["reward"]))
    learn(model, data, options.updates)

    env = NativeEnv("CartPole-v1", num_envs=options.envs)
    env.set_seed(1)
    imagined = ImaginedCartPole(model, (options.envs, options.candidates))

    def planner(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", plan(imagined, td["observation"], options.horizon))

    random_return = mean_return(env, options.steps)
    planned_return = mean_return(env, options.steps, planner)
    print(f"mean return of {options.envs} episodes: random {random_return:.1f}, planned {planned_return:.1f}")


if __name__ == "__main__":
    main()
