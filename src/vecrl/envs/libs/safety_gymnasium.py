"""Safety-Gymnasium over TensorDicts, under TorchRL's names, with the cost of each step as an entry."""

from __future__ import annotations

from typing import Any

import gymnasium

from ...simulators.safety import CostInInfo, names
from ...specs import Unbounded
from ..gym_like import default_info_dict_reader
from .gym import GymEnv, GymWrapper
from .gym_backends import AvailableEnvs


class SafetyGymnasiumWrapper(GymWrapper):
    """An environment of Safety-Gymnasium, or a vector of them, with the entry "cost" `[*batch, 1]` float32.

    The cost of a reset is 0.

    Args:
        env: an environment that returns the cost as the third of six values or in its info, such as one of
            `vecrl.simulators.safety.env_fn`; or a vector environment with "cost" in its infos.
        categorical_action_encoding, kwargs: see `GymWrapper`.
    """

    libname = "safety_gymnasium"
    git_url = "https://github.com/PKU-Alignment/safety-gymnasium"
    available_envs: Any = AvailableEnvs(names)

    def __init__(self, env: Any = None, categorical_action_encoding: bool = False, **kwargs: Any):
        env = CostInInfo(env) if isinstance(env, gymnasium.Env) else env
        super().__init__(env, categorical_action_encoding, **kwargs)
        self.set_info_dict_reader(default_info_dict_reader(["cost"], [Unbounded((1,), self.device)]))


class SafetyGymnasiumEnv(GymEnv, SafetyGymnasiumWrapper):
    """An environment of Safety-Gymnasium, or several, made by name on Python 3.10; see `SafetyGymnasiumWrapper`.

    Args:
        env_name: one of `available_envs`, such as "SafetyPointGoal1-v0".
        python: the interpreter with Safety-Gymnasium; by default the one that VECRL_PYTHON_SAFETY names.
        kwargs: see `GymEnv`; all others are arguments of `safety_gymnasium.make`.

    Attributes:
        available_envs: class attribute, the names of the environments; empty if no interpreter is named.

    Raises:
        VersionError: no interpreter is named; the message says how to make one.

    >>> SafetyGymnasiumEnv("SafetyPointGoal1-v0").rollout(3)["next", "cost"].shape  # doctest: +SKIP
    torch.Size([3, 1])
    """

    available_envs: Any = AvailableEnvs(names)

    def __init__(self, env_name: str, *, python: str | None = None, **kwargs: Any):
        super().__init__(f"safety::{env_name}", python=python, **kwargs)
