"""A custom environment: a batch of walkers on a line that should stay near the origin, on any device."""

import argparse

import torch
from tensordict import TensorDict

from vecrl.envs import EnvBase, check_env_specs
from vecrl.specs import Bounded, Composite, Unbounded


class Walk(EnvBase):
    def __init__(self, walkers: int, device: str = "cpu"):
        super().__init__(batch_size=[walkers], device=device)
        self.observation_spec = Composite(position=Unbounded((walkers, 1)), shape=self.batch_size)
        self.action_spec = Bounded(-1, 1, (walkers, 1))
        self.reward_spec = Unbounded((*self.batch_size, 1))

    def _reset(self, tensordict=None):
        return TensorDict({"position": torch.zeros(*self.batch_size, 1)}, self.batch_size, device=self.device)

    def _step(self, tensordict):
        position = tensordict["position"] + tensordict["action"]
        next_td = {"position": position, "reward": -position.abs(), "done": position.abs() > 3}
        return TensorDict(next_td, self.batch_size, device=self.device)

    def _set_seed(self, seed): ...


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walkers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    env = Walk(args.walkers)
    check_env_specs(env)
    home = env.rollout(args.steps, lambda position: -position.clamp(-1, 1))
    lost = env.rollout(args.steps, break_when_any_done=False)  # random steps; walkers that are too far away are reset
    print(f"return going home: {home['next', 'reward'].sum(-2).mean():.1f}")
    print(f"return at random: {lost['next', 'reward'].sum(-2).mean():.1f}, {int(lost['next', 'done'].sum())} ends")
