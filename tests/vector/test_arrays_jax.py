"""JAX arrays, in the environment with JAX (`make test-simulators`): conversions, and `TorchWrapper` around JAX."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from vecrl.vector.arrays import array_type, convert_from_torch, convert_to_torch, convert_to_torch_bool, reset_tensors
from vecrl.vector.base import BaseVectorEnv
from vecrl.vector.torch_wrapper import TorchWrapper

pytestmark = pytest.mark.simulators


@pytest.fixture(scope="module")
def jax():
    import jax  # imported here, so that collecting this file needs no JAX

    return jax


@pytest.fixture(scope="module")
def jnp(jax):
    return jax.numpy


# ---------------------------------------------------------------- conversions


def test_array_type_knows_jax(jax, jnp):
    """array_type: "jax", traced values included."""
    assert array_type(jnp.zeros(2)) == "jax"
    assert array_type(jax.random.key(0)) == "jax"
    kinds = []
    jax.jit(lambda x: kinds.append(array_type(x)) or x)(jnp.zeros(2))
    assert kinds == ["jax"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int8", "uint8", "uint32", "bool"])
def test_jax_to_torch_shares_memory(jnp, dtype):
    """convert_to_torch: a JAX array is converted through DLPack and shares memory if possible."""
    x = jnp.ones((2, 3), dtype)
    y = convert_to_torch(x)
    assert str(y.dtype) == f"torch.{dtype}"
    assert y.data_ptr() == x.unsafe_buffer_pointer()
    assert y.shape == (2, 3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "bool"])
def test_torch_to_jax_shares_memory(dtype):
    """convert_from_torch: "jax" through DLPack, sharing memory where the tensor is dense and aligned."""
    x = torch.ones(4, 16).to(getattr(torch, dtype))
    y = convert_from_torch(x, "jax")
    assert y.dtype.name == dtype
    assert y.unsafe_buffer_pointer() == x.data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[:, ::2],
        lambda x: x[0].expand(3, -1),
        lambda x: x.t(),
        lambda x: x.reshape(-1)[1:],
        lambda x: x.requires_grad_() * 1,
        lambda x: x.requires_grad_(),
        lambda x: x[:0],
        lambda x: x[1, 2],
        lambda x: x.to(torch.complex64).conj(),
    ],
    ids=["strided", "expanded", "transposed", "unaligned", "graph", "leaf", "empty", "scalar", "conjugate"],
)
def test_layouts_unsupported_by_dlpack_are_converted(make):
    """convert_from_torch: gaps, repeats, misalignment and gradients keep their values."""
    x = make(torch.arange(12.0).reshape(3, 4))
    y = convert_from_torch(x, "jax")
    np.testing.assert_array_equal(np.asarray(y), x.detach().resolve_conj().numpy())


@pytest.mark.parametrize(("dtype", "expected"), [(torch.int64, "int32"), (torch.float64, "float32")])
def test_64_bits_become_32(dtype, expected):
    """convert_from_torch: 64-bit dtypes become 32-bit ones in JAX, without a warning."""
    y = convert_from_torch(torch.tensor([1, 2], dtype=dtype), "jax")
    assert y.dtype.name == expected
    assert y.tolist() == [1, 2]


def test_typed_keys_raise_with_advice(jax):
    """convert_to_torch: JAX's typed PRNG keys are a TypeError; their key data and raw keys are accepted."""
    with pytest.raises(TypeError, match="key_data"):
        convert_to_torch(jax.random.key(3))
    assert convert_to_torch(jax.random.key_data(jax.random.key(3))).tolist() == [0, 3]
    assert convert_to_torch(jax.random.PRNGKey(3)).dtype == torch.uint32


def test_lists_of_jax_arrays_and_numpy_bfloat16(jnp):
    """convert_to_torch: iterables of JAX arrays are stacked; NumPy arrays with JAX dtypes are accepted."""
    assert convert_to_torch([jnp.zeros(2), jnp.ones(2)]).tolist() == [[0, 0], [1, 1]]
    half = np.asarray(jnp.array([1.5, -2.0], "bfloat16"))
    y = convert_to_torch(half)
    assert y.dtype == torch.bfloat16
    assert y.tolist() == [1.5, -2.0]


def test_dtypes_missing_in_torch(jax, jnp):
    """convert_to_torch: values for which torch has no dtype are a TypeError."""
    with pytest.raises(TypeError):
        convert_to_torch(jnp.ones(2, "int4"))


def test_pending_computations_are_awaited(jax, jnp):
    """convert_to_torch: JAX computes asynchronously; the tensor holds the result."""
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y) * 0.5 + x, x))
    x = jnp.ones((256, 256)) / 256
    expected = np.asarray(work(x))
    np.testing.assert_array_equal(convert_to_torch(work(x)).numpy(), expected)


def test_jax_arrays_become_bools(jnp):
    """convert_to_torch_bool: JAX's floats by abs(x) > 1e-4, integers by non-zero."""
    assert convert_to_torch_bool(jnp.array([0.0, 1e-5, -1.0])).tolist() == [False, False, True]
    assert convert_to_torch_bool(jnp.array([0, 2], "uint32")).tolist() == [False, True]
    assert convert_to_torch_bool(jnp.array([True, False])).tolist() == [True, False]


def test_reset_accepts_jax_masks_and_does_not_change_jax_arrays(jnp):
    """reset_tensors: a mask may be a JAX array; JAX arrays in the nesting are not changed."""
    x, y = torch.ones(3), jnp.ones(3)
    reset_tensors([x, y], jnp.array([True, False, True]))
    assert x.tolist() == [0, 1, 0]
    assert y.tolist() == [1, 1, 1]
    reset_tensors(x, jnp.array([1]))
    assert x.tolist() == [0, 0, 0]


# ---------------------------------------------------------------- TorchWrapper around JAX


class Single(gymnasium.Env):
    """Keeps the JAX arrays that it returns and receives."""

    observation_space, action_space = Box(-1, 1, (2,)), Box(-1, 1, (2,))

    def __init__(self, jnp):
        self.jnp = jnp
        self.state = jnp.zeros(2)

    def reset(self, *, seed=None, options=None):
        return self.state, {}

    def step(self, action):
        self.action = action
        self.state = self.state + 1
        return self.state, self.jnp.float32(0.5), self.jnp.float32(1.0), self.jnp.array(False), {}


class Batch(BaseVectorEnv):
    def __init__(self, jnp, action_space):
        super().__init__(3, Box(-1, 1, (2,)), action_space)
        self.jnp = jnp
        self.state = jnp.zeros((3, 2))

    def reset(self, *, seed=None, options=None):
        return self.state, {}

    def step(self, action):
        self.action = action
        return self.state, self.jnp.ones(3), self.jnp.array([0.0, 1.0, 0.0]), self.jnp.zeros(3), {}


def test_jax_environments_exchange_jax_arrays(jax, jnp):
    """TorchWrapper: an environment of JAX arrays receives JAX arrays, and the wrapper returns tensors."""
    env = Single(jnp)
    wrapped = TorchWrapper(env)
    observation, _ = wrapped.reset()
    assert wrapped.array_type == "jax"
    assert torch.equal(observation, torch.zeros(2))
    observation, reward, terminated, truncated, _ = wrapped.step(torch.tensor([0.5, -0.5], dtype=torch.float64))
    assert isinstance(env.action, jax.Array)
    assert env.action.dtype.name == "float32"
    assert env.action.tolist() == [0.5, -0.5]
    assert torch.equal(observation, torch.ones(2))
    assert (reward.item(), terminated.item(), truncated.item()) == (0.5, True, False)
    assert terminated.dtype == truncated.dtype == torch.bool


def test_neither_side_can_write_into_the_other(jnp):
    """TorchWrapper: writing to a tensor changes no JAX array of the environment, and vice versa."""
    env = Single(jnp)
    wrapped = TorchWrapper(env)
    observation, _ = wrapped.reset()
    observation += 7
    assert env.state.tolist() == [0, 0]
    action = torch.ones(2)
    wrapped.step(action)
    action.zero_()
    assert env.action.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("space", "options", "action", "arrives"),
    [
        (Discrete(4), {}, torch.tensor([3, 0, 1]), [3, 0, 1]),
        (Discrete(3, start=5), {"discrete_to_continuous_act": True}, torch.eye(3), [5, 6, 7]),
        (Box(-1, 1, (1,)), {"clip_actions": True}, torch.tensor([[-9.0], [0.5], [9.0]]), [[-1.0], [0.5], [1.0]]),
    ],
    ids=["discrete", "scores", "clipped"],
)
def test_vectorized_jax_environments(jax, jnp, space, options, action, arrives):
    """TorchWrapper: vectorized JAX environments, with discrete_to_continuous_act and clip_actions."""
    env = Batch(jnp, space)
    wrapped = TorchWrapper(env, **options)
    wrapped.reset()
    _, reward, terminated, truncated, _ = wrapped.step(action)
    assert isinstance(env.action, jax.Array)
    assert env.action.tolist() == arrives
    assert reward.tolist() == [1, 1, 1]
    assert terminated.tolist() == [False, True, False]
    assert not truncated.any()
