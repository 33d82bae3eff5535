"""After a restore, environments continue bit-identically: in every dialect, auto-reset mode and backend, also across
backends."""

import copy
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import noise
from tests.fixtures.state_envs import HiddenStateEnv, OwnStateEnv, RichStateEnv, through_bytes
from tests.fixtures.transforms import CASES

from vecrl.convert import to_vector
from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv
from vecrl.envs.custom import PendulumEnv, TicTacToeEnv
from vecrl.envs.libs.gym import GymWrapper
from vecrl.envs.libs.native import NativeEnv
from vecrl.errors import ClosedError, PendingError, StateError, WorkerError
from vecrl.simulators.native import make_native
from vecrl.testing import IndependentRowsEnv
from vecrl.vector import AsyncVectorEnv, BatchedVectorEnv, SyncVectorEnv, TorchWrapper, VectorEnv

CARTPOLE = partial(gymnasium.make, "CartPole-v1")


def batched(**options):
    return BatchedVectorEnv(make_native("CartPole-v1", 5), **options)


VECTORS = {
    f"{backend} {num_workers}, {mode.value}": partial(
        VectorEnv, noise("dict", 5), backend=backend, num_workers=num_workers, autoreset_mode=mode
    )
    for backend, num_workers in [("serial", 1), ("serial", 2), ("threads", 2), ("processes", 2)]
    for mode in AutoresetMode
} | {
    "async": partial(AsyncVectorEnv, [CARTPOLE] * 3),
    "sync": partial(SyncVectorEnv, [CARTPOLE] * 3),
    "sync, counted": partial(SyncVectorEnv, [CARTPOLE] * 3, num_episodes=2, backend="processes"),
    "native, same step": partial(batched, episode_stats=True),
    "native, next step": partial(batched, episode_stats=True, autoreset_mode="next_step"),
    "native, counted": partial(batched, num_episodes=2),
    "torch": lambda: TorchWrapper(VectorEnv([CARTPOLE] * 2, autoreset_mode="same_step")),
    "torch, single": lambda: TorchWrapper(CARTPOLE()),
    "gymnasium's wrapper around ours": lambda: gymnasium.wrappers.vector.NormalizeObservation(
        VectorEnv([CARTPOLE] * 2, autoreset_mode="next_step")
    ),
    "environments over TensorDicts": lambda: to_vector(SerialEnv(2, partial(GymEnv, "CartPole-v1"))),
}


def acted(envs, steps=25):
    results = []
    disabled = getattr(envs, "metadata", {}).get("autoreset_mode") == AutoresetMode.DISABLED
    for _ in range(steps):
        action = envs.action_space.sample()
        results.append(result := envs.step(torch.as_tensor(action) if isinstance(envs, TorchWrapper) else action))
        is_over = np.asarray(result[2] | result[3])
        if disabled and is_over.any():
            results.append(envs.reset(options={"reset_mask": is_over}))
        elif not is_over.shape and is_over:
            results.append(envs.reset())
    return in_arrays(results)


def in_arrays(value):
    """Returns a copy of a tree with arrays instead of tensors."""
    if isinstance(value, torch.Tensor):
        return value.numpy(force=True).copy()
    if isinstance(value, dict):
        return {key: in_arrays(item) for key, item in value.items()}
    return type(value)(map(in_arrays, value)) if isinstance(value, list | tuple) else copy.deepcopy(value)


def state_of(envs):
    from vecrl.snapshot import capture

    return envs.get_state() if hasattr(type(envs), "get_state") else capture(envs)


def restore(envs, state):
    from vecrl.snapshot import restore

    _ = envs.set_state(state) if hasattr(type(envs), "set_state") else restore(envs, state)


@pytest.mark.parametrize("name", VECTORS)
def test_restored_vector_environments_continue_equally(name):
    envs, other = VECTORS[name](), VECTORS[name]()
    envs.reset(seed=3)
    envs.action_space.seed(5)
    acted(envs, 14)
    state = through_bytes(state_of(envs))
    expected = acted(envs)
    restore(envs, state)
    assert_same(acted(envs), expected)
    restore(other, state)
    assert_same(acted(other), expected)
    envs.close()
    other.close()


def test_states_restore_on_other_backends_and_worker_counts():
    with (
        VECTORS["serial 1, SameStep"]() as envs,
        VectorEnv(noise("dict", 5), backend="processes", num_workers=5, autoreset_mode="same_step") as other,
    ):
        envs.reset(seed=1)
        envs.action_space.seed(1)
        acted(envs, 7)
        other.set_state(envs.get_state())
        assert_same(acted(other), acted(envs))


@pytest.mark.parametrize(("backend", "num_workers"), [("serial", 1), ("serial", 2), ("processes", 2)])
def test_worker_state_errors_are_state_errors(backend, num_workers):
    envs = VectorEnv([OwnStateEnv, HiddenStateEnv], backend=backend, num_workers=num_workers)
    with pytest.raises(StateError, match=r"environment 1 .* env\.hidden"):
        envs.get_state()
    envs.close()
    with pytest.raises(ClosedError):
        envs.get_state()
    rich, own = (VectorEnv([make] * 2, backend=backend) for make in (RichStateEnv, OwnStateEnv))
    rich.reset(seed=1)
    state = rich.get_state()
    with pytest.raises(StateError, match=r"Expected a state with observation_space Box"):
        own.set_state(state)
    with pytest.raises(StateError, match=r"Expected the space .*, as in the state, got"):
        own.set_state(state | {"about": own.get_state()["about"]})
    with pytest.raises(WorkerError, match=r"environment 0 .*Expected a state with observation_space"):
        own._pool.set_state(rich._pool.get_state())
    assert own.reset(seed=1)[0].shape == (2, 1)
    rich.close()
    own.close()
    with pytest.raises(ClosedError):
        rich.set_state(state)


@pytest.mark.parametrize("backends", [("serial", "serial"), ("serial", "threads"), ("threads", "serial")])
def test_partial_resets_after_restore_keep_other_rows(backends):
    """The latest observations, which a partial reset returns for the other rows, are part of the state."""
    envs, other = (VectorEnv([CARTPOLE] * 3, backend=backend) for backend in backends)
    envs.reset(seed=1)
    envs.action_space.seed(5)
    acted(envs, 3)
    other.set_state(envs.get_state())
    mask = {"reset_mask": np.array([True, False, False])}
    for _ in range(2):
        assert_same(other.reset(options=dict(mask)), envs.reset(options=dict(mask)))
        assert_same(acted(other, 1), acted(envs, 1))
    envs.close()
    other.close()


def test_pending_commands_raise():
    with AsyncVectorEnv([CARTPOLE] * 2) as envs:
        envs.reset(seed=1)
        envs.step_async(np.zeros(2, int))
        with pytest.raises(PendingError, match="still pending"):
            envs.get_state()
        envs.step_wait()


TENSORDICTS = {
    "gym": partial(GymEnv, "CartPole-v1"),
    "gym, a vector": partial(GymEnv, "CartPole-v1", num_envs=3),
    "gym, around ours": lambda: GymWrapper(VectorEnv([CARTPOLE] * 2, autoreset_mode="disabled")),
    "native": partial(NativeEnv, "CartPole-v1", 4),
    "native, free": partial(NativeEnv, "Pendulum-v1"),
    "pendulum": PendulumEnv,
    "tic-tac-toe": TicTacToeEnv,
    "rows": partial(IndependentRowsEnv, [0, 1, 2]),
    "serial": partial(SerialEnv, 3, partial(GymEnv, "CartPole-v1")),
    "parallel": partial(ParallelEnv, 3, partial(GymEnv, "CartPole-v1")),
    "parallel, by path": partial(ParallelEnv, 2, PendulumEnv),
    "serial, by path": partial(SerialEnv, 2, partial(IndependentRowsEnv, 1)),
} | {
    f"transformed: {name}": partial(lambda case: case.env(IndependentRowsEnv([0, 1, 2]), case.make()), case)
    for name, case in CASES.items()
}


def rolled(env, root, steps=9):
    """Returns random steps from `root`, drawn with torch's global generator, which is not part of the state."""
    torch.manual_seed(7)
    results = []
    for _ in range(steps):
        step_td, root = env.step_and_maybe_reset(env.rand_action(root))
        results.append(step_td.clone())
    return results, root


@pytest.mark.parametrize("name", TENSORDICTS)
def test_restored_tensordict_environments_continue_equally(name):
    env: EnvBase = TENSORDICTS[name]()
    other: EnvBase = TENSORDICTS[name]()
    env.set_seed(3)
    _, root = rolled(env, env.reset(), 5)
    state, saved = through_bytes(env.get_state()), root.clone()
    expected, _ = rolled(env, root)
    for item in (env, other):
        item.set_state(state)
        for a, b in zip(rolled(item, saved.clone())[0], expected, strict=True):
            assert set(a.keys(True, True)) == set(b.keys(True, True))
            assert all(_equal(a.get(key), b.get(key)) for key in a.keys(True, True)), (a, b)
        item.close()


def _equal(a, b):
    return torch.equal(a.nan_to_num(), b.nan_to_num()) if isinstance(a, torch.Tensor) else a == b


def test_closed_batches_have_no_state_and_restart_on_set_state():
    env = SerialEnv(2, partial(GymEnv, "CartPole-v1"))
    env.reset()
    state = env.get_state()
    env.close()
    with pytest.raises(ValueError, match="closed"):
        env.get_state()
    env.set_state(state)
    assert not env.is_closed
    env.close()
    with pytest.raises(StateError, match="batch_size"):
        SerialEnv(3, partial(GymEnv, "CartPole-v1")).set_state(state)
