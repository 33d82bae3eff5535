"""Classic environments for the tests of this folder."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecrl.classic import BaseEnv, GymEnv, RoboschoolEnv


class WalkEnv(BaseEnv):
    """Implements only what the contract requires, and returns the array that it keeps updating."""

    simulator = "none"

    def _create_env(self) -> Any:
        self.x = np.zeros(2)
        return None

    def reset(self) -> np.ndarray:
        self.x[:] = 0
        return self.x

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        self.x += (0.1, 2 * int(action) - 1)
        return self.x, float(self.x[1] / 3), bool(abs(self.x[1]) > 2), {}

    def get_state_info(self) -> dict[str, Any]:
        return {"shape": (2,), "dtype": "float"}

    def get_action_info(self) -> dict[str, Any]:
        return {"shape": (2,), "dtype": int}


class EndingEnv(gymnasium.Env[Any, Any]):
    """Terminates, is truncated, or both, depending on the number of steps and a seed."""

    observation_space = spaces.Discrete(9, start=3)
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 1])

    def __init__(self, flags: tuple[bool, bool] = (True, True)):
        self.flags = flags

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return 3 + int(self.np_random.integers(9)), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        flags = self.flags if self.steps == 3 else (False, False)
        return 3 + int(self.np_random.integers(9)), float(action[1]) / 3, *flags, {"steps": self.steps}


gymnasium.register("Ends-v0", EndingEnv)


class SmallObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observes every fiftieth pixel of the rendered frame."""

    def __init__(self, env: Any):
        super().__init__(gymnasium.wrappers.AddRenderObservation(env, render_only=True))
        self.observation_space = spaces.Box(0, 255, (8, 12, 3), np.uint8)

    def observation(self, observation: Any) -> Any:
        return observation[::50, ::50]


KINDS: dict[str, Any] = {
    "choices": lambda: GymEnv("CartPole-v1"),
    "numbers": lambda: GymEnv("Pendulum-v1", [lambda env: gymnasium.wrappers.TimeLimit(env, 7)]),
    "many choices": lambda: GymEnv("Ends-v0"),
    "states of choices": lambda: GymEnv("FrozenLake-v1"),
    "between bounds": lambda: GymEnv("Pendulum-v1", fixed_normalize_states=True),
    "running": lambda: GymEnv("CartPole-v1", running_normalize_states=True, scale_reward=True),
    "images": lambda: GymEnv("CartPole-v1", [SmallObservations], render_mode="rgb_array", fixed_normalize_states=True),
    "roboschool": lambda: RoboschoolEnv("RoboschoolHopper-v1", simulator="mujoco"),
    "own": lambda: WalkEnv("walk"),
    "own, running": lambda: WalkEnv("walk", running_normalize_states=True, scale_reward=True),
}
