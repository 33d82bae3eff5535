"""`register_native`: tasks of users under `native::`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from vecrl.errors import SpaceError
from vecrl.simulators.native import NATIVE, CartPole, NativeSimulator, make_native, register_native
from vecrl.simulators.row_task_checks import check_functions
from vecrl.testing import BatchSimulatorConformance
from vecrl.vector import make_vector_env

RNG = np.random.default_rng(1)


class Drift(NativeSimulator):
    id, episode_steps, fps, num_draws = "Drift-v0", 20, 10, 1
    observation_space = Box(-9, 9, (1,), np.float32)
    action_space = Discrete(2)
    physics = ("pull",)
    pull = 0.5

    @staticmethod
    def initial(uniforms: Any, options: Any) -> Any:
        return uniforms

    def advance(self, state: Any, action: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        state = state + self.pull * (action - 0.5)
        return state, -abs(state[0]), abs(state[0]) > 3

    @staticmethod
    def observe(state: Any) -> Any:
        return state

    def draw(self, state: np.ndarray) -> np.ndarray:
        return np.full((4, 6, 3), int(10 + state[0]), np.uint8)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(NATIVE)
    register_native(Drift)
    yield
    NATIVE.clear()
    NATIVE.update(before)


class TestDrift(BatchSimulatorConformance):
    def make(self, num_envs: int) -> Any:
        return make_native("Drift-v0", num_envs, render_mode="rgb_array")


def test_it_has_physics_and_pictures() -> None:
    env = make_vector_env("native::Drift-v0", num_envs=2, pull=4.0, render_mode="rgb_array")
    start = env.reset(seed=1)[0]
    obs = env.step(torch.tensor([0, 1]))[0]
    assert torch.allclose(obs[:, 0] - start[:, 0], torch.tensor([-2.0, 2.0]))
    frames = env.env.render()
    assert [frame.shape for frame in frames] == [(4, 6, 3)] * 2
    assert [frame[0, 0, 0] for frame in frames] == [int(10 + value) for value in obs[:, 0].tolist()]


def test_the_same_class_may_be_registered_again() -> None:
    assert register_native(Drift) is Drift


def test_what_is_no_task_is_refused() -> None:
    class Other(Drift):
        pass

    class Taken(CartPole):
        pass

    class Unnamed(NativeSimulator):
        pass

    for task in (Other, Taken):
        with pytest.raises(ValueError, match=f"Expected a new id, got '{task.id}', which .* has"):
            register_native(task)
    with pytest.raises(TypeError, match="Expected Unnamed to have the attribute 'id', got none"):
        register_native(Unnamed)
    for wrong in (3, Drift(2), dict):
        with pytest.raises(TypeError, match="Expected a subclass of NativeSimulator, got"):
            register_native(wrong)  # type: ignore[type-var]


class Correct(Drift):
    """Takes both array libraries."""

    supports_numpy = True


def _with(**functions: Any) -> Any:
    """Returns the task with other functions."""
    return type("Wrong", (Correct,), {name: staticmethod(function) for name, function in functions.items()})(3)


def _in_place(state: Any, action: Any) -> Any:
    state += action
    return state, state[0], state[0] > 3


@pytest.mark.parametrize("task", [Correct, Drift, *(NATIVE[name] for name in sorted(NATIVE))])
def test_functions_that_fit_pass(task: Any) -> None:
    check_functions(task(3))


def _observe_in_place(state: Any) -> Any:
    state[0] = 0
    return state


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        (
            {"advance": lambda s, a: (s - 0.1 * (a == 1), s[0], s[0] > 3)},
            "the state from Wrong.advance with NumPy to have the dtype float32, got float64. Convert it: namespace_of",
        ),
        ({"advance": lambda s, a: (s, s[0])}, r"\(state, reward, terminated\) from Wrong.advance, got 2 values"),
        ({"advance": lambda s, a: (s, 1.0, s[0] > 3)}, r"the reward from .* the shape \(11,\) for 11 .*, got 1.0"),
        ({"advance": lambda s, a: (s, s[0], s[0])}, "terminated from .* to have the dtype bool, got float32"),
        ({"advance": lambda s, a: (s, s, s[0] > 3)}, r"the reward .* the shape \(11,\) .*, got \(1, 11\)"),
        ({"advance": _in_place}, "Wrong.advance not to change its arguments, got other values in one"),
        ({"observe": _observe_in_place}, "Wrong.observe not to change its arguments, got other values in one"),
        ({"initial": lambda u, o: u.T}, r"Wrong.initial with NumPy to have the shape \(11, 11\)"),
        ({"observe": lambda s: s[0]}, r"Wrong.observe with NumPy to have the shape \(1, 11\) for 11 .*, got \(11,\)"),
        ({"observe": lambda s: s.T}, r"Wrong.observe with NumPy to have the shape \(1, 11\) for 11 .*, got \(11, 1\)"),
        (
            {"initial": lambda u, o: u * (2 if isinstance(u, np.ndarray) else 1)},
            "Wrong.initial to be the same with",
        ),
        (
            {"advance": lambda s, a: (s * (2 if isinstance(s, np.ndarray) else 1), s[0], s[0] > 3)},
            "step 1 of Wrong to be the same with NumPy and torch",
        ),
        (
            {"advance": lambda s, a: (s + a[0], s[0], s[0] > 3)},
            "another result for environment 10 alone. Use no values",
        ),
        ({"advance": lambda s, a: (s, s[0] - s.mean(), s[0] > 3)}, "got another result for environment 0 alone"),
        (
            {"advance": lambda s, a: (s + RNG.random(dtype=np.float32), s[0], s[0] > 3)},
            "Wrong.advance to give the same results for the same state and actions, got others. Draw random numbers in",
        ),
    ],
)
def test_functions_that_do_not_fit_are_named(functions: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        check_functions(_with(**functions))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (None, "Expected Partial to define observe, got none"),
        (
            lambda state: state,
            "Expected Partial.observe to be a static method or to take self, got a function of 1",
        ),
    ],
)
def test_functions_that_are_missing_or_no_static_methods_are_named(function: Any, text: str) -> None:
    attributes = {"id": "Partial-v0", "episode_steps": 5, "fps": None, "num_draws": 1, "observe": function}
    attributes |= {"observation_space": Box(-9, 9, (1,)), "action_space": Discrete(2)}
    attributes |= {"initial": staticmethod(lambda u, o: u), "advance": staticmethod(lambda s, a: (s, s[0], s[0] > 1))}
    if function is None:
        del attributes["observe"]
    with pytest.raises(TypeError, match=text):
        register_native(type("Partial", (NativeSimulator,), attributes))
