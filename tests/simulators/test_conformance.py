"""vecrl's own simulators in the public conformance suites."""

import gymnasium
import pytest
from tests.fixtures.gym_envs import noise

from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.heterogeneous import HeterogeneousSimulator
from vecrl.simulators.native import NATIVE, make_native
from vecrl.testing import BatchSimulatorConformance, SimulatorConformance


@pytest.fixture(params=sorted(NATIVE))
def name(request):
    return request.param


class TestNative(BatchSimulatorConformance):
    num_steps = 60

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make(self, num_envs):
        return make_native(self.name, num_envs, max_episode_steps=20)


class TestNativeFrames(BatchSimulatorConformance):
    def make(self, num_envs):
        return make_native("Pendulum-v1", num_envs, render_mode="rgb_array", max_episode_steps=10)


@pytest.fixture(params=["CartPole-v1", "Pendulum-v1", "dict", "tuple"])
def kind(request):
    return request.param


class TestGymnasium(SimulatorConformance):
    @pytest.fixture(autouse=True)
    def _kind(self, kind):
        self.kind = kind

    def make(self, num_envs):
        if "-" in self.kind:
            return GymnasiumSimulator([lambda: gymnasium.make(self.kind, max_episode_steps=15)] * num_envs)
        return GymnasiumSimulator(noise(self.kind, num_envs))


class TestHeterogeneous(SimulatorConformance):
    def make(self, num_envs):
        return HeterogeneousSimulator([lambda: gymnasium.make("CartPole-v1")] * num_envs)
