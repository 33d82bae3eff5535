"""Learns CartPole without velocities from stored trajectories: `python examples/offline_recurrent.py`.

A noisy controller, which sees the velocities, fills a buffer on disk. A recurrent Q-network, which does not, learns
from the buffer alone: with returns over several steps, and with states that are burnt in.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from vecrl.envs import NativeEnv
from vecrl.envs.transforms import (
    BurnInTransform,
    Compose,
    InitTracker,
    MultiStepTransform,
    RandomCropTensorDict,
    TensorDictPrimer,
    TransformedEnv,
)
from vecrl.specs import Unbounded

HIDDEN = 32


class RecurrentQ(nn.Module):
    """A GRU with action values, over sequences `[batch, time]`. Its state is zero at the start of each episode."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, HIDDEN)
        self.head = nn.Sequential(nn.Linear(HIDDEN, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, observation: Tensor, is_init: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        state, states = hidden[:, 0], []
        positions = observation[..., [0, 2]] * torch.tensor([2.0, 20.0])  # of the cart and the pole, without velocities
        for position, first in zip(positions.unbind(1), is_init.unbind(1), strict=True):
            state = self.cell(position, state * ~first)
            states.append(state)
        hiddens = torch.stack(states, 1)
        return self.head(hiddens), hiddens


def as_module(network: RecurrentQ) -> TensorDictModule:
    return TensorDictModule(
        network, in_keys=["observation", "is_init", "hidden"], out_keys=["values", ("next", "hidden")]
    )


def make_env(rows: int) -> TransformedEnv:
    hidden = TensorDictPrimer(hidden=Unbounded((HIDDEN,)))
    env = NativeEnv("CartPole-v1", num_envs=rows, categorical_action_encoding=True)
    return TransformedEnv(env, Compose(InitTracker(), hidden))


def noisy_controller(td: TensorDictBase) -> TensorDictBase:
    """Pushes the cart to where the pole falls, and in a share of the steps, different in each row, at random."""
    observation = td["observation"]
    action = (observation[..., 2] + 0.3 * observation[..., 3] > 0).long()
    at_random = torch.rand(action.shape) < torch.linspace(0.2, 1.0, len(action))
    return td.set("action", torch.where(at_random, torch.randint_like(action, 2), action))


def greedy(network: RecurrentQ) -> Any:
    """Returns the policy with the highest values. It keeps its state under "hidden"."""
    module = as_module(network)

    def act(td: TensorDictBase) -> TensorDictBase:
        step = module(td.select(*module.in_keys).unsqueeze(1)).squeeze(1)
        return td.update({"action": step["values"].argmax(-1), "next": {"hidden": step["next", "hidden"]}})

    return act


@torch.no_grad()
def mean_return(policy: Any, rows: int = 32) -> float:
    """Returns the mean length of one episode of each row, which is its return."""
    env = make_env(rows)
    env.set_seed(1)
    rollout = env.rollout(500, policy, break_when_any_done=False, break_when_all_done=False)
    alive = (~rollout["next", "done"].squeeze(-1)).cumprod(-1)
    return float((alive.sum(-1) + 1).clamp(max=500).float().mean())


def store(path: str, rows: int, steps: int, n_steps: int, gamma: float) -> tuple[TensorDictBase, float]:
    """Writes trajectories `[rows, time]` of the controller with returns over `n_steps` to disk. Returns them."""
    env = make_env(rows)
    env.set_seed(0)
    rollout = env.rollout(steps, noisy_controller, break_when_any_done=False)
    multi_step = MultiStepTransform(n_steps, gamma, done_keys=[])  # flags are those of the last step of a sum
    return multi_step.inv(rollout).memmap_(path), mean_return(noisy_controller)


def loss_of(batch: TensorDictBase, module: TensorDictModule, target: TensorDictModule, n_steps: int) -> Tensor:
    """Returns the loss of double Q-learning. The state of the next observation is that of the later step."""
    values = module(batch.copy())["values"]
    steps = torch.arange(batch.shape[1] - n_steps)
    later = (steps + batch["steps_to_next_obs"][:, : len(steps)]).unsqueeze(-1)
    with torch.no_grad():
        best = values.argmax(-1, keepdim=True).gather(1, later)
        next_values = target(batch.copy())["values"]
        next_values = next_values.gather(1, later.expand(-1, -1, 2)).gather(2, best)
    batch = batch[:, : len(steps)]
    next_td, discount = batch["next"], batch["gamma"].unsqueeze(-1)
    expected = next_td["reward"] + discount * next_values * ~next_td["terminated"]
    chosen = values[:, : len(steps)].gather(2, batch["action"].unsqueeze(-1))
    known = ~next_td["done"] | next_td["terminated"]  # after a truncation there is no later step
    return (nn.functional.smooth_l1_loss(chosen, expected, reduction="none") * known).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--rows", type=int, default=64, help="environments that fill the buffer")
    parser.add_argument("--steps", type=int, default=500, help="steps of each of them")
    parser.add_argument("--sequence", type=int, default=20, help="steps to learn from, after the burnt-in ones")
    parser.add_argument("--burn-in", type=int, default=8)
    parser.add_argument("--n-steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    network, target = RecurrentQ(), RecurrentQ()
    module, target_module = as_module(network), as_module(target)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    before = mean_return(greedy(network))
    with tempfile.TemporaryDirectory() as folder:
        stored, controller = store(str(Path(folder)), args.rows, args.steps, args.n_steps, gamma=0.97)
        print(
            f"stored {stored.numel():,} steps; return of the controller {controller:.0f}, before learning {before:.0f}"
        )
        read = Compose(
            RandomCropTensorDict(args.burn_in + args.sequence + args.n_steps), BurnInTransform(module, args.burn_in)
        )
        losses = []
        for update in range(1, args.updates + 1):
            batch = read(stored[torch.randint(args.rows, (64,))])
            loss = loss_of(batch, module, target_module, args.n_steps)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            with torch.no_grad():
                for new, old in zip(network.parameters(), target.parameters(), strict=True):
                    old.lerp_(new, 0.05)
            if update % max(args.updates // 5, 1) == 0:
                mean_loss = sum(losses[-50:]) / len(losses[-50:])
                print(f"update {update:4d}  loss {mean_loss:.3f}  return {mean_return(greedy(network)):.0f}")


if __name__ == "__main__":
    main()
