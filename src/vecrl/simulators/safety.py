"""Safety-Gymnasium, which needs Python 3.10, on such an interpreter. The cost of a step is in its info."""

from __future__ import annotations

from typing import Any

import gymnasium

from ..engine.space_layout import Tree
from ..gym_interface import EnvStep
from .foreign import ForeignEnvFn, ForeignLibrary, foreign_env

SAFETY_GYMNASIUM = ForeignLibrary(
    module="safety_gymnasium",
    variable="VECRL_PYTHON_SAFETY",
    version="3.10",
    requirements="safety-gymnasium",
    names_code="[name for name in safety_gymnasium.utils.registration.safe_registry]",
    names_module="safety_gymnasium.utils.registration",
)


def env_fn(name: str, *, python: str | None = None, **kwargs: Any) -> ForeignEnvFn:
    """Returns a function that makes an environment of Safety-Gymnasium.

    Args:
        name: a name such as "SafetyPointGoal1-v0".
        python: the interpreter; by default the one that VECRL_PYTHON_SAFETY names.
        kwargs: arguments of `safety_gymnasium.make`.

    Raises:
        VersionError: no interpreter is named; the message says how to make one.
    """
    return foreign_env("safety_gymnasium:make", name, python=SAFETY_GYMNASIUM.require_python(python), **kwargs)


def names() -> list[str]:
    """Returns the names of the environments; raises VersionError (an ImportError) if no interpreter is named."""
    return SAFETY_GYMNASIUM.names()


class CostInInfo(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Moves the cost, the third of the six values that a step of Safety-Gymnasium returns, into the info."""

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment and returns gymnasium's five values; five values are returned unchanged."""
        result: Any = self.env.step(action)
        if len(result) == 5:
            return result
        obs, reward, cost, terminated, truncated, info = result
        return obs, reward, terminated, truncated, {**info, "cost": cost}
