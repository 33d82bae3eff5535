"""OpenSpiel's games as gymnasium environments and in dialect 3."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pyspiel
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from vecrl.engine.simulator import Simulator
from vecrl.envs import MarlGroupMapType, OpenSpielEnv, OpenSpielWrapper, SerialEnv, check_env_specs
from vecrl.errors import SpaceError, StateError
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.openspiel import GamePlay, OpenSpielAdapter, env_fn, load_game, names
from vecrl.snapshot import capture, restore
from vecrl.testing import EnvConformance, SimulatorConformance

pytestmark = pytest.mark.simulators

GAMES = [
    *("chess", "tic_tac_toe", "connect_four", "kuhn_poker", "leduc_poker", "backgammon", "goofspiel(num_cards=4)"),
    *("matrix_pd", "matrix_rps", "blotto", "oshi_zumo(coins=6)", "kuhn_poker(players=3)", "go(board_size=5)"),
    *(
        "2048",
        "catch",
        "pig",
        "phantom_ttt",
        "hex(board_size=4)",
        "breakthrough",
        "liars_dice",
        "othello",
        "markov_soccer",
    ),
    *(
        "first_sealed_auction",
        "mancala",
        "nim",
        "pentago",
        "sheriff",
        "tiny_hanabi",
        "y(board_size=5)",
        "checkers",
        "markov_soccer",
    ),
]


def legal_action(rng: np.random.Generator, mask: np.ndarray) -> Any:
    """Returns a random legal move, or one of each player if the mask has rows."""
    if mask.ndim == 1:
        return int(rng.choice(np.flatnonzero(mask)))
    return np.array([rng.choice(np.flatnonzero(row)) for row in mask])


# -- as gymnasium environments


class TestTicTacToe(SimulatorConformance):
    deterministic_reset = True

    def make(self, num_envs: int) -> Simulator:
        return GymnasiumSimulator([env_fn("tic_tac_toe", illegal_moves="lose")] * num_envs)


class TestLeducPoker(SimulatorConformance):
    deterministic_reset = True  # the first player sees its card only, of which there are few

    def make(self, num_envs: int) -> Simulator:
        return GymnasiumSimulator([env_fn("leduc_poker", illegal_moves="lose")] * num_envs)


class TestGoofspiel(SimulatorConformance):
    deterministic_reset = True

    def make(self, num_envs: int) -> Simulator:
        return GymnasiumSimulator([env_fn("goofspiel", illegal_moves="lose", num_cards=4)] * num_envs)


@pytest.mark.parametrize("game", GAMES)
def test_games_fit_their_spaces_and_restore_their_states(game: str) -> None:
    env, other = OpenSpielAdapter(game), OpenSpielAdapter(game)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    other.reset(seed=5)
    for number in range(40):
        assert env.observation_space.contains(obs)
        action = legal_action(rng, obs["action_mask"])
        if number in (3, 11):
            restore(other, capture(env))
            expected = other.step(action)
            actual = env.step(action)
            assert str(env.play.state) == str(other.play.state)
            assert np.array_equal(actual[0]["observation"], expected[0]["observation"])
        else:
            actual = env.step(action)
        obs, _, terminated, truncated, info = actual
        assert info["rewards"].shape == info["returns"].shape == (env.play.game.num_players(),)
        assert not truncated
        if terminated:
            assert env.observation_space.contains(obs)
            obs, _ = env.reset()


def test_a_game_of_tic_tac_toe() -> None:
    """The reward is that of the player that has moved; the last observation is that of this player too."""
    env = OpenSpielAdapter("tic_tac_toe", render_mode="ansi")
    obs, _ = env.reset()
    assert env.action_space == spaces.Discrete(9)
    players = [obs["player"]]
    for move in (0, 3, 1, 4):
        obs, reward, terminated, _, _ = env.step(move)
        players.append(obs["player"])
        assert (reward, terminated) == (0.0, False)
    assert players == [0, 1, 0, 1, 0]
    assert obs["action_mask"].tolist() == [0, 0, 1, 0, 0, 1, 1, 1, 1]
    obs, reward, terminated, _, info = env.step(2)
    assert (reward, terminated, obs["player"]) == (1.0, True, 0)
    assert info["returns"].tolist() == [1.0, -1.0]
    assert env.render() == "xxx\noo.\n..."
    with pytest.raises(ValueError, match="Expected a reset before this step"):
        env.step(5)


def test_simultaneous_moves_are_one_action() -> None:
    env = OpenSpielAdapter("matrix_pd")
    obs, _ = env.reset()
    assert env.action_space == spaces.MultiDiscrete([2, 2])
    assert obs["action_mask"].tolist() == [[1, 1], [1, 1]]
    _, reward, terminated, _, info = env.step([0, 1])
    assert (reward, terminated, info["rewards"].tolist()) == (10.0, True, [0.0, 10.0])


def test_chance_events_follow_from_the_seed() -> None:
    def deals(seeds: list[int | None]) -> list[str]:
        env = OpenSpielAdapter("leduc_poker")
        texts = []
        for seed in seeds:
            env.reset(seed=seed)
            texts.append(str(env.play.state))
        return texts

    assert deals([3, None, None, None]) == deals([3, None, None, None])
    assert len(set(deals([3, None, None, None, None, None]))) > 1
    assert deals([3]) * 2 == deals([3, 3])


def test_outcomes_have_their_probabilities() -> None:
    play = GamePlay(load_game("pig"))
    play.generator = np.random.default_rng(0)
    counts = np.zeros(6)
    for _ in range(3000):
        play.start()
        play.play([0, 0])
        counts[play.state.history()[-1]] += 1
    assert np.abs(counts / 3000 - 1 / 6).max() < 0.03


@pytest.mark.parametrize("kind", ["observation", "information_state"])
def test_the_tensor_can_be_chosen(kind: str) -> None:
    env = OpenSpielAdapter("kuhn_poker", tensor=kind)
    obs, _ = env.reset(seed=0)
    expected = getattr(env.play.state, f"{kind}_tensor")(0)
    assert obs["observation"].tolist() == expected
    assert OpenSpielAdapter("kuhn_poker").observation_space["observation"].shape == (7,)


def test_illegal_moves() -> None:
    env = OpenSpielAdapter("tic_tac_toe", illegal_moves="error")
    env.reset()
    env.step(4)
    with pytest.raises(ValueError, match=r"Expected a legal move of player 1, one of \[0, 1, 2, 3, 5, .*, got 4"):
        env.step(4)
    env = OpenSpielAdapter("tic_tac_toe")
    env.reset()
    env.step(4)
    _, reward, terminated, _, info = env.step(4)
    assert (reward, terminated, info["rewards"].tolist()) == (-1.0, True, [0.0, -1.0])


def test_a_game_continues_from_a_serialized_state() -> None:
    env = OpenSpielAdapter("tic_tac_toe")
    env.reset(options={"state": "4\n0\n"})
    assert str(env.play.state) == "o..\n.x.\n..."


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="Expected the name of a game of OpenSpiel, got 'nope'"):
        OpenSpielAdapter("nope")
    with pytest.raises(ValueError, match="Expected illegal_moves 'error' or 'lose'"):
        OpenSpielAdapter("chess", illegal_moves="ignore")
    with pytest.raises(SpaceError, match="Expected a tensor of chess among"):
        OpenSpielAdapter("chess", tensor="pixels")
    with pytest.raises(SpaceError, match="Expected a game of players that take turns or move simultaneously"):
        OpenSpielAdapter("mfg_garnet")
    with pytest.raises(StateError, match="Expected a state of tic_tac_toe"):
        GamePlay(load_game("tic_tac_toe")).set_state({"game": "77\n78\n"})


def test_makers_can_be_pickled_and_names_are_games() -> None:
    make = pickle.loads(pickle.dumps(env_fn("goofspiel", num_cards=3)))
    assert make().action_space == spaces.MultiDiscrete([3, 3])
    assert {"chess", "go", "goofspiel", "matrix_pd"} <= set(names())
    assert not {"mfg_garnet", "crossword", "nfg_game"} & set(names())


# -- in dialect 3


class TestLeducEnv(EnvConformance):
    def make(self) -> OpenSpielEnv:
        return OpenSpielEnv("leduc_poker")


class TestMatrixEnv(EnvConformance):
    deterministic = True

    def make(self) -> OpenSpielEnv:
        return OpenSpielEnv("goofspiel(num_cards=4,points_order=descending)", categorical_actions=True)


class TestStateEnv(EnvConformance):
    deterministic = True

    def make(self) -> OpenSpielEnv:
        return OpenSpielEnv("tic_tac_toe", return_state=True, group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT)


@pytest.mark.parametrize("game", GAMES)
def test_specs_hold(game: str) -> None:
    check_env_specs(OpenSpielEnv(game))


# what TorchRL gives: the shapes of observations, information states and one-hot actions
LAYOUTS: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[int, ...]]] = {
    "tic_tac_toe": ((2, 3, 3, 3), None, (2, 9)),
    "kuhn_poker": ((2, 7), (2, 11), (2, 2)),
    "kuhn_poker(players=3)": ((3, 10), (3, 17), (3, 2)),
    "leduc_poker": ((2, 16), (2, 30), (2, 3)),
    "backgammon": ((2, 200), None, (2, 1352)),
    "chess": ((2, 20, 8, 8), None, (2, 4674)),
    "matrix_pd": ((2, 1), (2, 1), (2, 2)),
    "coin_game": (None, None, (2, 5)),
}


@pytest.mark.parametrize("game", LAYOUTS)
def test_layout(game: str) -> None:
    env = OpenSpielEnv(game)
    agents: Any = env.reset().get("agents", {})
    found = [tuple(agents[kind].shape) if kind in agents else None for kind in ("observation", "information_state")]
    assert (*found, tuple(env.full_action_spec["agents", "action"].shape)) == LAYOUTS[game]


def test_entries() -> None:
    env = OpenSpielEnv("kuhn_poker", categorical_actions=True, return_state=True)
    rollout = env.rollout(2)
    found = {key: value.dtype for key, value in rollout.items(True, True) if isinstance(value, torch.Tensor)}
    observed = {
        ("agents", "observation"): torch.float32,
        ("agents", "information_state"): torch.float32,
        "current_player": torch.int32,
        "done": torch.bool,
        "terminated": torch.bool,
    }
    names_of_next = {("next", *([key] if isinstance(key, str) else key)): dtype for key, dtype in observed.items()}
    assert found == {
        **observed,
        **names_of_next,
        ("agents", "action"): torch.int64,
        ("next", "agents", "reward"): torch.float32,
    }
    assert env.reset()["current_player"].shape == ()
    assert isinstance(env.reset()["state"], str)


def test_groups() -> None:
    env = OpenSpielEnv("matrix_pd", group_map={"a": ["player_1"], "b": ["player_0"]}, categorical_actions=True)
    td = env.reset()
    td["a", "action"], td["b", "action"] = torch.tensor([1]), torch.tensor([0])
    step = env.step(td)["next"]
    assert (step["a", "reward"].tolist(), step["b", "reward"].tolist()) == ([[10.0]], [[0.0]])
    assert step["terminated"].item()
    assert step["current_player"] == -4
    with pytest.raises(ValueError, match="in no group"):
        OpenSpielEnv("chess", group_map={"a": ["player_1"]})


def test_only_the_current_player_moves() -> None:
    env = OpenSpielEnv("tic_tac_toe", categorical_actions=True)
    td = env.reset()
    td["agents", "action"] = torch.tensor([4, 7])
    td = env.step_mdp(env.step(td))
    assert (env.current_player, env.play.state.history()) == (1, [4])
    mask = env.full_action_spec["agents", "action"].mask
    assert mask.tolist() == [[True, *[False] * 8], [*[True] * 4, False, *[True] * 4]]
    td["agents", "action"] = torch.tensor([0, 4])
    with pytest.raises(SpaceError, match="Expected a legal move of player_1, one of"):
        env.step(td)


def test_a_reset_continues_from_a_state() -> None:
    env = OpenSpielEnv("tic_tac_toe", return_state=True)
    td = env.reset(TensorDict({"state": "4\n0\n"}))
    assert (td["state"], td["current_player"].item()) == ("4\n0\n", 0)
    data = env.step(env.rand_action(env.reset()))["next"]
    assert env.reset(TensorDict({"state": data["state"]}))["current_player"] == 1
    assert env.reset()["current_player"] == 0


def test_rollouts_start_new_games() -> None:
    rollout = OpenSpielEnv("tic_tac_toe", return_state=True).rollout(30, break_when_any_done=False)
    ends = rollout["next", "done"].squeeze(-1).nonzero().squeeze(-1)
    assert len(ends) >= 3
    assert (rollout["current_player"][ends[:-1] + 1] == 0).all()


def test_batches_draw_legal_moves() -> None:
    batch = SerialEnv(2, partial(OpenSpielEnv, "goofspiel(num_cards=4)"))
    assert batch.rollout(12, break_when_any_done=False).shape == (2, 12)
    batch.close()


@pytest.mark.parametrize("game", ["matrix_rps", "tic_tac_toe"])
def test_a_step_after_the_end_returns_the_end_again(game: str) -> None:
    env = OpenSpielEnv(game, return_state=True)
    env.reset()
    while not (last := env.step(env.rand_action())["next"])["done"]:
        pass
    for _ in range(2):
        again = env.step(env.full_action_spec.rand())["next"]
        assert again["done"]
        assert again["terminated"]
        assert again["state"] == last["state"]
        assert (again["agents"] == last["agents"]).all()
    assert not env.reset()["done"]


def test_a_sampler_chooses_the_outcomes_of_chance() -> None:
    seen = []

    def choose(outcomes: Any, probabilities: Any) -> int:
        seen.append((outcomes, probabilities))
        return outcomes[-1]

    env = OpenSpielEnv("kuhn_poker", chance_sampler=choose, return_state=True)
    assert [env.reset()["state"].split() for _ in range(2)] == [["2", "1"]] * 2  # the cards of both players
    assert seen[-1] == ((0, 1), (0.5, 0.5))
    with pytest.raises(SpaceError, match=r"Expected chance_sampler to return one of \[0, 1, 2\], got 7\."):
        OpenSpielEnv("kuhn_poker", chance_sampler=lambda outcomes, probabilities: 7)


def test_wrapper_takes_states() -> None:
    env = OpenSpielWrapper(pyspiel.load_game("kuhn_poker").new_initial_state())
    assert env.reset()["current_player"] == 0
    assert env.game_string == "kuhn_poker()"
    for wrong in (3, pyspiel.load_game("kuhn_poker")):
        with pytest.raises(TypeError, match="Expected a pyspiel"):
            OpenSpielWrapper(wrong)
    with pytest.raises(SpaceError, match="Expected no batch size"):
        OpenSpielEnv("chess", batch_size=[2])
    with pytest.raises(ValueError, match="Expected the name of a game of OpenSpiel, got 'nope'"):
        OpenSpielEnv("nope")
    assert len(OpenSpielEnv.available_envs) == 126
    assert OpenSpielEnv("matrix_pd").is_simultaneous
