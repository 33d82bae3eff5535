"""Chess: the rules of the chess library, every move in SAN, positions as texts, hashes and images."""

import random
import re
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from vecrl.envs import ChessEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import ActionMask, Hash, StepCounter, TransformedEnv
from vecrl.errors import SpaceError, VersionError
from vecrl.testing import EnvConformance

pgn = pytest.importorskip("chess.pgn")
chess = pytest.importorskip("chess")

ALL: dict[str, Any] = dict.fromkeys(
    ("include_san", "include_fen", "include_pgn", "include_legal_moves", "include_hash", "pixels"), True
)
KIWIPETE = "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1"
PROMOTIONS = "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1"
EN_PASSANT = "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1"


def index(san: str) -> torch.Tensor:
    return torch.tensor(ChessEnv.san_moves.index(san))


def played(env: ChessEnv, *moves: str, fen: str | None = None) -> Any:
    data = env.reset(None if fen is None else TensorDict({"fen": fen}))
    for move in moves:
        data = env.step(data.set("action", index(move)))["next"]
    return data


def random_positions(games: int, seed: int) -> list[Any]:
    generator, boards = random.Random(seed), []
    for _ in range(games):
        board = chess.Board()
        while not board.is_game_over() and len(boards) < 80:
            boards.append(board.copy())
            board.push(generator.choice(list(board.legal_moves)))
    return boards


# -- moves


def test_the_number_of_moves_of_each_kind() -> None:
    moves = ChessEnv.san_moves
    assert len(moves) == len(set(moves)) == 29_275
    assert moves[-1] == ""
    assert moves[:-1] == sorted(moves[:-1], key=lambda move: (len(move), move))
    kinds = Counter(re.sub("[1-8]", "r", re.sub("[a-h]", "f", move)) for move in moves)
    expected = {"Rffr": 512, "Rrfr": 336, "Qffr": 512, "Qrfr": 488, "Qfrfr": 1200, "Nfrfr": 192, "Bfrfr": 224}
    expected |= {"fr": 48, "fxfr": 84, "fr=Q": 16, "fxfr=N": 28, "Kfr": 64, "O-O-O": 1, "Bffr": 380, "Nrfr": 160}
    for kind, number in expected.items():
        assert kinds[kind] == kinds[f"{kind}+"] == kinds[f"{kind}#"] == number
    assert "Rfrfr" not in kinds


def test_every_legal_move_is_listed_and_read_back() -> None:
    known = set(ChessEnv.san_moves)
    for board in random_positions(1, seed=0):
        for move in board.legal_moves:
            san = board.san(move)
            assert san in known
            assert board.parse_san(san) == move


def count_leaves(env: ChessEnv, fen: str, depth: int) -> int:
    """Returns the number of sequences of legal moves, found by steps of a stateless environment."""
    root = env.reset(TensorDict({"fen": fen}))
    moves = root["action_mask"].nonzero().squeeze(-1)
    if depth == 1:
        return len(moves)
    total = 0
    for move in moves:
        after = env.step(root.copy().set("action", move))["next"]
        total += 0 if after["done"] else count_leaves(env, after["fen"], depth - 1)
    return total


@pytest.mark.parametrize(
    ("fen", "numbers"),
    [(chess.STARTING_FEN, [20, 400]), (KIWIPETE, [48, 2039]), (PROMOTIONS, [24, 496]), (EN_PASSANT, [14, 191])],
)
def test_the_number_of_positions_equals_the_published_ones(fen: str, numbers: list[int]) -> None:
    env = ChessEnv(stateful=False, include_fen=True)
    assert [count_leaves(env, fen, depth) for depth in (1, 2)] == numbers


def test_a_position_with_218_moves() -> None:
    fen = "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1"
    data = played(ChessEnv(include_legal_moves=True), fen=fen)
    assert data["legal_moves"].max() < 29_275
    assert data["action_mask"].sum() == len(data["legal_moves"]) == 218
    few = played(ChessEnv(include_legal_moves=True))["legal_moves"]
    assert (few != 29_275).sum() == 20
    assert few[20:].eq(29_275).all()


# -- specs and batches


@pytest.mark.parametrize(
    "options",
    [
        {},
        ALL,
        {"mask_actions": False},
        {"stateful": False, "include_fen": True},
        {"stateful": False, "include_pgn": True, "include_hash": True, "include_hash_inv": True},
    ],
    ids=str,
)
def test_specs(options: dict[str, Any]) -> None:
    env = ChessEnv(**options)
    check_env_specs(env)
    assert env.rollout(5).batch_size == (5,)
    stateful = options.get("stateful", True)
    texts = {"pgn", "pgn_hash"} if "include_pgn" in options else {"fen"}
    assert set(env.state_keys) == (set() if stateful else texts)


@pytest.mark.parametrize("batch_class", [SerialEnv, ParallelEnv])
def test_batches(batch_class: Any) -> None:
    env = batch_class(2, partial(ChessEnv, include_san=True, include_fen=True, include_hash=True))
    rollout = env.rollout(4)
    for row in (0, 1):
        board = chess.Board()
        for san, fen in zip(rollout["next", "san"][row], rollout["next", "fen"][row], strict=True):
            board.push_san(san)
            assert board.fen() == fen
    assert rollout["next", "fen_hash"][1, 3].equal(Hash.reproducible_hash(rollout["next", "fen"][1][3]))
    env.close()


def test_batches_start_from_given_positions() -> None:
    fens = ["4k3/P7/8/8/8/8/8/4K3 w - - 0 1", chess.STARTING_FEN]
    positions = TensorDict({"fen": NonTensorStack(*fens)}, [2])
    with SerialEnv(2, partial(ChessEnv, include_fen=True)) as env:
        assert env.reset(positions)["fen"] == fens


class TestChess(EnvConformance):
    num_steps = 6
    deterministic = True

    def make(self) -> ChessEnv:
        return ChessEnv(include_pgn=True)


# -- games


def test_entries_of_a_game() -> None:
    env = ChessEnv(**ALL)
    start = env.reset()
    assert start["san"] == "<start>"
    assert start["turn"].item() is True
    assert "reward" not in start.keys()  # noqa: SIM118 - a TensorDict is no dict
    data = played(env, "e4", "e5", "Nf3")
    board = chess.Board()
    for san in ("e4", "e5", "Nf3"):
        board.push_san(san)
    assert data["fen"] == board.fen() == env.board.fen()
    assert data["pgn"] == str(pgn.Game.from_board(board))
    assert data["san"] == "Nf3"
    assert data["turn"].item() is False
    for name in ("san", "fen", "pgn"):
        assert data[f"{name}_hash"].equal(Hash.reproducible_hash(data[name]))
    legal = [ChessEnv.san_moves[i] for i in data["legal_moves"] if i < 29_275]
    assert legal == env.get_legal_moves() == [board.san(move) for move in board.legal_moves]
    assert sorted(data["action_mask"].nonzero().flatten().tolist()) == sorted(map(int, map(index, legal)))
    assert env.get_legal_moves(uci=True) == [move.uci() for move in board.legal_moves]


REPEATED = ("Nf3", "Nf6", "Ng1", "Ng8")


@pytest.mark.parametrize(
    ("moves", "fen", "reward"),
    [
        (("f3", "e5", "g4", "Qh4#"), None, 1.0),
        (("Ra8#",), "7k/8/6K1/8/8/8/8/R7 w - - 0 1", 1.0),
        (("Qf7",), "7k/8/8/6K1/8/8/8/5Q2 w - - 0 1", 0.5),
        (("Kxb2",), "k7/8/8/8/8/8/1q6/K7 w - - 0 1", 0.5),
        (("Ra2+",), "k7/8/8/8/8/8/8/R3K3 w - - 99 80", 0.5),
        (REPEATED * 4, None, 0.5),
        (REPEATED * 4, chess.STARTING_FEN, 0.5),
    ],
)
def test_ends_of_games(moves: tuple[str, ...], fen: str | None, reward: float) -> None:
    before, after = played(ChessEnv(), *moves[:-1], fen=fen), played(ChessEnv(), *moves, fen=fen)
    assert not before["done"].any()
    assert before.get("reward", torch.zeros(1)).tolist() == [0]
    assert after["done"].tolist() == after["terminated"].tolist() == [True]
    assert after["reward"].tolist() == [reward]


def test_without_a_state_repetitions_are_found_in_the_pgn() -> None:
    assert played(ChessEnv(stateful=False, include_pgn=True), *REPEATED * 4)["done"].all()
    assert played(ChessEnv(stateful=False, include_pgn=True, include_fen=True), *REPEATED * 4)["done"].all()
    assert not played(ChessEnv(stateful=False, include_fen=True), *REPEATED * 4)["done"].any()


def test_self_play_with_random_moves() -> None:
    torch.manual_seed(1)
    env = TransformedEnv(ChessEnv(include_san=True), StepCounter())
    rollout = env.rollout(60, break_when_any_done=False)
    board = chess.Board()
    for san, starts in zip(rollout["next", "san"], rollout["step_count"].flatten() == 0, strict=True):
        board = chess.Board() if starts else board
        board.push_san(san)
    masked = TransformedEnv(ChessEnv(), ActionMask())
    assert masked.rollout(10).batch_size == (10,)


def test_random_actions_are_legal() -> None:
    for env in (ChessEnv(), ChessEnv(mask_actions=False), ChessEnv(stateful=False, include_fen=True)):
        root = env.reset(TensorDict({"fen": EN_PASSANT}))
        legal = set(map(int, map(index, env.get_legal_moves(root))))
        assert {int(env.rand_action(root)["action"]) for _ in range(40)} <= legal
        assert set(env.all_actions(root)["action"].tolist()) == legal
    assert len(ChessEnv().all_actions()) == 20
    assert int(ChessEnv(stateful=False, include_fen=True).rand_action()["action"]) < 29_275
    assert ChessEnv().cardinality() == 29_275


# -- given positions


def test_resets_to_positions() -> None:
    env = ChessEnv(include_fen=True, include_pgn=True, include_san=True)
    game = played(env, "e4", "e5", "Nf3")["pgn"]
    start = env.reset(TensorDict({"fen": EN_PASSANT}))
    assert (start["fen"], start["san"]) == (EN_PASSANT, "<start>")
    assert f'[FEN "{EN_PASSANT}"]' in start["pgn"]
    start = env.reset(TensorDict({"pgn": game}))
    assert (start["pgn"], start["san"], start["turn"].item()) == (game, "Nf3", False)
    assert env.reset(TensorDict({"pgn": game, "fen": EN_PASSANT}))["fen"] == EN_PASSANT
    assert env.reset(TensorDict({"pgn": game, "fen": start["fen"]}))["pgn"] == game
    assert env.reset(TensorDict({"fen": EN_PASSANT}), set_state=False)["fen"] == chess.STARTING_FEN
    masked = TensorDict({"fen": EN_PASSANT, "_reset": torch.tensor([True])})
    assert env.reset(masked)["fen"] == chess.STARTING_FEN
    assert env.reset()["fen"] == chess.STARTING_FEN


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("name", ["fen", "pgn"])
def test_positions_given_by_their_hashes(stateful: bool, name: str) -> None:
    options: Any = {f"include_{name}": True, "include_hash": True, "include_hash_inv": True}
    env = ChessEnv(stateful=stateful, **options)
    rollout = env.rollout(4)
    hashed = rollout[2].select(f"{name}_hash")
    assert env.reset(hashed)[name] == rollout[2][name]
    if not stateful:
        after = env.step(hashed.set("action", rollout[2]["action"]))["next"]
        assert after[name] == rollout[2]["next", name]
    with pytest.raises(SpaceError, match="Expected the hash of a position"):
        env.reset(TensorDict({f"{name}_hash": torch.zeros(32, dtype=torch.uint8)}))


# -- images


def test_images_show_the_pieces() -> None:
    env = ChessEnv(pixels=True)
    start = env.reset()["pixels"]
    assert start.shape == (3, 256, 256)
    assert start.dtype == torch.uint8
    squares = start.unflatten(1, (8, 32)).unflatten(3, (8, 32)).permute(1, 3, 0, 2, 4).flatten(2)
    has_piece = torch.tensor([[len(square.unique()) > 3 for square in row] for row in squares])
    assert has_piece.sum(1).tolist() == [8, 8, 0, 0, 0, 0, 8, 8]
    after = played(env, "e4")["pixels"]
    changed = (after != start).any(0).unflatten(0, (8, 32)).unflatten(2, (8, 32)).any(3).any(1)
    assert changed.nonzero().tolist() == [[4, 4], [6, 4]]
    empty = played(env, fen="k7/8/8/8/8/8/8/K6R w - - 0 1")["pixels"]
    light, dark = empty[:, 7 * 32, 1 * 32], empty[:, 7 * 32, 2 * 32]  # b1 and c1
    assert light.sum() > dark.sum()


# -- errors


def test_errors() -> None:
    with pytest.raises(ValueError, match="Expected include_fen or include_pgn"):
        ChessEnv(stateful=False)
    with pytest.raises(ValueError, match="Expected include_hash=True"):
        ChessEnv(include_hash_inv=True)
    with pytest.raises(SpaceError, match=r"Expected a legal move.*got 'Ke2'"):
        played(ChessEnv(), "Ke2")
    with pytest.raises(SpaceError, match=r"got 'e4\+'"):
        played(ChessEnv(), "e4+")
    with pytest.raises(SpaceError, match="the game is over"):
        ChessEnv().reset(TensorDict({"fen": "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"}))
    with pytest.raises(SpaceError, match="portable game notation"):
        ChessEnv().reset(TensorDict({"pgn": "1. e4 e4 *"}))
    with pytest.raises(ValueError, match="Expected one of \\['fen'\\] in the input"):
        ChessEnv(stateful=False, include_fen=True).get_legal_moves()


@pytest.mark.parametrize("action", [-1, 29275])
def test_actions_that_are_no_moves(action: int) -> None:
    env = ChessEnv()
    with pytest.raises(SpaceError, match=f"Expected an action from 0 to 29274, got {action}"):
        env.step(env.reset().set("action", torch.tensor(action)))


def test_wrong_games_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SpaceError, match="portable game notation"):
        ChessEnv().reset(TensorDict({"pgn": "1. e4 e4 *"}))
    assert not caplog.records


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "chess.pgn", None)
    with pytest.raises(VersionError, match=r'pip install "vecrl\[chess\]"'):
        ChessEnv()
