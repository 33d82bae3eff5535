"""OpenSpiel's games over TensorDicts, with the players of each group stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import SpaceError
from ...simulators.openspiel import (
    SIMULTANEOUS,
    ChanceSampler,
    GamePlay,
    game_names,
    load_game,
    openspiel_library,
    provided_tensors,
    tensor_shape,
)
from ...specs import Categorical, Composite, NonTensor, OneHot, TensorSpec, Unbounded
from ..base import EnvBase
from ..marl_groups import MarlGroupMapType
from .grouped_agents import GroupedEntries, GroupMap, make_group_map, to_choices
from .gym.backends import AvailableEnvs


class OpenSpielWrapper(EnvBase):
    """A game of OpenSpiel, without a batch size.

    The players "player_0", "player_1", ... of a group are stacked: the entries of the group "agents" are "observation"
    `[players, ...]` and "information_state" `[players, ...]` (float32), if the game has them, "reward" `[players, 1]`
    and "action". "current_player" `[]` int32 is the player that moves next: only its action is played. It is -2 if all
    move simultaneously, and -4 after the end.

    The specs of actions have masks of the legal moves: random actions are legal, and those of players that do not move
    are 0. Chance events are sampled from a generator that `set_seed` seeds, unless there is a `chance_sampler`.

    Args:
        env: a `pyspiel.State`, as `pyspiel.load_game("chess").new_initial_state()`.
        group_map: the players of every group, or how to group them.
        categorical_actions: encode actions as indices, otherwise as one-hot rows.
        return_state: return the entry "state", the text that OpenSpiel serializes the state to. In any case,
            `env.reset(TensorDict({"state": text}))` continues the game from that state.
        chance_sampler: `chance_sampler(outcomes, probabilities)` chooses one of the outcomes of each chance event;
            None draws it from a generator.
        kwargs: see `EnvBase`.

    Attributes:
        available_envs: class attribute, the names of the games.
        group_map: the players of every group.
        agent_names: all players.

    Raises:
        VersionError: (an ImportError) if OpenSpiel is not installed.
        TypeError: if this is no `pyspiel.State`.
        ValueError: if players are not in exactly one group each.
        SpaceError: if it is a mean field game, or a batch size is given.

    >>> env = OpenSpielEnv("kuhn_poker")  # doctest: +SKIP
    >>> env.rollout(10)["next", "agents", "reward"].shape  # doctest: +SKIP
    torch.Size([3, 2, 1])
    """

    libname = "openspiel"
    returns_new_tensors = True
    available_envs: Any = AvailableEnvs(game_names)
    excluded_from_state = ("_masked_state", "_observations", "_actions")
    _masked_state: tuple[Any, int] = (None, 0)  # the state and the number of moves that the masks belong to

    def __init__(
        self,
        env: Any = None,
        *,
        group_map: GroupMap = MarlGroupMapType.ALL_IN_ONE_GROUP,
        categorical_actions: bool = False,
        return_state: bool = False,
        chance_sampler: ChanceSampler | None = None,
        **kwargs: Any,
    ):
        if not isinstance(env, openspiel_library().State):
            raise TypeError(f"Expected a pyspiel.State, as of game.new_initial_state(), got {env!r:.80}.")
        if tuple(kwargs.get("batch_size", ())):
            raise SpaceError(f"Expected no batch size, got {kwargs['batch_size']}. Use SerialEnv for a batch.")
        super().__init__(**kwargs)
        self.play = GamePlay(env.get_game(), chance_sampler)
        self.categorical_actions, self.return_state = categorical_actions, return_state
        self.agent_names = [f"player_{player}" for player in range(self.play.game.num_players())]
        self._tensors = provided_tensors(self.play.game)
        self.group_map = make_group_map(group_map, self.agent_names)
        self._players = {
            group: [self.agent_names.index(agent) for agent in agents] for group, agents in self.group_map.items()
        }
        self._set_specs()
        self.play.start()

    def _set_specs(self) -> None:
        game, device = self.play.game, self.device
        num_moves = game.num_distinct_actions()
        tensors = Composite(
            {kind: Unbounded(tensor_shape(game, kind), device, torch.float32) for kind in self._tensors}
        )
        action: TensorSpec = (
            Categorical(num_moves, (), device, torch.int64)
            if self.categorical_actions
            else OneHot(num_moves, (num_moves,), device, torch.int64)
        )

        def grouped(entries: Composite) -> GroupedEntries:
            return GroupedEntries(self.group_map, dict.fromkeys(self.agent_names, entries))

        self._observations, self._actions = grouped(tensors), grouped(Composite(action=action))
        observed = dict(self._observations.spec.items()) if self._tensors else {}
        observed["current_player"] = Unbounded((), device=device, dtype=torch.int32)
        if self.return_state:
            observed["state"] = NonTensor((), example_data="", device=device)
        self.observation_spec = Composite(observed)
        self.action_spec = self._actions.spec
        self.reward_spec = grouped(Composite(reward=Unbounded((1,), device=device))).spec
        flag = Categorical(2, (1,), dtype=torch.bool, device=device)
        self.full_done_spec = Composite(done=flag.clone(), terminated=flag.clone())

    # -- resets and steps

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        serialized = None
        if tensordict is not None and tensordict.get("_reset", None) is None:
            serialized = tensordict.get("state", None)
        self.play.start(getattr(serialized, "data", serialized))
        return TensorDict(self._observe(), device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        moves = self._moves(tensordict)
        if illegal := self.play.illegal_moves(moves):
            player, move = next(iter(illegal.items()))
            legal = self.play.state.legal_actions(player)
            raise SpaceError(
                f"Expected a legal move of player_{player}, one of {legal}, got {move}. "
                "Use the mask of env.full_action_spec, which has the legal moves."
            )
        if not self.play.state.is_terminal():
            self.play.play(moves)
        entries = self._observe()
        rewards = self.play.state.rewards()
        for group, players in self._players.items():
            reward = torch.tensor([[rewards[player]] for player in players])
            entries.setdefault(group, TensorDict({}, [len(players)], device=self.device))["reward"] = reward
        entries["terminated"] = torch.tensor([self.play.state.is_terminal()])
        return TensorDict(entries, device=self.device)

    def _moves(self, tensordict: TensorDictBase) -> list[int]:
        """Returns the index of the move of each player."""
        actions = self._actions.decode(tensordict, "action", to_choices)
        return [int(actions[agent]) for agent in self.agent_names]

    def _observe(self) -> dict[str, Any]:
        """Returns the observations of all players, after an update of the masks of legal moves."""
        play, entries = self.play, dict[str, Any]()
        self._update_masks()
        if self._tensors:
            agents = enumerate(self.agent_names)
            tensors = {name: {kind: play.tensor(kind, i) for kind in self._tensors} for i, name in agents}
            entries.update(self._observations.encode(tensors))
        entries["current_player"] = torch.tensor(play.state.current_player(), dtype=torch.int32)
        if self.return_state:
            entries["state"] = play.state.serialize()
        return entries

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Samples legal moves of the present state; see `EnvBase.rand_action`. In a batch, each environment does."""
        state, move_number = self._masked_state
        if state is not self.play.state or move_number != state.move_number():  # after `set_state`
            self._update_masks()
        return super().rand_action(tensordict)

    def _update_masks(self) -> None:
        """Writes the legal moves into the masks of the specs of actions; move 0 for players that do not move."""
        acting = self.play.acting_players()
        for group, players in self._players.items():
            masks = np.stack([self.play.legal_mask(player) & (player in acting) for player in players])
            masks[~masks.any(1), 0] = True
            self.full_action_spec[group, "action"].update_mask(torch.from_numpy(masks))
        self._masked_state = self.play.state, self.play.state.move_number()

    def _set_seed(self, seed: int | None) -> None:
        self.play.generator = np.random.default_rng(seed)

    # -- the rest

    @property
    def current_player(self) -> int:
        """The player that moves next; -2 if all do, -4 after the end."""
        return self.play.state.current_player()

    @property
    def is_simultaneous(self) -> bool:
        """Whether all players move next."""
        return self.current_player == SIMULTANEOUS

    @property
    def game_string(self) -> str:
        """The name of the game with its parameters."""
        return str(self.play.game)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.game_string}, device={self.device})"


class OpenSpielEnv(OpenSpielWrapper):
    """A game of OpenSpiel, made by its name; see `OpenSpielWrapper`.

    Args:
        game_string: the name of the game, also with parameters: "goofspiel(num_cards=5)".
        group_map, categorical_actions, return_state, kwargs: see `OpenSpielWrapper`. `chance_sampler` is one of them.

    Raises:
        VersionError: (an ImportError) if OpenSpiel is not installed.
        ValueError: if OpenSpiel cannot make the game.
    """

    def __init__(
        self,
        game_string: str,
        *,
        group_map: GroupMap = MarlGroupMapType.ALL_IN_ONE_GROUP,
        categorical_actions: bool = False,
        return_state: bool = False,
        **kwargs: Any,
    ):
        super().__init__(
            load_game(game_string).new_initial_state(),
            group_map=group_map,
            categorical_actions=categorical_actions,
            return_state=return_state,
            **kwargs,
        )
