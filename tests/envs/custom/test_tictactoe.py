"""Tic-tac-toe: the boards, turns, masks and rewards of TorchRL for equal moves, and any batch size."""

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import TicTacToeEnv, check_env_specs
from vecrl.errors import SpaceError

_ = -1


def _played(*moves: int) -> TensorDict:
    env = TicTacToeEnv()
    data = env.reset()
    for move in moves:
        data = env.step(data.set("action", torch.tensor(move)))["next"]
    return data


@pytest.mark.parametrize("single_player", [False, True])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_specs(single_player: bool, batch: tuple[int, ...]) -> None:
    env = TicTacToeEnv(single_player=single_player)
    check_env_specs(env, tensordict=TensorDict({}, batch), break_when_any_done="both")
    assert env.reward_keys == [("player0", "reward"), ("player1", "reward")]
    assert env.cardinality() == len(env.all_actions()) == 9


def test_the_board_is_observed_after_the_last_move() -> None:
    after_two = _played(0, 3)
    assert after_two["board"].tolist() == [[1, _, _], [0, _, _], [_, _, _]]
    assert after_two["turn"].tolist() == [0]
    assert after_two["mask"].tolist() == [False, True, True, False, True, True, True, True, True]
    assert _played(0, 3, 1)["board"].tolist() == [[0, 0, _], [1, _, _], [_, _, _]]


@pytest.mark.parametrize(
    ("moves", "rewards", "turn"),
    [
        ((0, 3, 1, 4, 2), (1, 0), 1),
        ((0, 3, 1, 4, 8, 5), (0, 1), 0),
        ((0, 1, 2, 4, 3, 5, 7, 6, 8), (0, 0), 1),
        ((2, 0, 4, 1, 6), (1, 0), 1),
    ],
)
def test_games_end_with_a_win_or_a_full_board(moves: tuple[int, ...], rewards: tuple[int, int], turn: int) -> None:
    before, after = _played(*moves[:-1]), _played(*moves)
    assert not before["done"].any()
    assert after["done"].all()
    assert after["terminated"].all()
    assert not after["truncated"].any()
    assert (after["player0", "reward"].item(), after["player1", "reward"].item()) == rewards
    assert after["turn"].item() == turn


def test_random_games_obey_the_mask_and_end() -> None:
    env = TicTacToeEnv()
    rollout = env.rollout(9, tensordict=TensorDict({}, [200]), break_when_all_done=True)
    assert rollout["next", "done"][:, -1].all()
    free = rollout["mask"].gather(-1, rollout["action"].unsqueeze(-1)).squeeze(-1)
    assert free[~rollout["done"].squeeze(-1)].all()
    pays = rollout["next", "player0", "reward"].sum(1), rollout["next", "player1", "reward"].sum(1)
    assert set((pays[0] - pays[1]).flatten().tolist()) == {-1.0, 0.0, 1.0}
    on = env.rollout(50, tensordict=TensorDict({}, [8]), break_when_any_done=False)
    assert on["next", "done"].sum() > 8
    assert not on["done"].any()


def test_single_player_against_random_opponent() -> None:
    env = TicTacToeEnv(single_player=True)
    rollout = env.rollout(5, tensordict=TensorDict({}, [200]), break_when_all_done=True)
    assert rollout["turn"][~rollout["done"]].eq(0).all(), "it is always player 0's turn"
    last = rollout["next"][:, -1]
    assert last["done"].all()
    won, lost = rollout["next", "player0", "reward"].sum(1).bool(), rollout["next", "player1", "reward"].sum(1).bool()
    assert won.any()
    assert lost.any()
    assert not (won & lost).any()
    draws = ~(won | lost).squeeze(-1)
    assert last["board"][draws].ge(0).all()
    assert last["turn"].squeeze(-1)[won.squeeze(-1)].eq(1).all(), "the opponent does not reply to a winning move"


def test_occupied_cells_raise() -> None:
    with pytest.raises(SpaceError, match="free cells"):
        _played(0, 0)


def test_seeds_determine_opponent_moves() -> None:
    """The environment's seed determines the opponent's moves. Random actions use torch's generator."""
    env = TicTacToeEnv(single_player=True)
    start = TensorDict({}, [20])
    games = []
    for _ in range(2):
        torch.manual_seed(0)
        env.set_seed(3)
        assert torch.initial_seed() == 0
        games.append(env.rollout(5, tensordict=start.clone(), break_when_any_done=False)["next", "board"])
    assert games[0].equal(games[1])
    torch.manual_seed(0)
    env.set_seed(4)
    assert not env.rollout(5, tensordict=start, break_when_any_done=False)["next", "board"].equal(games[0])


def test_occupied_cells_are_named_by_row() -> None:
    for batch, message in (((), "taken cells: 4"), ((3,), r"taken cells: in the rows \[\[0\], \[1\], \[2\]\]")):
        env = TicTacToeEnv()
        move = torch.full(batch, 4)
        data = env.step_mdp(env.step(env.reset(TensorDict({}, batch)).set("action", move)))
        with pytest.raises(SpaceError, match=message):
            env.step(data.set("action", move))
