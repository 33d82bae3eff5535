"""Agents that learn to meet: observations, rewards and actions for each agent, one done flag for all."""

from __future__ import annotations

import argparse

import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, check_env_specs
from vecrl.specs import Bounded, Composite, Unbounded


class Meeting(EnvBase):
    """A batch of games with points on a plane. Each agent observes the vector to the center of all agents, moves, and
    gets a higher reward the nearer it is. The game ends after 20 steps."""

    def __init__(self, games: int, agents: int = 3):
        super().__init__(batch_size=[games])
        shape = (games, agents)
        group = lambda **leaves: Composite(agents=Composite(leaves, shape=shape), shape=shape[:1])  # noqa: E731
        self.observation_spec = group(observation=Unbounded((*shape, 2)))
        self.full_action_spec = group(action=Bounded(-1, 1, (*shape, 2)))
        self.full_reward_spec = group(reward=Unbounded((*shape, 1)))
        self.full_done_spec = Composite(done=Bounded(0, 1, (games, 1), dtype=torch.bool), shape=shape[:1])
        self.shape_of_all = shape
        self.random = torch.Generator()

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        self.place = 4 * torch.rand(*self.shape_of_all, 2, generator=self.random) - 2
        self.step_count = 0
        return self.seen()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.place = self.place + 0.2 * tensordict["agents", "action"].clamp(-1, 1)
        self.step_count += 1
        data = self.seen()
        data["agents", "reward"] = -data["agents", "observation"].norm(dim=-1, keepdim=True)
        return data.set("done", torch.full((*self.batch_size, 1), self.step_count >= 20))

    def seen(self) -> TensorDict:
        """Returns the vectors from the agents to their center."""
        away = self.place.mean(-2, keepdim=True) - self.place
        return TensorDict({"agents": TensorDict({"observation": away}, self.shape_of_all)}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self.random.manual_seed(seed or 0)


def main() -> None:
    """Runs a random search over one linear policy that all agents share; all trials have the same seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--trials", type=int, default=30)
    args = parser.parse_args()

    env = Meeting(args.games)
    check_env_specs(env)
    torch.manual_seed(0)
    best, best_return = torch.zeros(2, 2), -torch.inf
    for trial in range(args.trials):
        weights = best + torch.randn(2, 2)

        def policy(td: TensorDictBase, weights: torch.Tensor = weights) -> TensorDictBase:
            return td.set(env.action_key, (td["agents", "observation"] @ weights).clamp(-1, 1))

        env.set_seed(1)
        rollout = env.rollout(20, policy)
        mean = rollout["next", "agents", "reward"].sum(1).mean().item()
        if mean > best_return:
            best, best_return = weights, mean
            print(f"trial {trial}: mean return of an agent {mean:.2f}")


if __name__ == "__main__":
    main()
