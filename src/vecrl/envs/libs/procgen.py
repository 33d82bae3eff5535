"""Procgen's games over TensorDicts, under TorchRL's names."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium

from ...simulators.procgen import ProcgenVectorEnv, names
from .gym import GymEnv, GymWrapper
from .gym_backends import AvailableEnvs


class ProcgenWrapper(GymWrapper):
    """The games of a `procgen.ProcgenEnv`: n rows, which Procgen steps in one call, with the batch size (n,).

    Entries: "observation" `[*batch, 3, 64, 64]` uint8, "action" `[*batch]` int64 from 0 to 14, "reward", "done",
    "terminated" and "truncated" `[*batch, 1]`. Procgen begins the next episode in the step that ends one, so "next" of
    that step has the first observation of the next episode. Only all rows can be reset at once. Procgen takes seeds
    when it makes games: `ProcgenEnv` can be seeded, this one cannot.

    Args:
        env: a `procgen.ProcgenEnv` or a `procgen.ProcgenGym3Env`.
        categorical_action_encoding: encode actions as indices, otherwise as one-hot rows.
        kwargs: see `GymWrapper`.

    Raises:
        TypeError: `env` is none of these.

    >>> from procgen import ProcgenEnv as Games  # doctest: +SKIP
    >>> ProcgenWrapper(Games(num_envs=4, env_name="coinrun")).rollout(3)["next", "observation"].shape  # doctest: +SKIP
    torch.Size([4, 3, 3, 64, 64])
    """

    libname = "procgen"
    git_url = "https://github.com/openai/procgen"
    available_envs: Any = AvailableEnvs(names)

    def __init__(self, env: Any = None, categorical_action_encoding: bool = True, **kwargs: Any):
        is_gymnasium = isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv)
        env = env if is_gymnasium else ProcgenVectorEnv(env)
        super().__init__(env, categorical_action_encoding, **kwargs)
        self._resets_when_seeded = is_gymnasium  # Procgen's own environment takes no seeds

    def _set_seed(self, seed: int | None) -> None:
        if isinstance(self._env, ProcgenVectorEnv):
            text = "Procgen takes seeds only when it makes games. Use ProcgenEnv, or procgen.ProcgenEnv(rand_seed=…)."
            warnings.warn(f"The seed has no effect: {text}", stacklevel=4)
        else:
            super()._set_seed(seed)


class ProcgenEnv(GymEnv, ProcgenWrapper):
    """Games of Procgen, made by name, each with its own seed; see `ProcgenWrapper` for the entries.

    Any rows can be reset, and `num_workers` distributes them to worker processes.

    Args:
        env_name: one of `available_envs`, such as "coinrun".
        num_envs: the number of games; None for one game without batch dimensions.
        categorical_action_encoding: encode actions as indices, otherwise as one-hot rows.
        seed: as for `set_seed`; None for random levels.
        kwargs: see `GymEnv`; all others are Procgen's (`distribution_mode`, `num_levels`, `start_level`, …).

    Attributes:
        available_envs: class attribute, the names of the games; empty if Procgen is not installed.

    Raises:
        VersionError: Procgen is not installed.
        SpaceError: there is no such game.

    >>> ProcgenEnv("coinrun", num_envs=2).rollout(3)["next", "observation"].shape  # doctest: +SKIP
    torch.Size([2, 3, 3, 64, 64])
    """

    available_envs: Any = AvailableEnvs(names)

    def __init__(
        self,
        env_name: str,
        *,
        num_envs: int | None = 1,
        categorical_action_encoding: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ):
        options = {"num_envs": num_envs, "channels_first": True, **kwargs}
        super().__init__(f"procgen::{env_name}", categorical_action_encoding, **options)
        if seed is not None:
            self._seed_next_reset(seed)

    @classmethod
    def from_name(cls, name: str, num_envs: int | None = None, **kwargs: Any) -> ProcgenEnv:
        """Makes games by their registered name; one without batch dimensions if `num_envs` is None."""
        return cls(name, num_envs=num_envs, **kwargs)
