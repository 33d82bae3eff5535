"""vecrl's own environments in the public conformance suite."""

from collections.abc import Callable
from functools import partial

import pytest

from vecrl.envs import (
    EnvBase,
    GymEnv,
    NativeEnv,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TicTacToeEnv,
    TransformedEnv,
)
from vecrl.testing import EnvConformance, IndependentRowsEnv

ENVS: dict[str, Callable[[], EnvBase]] = {
    "custom": PendulumEnv,
    "gymnasium": partial(GymEnv, "CartPole-v1"),
    "gymnasium, a vector": partial(GymEnv, "CartPole-v1", num_envs=2),
    "native": partial(NativeEnv, "CartPole-v1", 3),
    "one row": partial(IndependentRowsEnv, 0),
    "rows": partial(IndependentRowsEnv, (0, 1, 2)),
    "serial": partial(SerialEnv, 2, partial(GymEnv, "CartPole-v1")),
    "serial, transformed": lambda: SerialEnv(2, lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter(9))),
    "parallel": partial(ParallelEnv, 2, partial(GymEnv, "CartPole-v1")),
    "transformed": lambda: TransformedEnv(SerialEnv(2, partial(GymEnv, "CartPole-v1")), StepCounter(9)),
    "tic-tac-toe": TicTacToeEnv,
}


class TestEnvs(EnvConformance):
    @pytest.fixture(autouse=True, params=sorted(ENVS))
    def _env(self, request: pytest.FixtureRequest) -> None:
        self._make = ENVS[request.param]
        self.deterministic = request.param in ("one row", "rows", "tic-tac-toe")

    def make(self) -> EnvBase:
        return self._make()
