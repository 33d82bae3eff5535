"""Tests for Brax and brax.v1: `test_brax.py` and `test_brax_v1.py` inherit them, each in its own Python environment.

Most tests run on a toy task registered with Brax, which has values that can be computed by hand and compiles quickly.
Tests of Brax's physics run on its inverted pendulum.
"""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from vecrl.engine.simulator import BatchSimulator
from vecrl.errors import SpaceError
from vecrl.simulators.availability import available
from vecrl.simulators.brax import brax_envs, make_batch, names
from vecrl.vector.factory import make_brax_env, make_vector_env
from vecrl.vector.torch_wrapper import TorchWrapper


def register_toy(old: bool) -> None:
    """Registers a point that moves by its action, from a random place in [0, 1); an episode ends beyond 3."""
    import importlib

    import jax

    envs = brax_envs(old)
    base = importlib.import_module("brax.v1.envs.env" if old else "brax.envs.base")

    class Toy(base.Env):
        observation_size, action_size, backend = 1, 1, "none"

        def __init__(self, scale=1.0, vector=True):
            self.scale, self.vector = scale, vector

        def reset(self, rng):
            x = jax.random.uniform(rng, (1,))
            return base.State(x, x if self.vector else {"x": x}, 0.0, 0.0, {"distance": 0.0})

        def step(self, state, action):
            x = state.obs + self.scale * action
            done = jax.numpy.where(x[0] > 3, 1.0, 0.0)
            first = {"qp" if old else "pipeline_state": x}
            return state.replace(obs=x, reward=x[0], done=done, metrics={"distance": x[0]}, **first)

    envs.register_environment("toy", Toy)


def ones(n=3):
    return torch.ones(n, 1)


class BraxChecks:
    old: bool
    pendulum: dict
    prefix: str

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _toy(cls):
        register_toy(cls.old)

    @pytest.fixture(scope="class")
    @classmethod
    def compiled(cls):
        """Returns one compiled simulator of each kind."""
        return {
            "toy": make_batch("toy", 3, old=cls.old, episode_length=3),
            "inverted_pendulum": make_batch(
                "inverted_pendulum", 3, old=cls.old, render_mode="rgb_array", episode_length=50, **cls.pendulum
            ),
        }

    @pytest.fixture
    def toy(self, compiled):
        return compiled["toy"]

    @pytest.fixture
    def cart(self, compiled):
        return compiled["inverted_pendulum"]

    # -- the simulator --------------------------------------------------------------------------------

    def test_attributes(self, toy, cart):
        """Covers the attributes of `BatchSimulator`."""
        for simulator, size in ((toy, 1), (cart, 4)):
            assert isinstance(simulator, BatchSimulator)
            assert simulator.num_envs == 3
            assert simulator.device == "cpu"
            assert simulator.observation_space == Box(-np.inf, np.inf, (size,))
            assert simulator.action_space.shape == (1,)
        assert toy.action_space == Box(-1, 1, (1,))
        assert cart.metadata == {"render_modes": ["rgb_array"], "render_fps": 25.0}

    def test_steps_equal_brax(self, cart):
        """Equal seeds and actions give the values of Brax, step by step."""
        import jax

        seeds = [3, 2**31, 2**32 - 1]
        brax = brax_envs(self.old).create("inverted_pendulum", auto_reset=False, **self.pendulum)
        reset, step = jax.jit(jax.vmap(brax.reset)), jax.jit(jax.vmap(brax.step))
        state = reset(jax.vmap(jax.random.PRNGKey)(np.array(seeds, np.uint32)))
        np.testing.assert_allclose(cart.reset(seeds), state.obs, rtol=1e-5, atol=1e-6)
        for t in range(5):
            actions = torch.full((3, 1), 0.1 * t)
            actual, state = cart.step(actions), step(state, actions.numpy())
            np.testing.assert_allclose(actual.next_obs, state.obs, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(actual.reward, state.reward, rtol=1e-5)
            np.testing.assert_array_equal(actual.terminated, np.asarray(state.done) > 0.5)
            assert actual.next_obs.dtype == actual.reward.dtype == torch.float32

    def test_terminated_is_not_truncated(self, cart):
        """A fallen pole is terminated, an upright one continues, and reaching the time limit is truncated."""
        cart.reset([0, 1, 2])
        actions = torch.tensor([[1.0], [0.0], [-1.0]])
        seen = [(step.terminated.tolist(), step.truncated.tolist()) for step in (cart.step(actions) for _ in range(50))]
        assert [True, False, True] in [terminated for terminated, _ in seen]
        assert not any(any(truncated) for _, truncated in seen[:-1])
        terminated, truncated = seen[-1]
        assert [a or b for a, b in zip(terminated, truncated, strict=True)] == [True] * 3
        assert not any(a and b for a, b in zip(terminated, truncated, strict=True))

    def test_rows_have_separate_random_streams(self, toy):
        """Seeds are per row. A row without a new seed continues its stream, whatever the other rows do."""
        first = toy.reset([7, 8, 9])
        second = toy.reset()
        assert len({*first.flatten().tolist(), *second.flatten().tolist()}) == 6
        mixed = toy.reset([7, None, 8])
        assert mixed[0] == first[0]
        assert mixed[2] == first[1]
        assert torch.equal(toy.reset([7, 8, 9]), first)
        assert torch.equal(toy.reset_where(torch.tensor([False, True, False]))[1], second[1])
        assert torch.equal(toy.reset_where(torch.tensor([True, False, True]))[::2], second[::2])

    def test_unseeded_simulators_differ(self, toy):
        """There is no hidden default seed."""
        assert not torch.equal(toy.reset(), make_batch("toy", 3, old=self.old).reset())

    def test_only_masked_rows_are_reset(self, toy):
        """`reset_where` resets the masked rows and returns the observations of all; step counts are per row."""
        toy.reset([1, 2, 3])
        before = toy.step(0 * ones()).next_obs
        after = toy.reset_where(torch.tensor([False, True, False]))
        assert torch.equal(after[::2], before[::2])
        assert after[1] != before[1]
        assert toy.step(0 * ones()).truncated.tolist() == [False, False, False]
        assert toy.step(0 * ones()).truncated.tolist() == [True, False, True]

    def test_terminated_takes_precedence_over_truncated(self, toy):
        """A termination on the last step is a termination; other ends at the limit are truncations."""
        start = toy.reset([1, 2, 3])
        assert (start < 1).all()
        actions = torch.tensor([[0.0], [1.1], [9.0]])
        steps = [toy.step(actions) for _ in range(3)]
        assert steps[0].terminated.tolist() == [False, False, True]
        last = steps[2]
        assert last.terminated.tolist() == [False, True, True]
        assert last.truncated.tolist() == [True, False, False]
        torch.testing.assert_close(last.next_obs, start + 3 * actions)

    def test_metrics_are_the_info(self, toy):
        """The info of a `BatchStep` has arrays of leading size n; `infos=False` omits Brax's metrics."""
        toy.reset([1, 2, 3])
        step = toy.step(ones())
        assert torch.equal(step.info["distance"], step.next_obs[:, 0])
        bare = make_batch("toy", 3, old=self.old, infos=False)
        bare.reset()
        assert bare.step(ones()).info == {}

    def test_results_and_actions_are_copies(self, toy):
        """Results may be written to, and so may actions after the call."""
        toy.reset([1, 2, 3])
        expected = toy.step(ones()).next_obs.clone()
        observation = toy.reset([1, 2, 3])
        observation.fill_(100)
        actions = ones()
        step = toy.step(actions)
        actions.fill_(100)
        assert torch.equal(step.next_obs, expected)
        step.next_obs.fill_(100)
        assert torch.equal(toy.reset_where(torch.zeros(3, dtype=torch.bool)), expected)

    def test_states_restore_exactly(self, cart, toy):
        """States are tensors of leading size n, from which the simulator continues bit-identically, with equal random
        numbers."""
        for simulator in (cart, toy):
            simulator.reset([4, 5, 6])
            simulator.step(ones())
            state = simulator.get_state()
            assert all(isinstance(leaf, torch.Tensor) and leaf.shape[0] == 3 for leaf in state.values())
            runs = []
            for _ in range(2):
                simulator.set_state(state)
                runs.append((simulator.step(ones()).next_obs, simulator.reset_where(torch.tensor([True, False, True]))))
            assert torch.equal(runs[0][0], runs[1][0])
            assert torch.equal(runs[0][1], runs[1][1])

    def test_compiles_once(self, cart, toy):
        """Neither reset nor step compiles a second time, whatever calls came before."""
        for simulator in (cart, toy):
            simulator.reset([1, None, 3])
            simulator.set_state(simulator.get_state())
            for t in range(3):
                simulator.step(torch.full((3, 1), t))
                simulator.reset_where(torch.tensor([True, False, False]))
            assert simulator._reset_where._cache_size() == simulator._step_compiled._cache_size() == 1

    def test_renders(self, cart):
        """`render` returns a frame [height, width, 3] uint8 of one row."""
        cart.reset([1, 2, 3])
        upright = cart.render(0)
        assert upright.shape == (240, 320, 3)
        assert upright.dtype == np.uint8
        assert upright.std() > 1
        for _ in range(20):
            cart.step(ones())
        assert (cart.render(0) != upright).any()
        cart.close()
        cart.close()

    def test_invalid_arguments_raise(self, toy):
        """Messages have the expected value."""
        with pytest.raises(SpaceError, match=r"\[3, 1\]"):
            toy.step(torch.ones(2, 1))
        with pytest.raises(ValueError, match="options"):
            toy.reset(options={"a": 1})
        with pytest.raises(ValueError, match="inverted_pendulum"):
            make_batch("nothing", 2, old=self.old)
        with pytest.raises(ValueError, match="cuda:7"):
            make_batch("toy", 2, old=self.old, device="cuda:7")
        with pytest.raises(ValueError, match="render_mode"):
            make_batch("toy", 2, old=self.old, render_mode="rgb_array")
        with pytest.raises(SpaceError, match="one vector"):
            make_batch("toy", 2, old=self.old, vector=False)
        assert toy.render(0) is None

    # -- factories ------------------------------------------------------------------------------------

    def test_vector_environments_match_the_contract(self):
        """Returns a gymnasium vector environment in a TorchWrapper, with final observations; keywords reach Brax."""
        env = make_vector_env(self.prefix + "toy", num_envs=3, brax_kwargs={"episode_length": 2, "scale": 0.5})
        with env:
            assert isinstance(env, TorchWrapper)
            assert isinstance(env.env, gymnasium.vector.VectorEnv)
            assert env.num_envs == 3
            assert env.single_observation_space == Box(-np.inf, np.inf, (1,))
            start, _ = env.reset(seed=1)
            _, _, _, truncated, _ = env.step(ones())
            assert not truncated.any()
            observation, reward, terminated, truncated, info = env.step(ones())
            assert truncated.tolist() == [True] * 3
            assert not terminated.any()
            torch.testing.assert_close(info["final_obs"], start + 1)
            torch.testing.assert_close(reward, (start + 1)[:, 0])
            torch.testing.assert_close(info["distance"], reward)
            assert (observation < 1).all()
            assert not torch.equal(observation, start)  # a new episode, not a repetition of the first

    def test_argument_spellings_are_accepted(self):
        """Accepts num_envs or batch_size, auto_reset or autoreset."""
        name = ("old::" if self.old else "") + "toy"
        for arguments in ({"batch_size": 2}, {"num_envs": 2, "auto_reset": True}, {"batch_size": 2, "autoreset": True}):
            with make_brax_env(name, **arguments) as env:
                assert env.reset()[0].shape == (2, 1)

    def test_num_episodes_and_empty_info(self):
        """num_episodes, empty_info and device reach Brax environments."""
        env = make_vector_env(
            self.prefix + "toy", num_envs=2, num_episodes=2, empty_info=True, device="cpu", episode_length=1
        )
        with env:
            env.reset()
            rewards = []
            for _ in range(3):
                _, reward, _, _, info = env.step(ones(2))
                rewards.append(reward.isnan().tolist())
                assert info == {}
            assert rewards == [[False] * 2, [False] * 2, [True] * 2]

    def test_single_environments_have_no_batch_dimension(self):
        """num_envs=None gives one environment without a batch dimension."""
        with make_brax_env(("old::" if self.old else "") + "toy", clip_actions=True, force_classic_api=True) as env:
            start = env.reset(seed=1)
            assert start.shape == (1,)
            observation, reward, done, info = env.step(torch.tensor([9.0]))
            torch.testing.assert_close(observation, start + 1)
            assert (reward.shape, done.shape, info["distance"].shape) == ((), (), ())
            assert done.dtype == torch.bool

    def test_names_are_registered(self):
        """The registry lists the names that Brax can make here."""
        found = available(self.prefix.removesuffix("::"))
        assert found.missing is None
        assert {"ant", "inverted_pendulum"} <= set(found.names)
        assert list(found.names) == names(self.old)
