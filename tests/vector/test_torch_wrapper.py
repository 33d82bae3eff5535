"""`TorchWrapper` around single, vectorized, nested, tensor-based and old-interface environments."""

import contextlib
import gc
import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from vecrl.errors import SpaceError
from vecrl.vector import VectorEnv, make_vector_env
from vecrl.vector.base import BaseVectorEnv
from vecrl.vector.torch_wrapper import TorchVectorEnv, TorchWrapper

BOX = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64)


class Echo(gymnasium.Env):
    """Keeps the action it received; its observation is one array that it keeps writing to."""

    def __init__(self, action_space=BOX, observation_space=BOX):
        self.action_space, self.observation_space = action_space, observation_space
        self.state = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        self.state[:] = 0
        return self.state, {"options": options}

    def step(self, action):
        self.action = action
        self.state += 1
        return self.state, 0.5, self.state[0] == 2, self.state[0] == 3, {"n": 1}


class EchoBatch(BaseVectorEnv):
    """The same environment, vectorized; `make` sets the array type."""

    def __init__(self, action_space=BOX, make=np.asarray, n=3):
        super().__init__(n, BOX, action_space)
        self.make = make

    def reset(self, *, seed=None, options=None):
        return self.make(np.zeros((self.num_envs, 2))), {}

    def step(self, action):
        self.action = action
        flags = np.arange(self.num_envs) == 1
        return self.make(np.ones((self.num_envs, 2))), self.make(np.ones(self.num_envs)), self.make(flags), ~flags, {}


class Old:
    """Has the interface from before gymnasium."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def reset(self):
        return np.zeros(2)

    def step(self, action):
        return np.ones(2), 1.0, True, {"old": True}


def ready(env, **options):
    wrapped = TorchWrapper(env, **options)
    wrapped.reset()
    return wrapped


# ---------------------------------------------------------------- attributes


def test_is_not_a_gymnasium_wrapper_and_exposes_the_environment():
    """TorchWrapper: not a gymnasium.Wrapper; env, unwrapped, spaces."""
    env = gymnasium.make("CartPole-v1")
    wrapped = TorchWrapper(env)
    assert not isinstance(wrapped, gymnasium.Wrapper)
    assert wrapped.env is env
    assert wrapped.unwrapped is env.unwrapped
    assert wrapped.observation_space == env.observation_space
    assert wrapped.action_space == env.action_space
    assert not hasattr(wrapped, "num_envs")
    assert not hasattr(wrapped, "single_action_space")
    assert "CartPole" in repr(wrapped)
    env.close()


def test_vectorized_attributes():
    """TorchWrapper: num_envs, single_observation_space, single_action_space of vectorized environments."""
    env = EchoBatch(spaces.Discrete(4))
    wrapped = TorchWrapper(env)
    assert wrapped.num_envs == 3
    assert wrapped.single_observation_space == BOX
    assert wrapped.single_action_space == spaces.Discrete(4)
    assert wrapped.action_space == spaces.MultiDiscrete([4] * 3)
    assert wrapped.observation_space == env.observation_space


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        (lambda: Echo(), "numpy"),
        (lambda: EchoBatch(), "numpy"),
        (lambda: EchoBatch(make=torch.as_tensor), "torch"),
        (lambda: EchoBatch(make=np.ndarray.tolist), "numpy"),
        (lambda: TorchWrapper(Echo()), "torch"),
    ],
    ids=["single", "batch", "tensors", "lists", "nested"],
)
def test_array_type_comes_from_the_first_observation(env, kind):
    """TorchWrapper: array_type is None before the first reset; unknown types count as "numpy"."""
    wrapped = TorchWrapper(env())
    assert wrapped.array_type is None
    wrapped.reset()
    assert wrapped.array_type == kind


@pytest.mark.parametrize("space", [spaces.Sequence(BOX), spaces.Text(3)])
def test_unsupported_spaces_raise(space):
    """TorchWrapper: unsupported spaces of single and vectorized environments are a TypeError."""
    for env in (Echo(action_space=space), Echo(observation_space=space)):
        with pytest.raises(TypeError, match=type(space).__name__):
            TorchWrapper(env)
    with contextlib.closing(SyncVectorEnv([lambda: Echo(BOX, space)] * 2)) as env, pytest.raises(TypeError):
        TorchWrapper(env)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(-1, 1, (2, 3), np.float32),
        spaces.Box(0, 255, (4,), np.uint8),
        spaces.Discrete(3),
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
    ],
    ids=str,
)
def test_sampled_actions_arrive_unchanged(space):
    """TorchWrapper: actions are given as tensors and arrive in the environment's array type and dtype."""
    env = Echo(action_space=space)
    action = space.sample()
    ready(env).step(torch.as_tensor(action))
    assert space.contains(env.action)
    assert np.array_equal(env.action, action)
    assert env.action.dtype == space.dtype


# ---------------------------------------------------------------- values


def test_single_environment_gives_tensors():
    """TorchWrapper: observations, rewards and done flags are tensors; info is unchanged."""
    wrapped = TorchWrapper(Echo())
    observation, info = wrapped.reset(seed=3, options={"a": 1})
    assert torch.equal(observation, torch.zeros(2, dtype=torch.float64))
    assert info == {"options": {"a": 1}}
    observation, reward, terminated, truncated, info = wrapped.step(torch.zeros(2))
    assert torch.equal(observation, torch.ones(2, dtype=torch.float64))
    assert reward == torch.tensor(0.5)
    assert (terminated.dtype, truncated.dtype) == (torch.bool, torch.bool)
    assert (terminated.item(), truncated.item(), info) == (False, False, {"n": 1})


def test_results_are_copies():
    """TorchWrapper: an environment that overwrites its observation does not change an earlier one."""
    wrapped = TorchWrapper(Echo())
    first, _ = wrapped.reset()
    wrapped.step(torch.zeros(2))
    assert first.tolist() == [0, 0]


@pytest.mark.parametrize("make_env", [SyncVectorEnv, AsyncVectorEnv, VectorEnv])
def test_vector_environments_of_gymnasium_and_vecrl(make_env):
    """TorchWrapper: wraps vectorized gymnasium environments and returns their values."""
    makers = [lambda: gymnasium.make("CartPole-v1")] * 3
    actions = [torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0])]
    with TorchWrapper(make_env(makers)) as wrapped:
        plain = SyncVectorEnv(makers)
        observation, _ = wrapped.reset(seed=4)
        np.testing.assert_array_equal(observation, plain.reset(seed=4)[0])
        for action in actions:
            received, expected = wrapped.step(action), plain.step(action.numpy())
            for actual, reference in zip(received[:4], expected[:4], strict=True):
                assert isinstance(actual, torch.Tensor)
                np.testing.assert_array_equal(actual, reference)
        plain.close()


def test_torch_environments_keep_their_gradients():
    """TorchWrapper: a tensor environment receives the tensor itself, and its results are returned."""
    env = EchoBatch(make=torch.as_tensor)
    action = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    ready(env).step(action * 1)
    assert env.action.requires_grad


def test_numpy_environments_detach_actions():
    """TorchWrapper: an action that requires grad reaches a NumPy environment."""
    env = Echo()
    ready(env).step(torch.ones(2, requires_grad=True))
    assert env.action.tolist() == [1, 1]


@pytest.mark.parametrize("options", [{}, {"force_classic_api": True}])
def test_wrappers_can_be_nested(options):
    """TorchWrapper: wraps another TorchWrapper and keeps the inner interface."""
    inner = TorchWrapper(gymnasium.make("CartPole-v1"), **options)
    outer = TorchWrapper(inner)
    result = outer.reset(seed=0)
    observation = result if options else result[0]
    assert outer.array_type == "torch"
    assert observation.shape == (4,)
    assert len(outer.step(torch.tensor(0))) == (4 if options else 5)
    assert outer.unwrapped is inner.unwrapped
    outer.close()


def test_vectorized_wrappers_can_be_nested():
    """TorchWrapper: wraps another vectorized TorchWrapper and accepts the same actions."""
    env = EchoBatch(spaces.Discrete(4))
    inner = TorchWrapper(env, discrete_to_continuous_act=True)
    outer = ready(inner, force_classic_api=True)
    assert outer.num_envs == 3
    assert outer.action_space == spaces.Box(-np.inf, np.inf, (3, 4))
    assert outer.single_action_space == spaces.Box(-np.inf, np.inf, (4,))
    observation, reward, done, _ = outer.step(torch.eye(4)[[3, 0, 2]])
    assert env.action.tolist() == [3, 0, 2]
    assert (observation.shape, reward.shape, done.tolist()) == ((3, 2), (3,), [True, True, True])


def test_float_flags_become_bools():
    """TorchWrapper: done flags are bool tensors, whatever their dtype was."""

    class Floats(EchoBatch):
        def step(self, action):
            return np.ones((3, 2)), np.ones(3), np.array([0.0, 1.0, 0.0]), np.array([1, 0, 0]), {}

    _, _, terminated, truncated, _ = ready(Floats()).step(torch.zeros(3, 2))
    assert terminated.tolist() == [False, True, False]
    assert truncated.tolist() == [True, False, False]


# ---------------------------------------------------------------- classic and old interfaces


def test_force_classic_api():
    """TorchWrapper: force_classic_api returns only the observation, and four values with done = terminated or
    truncated."""
    wrapped = TorchWrapper(Echo(), force_classic_api=True)
    assert isinstance(wrapped.reset(), torch.Tensor)
    dones = []
    for _ in range(3):
        _, _, done, info = wrapped.step(torch.zeros(2))
        assert done.dtype == torch.bool
        assert info == {"n": 1}
        dones.append(done.item())
    assert dones == [False, True, True]  # row 1 terminated, row 2 truncated
    _, _, done, _ = ready(EchoBatch(), force_classic_api=True).step(torch.zeros(3, 2))
    assert done.tolist() == [True, True, True]


@pytest.mark.parametrize("classic", [False, True])
def test_old_api_environments_keep_their_signature(classic):
    """TorchWrapper: an old-API environment keeps its signature."""
    wrapped = TorchWrapper(Old(), force_classic_api=classic)
    observation = wrapped.reset()
    assert torch.equal(observation, torch.zeros(2, dtype=torch.float64))
    observation, reward, done, info = wrapped.step(torch.tensor(1))
    assert isinstance(observation, torch.Tensor)
    assert reward.item() == 1.0
    assert done.dtype == torch.bool
    assert info == {"old": True}
    assert isinstance(wrapped.unwrapped, Old)


def test_old_gym_spaces_are_converted(monkeypatch):
    """TorchWrapper: spaces of the `gym` package become equal gymnasium spaces."""
    module = ModuleType("gym.spaces")
    monkeypatch.setitem(sys.modules, "gym.spaces", module)

    def space(name, **fields):
        return type(name, (), {"__module__": "gym.spaces", **fields})()

    env = Old()
    env.observation_space = space("Box", low=BOX.low, high=BOX.high, dtype=np.float64)
    for actual, reference in [
        (spaces.Discrete(3), space("Discrete", n=3)),
        (spaces.Discrete(3, start=1), space("Discrete", n=3, start=1)),
        (spaces.MultiDiscrete([2, 3]), space("MultiDiscrete", nvec=np.array([2, 3]))),
    ]:
        env.action_space = reference
        wrapped = TorchWrapper(env)
        assert wrapped.observation_space == BOX
        assert wrapped.action_space == actual
    env.action_space = space("Dict", spaces={"a": space("Tuple", spaces=[space("Discrete", n=2)])})
    assert TorchWrapper(env).action_space == spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)]))
    env.action_space = space("Graph")
    with pytest.raises(TypeError, match="Graph"):
        TorchWrapper(env)


# ---------------------------------------------------------------- actions


@pytest.mark.parametrize("start", [0, 5])
def test_discrete_to_continuous_single(start):
    """TorchWrapper: for a Discrete(n) the action space becomes Box(-inf, inf, (n,)), and the arg max is applied."""
    env = Echo(action_space=spaces.Discrete(3, start=start))
    wrapped = ready(env, discrete_to_continuous_act=True)
    assert wrapped.action_space == spaces.Box(-np.inf, np.inf, (3,))
    wrapped.step(torch.tensor([0.1, -1.0, 0.7]))
    assert env.action == start + 2
    assert env.action_space.contains(env.action)


def test_discrete_to_continuous_batched():
    """TorchWrapper: batched, the action space becomes Box(-inf, inf, (num_envs, n))."""
    env = EchoBatch(spaces.Discrete(4))
    wrapped = ready(env, discrete_to_continuous_act=True)
    assert wrapped.action_space == spaces.Box(-np.inf, np.inf, (3, 4))
    assert wrapped.single_action_space == spaces.Box(-np.inf, np.inf, (4,))
    wrapped.step(torch.eye(4)[[3, 0, 2]])
    assert env.action.tolist() == [3, 0, 2]
    assert env.action.dtype == np.int64


@pytest.mark.parametrize("shape", [(3,), (3, 5), (2, 4), ()])
def test_scores_of_another_shape_raise(shape):
    """TorchWrapper: scores that are not n per environment raise."""
    with pytest.raises(SpaceError):
        ready(EchoBatch(spaces.Discrete(4)), discrete_to_continuous_act=True).step(torch.zeros(shape))


def test_options_ignore_other_spaces():
    """TorchWrapper: discrete_to_continuous_act applies to Discrete spaces, clip_actions to Box spaces."""
    assert TorchWrapper(Echo(), discrete_to_continuous_act=True).action_space == BOX
    env = Echo(action_space=spaces.Discrete(2))
    ready(env, clip_actions=True).step(torch.tensor(1))
    assert env.action == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_actions(dtype):
    """TorchWrapper: clip_actions clips to the bounds, element by element, and exactly."""
    space = spaces.Box(np.array([-0.1, -np.inf]), np.array([0.1, 2.0]), dtype=np.float64)
    env, batch = Echo(action_space=space), EchoBatch(space)
    ready(env, clip_actions=True).step(torch.tensor([-3.0, -7.0], dtype=dtype))
    assert env.action.tolist() == [-0.1, -7.0]
    rows = torch.tensor([[9.0, 9.0], [0.0, 1.0], [-9.0, -9.0]], dtype=dtype)
    ready(batch, clip_actions=True).step(rows)
    assert batch.action.tolist() == [[0.1, 2.0], [0.0, 1.0], [-0.1, -9.0]]
    assert rows[0, 0] == 9  # the caller's tensor is not written to


def test_clip_actions_of_integers():
    """TorchWrapper: integer actions are clipped before the cast, so that none wraps around."""
    env = Echo(action_space=spaces.Box(0, 200, (2,), np.uint8))
    ready(env, clip_actions=True).step(torch.tensor([300.7, -1.0]))
    assert env.action.tolist() == [200, 0]
    assert env.action.dtype == np.uint8


@pytest.mark.parametrize("device", ["cpu", pytest.param("meta", id="other device")])
def test_bounds_follow_the_action_to_its_device(device):
    """TorchWrapper: actions are clipped on the action's device."""
    wrapped = TorchWrapper(EchoBatch(), clip_actions=True)
    clipped = wrapped._leaves[0].convert(torch.zeros(3, 2, device=device))
    assert clipped.device.type == device
    assert clipped.dtype == torch.float64


@pytest.mark.parametrize("action", [1.0, [0.0, 1.0, 1.0]])
def test_float_actions_for_integer_spaces_raise(action):
    """TorchWrapper: floating actions for a Discrete raise with advice."""
    env = EchoBatch(spaces.Discrete(2)) if isinstance(action, list) else Echo(action_space=spaces.Discrete(2))
    with pytest.raises(SpaceError, match="discrete_to_continuous_act"):
        ready(env).step(torch.tensor(action))


@pytest.mark.parametrize("shape", [(), (2, 2), (4, 2)])
def test_vectorized_environments_need_one_action_each(shape):
    """TorchWrapper: an action without one row per environment is a ValueError."""
    with pytest.raises(ValueError, match="3 environments"):
        ready(EchoBatch()).step(torch.zeros(shape))


def test_discrete_actions_may_have_one_element():
    """TorchWrapper: one integer is one action, with any number of dimensions; two integers raise."""
    env = Echo(action_space=spaces.Discrete(3))
    wrapped = ready(env)
    wrapped.step(torch.tensor([[2]]))
    assert {2: "usable as a key"}[env.action]
    with pytest.raises(SpaceError):
        wrapped.step(torch.tensor([1, 2]))


# ---------------------------------------------------------------- errors and forwarded arguments


def test_step_before_reset_raises():
    """TorchWrapper: step before reset is a ValueError."""
    with pytest.raises(ValueError, match="reset"):
        TorchWrapper(Echo()).step(torch.zeros(2))


@pytest.mark.parametrize(("result", "error"), [([1, 2, 3, 4, 5], TypeError), ((1, 2, 3), ValueError), ((), ValueError)])
def test_invalid_step_results_raise(result, error):
    """TorchWrapper: something other than a tuple is a TypeError, a length other than 4 or 5 a ValueError."""
    wrapped = ready(Echo())
    wrapped.env.step = lambda action: result
    with pytest.raises(error):
        wrapped.step(torch.zeros(2))


def test_extra_arguments_are_forwarded():
    """TorchWrapper: reset, step, seed, render and close forward further arguments."""

    class Recorder(Echo):
        def __getattribute__(self, name):
            if name not in ("reset", "step", "seed", "render", "close"):
                return super().__getattribute__(name)

            def call(*args, **kwargs):
                self.calls = [*getattr(self, "calls", []), (name, args[name == "step" :], kwargs)]
                return (np.zeros(2), {}) if name == "reset" else (np.zeros(2), 0, 0, 0, {}) if name == "step" else name

            return call

    wrapped = TorchWrapper(Recorder())
    wrapped.reset(1, a=2)
    wrapped.step(torch.zeros(2), 3, b=4)
    assert wrapped.seed(5, c=6) == "seed"
    assert wrapped.render(7, d=8) == "render"
    assert wrapped.close(9, e=10) == "close"
    assert wrapped.env.calls == [
        ("reset", (1,), {"a": 2}),
        ("step", (3,), {"b": 4}),
        ("seed", (5,), {"c": 6}),
        ("render", (7,), {"d": 8}),
        ("close", (9,), {"e": 10}),
    ]


@pytest.mark.parametrize("name", ["native::CartPole-v1", "gym::CartPole-v1"])
def test_wrapped_vector_environments_are_vector_environments_of_gymnasium(name):
    """EvoTorch and gymnasium's wrappers for tensors require the class."""
    env = make_vector_env(name, num_envs=2, render_mode="rgb_array")
    assert isinstance(env, TorchVectorEnv)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert not isinstance(make_vector_env(name), gymnasium.vector.VectorEnv)
    assert (env.num_envs, env.closed, env.render_mode) == (2, False, "rgb_array")
    assert env.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
    assert str(env) == repr(env)
    assert repr(env).startswith("TorchWrapper(")
    halved = gymnasium.wrappers.vector.TransformReward(env, lambda reward: reward / 2)
    halved.reset(seed=1)
    assert halved.step(torch.tensor([0, 1]))[1].tolist() == [0.5, 0.5]
    inner = env.env
    del env, halved
    gc.collect()
    assert not inner.closed
    inner.close()
    assert TorchVectorEnv(inner).closed
