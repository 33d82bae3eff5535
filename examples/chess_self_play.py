"""Chess games in a batch: a small policy with action masks as White, random moves as Black.

The policy knows nothing but the texts of the moves: it prefers mate, then promotions and captures. Illegal moves get a
score of minus infinity by the action mask.

    python examples/chess_self_play.py --games 4 --plies 120
"""

import argparse

import torch
from tensordict import TensorDictBase

from vecrl.envs import ChessEnv, SerialEnv, StepCounter, TransformedEnv

VALUES = {"#": 20.0, "=Q": 6.0, "x": 3.0, "+": 0.5}  # of moves with these characters


class GreedyWhite:
    """Adds noise to scores of the moves and selects the best legal one; Black has the noise alone."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.scores = torch.tensor([sum(VALUES[key] for key in VALUES if key in san) for san in ChessEnv.san_moves])

    def __call__(self, td: TensorDictBase) -> TensorDictBase:
        mask = td["action_mask"]
        scores = self.scores * td["turn"].unsqueeze(-1) + torch.rand(mask.shape, generator=self.generator)
        return td.set("action", scores.masked_fill(~mask, -torch.inf).argmax(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=4)
    parser.add_argument("--plies", type=int, default=120, help="moves of both players, at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    env = TransformedEnv(
        SerialEnv(args.games, lambda: ChessEnv(include_san=True, include_pgn=True)), StepCounter(max_steps=args.plies)
    )
    games = env.rollout(args.plies, GreedyWhite(args.seed), break_when_any_done=False, break_when_all_done=True)
    results = {"White wins": 0, "Black wins": 0, "draws": 0, "not finished": 0}
    for game in games.unbind(0):
        last = int(game["next", "done"].squeeze(-1).long().argmax())
        reward, white_moved = game["next", "reward"][last].item(), bool(game["turn"][last])
        winner = "White wins" if white_moved else "Black wins"
        results[winner if reward == 1 else "draws" if reward else "not finished"] += 1
        moves = list(game["next", "san"])[: last + 1]
        print(f"{last + 1:4} plies, reward {reward}, the last moves: {' '.join(moves[-6:])}")
    print(", ".join(f"{name}: {number}" for name, number in results.items()))
    env.close()


if __name__ == "__main__":
    main()
