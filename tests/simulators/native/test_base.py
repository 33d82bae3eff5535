"""Rules for all native tasks: seeds, masked resets, states, rendering, errors, and no host synchronization."""

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vecrl.engine.simulator import BatchSimulator
from vecrl.errors import PendingError, SpaceError, StateError
from vecrl.simulators.array_library import NUMPY_ROWS
from vecrl.simulators.counter_rng import keys_of, uniform, uniform_numpy
from vecrl.simulators.native import NATIVE, make_native

torch.set_num_threads(1)


def idle(simulator):
    shape = (simulator.num_envs, *simulator.action_space.shape)
    return torch.zeros(shape, dtype=torch.int64 if shape == (simulator.num_envs,) else torch.float32)


@pytest.mark.parametrize("name", NATIVE)
def test_follows_the_contract(name):
    simulator = make_native(name, 3)
    assert isinstance(simulator, BatchSimulator)
    obs = simulator.reset([1, 2, 3])
    step = simulator.step(idle(simulator))
    assert obs.shape == step.next_obs.shape == (3, *simulator.observation_space.shape)
    assert obs.dtype == step.next_obs.dtype == step.reward.dtype == torch.float32
    assert step.terminated.dtype == step.truncated.dtype == torch.bool
    assert obs.is_contiguous()
    assert simulator.observation_space.contains(obs[0].numpy())
    assert repr(simulator).startswith(type(simulator).__name__)


# -- seeds -----------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6),
    masks=st.lists(st.integers(0, 63), max_size=6),
)
def test_initial_states_depend_on_seed_and_episode_only(seeds, masks):
    """Any sequence of masked resets equals resetting each row on its own."""
    n = len(seeds)
    batch = make_native("CartPole-v1", n)
    alone = [make_native("CartPole-v1", 1) for _ in seeds]
    last = torch.cat([single.reset([seed]) for single, seed in zip(alone, seeds, strict=True)])
    assert torch.equal(batch.reset(seeds), last)
    for bits in masks:
        mask = torch.tensor([bool(bits >> i & 1) for i in range(n)])
        for i in mask.nonzero().squeeze(-1).tolist():
            last[i] = alone[i].reset()[0]
        assert torch.equal(batch.reset_where(mask), last)


def test_initial_states_are_equal_in_both_dtypes():
    item, other = make_native("Pendulum-v1", 9), make_native("Pendulum-v1", 9, dtype=torch.float64)
    torch.testing.assert_close(item.reset(range(9)), other.reset(range(9)).float())


def test_masked_resets_are_equal_with_and_without_host_sync():
    looking, blind = (make_native("Acrobot-v1", 70, arrays="torch") for _ in range(2))
    blind.can_sync_host = lambda: False
    looking.reset(range(70))
    blind.reset(range(70))
    for t in range(5):
        mask = torch.arange(70) % 5 <= t
        assert torch.equal(looking.reset_where(mask), blind.reset_where(mask))
    for a, b in zip(looking.get_state().values(), blind.get_state().values(), strict=True):
        assert torch.equal(a, b)


def test_none_continues_the_stream_and_a_seed_restarts_it():
    simulator = make_native("CartPole-v1", 2)
    first = simulator.reset([5, 6])
    second = simulator.reset([None, 6])
    third = simulator.reset([5, None])
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[0], third[0])
    assert not torch.equal(second[1], third[1])


def test_there_is_no_hidden_seed():
    item, other = make_native("CartPole-v1", 4).reset(), make_native("CartPole-v1", 4).reset()
    assert not torch.equal(item, other)
    assert len(item.unique(dim=0)) == 4


def test_invalid_seeds_raise():
    simulator = make_native("CartPole-v1", 2)
    with pytest.raises(ValueError, match="2 seeds"):
        simulator.reset([1])
    with pytest.raises(ValueError, match="Expected a seed of 0 or more, got -1"):
        simulator.reset([1, -1])
    with pytest.raises(ValueError, match="2\\*\\*64"):
        simulator.reset([1, 2**64])


def test_generator_equals_python_integers():
    """The hash is computed with Python's integers, to check integer overflow on every device and compiler."""
    seeds, episodes, draws = [0, 1, 2**64 - 1, 123456789], [0, 1, 2**31 - 1, 77], 3
    keys = keys_of(np.array(seeds, np.uint64))
    arguments = torch.from_numpy(keys), torch.tensor(episodes, dtype=torch.int32), draws
    numbers = uniform(*arguments)
    numpy_arguments = (keys, np.array(episodes, np.int32), draws)
    assert torch.equal(torch.from_numpy(uniform_numpy(*numpy_arguments)), numbers)
    word = 0xFFFFFFFF

    def mix(x):
        x = (x ^ x >> 16) * 0x7FEB352D & word
        x = (x ^ x >> 15) * 0x846CA68B & word
        return x ^ x >> 16

    for i, episode in enumerate(episodes):
        a, b = (int(k) & word for k in keys[:, i])
        for draw in range(draws):
            counter = (episode * draws + draw) & word
            expected = mix(mix(a + counter * 0x9E3779B9 & word) ^ b) >> 8
            assert numbers[draw, i].item() == expected * 2.0**-24


def test_generator_is_even_and_uncorrelated():
    keys = torch.from_numpy(keys_of(np.arange(2000, dtype=np.uint64)))
    numbers = torch.stack([uniform(keys, torch.full((2000,), e, dtype=torch.int32), 4) for e in range(20)]).double()
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.003)
    assert numbers.var().item() == pytest.approx(1 / 12, abs=0.001)
    columns = numbers.permute(2, 0, 1).reshape(2000, 80)  # seeds by draws
    off_diagonal = torch.corrcoef(columns.T) - torch.eye(80)
    assert off_diagonal.abs().max() < 0.12  # 5 standard deviations of 2,000 samples
    counts = torch.histc(numbers, 64, 0, 1)
    assert ((counts - 2500).square() / 2500).sum() < 120  # chi-squared, 63 degrees of freedom


# -- states and memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_states_restore_the_same_future(name):
    simulator, other = make_native(name, 5, max_episode_steps=4), make_native(name, 5, max_episode_steps=4)
    simulator.reset(range(5))
    simulator.step_and_reset(idle(simulator))
    state = simulator.get_state()
    assert all(value.shape[0] == 5 for value in state.values())
    futures = []
    for which in (simulator, simulator, other):
        which.set_state(state)
        futures.append([which.step_and_reset(idle(which))[2] for _ in range(6)])
    for repeated in futures[1:]:
        assert all(torch.equal(a, b) for a, b in zip(futures[0], repeated, strict=True))


def test_states_of_another_size_raise():
    simulator, other = make_native("CartPole-v1", 2), make_native("CartPole-v1", 3)
    simulator.reset()
    other.reset()
    with pytest.raises(StateError, match="2 rows"):
        simulator.set_state(other.get_state())


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", NATIVE)
def test_results_are_copies(name, num_envs):
    """Writing to a result changes nothing, and later steps do not change it."""
    clean, spoiled = make_native(name, num_envs, max_episode_steps=3), make_native(name, num_envs, max_episode_steps=3)
    clean_obs, reference = clean.reset(range(num_envs)), spoiled.reset(range(num_envs)).fill_(9)
    for _ in range(8):
        actions = idle(clean)
        saved = clean_obs.clone()
        step, _, obs = clean.step_and_reset(actions)
        assert torch.equal(clean_obs, saved)
        reference, _, their_obs = spoiled.step_and_reset(actions.clone())
        assert torch.equal(reference.next_obs, step.next_obs)
        assert torch.equal(their_obs, obs)
        for value in (
            reference.next_obs,
            reference.reward,
            reference.terminated,
            reference.truncated,
            their_obs,
            actions,
        ):
            value.fill_(1)
        clean_obs = obs


def test_step_and_reset_is_step_then_reset_where():
    fused, apart = make_native("CartPole-v1", 40), make_native("CartPole-v1", 40)
    fused.reset(range(40))
    apart.reset(range(40))
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        actions = torch.randint(0, 2, (40,), generator=generator)
        step, done, obs = fused.step_and_reset(actions)
        expected = apart.step(actions)
        assert torch.equal(step.next_obs, expected.next_obs)
        assert torch.equal(done, expected.terminated | expected.truncated)
        assert torch.equal(obs, apart.reset_where(done))


# -- no synchronization, compiling -----------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_no_host_synchronization(name):
    """The meta device has shapes and no data, so reading a value there raises."""
    simulator = make_native(name, 6, device="meta")
    simulator.reset(range(6))
    actions = idle(simulator).to("meta")
    step, done, obs = simulator.step_and_reset(actions)
    assert obs.shape == step.next_obs.shape
    assert simulator.reset_where(simulator.step(actions).truncated).shape == obs.shape
    assert done.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(done.any())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised by torch while it imports its compiler
@pytest.mark.parametrize("name", NATIVE)
def test_compiled_steps_equal_eager_steps(name):
    n = 37  # not a multiple of the vector width
    eager = make_native(name, n, max_episode_steps=9)
    compiled = make_native(name, n, max_episode_steps=9, compile=True)
    torch.testing.assert_close(eager.reset(range(n)), compiled.reset(range(n)), rtol=0, atol=1e-6)
    assert torch.equal(eager.get_state()["state"], compiled.get_state()["state"])
    generator = torch.Generator().manual_seed(0)
    for t in range(30):
        actions = torch.rand(idle(eager).shape, generator=generator) * 3
        actions = actions.floor().clamp(max=1).long() if eager._discrete else actions - 1.5
        step, done, obs = eager.step_and_reset(actions)
        if t % 3 or name != "CartPole-v1":  # one task is enough for the regions that are compiled separately
            actual, got_done, got_obs = compiled.step_and_reset(actions)
        else:
            actual = compiled.step(actions)
            got_done = actual.terminated | actual.truncated
            got_obs = compiled.reset_where(got_done)
        torch.testing.assert_close(actual.next_obs, step.next_obs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(actual.reward, step.reward, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got_obs, obs, rtol=1e-5, atol=1e-5)
        assert torch.equal(got_done, done)
        compiled.set_state(eager.get_state())  # rounding must not add up to a different flag
    torch.testing.assert_close(eager.reset(), compiled.reset(), rtol=0, atol=1e-6)
    assert torch.equal(eager.get_state()["state"], compiled.get_state()["state"])


# -- NumPy and torch -------------------------------------------------------------------------------


def random_actions(simulator, generator):
    if simulator._discrete:
        return torch.randint(0, int(simulator.action_space.n), (simulator.num_envs,), generator=generator)
    return torch.rand((simulator.num_envs, 1), generator=generator) * 2 - 1


@pytest.mark.parametrize("name", NATIVE)
def test_numpy_and_torch_differ_by_rounding_only(name):
    numpy, tensors = (make_native(name, 40, max_episode_steps=9, arrays=library) for library in ("numpy", "torch"))
    torch.testing.assert_close(numpy.reset(range(40)), tensors.reset(range(40)), rtol=0, atol=1e-6)
    generator = torch.Generator().manual_seed(0)
    for t in range(30):
        actions = random_actions(numpy, generator)
        if t % 2:
            step, done, obs = numpy.step_and_reset(actions)
            expected_step, expected_done, expected_obs = tensors.step_and_reset(actions)
        else:
            step, expected_step = numpy.step(actions), tensors.step(actions)
            done, expected_done = (item.terminated | item.truncated for item in (step, expected_step))
            obs, expected_obs = numpy.reset_where(done), tensors.reset_where(done)
        assert torch.equal(done, expected_done)
        torch.testing.assert_close(obs, expected_obs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(step.next_obs, expected_step.next_obs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(step.reward, expected_step.reward, rtol=1e-5, atol=1e-5)
        state = numpy.get_state()
        for field, value in tensors.get_state().items():
            torch.testing.assert_close(state[field], value, rtol=1e-5, atol=1e-5)
        tensors.set_state(state)  # rounding must not add up to a different flag


@pytest.mark.parametrize("name", NATIVE)
def test_rows_do_not_depend_on_the_batch_size(name):
    """Covers batches with and without a cache of start states, over several episodes, to the bit."""
    sizes = 3, 700, 9000
    batches = [make_native(name, n, max_episode_steps=7) for n in sizes]
    for batch in batches:
        batch.reset(range(batch.num_envs))
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        actions = random_actions(batches[-1], generator)
        results = [batch.step_and_reset(actions[: batch.num_envs]) for batch in batches]
        for step, done, obs in results[:2]:
            assert torch.equal(obs, results[-1][2][: len(obs)])
            assert torch.equal(done, results[-1][1][: len(obs)])
            assert torch.equal(step.reward, results[-1][0].reward[: len(obs)])


def test_the_library_is_chosen_by_size_and_shown():
    assert "arrays='numpy'" in repr(make_native("CartPole-v1", 64))
    assert "arrays='torch'" in repr(make_native("CartPole-v1", NUMPY_ROWS))
    assert "arrays='torch'" in repr(make_native("CartPole-v1", 64, compile=True))
    assert make_native("CartPole-v1", 64, device="meta").arrays == "torch"
    assert make_native("CartPole-v1", 64, arrays="torch").arrays == "torch"
    with pytest.raises(ValueError, match=r"'numpy', 'torch' or None, got 'jax'"):
        make_native("CartPole-v1", 64, arrays="jax")
    with pytest.raises(ValueError, match="without compile"):
        make_native("CartPole-v1", 64, arrays="numpy", compile=True)


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_gradients_flow_through_functions_of_rows(arrays):
    simulator = make_native("Pendulum-v1", 2, arrays=arrays)
    simulator.reset([0, 1])
    actions = torch.zeros(2, 1, requires_grad=True)
    step, _ = simulator.step_rows(actions, simulator.rows)
    step.next_obs.sum().backward()
    assert actions.grad is not None
    assert (actions.grad != 0).all()


def test_rows_with_ended_episodes_can_be_stepped_without_warnings():
    """pytest makes an error of NumPy's warning of an overflow."""
    simulator = make_native("CartPole-v1", 4)
    simulator.reset(range(4))
    simulator.set_state(simulator.get_state() | {"state": torch.full((4, 4), 1e38)})
    for _ in range(20):
        simulator.step(torch.ones(4, dtype=torch.int64))


# -- physical constants ----------------------------------------------------------------------------


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("name", "constants", "state"),
    [
        ("Pendulum-v1", {"g": 5}, [1.0, 0.5]),
        ("CartPole-v1", {"sutton_barto_reward": True}, [0.0, 0.0, 0.0, 0.1]),
        ("CartPole-v1", {"sutton_barto_reward": True}, [2.39, 5.0, 0.0, 0.0]),
        ("MountainCar-v0", {"goal_velocity": 0.05}, [0.49, 0.04]),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.05}, [0.44, 0.04]),
    ],
)
def test_physical_constants_equal_gymnasiums(name, constants, state, arrays):
    results = []
    for chosen in (constants, {}):
        simulator = make_native(name, 1, dtype=torch.float64, arrays=arrays, **chosen)
        simulator.reset([0])
        simulator.set_state(simulator.get_state() | {"state": torch.tensor([state], dtype=torch.float64)})
        step = simulator.step(torch.ones(1, dtype=torch.int64) if simulator._discrete else torch.ones(1, 1))
        results.append((step.next_obs[0].tolist(), step.reward.item(), step.terminated.item()))
    env = gymnasium.make(name, **constants).unwrapped
    env.reset(seed=0)
    env.state = np.array(state)
    obs, reward, terminated, *_ = env.step(1 if simulator._discrete else np.ones(1, np.float32))
    np.testing.assert_allclose(results[0][0], obs, rtol=1e-5, atol=1e-6)
    assert results[0][1] == pytest.approx(float(reward), abs=1e-6)
    assert results[0][2] == terminated
    assert results[0] != results[1]
    constant = simulator.physics[0]
    simulator = make_native(name, 1, **constants)
    assert f"{constant}={getattr(simulator, constant)!r}" in repr(simulator)


def test_unknown_physical_constants_raise():
    with pytest.raises(TypeError, match=r"of Pendulum-v1 \(device, .*, arrays, g\), got 'gravity'"):
        make_native("Pendulum-v1", 1, gravity=3)
    with pytest.raises(TypeError, match=r"of Acrobot-v1 \(device, .*, arrays\), got 'g'"):
        make_native("Acrobot-v1", 1, g=3)
    with pytest.raises(TypeError, match="g of Pendulum-v1 to be a float, got 'x'"):
        make_native("Pendulum-v1", 1, g="x")
    with pytest.raises(TypeError, match="to be a bool, got 1"):
        make_native("CartPole-v1", 1, sutton_barto_reward=1)


# -- rendering and errors --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_frames_equal_gymnasium(name):
    simulator = make_native(name, 2, render_mode="rgb_array")
    simulator.reset([0, 1])
    env = gymnasium.make(name, render_mode="rgb_array").unwrapped
    env.reset(seed=0)
    frames = []
    for row in (0, 1):
        env.state = simulator.get_state()["state"][row].double().numpy()
        frames.append(simulator.render(row))
        assert frames[-1].dtype == np.uint8
        np.testing.assert_array_equal(frames[-1], env.render())
    assert not np.array_equal(*frames)
    env.close()
    simulator.close()
    simulator.close()


def test_no_frames_without_a_render_mode():
    simulator = make_native("CartPole-v1", 1)
    simulator.reset()
    assert simulator.render(0) is None


def test_invalid_actions_raise():
    cartpole = make_native("CartPole-v1", 3)
    with pytest.raises(PendingError, match="reset first"):
        cartpole.step([0, 0, 0])
    cartpole.reset()
    with pytest.raises(SpaceError, match=r"shape \(3,\).*\(2,\)"):
        cartpole.step([0, 1])
    with pytest.raises(SpaceError, match="integers"):
        cartpole.step(torch.zeros(3))
    with pytest.raises(SpaceError, match=r"0 to 1.*\[2, -1\].*\[1, 2\]"):
        cartpole.step([0, 2, -1])
    pendulum = make_native("Pendulum-v1", 3)
    pendulum.reset()
    with pytest.raises(SpaceError, match=r"\(3, 1\)"):
        pendulum.step(torch.zeros(3))


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64, bool])
def test_actions_of_any_integer_dtype(kind):
    simulator, like = make_native("CartPole-v1", 2), make_native("CartPole-v1", 2)
    simulator.reset([0, 1])
    like.reset([0, 1])
    actions = np.array([0, 1], kind)
    actions.flags.writeable = False
    assert torch.equal(simulator.step(actions).next_obs, like.step(torch.tensor([0, 1])).next_obs)


def test_gradients_stop_at_the_action():
    simulator = make_native("Pendulum-v1", 2)
    simulator.reset()
    assert not simulator.step(torch.zeros(2, 1, requires_grad=True)).next_obs.requires_grad


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"dtype": torch.float16}, "dtype"),
        ({"render_mode": "human"}, "render_mode"),
        ({"max_episode_steps": 0}, "max_episode_steps"),
        ({"name": "Pong"}, "CartPole-v1"),
    ],
)
def test_invalid_arguments_raise(arguments, match):
    with pytest.raises(ValueError, match=match):
        make_native(**({"name": "CartPole-v1", "num_envs": 1} | arguments))
