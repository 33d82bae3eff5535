"""State that simulators keep outside Python: MuJoCo's data and model, and an emulator with sticky actions."""

import random

import gymnasium
import numpy as np
import pytest
from tests.fixtures.state_envs import Thing, play, through_bytes

from vecrl.errors import StateError
from vecrl.snapshot import capture, restore


class Randomized(gymnasium.Wrapper):
    """Draws new masses and gravity in every episode."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        model = self.unwrapped.model
        model.body_mass[1:] *= self.unwrapped.np_random.uniform(0.9, 1.1, len(model.body_mass) - 1)
        model.opt.gravity[2] = -9.81 * self.unwrapped.np_random.uniform(0.9, 1.1)
        model.opt.timestep *= 1.01
        return obs, info


@pytest.mark.parametrize("name", ["Hopper-v5", "InvertedDoublePendulum-v5"])
def test_a_randomized_model_is_part_of_the_state(name):
    env, other = (Randomized(gymnasium.make(name)) for _ in range(2))
    env.reset(seed=1)
    env.action_space.seed(1)
    play(env, 40)
    state = through_bytes(capture(env))
    expected = play(env, 60)
    for item in (other, env):
        item.reset(seed=9)
        restore(item, state)
        assert play(item, 60) == expected
    assert env.unwrapped.model.opt.gravity[2] == other.unwrapped.model.opt.gravity[2] != -9.81


def test_computed_mujoco_arrays_are_restored():
    env = gymnasium.make("Ant-v5")
    env.reset(seed=1)
    env.action_space.seed(1)
    play(env, 30)
    data = env.unwrapped.data
    names = (
        "xpos",
        "cfrc_ext",
        "qacc_warmstart",
        "subtree_com",
        "sensordata",
        "ctrl",
        "qfrc_constraint",
        "actuator_force",
    )
    before = {name: getattr(data, name).copy() for name in names}
    time, state = data.time, capture(env)
    play(env, 30)
    restore(env, state)
    assert data.time == time
    assert env.unwrapped.data is data
    assert all(np.array_equal(getattr(data, name), value) for name, value in before.items())


def test_states_of_another_model_raise():
    hopper, ant = (gymnasium.make(name) for name in ("Hopper-v5", "Ant-v5"))
    state = capture(Thing(data=hopper.unwrapped.data))
    with pytest.raises(StateError, match=r"Expected a state of a MuJoCo model with nq=15, .*, got one with nq=6, .*"):
        restore(Thing(data=ant.unwrapped.data), state)


class Action:
    def __init__(self, value):
        self.value = value


class ALEState:
    def __init__(self, raw):
        self.raw = raw

    def serialize(self):
        return self.raw


class ALEInterface:
    """Imitates the emulator: its saved state lacks the previous frame's action, which sticky actions repeat."""

    def __init__(self, sticky=0.25):
        self.memory, self.rng, self.before, self.sticky = 1, random.Random(0), 0, sticky

    def getFloat(self, name):
        assert name == "repeat_action_probability"
        return self.sticky

    def getLegalActionSet(self):
        return [Action(value) for value in range(6)]

    def game_over(self):
        return False

    def act(self, action):
        if self.rng.random() >= self.sticky:
            self.before = action.value
        self.memory = (self.memory * 31 + self.before) % 1000003
        return self.memory

    def cloneState(self, include_rng):
        assert include_rng
        words = np.array([self.memory, *self.rng.getstate()[1]], np.uint64)
        return ALEState(words.tobytes())

    def restoreState(self, state):
        memory, *words = np.frombuffer(state.raw, np.uint64).tolist()
        self.memory = memory
        self.rng.setstate((3, tuple(words), None))


ALEInterface.__module__ = "ale_py._ale_py"


@pytest.mark.parametrize("sticky", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("seed", range(10))
def test_emulators_restore_the_sticky_action(sticky, seed):
    def frames(ale, count=40):
        return [ale.act(Action(number % 6)) for number in range(count)]

    env, reference_state, other = (Thing(ale=ALEInterface(sticky)) for _ in range(3))
    frames(env.ale, 7 + seed)
    frames(reference_state.ale, 7 + seed)
    state = through_bytes(capture(env))
    expected = frames(reference_state.ale)
    assert frames(env.ale) == expected
    restore(env, state)
    assert frames(env.ale) == expected
    restore(other, state)
    assert frames(other.ale) == expected
