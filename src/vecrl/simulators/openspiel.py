"""Adapts the games of OpenSpiel to gymnasium's interface. This module must not know dialects, nor import torch.

A turn-based game is an environment in which all players are played by the caller, one after another. In a game of
simultaneous moves, an action has the moves of all players. Chance is played by the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..engine.simulator import ResetOptions
from ..engine.space_layout import Tree
from ..errors import SpaceError, StateError
from ..gym_interface import EnvReset, EnvStep
from ..imports import import_library
from ..registries import check_name
from ..seeding import random_seed

SIMULTANEOUS, TERMINAL = -2, -4  # values of `current_player`
TENSORS = "observation", "information_state"
WITHOUT_SHAPES = ("crossword",)  # declares a tensor, of which it has no shape


def openspiel_library() -> Any:
    """Imports `pyspiel`, the module of OpenSpiel.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    return import_library("pyspiel", 'OpenSpiel is not installed: pip install "vecrl[openspiel]"')


def game_names() -> list[str]:
    """Returns the names of all games, which may need parameters, as in "nfg_game(filename=game.nfg)".

    Raises:
        ImportError: OpenSpiel is not installed.
    """
    return sorted(openspiel_library().registered_names())


def names() -> list[str]:
    """Returns the names of the games that can be made without parameters as gymnasium environments with seeds.

    Raises:
        ImportError: OpenSpiel is not installed.
    """
    library = openspiel_library()
    kinds = library.GameType.Dynamics
    return sorted(
        kind.short_name
        for kind in library.registered_games()
        if kind.default_loadable
        and kind.short_name not in WITHOUT_SHAPES
        and kind.dynamics in (kinds.SEQUENTIAL, kinds.SIMULTANEOUS)
        and kind.chance_mode != library.GameType.ChanceMode.SAMPLED_STOCHASTIC
        and (kind.provides_observation_tensor or kind.provides_information_state_tensor)
    )


def env_fn(name: str, **kwargs: Any) -> Callable[[], gymnasium.Env[Tree, Tree]]:
    """Returns a picklable function that makes an `OpenSpielAdapter`."""
    return partial(OpenSpielAdapter, name, **kwargs)


ChanceSampler = Callable[[Sequence[int], Sequence[float]], int]


class GamePlay:
    """One game that is played: its state, and the generator of its chance events.

    Args:
        game: a `pyspiel.Game`.
        chance_sampler: `chance_sampler(outcomes, probabilities)` chooses one of the outcomes of a chance event, which
            are numbers; None draws one from the generator.

    Attributes:
        game: the game.
        state: the `pyspiel.State`, which is never a chance node.
        generator: the generator of chance events.

    Raises:
        SpaceError: it is a mean field game.
    """

    state_is_plain_data = True  # so that `vecrl.snapshot` calls `get_state`: Python cannot see into a `pyspiel.State`

    def __init__(self, game: Any, chance_sampler: ChanceSampler | None = None):
        kinds = openspiel_library().GameType.Dynamics
        if game.get_type().dynamics not in (kinds.SEQUENTIAL, kinds.SIMULTANEOUS):
            raise SpaceError(f"Expected a game of players that take turns or move simultaneously, got {game}.")
        self.game, self._chance_sampler = game, chance_sampler
        self.generator = np.random.default_rng(random_seed(64))
        self.state: Any = game.new_initial_state()

    def start(self, serialized: str | None = None) -> None:
        """Starts a game, or continues one from `serialize`."""
        self.state = self.game.new_initial_state() if serialized is None else self.game.deserialize_state(serialized)
        self._play_chance()

    def play(self, moves: Sequence[int]) -> None:
        """Plays the moves of the acting players, of which `moves` has one for each player, and chance after them."""
        if self.state.is_simultaneous_node():
            self.state.apply_actions(moves)
        else:
            self.state.apply_action(moves[self.state.current_player()])
        self._play_chance()

    def acting_players(self) -> list[int]:
        """Returns the players that move next; none if the game is over."""
        if self.state.is_terminal():
            return []
        if self.state.is_simultaneous_node():
            return list(range(self.game.num_players()))
        return [self.state.current_player()]

    def illegal_moves(self, moves: Sequence[int]) -> dict[int, int]:
        """Returns the illegal ones among the moves of acting players, by player. No legal move at all permits any."""
        legal = {player: self.state.legal_actions(player) for player in self.acting_players()}
        return {player: moves[player] for player, options in legal.items() if options and moves[player] not in options}

    def legal_mask(self, player: int) -> np.ndarray:
        """Returns the mask `[n]` bool of the legal moves of a player."""
        mask = np.zeros(self.game.num_distinct_actions(), bool)
        if not self.state.is_terminal():
            mask[self.state.legal_actions(player)] = True
        return mask

    def tensor(self, kind: str, player: int) -> np.ndarray:
        """Returns what a player observes, float32: the "observation", or the "information_state" with all history."""
        values = getattr(self.state, f"{kind}_tensor")(player)
        return np.array(values, np.float32).reshape(tensor_shape(self.game, kind))

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the game, as OpenSpiel serializes it, and of the generator of chance events."""
        return {"game": self.state.serialize(), "generator": self.generator.bit_generator.state}

    def set_state(self, state: Mapping[str, Any], *, allow: object = ()) -> None:
        """Restores what `get_state` returned, of the same game; `allow` has no effect.

        Raises:
            StateError: it is the state of something else.
        """
        try:
            self.state = self.game.deserialize_state(state["game"])
            self.generator.bit_generator.state = state["generator"]
        except (KeyError, RuntimeError) as error:
            raise StateError(f"Expected a state of {self.game}, got {state!s:.80}.") from error

    def _play_chance(self) -> None:
        while self.state.is_chance_node():
            outcomes, probabilities = zip(*self.state.chance_outcomes(), strict=True)
            outcome = (self._chance_sampler or self._draw)(outcomes, probabilities)
            if outcome not in outcomes:
                raise SpaceError(f"Expected chance_sampler to return one of {list(outcomes)}, got {outcome!r:.80}.")
            self.state.apply_action(int(outcome))

    def _draw(self, outcomes: Sequence[int], probabilities: Sequence[float]) -> int:
        cumulated = np.cumsum(probabilities)
        place = np.searchsorted(cumulated, self.generator.random() * cumulated[-1], side="right")
        return outcomes[min(place, len(outcomes) - 1)]


def tensor_shape(game: Any, kind: str) -> tuple[int, ...]:
    """Returns the shape of the tensors of a kind ("observation" or "information_state")."""
    return tuple(getattr(game, f"{kind}_tensor_shape")())


def provided_tensors(game: Any) -> list[str]:
    """Returns the kinds of tensors that a game has."""
    return [kind for kind in TENSORS if getattr(game.get_type(), f"provides_{kind}_tensor")]


class OpenSpielAdapter(gymnasium.Env[Tree, Tree]):
    """A game of OpenSpiel as a gymnasium environment.

    In a turn-based game, an action `Discrete(n)` is the move of the player that the last observation names. The
    observation is a dict of "observation", what this player observes (float32), "action_mask" `[n]` int8, its legal
    moves, and "player". The reward is that of the player that has moved. After the last move, the observation is that
    of the player that has made it.

    In a game of simultaneous moves, an action `[players]` has the moves of all players, "observation" and "action_mask"
    have a row per player, and the reward is the sum over the players. A player that cannot move has the legal move 0,
    which has no effect.

    The info has "rewards" and "returns" `[players]` float64 of all players, of the step and of the game so far.

    Args:
        name: OpenSpiel's name of the game, also with parameters: "goofspiel(num_cards=5)".
        tensor: "observation" or "information_state"; by default the former, if the game has it.
        illegal_moves: what an illegal move does: "error", or "lose", which ends the game with the least reward for the
            players that made one, and 0 for the others.
        render_mode: None or "ansi", a text.
        parameters: further parameters of the game.

    Raises:
        ImportError: OpenSpiel is not installed.
        ValueError: there is no such game, or an argument is unknown.
        SpaceError: the game has no tensor of the kind, or is a mean field game.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        name: str,
        tensor: str | None = None,
        illegal_moves: str = "lose",
        render_mode: str | None = None,
        **parameters: Any,
    ):
        if illegal_moves not in ("error", "lose") or render_mode not in (None, "ansi"):
            raise ValueError(
                "Expected illegal_moves 'error' or 'lose', and render_mode None or 'ansi', got "
                f"{illegal_moves!r} and {render_mode!r}."
            )
        self.play = GamePlay(load_game(name, parameters))
        game, self._simultaneous = self.play.game, _is_simultaneous(self.play.game)
        provided = provided_tensors(game)
        self._tensor = tensor if tensor is not None else next(iter(provided), "observation")
        if self._tensor not in provided:
            raise SpaceError(f"Expected a tensor of {name} among {provided or 'none'}, got {self._tensor!r}.")
        self.render_mode = render_mode
        self._illegal_moves = illegal_moves
        self._player = 0
        n, players = game.num_distinct_actions(), game.num_players()
        rows = (players,) if self._simultaneous else ()
        parts: dict[str, spaces.Space[Any]] = {
            "observation": spaces.Box(-np.inf, np.inf, (*rows, *tensor_shape(game, self._tensor)), np.float32),
            "action_mask": spaces.Box(0, 1, (*rows, n), np.int8),
        }
        if not self._simultaneous:
            parts["player"] = spaces.Discrete(players)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.MultiDiscrete([n] * players) if self._simultaneous else spaces.Discrete(n)

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Starts a game; `options={"state": text}` continues the game that `state.serialize()` gave."""
        super().reset(seed=seed)
        self.play.generator = self.np_random
        self.play.start((options or {}).get("state"))
        self._player = max(self.play.state.current_player(), 0)
        return self._observe(), self._info(self.play.state.rewards())

    def step(self, action: Tree) -> EnvStep:
        """Plays the move of the acting player, or those of all players."""
        play = self.play
        if play.state.is_terminal():
            raise ValueError("Expected a reset before this step, since the game is over. Call reset().")
        moves = [int(move) for move in action] if self._simultaneous else [int(action)] * play.game.num_players()
        acting, illegal = play.acting_players(), play.illegal_moves(moves)
        if illegal and self._illegal_moves == "error":
            player, move = next(iter(illegal.items()))
            raise ValueError(
                f"Expected a legal move of player {player}, one of {play.state.legal_actions(player)}, got {move}. Use "
                '"action_mask" of the observation, or illegal_moves="lose".'
            )
        if illegal:
            least = play.game.min_utility()
            rewards = [least if player in illegal else 0.0 for player in range(play.game.num_players())]
        else:
            play.play(moves)
            rewards = play.state.rewards()
        if play.state.current_player() >= 0:
            self._player = play.state.current_player()
        reward = sum(rewards) if self._simultaneous else rewards[acting[0]]
        return self._observe(), reward, bool(illegal) or play.state.is_terminal(), False, self._info(rewards)

    def render(self) -> Any:
        """Returns the text of the state; None without a render mode."""
        return None if self.render_mode is None else str(self.play.state)

    def _observe(self) -> dict[str, Any]:
        if not self._simultaneous:
            mask = self.play.legal_mask(self._player).astype(np.int8)
            return {
                "observation": self.play.tensor(self._tensor, self._player),
                "action_mask": mask,
                "player": self._player,
            }
        players = range(self.play.game.num_players())
        masks = np.stack([self.play.legal_mask(player) for player in players]).astype(np.int8)
        masks[~masks.any(1), 0] = 1
        return {
            "observation": np.stack([self.play.tensor(self._tensor, player) for player in players]),
            "action_mask": masks,
        }

    def _info(self, rewards: Sequence[float]) -> dict[str, Any]:
        return {"rewards": np.array(rewards, np.float64), "returns": np.array(self.play.state.returns(), np.float64)}


def load_game(name: str, parameters: Mapping[str, Any] | None = None) -> Any:
    """Returns a `pyspiel.Game`.

    Raises:
        ValueError: there is no such game, or OpenSpiel cannot make it with these parameters.
    """
    library = openspiel_library()
    check_name("a game of OpenSpiel", name.partition("(")[0], library.registered_names())
    try:
        return library.load_game(name, dict(parameters)) if parameters else library.load_game(name)
    except RuntimeError as error:
        raise ValueError(f"Expected parameters of the game {name!r}, got an error: {str(error).strip()}") from error


def _is_simultaneous(game: Any) -> bool:
    return game.get_type().dynamics == openspiel_library().GameType.Dynamics.SIMULTANEOUS
