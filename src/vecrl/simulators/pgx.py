"""Adapts the games of Pgx, written in JAX, to a `BatchSimulator` of torch tensors: board games, cards, and MinAtar.

All players are played by the caller, one after another, as in `vecrl.simulators.openspiel`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..registries import check_name
from .gymnax import STEP_KEYS
from .jax_library import jax_library, space_of
from .jax_simulator import JaxStep, JaxTask, make_jax_batch

pgx_module = partial(jax_library, extra="pgx", title="Pgx")
GO_SIZES = {"go_9x9": 9, "go_19x19": 19}
PIXELS = 16  # of the sides of a field of MinAtar in a frame


def names() -> list[str]:
    """Returns the names of all games; raises ImportError if Pgx is not installed."""
    return sorted(pgx_module("pgx").available_envs())


def make_task(name: str, **kwargs: Any) -> PgxTask:
    """Makes a game by its name.

    Args:
        name: of the game ("connect_four", "minatar-breakout", …).
        kwargs: arguments of the constructor of the game's class (`sticky_action_prob=…`, `max_terminal_steps=…`).
    """
    check_name("a game of Pgx", name, names())
    game = pgx_module("pgx").make(name)
    if kwargs:
        size = {"size": GO_SIZES[name]} if name in GO_SIZES else {}
        game = type(game)(**size | kwargs)
    return PgxTask(game, name)


make_batch = partial(make_jax_batch, make_task)


class PgxTask(JaxTask):
    """A game of Pgx; see `JaxTask`.

    The observation is a dict of "observation", what the player that moves next observes, "action_mask" `[n]` bool, its
    legal moves, and "player". After the last move they are what Pgx gives, with a mask of all moves. The reward is that
    of the player that has moved; the info "rewards" `[players]` has those of all. An illegal move ends the game with
    Pgx's penalty.

    A game starts as `game.init(key)` does. The keys of its steps are split from `fold_in(key, STEP_KEYS)`.
    """

    def __init__(self, game: Any, name: str):
        self.game, self.name = game, f"Pgx's {name}"
        self.can_render = name.startswith("minatar-")
        _, obs = self.start_shapes
        players = spaces.Discrete(game.num_players, dtype=np.int32)
        self.observation_space = spaces.Dict({key: space_of(part) for key, part in obs.items()} | {"player": players})
        self.action_space = spaces.Discrete(*obs["action_mask"].shape, dtype=np.int32)

    def start(self, key: Array) -> tuple[Tree, Tree]:
        import jax

        state = self.game.init(key)
        return (state, jax.random.fold_in(key, STEP_KEYS)), _observe(state)

    def step(self, state: Tree, action: Tree) -> JaxStep:
        import jax

        before, key = state
        key, step_key = jax.random.split(key)
        after = self.game.step(before, action, step_key)
        flags = after.terminated, after.truncated
        info = {"rewards": after.rewards}
        return JaxStep((after, key), _observe(after), after.rewards[before.current_player], *flags, info)

    def draw(self, state: Tree) -> np.ndarray:
        """Draws a game of MinAtar in Pgx's colors; other games are drawn as SVG texts by Pgx."""
        fields = np.asarray(state[0].observation)
        colors = np.array([(0, 0, 0), *pgx_module("pgx.minatar.utils").get_cmap(fields.shape[-1])])
        highest = (fields * np.arange(1, fields.shape[-1] + 1)).max(-1)  # of the channels that are set in a field
        return np.kron((255 * colors[highest]).astype(np.uint8), np.ones((PIXELS, PIXELS, 1), np.uint8))


def _observe(state: Any) -> dict[str, Array]:
    return {"observation": state.observation, "action_mask": state.legal_action_mask, "player": state.current_player}
