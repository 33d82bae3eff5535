"""Results on a GPU are those of the CPU, and are computed there.

`python -m pytest tests/test_cuda.py` needs a CUDA device and a build of torch for it. Tests of libraries that are not
installed are skipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor

from tests.fixtures.specs import ALL
from tests.fixtures.transforms import CASES
from vecrl import checkpoint
from vecrl.envs import GymEnv, NativeEnv, ParallelEnv, SerialEnv
from vecrl.envs.transforms import Compose, RewardSum, StepCounter, TransformedEnv
from vecrl.policy import PopulationEvaluator
from vecrl.simulators.native import NATIVE, make_native
from vecrl.simulators.native.fused_rollout import FusedRollout
from vecrl.testing import BatchSimulatorConformance, EnvConformance
from vecrl.testing.independent_rows import IndependentRowsEnv
from vecrl.vector import RolloutWorkers, make_vector_env

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

GPU = "cuda"
N = 64


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raises where something waits for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not see all that waits
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def draw(space: Any, n: int) -> Tensor:
    return torch.from_numpy(np.stack([space.sample() for _ in range(n)]))


def policy_for(space: Any) -> Any:
    """Returns a function from observations to actions that has no parameters."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return lambda obs: (obs.sum(-1) > 0).long()
    return lambda obs: obs.sum(-1, keepdim=True).sin()


def close(actual: Tensor, expected: Tensor, **tolerance: float) -> None:
    assert actual.is_cuda
    torch.testing.assert_close(actual.cpu(), expected.cpu(), equal_nan=True, **tolerance)


# -- native tasks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
class TestNativeSimulators(BatchSimulatorConformance):
    tolerance = 1e-5

    @pytest.fixture(autouse=True)
    def _name(self, name: str) -> None:
        self.name = name

    def make(self, num_envs: int) -> Any:
        return make_native(self.name, num_envs, device=GPU, max_episode_steps=9)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("name", NATIVE)
def test_native_steps(name: str, compile_it: bool) -> None:
    """300 steps through the ends of episodes, in float64: sines differ in their last bits."""
    options = {"num_envs": N, "dtype": torch.float64, "max_episode_steps": 50}
    on_gpu = make_vector_env(f"native::{name}", device=GPU, compile=compile_it, **options)
    on_cpu = make_vector_env(f"native::{name}", **options)
    close(on_gpu.reset(seed=0)[0], on_cpu.reset(seed=0)[0])
    on_cpu.action_space.seed(1)
    for _ in range(300):
        actions = draw(on_cpu.single_action_space, N)
        results = zip(on_gpu.step(actions.to(GPU))[:4], on_cpu.step(actions)[:4], strict=True)
        for actual, expected in results:
            close(actual, expected, rtol=1e-6, atol=1e-6) if expected.is_floating_point() else close(actual, expected)


@pytest.mark.parametrize("mode", ["next-step", "same-step"])
@pytest.mark.parametrize("name", NATIVE)
def test_native_steps_do_not_wait(name: str, mode: str) -> None:
    envs = make_vector_env(f"native::{name}", num_envs=N, device=GPU, max_episode_steps=3, autoreset_mode=mode)
    envs.reset(seed=0)
    actions = draw(envs.single_action_space, N).to(GPU)
    envs.step(actions)
    with no_waiting():
        for _ in range(8):
            envs.step(actions)


@pytest.mark.parametrize("name", NATIVE)
def test_native_environments_do_not_wait(name: str) -> None:
    env = NativeEnv(name, N, device=GPU)
    root = env.rand_action(env.reset())
    mask = torch.arange(N, device=GPU).unsqueeze(-1) % 2 == 0
    env.step_and_maybe_reset(root)
    env.rollout(2)  # reads the bounds of actions once
    with no_waiting():
        for _ in range(4):
            _, root = env.step_and_maybe_reset(env.rand_action(root))
        root = env.reset(root.set("_reset", mask))
        env.step(env.rand_action(root))
        rollout = env.rollout(5, break_when_any_done=False)
    assert rollout.device.type == GPU
    assert rollout["next", "reward"].is_cuda


@pytest.mark.parametrize("name", NATIVE)
class TestNativeEnvs(EnvConformance):
    @pytest.fixture(autouse=True)
    def _name(self, name: str) -> None:
        self.name = name

    def make(self) -> NativeEnv:
        return NativeEnv(self.name, 4, device=GPU, max_episode_steps=7)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compile_it", [False, True])
def test_fused_rollouts(compile_it: bool) -> None:
    rollouts = []
    for device in (GPU, "cpu"):
        simulator = make_native("Pendulum-v1", N, device=device, dtype=torch.float64, max_episode_steps=7)
        simulator.reset(range(N))
        run = FusedRollout(simulator, policy_for(simulator.action_space), chunk=2, compile=compile_it and device == GPU)
        rollouts.append(run(20))
    for name in ("obs", "actions", "reward", "terminated", "truncated", "last_obs"):
        close(getattr(rollouts[0], name), getattr(rollouts[1], name))


def test_memory_stays_flat() -> None:
    envs = make_vector_env("native::CartPole-v1", num_envs=4096, device=GPU)
    envs.reset(seed=0)
    actions = torch.zeros(4096, dtype=torch.int64, device=GPU)
    sizes = []
    for _ in range(3):
        for _ in range(50):
            envs.step(actions)
        sizes.append(torch.cuda.memory_allocated())
    assert sizes[1] == sizes[2]


# -- policies --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:TensorFloat32")
@pytest.mark.parametrize("compile_it", [False, True])
def test_populations(compile_it: bool) -> None:
    """Policies of a native task act on the GPU; the returns are those of the CPU."""
    net = "Linear(obs_length, 8) >> Tanh() >> Linear(8, act_length)"
    found = []
    for device in (GPU, "cpu"):
        options: Any = {"seed": 3, "device": device, "max_steps": 60, "compile": compile_it and device == GPU}
        with PopulationEvaluator("native::CartPole-v1", net, 32, **options) as evaluate:
            parameters = torch.randn(32, evaluate.parameter_length, generator=torch.Generator().manual_seed(0))
            found.append(evaluate(parameters.to(device)))
    assert (found[0].returns == found[1].returns).float().mean() > 0.9
    assert found[1].returns.unique().numel() > 3


def test_policies_on_the_gpu_act_on_python_environments() -> None:
    """Results of environments in processes are moved to the GPU, and actions from there."""
    policy = torch.nn.Linear(4, 2).to(GPU)
    make = partial(make_vector_env, "CartPole-v1", num_envs=4, num_workers=2)
    with make(device=GPU, backend="processes") as on_gpu, make(backend="serial") as on_cpu:
        obs, _ = on_gpu.reset(seed=2)
        expected, _ = on_cpu.reset(seed=2)
        for _ in range(60):
            close(obs, torch.as_tensor(expected))
            actions = policy(obs).argmax(-1)
            obs, reward, *_ = on_gpu.step(actions)
            expected, *_ = on_cpu.step(actions.cpu().numpy())
            assert reward.is_cuda


def test_rollout_workers_take_a_policy_from_the_gpu() -> None:
    linear = torch.nn.Linear(4, 2).to(GPU)

    def policy(obs: np.ndarray) -> np.ndarray:
        return linear(torch.as_tensor(obs, device=GPU)).argmax(-1).cpu().numpy()

    with RolloutWorkers([partial(gymnasium.make, "CartPole-v1")] * 4, policy, num_workers=2, seed=1) as workers:
        rollout = workers.rollout(8)
    assert rollout.obs.shape[:2] == (8, 4)


# -- environments over TensorDicts -----------------------------------------------------------------


def actor(device: str) -> TensorDictModule:
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 2).to(device)
    return TensorDictModule(lambda obs: linear(obs).argmax(-1), in_keys=["observation"], out_keys=["action"])


def batched(kind: Any, device: str) -> Any:
    return kind(2, partial(GymEnv, "CartPole-v1", categorical_action_encoding=True), device=device)


MAKERS = {
    "GymEnv": lambda device: GymEnv("CartPole-v1", categorical_action_encoding=True, device=device),
    "SerialEnv": partial(batched, SerialEnv),
    "ParallelEnv": partial(batched, ParallelEnv),
}


@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_rollouts(kind: str, transformed: bool) -> None:
    rollouts = []
    for device in (GPU, "cpu"):
        env = MAKERS[kind](device)
        if transformed:
            env = TransformedEnv(env, Compose(StepCounter(9), RewardSum())).to(device)
        env.set_seed(1)
        rollouts.append(env.rollout(40, actor(device), break_when_any_done=False))
        env.close()
    assert rollouts[0].device.type == GPU
    compare(*rollouts)


def test_policies_on_another_device_than_the_environment() -> None:
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    env.set_seed(1)
    rollout = env.rollout(10, torch.nn.Sequential(torch.nn.Linear(4, 2), Argmax()).to(GPU), auto_cast_to_device=True)
    assert rollout["next", "observation"].device.type == "cpu"
    env.close()


class Argmax(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


def compare(actual: TensorDictBase, expected: TensorDictBase, *, values: bool = True, moved: bool = False) -> None:
    """Checks that all tensors of `actual` are on the GPU unless they are `moved`, and are those of `expected`."""
    keys = set(actual.keys(True, True))
    assert keys == set(expected.keys(True, True))
    for key in keys:
        one, other = actual.get(key), expected.get(key)
        if not isinstance(one, Tensor) or one.is_nested:
            continue
        assert one.is_cuda or moved, key
        assert (one.shape, one.dtype) == (other.shape, other.dtype), key
        if values:
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4, equal_nan=True, msg=str(key))


def transformed_env(name: str, device: str) -> TransformedEnv:
    base = SerialEnv(3, [partial(IndependentRowsEnv, i) for i in range(3)], device=device)
    torch.manual_seed(0)
    return CASES[name].env(base, CASES[name].make()).to(device)


def trajectory(env: TransformedEnv, actions: list[TensorDictBase], device: str, seed: int) -> list[TensorDictBase]:
    torch.manual_seed(seed)
    root = env.reset()
    found = [root.clone()]
    for action in actions:
        step, root = env.step_and_maybe_reset(root.update(action.to(device)))
        found += [step.clone(), root.clone()]
    return found


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_transform(name: str) -> None:
    """Entries are on the GPU, and equal those of the CPU unless they are random."""
    env = transformed_env(name, "cpu")
    torch.manual_seed(1)
    root = env.reset()
    actions = []
    for _ in range(8):
        actions.append(env.rand_action(root.copy()).select(*env.action_keys))
        _, root = env.step_and_maybe_reset(root.update(actions[-1]))
    expected = trajectory(transformed_env(name, "cpu"), actions, "cpu", 1)
    again = trajectory(transformed_env(name, "cpu"), actions, "cpu", 2)
    is_random = any(not same(one, other) for one, other in zip(expected, again, strict=True))
    found = trajectory(transformed_env(name, GPU), actions, GPU, 1)
    for one, other in zip(found, expected, strict=True):
        compare(one, other, values=not is_random, moved=name.startswith("DeviceCast"))
    transformed_env(name, GPU).rollout(6, break_when_any_done=False)


def same(one: TensorDictBase, other: TensorDictBase) -> bool:
    return all(
        not isinstance(one.get(key), Tensor)
        or one.get(key).is_nested
        or torch.equal(one.get(key).nan_to_num(), other.get(key).nan_to_num())
        for key in one.keys(True, True)
    )


@pytest.mark.parametrize("name", ALL)
def test_every_spec(name: str) -> None:
    spec = ALL[name].to(GPU)
    assert spec.device is None or spec.device.type == GPU
    value = spec.rand()
    assert spec.is_in(value)
    assert spec.is_in(spec.project(value))
    for made in (value, spec.zero()):
        if isinstance(made, Tensor | TensorDictBase):
            assert made.device is None or made.device.type == GPU
    assert spec.to("cpu").to(GPU) == spec


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("saved", "loaded"), [(GPU, GPU), (GPU, "cpu"), ("cpu", GPU)])
def test_checkpoints_move_between_devices(tmp_path: Path, saved: str, loaded: str) -> None:
    make = partial(make_vector_env, "native::CartPole-v1", num_envs=8)
    first, second = make(device=saved), make(device=loaded)
    first.reset(seed=4)
    second.reset(seed=5)
    actions = torch.ones(8, dtype=torch.int64)
    for _ in range(15):
        first.step(actions.to(saved))
    checkpoint.save(tmp_path / "state.pt", envs=first)
    checkpoint.load(tmp_path / "state.pt", envs=second)
    for _ in range(15):
        actual, expected = second.step(actions.to(loaded)), first.step(actions.to(saved))
        assert actual[0].device.type == loaded
        torch.testing.assert_close(actual[0].cpu(), expected[0].cpu(), rtol=1e-5, atol=1e-5)


# -- simulators of other libraries -----------------------------------------------------------------


others = pytest.mark.filterwarnings("ignore")  # libraries warn about themselves


def library(name: str) -> Any:
    return pytest.importorskip(name)


JAX = {"brax::fast": "brax", "brax::inverted_pendulum": "brax", "gymnax::CartPole-v1": "gymnax"}


@others
@pytest.mark.parametrize("name", JAX)
def test_jax_tasks(name: str) -> None:
    """Arrays of JAX and torch share the memory of the GPU: no step copies data to the host and back."""
    library(JAX[name])
    import jax

    on_gpu, on_cpu = (make_vector_env(name, num_envs=8, device=device) for device in (GPU, "cpu"))
    close(on_gpu.reset(seed=0)[0], on_cpu.reset(seed=0)[0], rtol=1e-4, atol=1e-4)
    on_cpu.single_action_space.seed(0)
    actions = [draw(on_cpu.single_action_space, 8) for _ in range(12)]
    for step, action in enumerate(actions):
        results = on_gpu.step(action.to(GPU))
        expected = on_cpu.step(action)
        if step < 3:  # later ones differ by more, since physics multiplies differences
            for actual, value in zip(results[:4], expected[:4], strict=True):
                close(actual, value, **({"rtol": 1e-2, "atol": 1e-2} if value.is_floating_point() else {}))
    action = actions[0].to(GPU)
    with jax.transfer_guard("disallow"):
        on_gpu.step(action)


@others
@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "HalfCheetah-v5"])
def test_warp(name: str) -> None:
    """Steps of MuJoCo Warp on the GPU are those of MuJoCo, from equal states."""
    library("mujoco_warp")
    mujoco = library("mujoco")
    from vecrl.simulators.mujoco.warp import WarpSimulator

    simulator = WarpSimulator(name, 256, device=GPU)
    assert simulator.reset(range(256)).is_cuda
    data = mujoco.MjData(simulator.model)
    nq, nv = simulator.model.nq, simulator.model.nv
    low, high = simulator.model.actuator_ctrlrange.T
    for number in range(20):
        state = simulator.get_state()["state"][5].cpu().double().numpy()
        data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = np.split(state, [nq, nq + nv])
        action = low + (high - low) * (np.sin(number + np.arange(len(low))) + 1) / 2
        simulator.step(torch.from_numpy(action).float().to(GPU).expand(256, -1))
        data.ctrl[:] = action
        for _ in range(simulator.task.frame_skip):
            mujoco.mj_step(simulator.model, data)
        after = simulator.get_state()["state"][5].cpu().double().numpy()
        np.testing.assert_allclose(after[: nq + nv], np.concatenate([data.qpos, data.qvel]), rtol=2e-3, atol=2e-3)


@others
@pytest.mark.parametrize("name", ["balance", "simple_tag"])
def test_vmas(name: str) -> None:
    """Episodes start with other numbers than on the CPU, since torch draws others there."""
    library("vmas")
    envs = make_vector_env(f"vmas::{name}", num_envs=8, device=GPU, max_steps=6)
    obs, _ = envs.reset(seed=0)
    ended = 0
    for _ in range(14):
        assert all(value.is_cuda and value.isfinite().all() for value in obs.values())
        actions = {key: draw(space, 8).to(GPU) for key, space in envs.single_action_space.items()}
        obs, reward, terminated, truncated, _ = envs.step(actions)
        assert reward.is_cuda
        ended += int((terminated | truncated).sum())
    assert ended >= 16
