"""The native tasks equal gymnasium's, from equal states with equal actions."""

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.simulators.native import NATIVE, make_native

torch.set_num_threads(1)

N = 16
STEPS = 400
LIMITS = {
    "CartPole-v1": 500,
    "Acrobot-v1": 500,
    "MountainCar-v0": 200,
    "MountainCarContinuous-v0": 999,
    "Pendulum-v1": 200,
}
BOTH = [(torch.float64, 2e-6), (torch.float32, 2e-5)]


def draw_actions(space, rng, steps):
    """Returns actions for N rows; those of a Box may be out of bounds."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(0, space.n, (steps, N))
    return rng.uniform(1.5 * space.low, 1.5 * space.high, (steps, N, *space.shape))


def gym_step(env, state, action):
    env.state = state
    env.steps_beyond_terminated = None
    obs, reward, terminated, _, _ = env.step(action)
    return obs, reward, terminated, np.asarray(env.state, np.float64)


def to_action(space, value):
    return int(value) if isinstance(space, gymnasium.spaces.Discrete) else value


@pytest.mark.parametrize(("dtype", "tolerance"), BOTH)
@pytest.mark.parametrize("name", NATIVE)
def test_every_step_equals_gymnasium(name, dtype, tolerance):
    """Runs 6,400 steps per task, each from the native state in both; angles near the wrap-around count as equal."""
    rng = np.random.default_rng(3)
    actual, reference = make_native(name, N, dtype=dtype), gymnasium.make(name).unwrapped
    reference.reset(seed=0)
    obs = actual.reset(range(N))
    ended = 0
    for actions in draw_actions(actual.action_space, rng, STEPS):
        before = actual.get_state()["state"].double().numpy()
        step = actual.step(torch.as_tensor(actions))
        after = actual.get_state()["state"].double().numpy()
        for i in range(N):
            expected = gym_step(reference, before[i].copy(), to_action(actual.action_space, actions[i]))
            np.testing.assert_allclose(step.next_obs[i].numpy(), expected[0], rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(step.reward[i].item(), expected[1], rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(np.cos(after[i]), np.cos(expected[3]), atol=tolerance)
            assert step.terminated[i].item() == expected[2]
        ended += int(step.terminated.sum())
        obs = actual.reset_where(step.terminated | step.truncated)
    assert obs.dtype == dtype
    assert ended > 0 or name != "CartPole-v1"


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"])
def test_float64_episodes_equal_gymnasium(name):
    """The state is never synchronized, so the error of a whole episode must stay at rounding."""
    rng = np.random.default_rng(5)
    actual = make_native(name, N, dtype=torch.float64)
    actual.reset(range(N))
    starts = actual.get_state()["state"].numpy()
    actions = draw_actions(actual.action_space, rng, 150)
    alive = torch.ones(N, dtype=torch.bool)
    envs = [gymnasium.make(name).unwrapped for _ in range(N)]
    for env, start in zip(envs, starts, strict=True):
        env.reset(seed=0)
        env.state = start.copy()
    for row in actions:
        step = actual.step(torch.as_tensor(row))
        state = actual.get_state()["state"].numpy()
        for i in alive.nonzero().squeeze(-1).tolist():
            _, reward, terminated, _, _ = envs[i].step(to_action(actual.action_space, row[i]))
            np.testing.assert_allclose(state[i], envs[i].state, rtol=1e-6, atol=1e-6)  # the acrobot is chaotic
            assert step.reward[i].item() == pytest.approx(float(reward), abs=1e-6)
            assert step.terminated[i].item() == terminated
        alive &= ~step.terminated


@pytest.mark.parametrize("name", NATIVE)
def test_states_at_the_limits_equal_gymnasium(name):
    """Covers states at the limits of each task: walls, goals, falls, angle wrap-around and speed limits."""
    corners = {
        "CartPole-v1": [[2.39, 5, 0, 0], [-2.39, -5, 0, 0], [0, 0, 0.209, 2], [0, 0, -0.209, -2], [1, -3, 0.1, 3]],
        "Acrobot-v1": [[3.1, 3.1, 12, 28], [-3.1, -3.1, -12, -28], [3.1, 0, 0, 0], [1.6, 1.6, -12, 28], [0, 3, 5, -28]],
        "MountainCar-v0": [[-1.19, -0.07], [0.49, 0.07], [0.59, 0.07], [0.51, -0.07], [-1.2, 0]],
        "MountainCarContinuous-v0": [[-1.19, -0.07], [0.44, 0.07], [0.59, 0.07], [0.47, -0.07], [-1.2, 0]],
        "Pendulum-v1": [[3.14, 8], [-3.15, -8], [50, 7.9], [-50, -7.9], [0, 0]],
    }[name]
    reference = gymnasium.make(name).unwrapped
    reference.reset(seed=0)
    space = reference.action_space
    choices = range(int(space.n)) if hasattr(space, "n") else [np.array([v], np.float32) for v in (-3, -1, 0.3, 1, 3)]
    actual = make_native(name, len(corners), dtype=torch.float64)
    actual.reset()
    for action in choices:
        actual.set_state(actual.get_state() | {"state": torch.tensor(corners, dtype=torch.float64)})
        step = actual.step(np.stack([np.asarray(action)] * len(corners)))
        for i, corner in enumerate(corners):
            obs, reward, terminated, _ = gym_step(reference, np.array(corner, np.float64), action)
            np.testing.assert_allclose(step.next_obs[i].numpy(), obs, rtol=1e-5, atol=1e-6)
            assert step.reward[i].item() == pytest.approx(float(reward), abs=1e-6)
            assert step.terminated[i].item() == terminated


@pytest.mark.parametrize("name", NATIVE)
def test_spaces_and_limits_equal_gymnasium(name):
    reference, actual = gymnasium.make(name), make_native(name, 2)
    assert actual.observation_space == reference.observation_space
    assert actual.action_space == reference.action_space
    assert actual.max_episode_steps == reference.spec.max_episode_steps == LIMITS[name]
    assert actual.metadata["render_fps"] == reference.metadata["render_fps"]


@pytest.mark.parametrize("name", NATIVE)
def test_episodes_are_truncated_at_the_limit(name):
    """Starts from a state that does not terminate; the second row starts 7 steps later."""
    actual = make_native(name, 2, dtype=torch.float64)
    actual.reset([0, 1])
    actual.set_state(
        actual.get_state() | {"steps": torch.tensor([LIMITS[name] - 8, LIMITS[name] - 15], dtype=torch.int32)}
    )
    idle = torch.tensor([1, 1]) if hasattr(actual.action_space, "n") else torch.zeros(2, 1)
    flags = [actual.step(idle).truncated.tolist() for _ in range(16)]
    assert flags == [[t >= 7, t >= 14] for t in range(16)]


def test_a_truncated_step_can_terminate_too():
    actual = make_native("CartPole-v1", 1, max_episode_steps=1)
    actual.reset([0])
    actual.set_state(actual.get_state() | {"state": torch.tensor([[2.39, 5.0, 0.0, 0.0]])})
    step = actual.step(torch.tensor([1]))
    assert step.terminated.item()
    assert step.truncated.item()


def test_minus_one_sets_no_limit():
    actual = make_native("Pendulum-v1", 1, max_episode_steps=-1)
    actual.reset([0])
    actual.set_state(actual.get_state() | {"steps": torch.tensor([10**6], dtype=torch.int32)})
    assert not actual.step(torch.zeros(1, 1)).truncated.item()


@pytest.mark.parametrize("name", NATIVE)
def test_initial_states_cover_gymnasiums_range(name):
    actual = make_native(name, 5000, dtype=torch.float64)
    actual.reset(range(5000))
    state = actual.get_state()["state"]
    reference = gymnasium.make(name).unwrapped
    reference.reset(seed=0)
    samples = [(reference.reset(), np.array(reference.state, np.float64))[1] for _ in range(2000)]
    low, high = np.min(samples, 0), np.max(samples, 0)
    np.testing.assert_allclose(state.amin(0), low, atol=0.01 * np.pi)
    np.testing.assert_allclose(state.amax(0), high, atol=0.01 * np.pi)
    np.testing.assert_allclose(state.mean(0), (low + high) / 2, atol=0.02 * (high - low).max())


def test_options_bound_the_starts_of_one_reset():
    cartpole, pendulum = make_native("CartPole-v1", 50), make_native("Pendulum-v1", 50)
    assert cartpole.reset(range(50), {"low": 0.1, "high": 0.2}).aminmax().min >= 0.1
    assert cartpole.reset().abs().max() <= 0.05
    pendulum.reset(range(50), {"x_init": 0.1, "y_init": 0})
    state = pendulum.get_state()["state"]
    assert 0.05 < state[:, 0].abs().max() <= 0.1
    assert (state[:, 1] == 0).all()
    with pytest.raises(ValueError, match="at most"):
        cartpole.reset(options={"low": 1, "high": 0})
    with pytest.raises(ValueError, match="number"):
        cartpole.reset(options={"low": "far"})
