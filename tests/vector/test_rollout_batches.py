"""`RolloutWorkers` of a name: each worker has a batch of some rows, with the results of one batch of all rows."""

import itertools
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import vecrl
from vecrl.engine.simulator import BatchStep
from vecrl.errors import SpaceError, WorkerError
from vecrl.simulators.native import make_native
from vecrl.vector import RolloutWorkers, register, unregister
from vecrl.vector.simulator_pool import SimulatorPool

RAY = pytest.param("ray", 2, marks=pytest.mark.ray)
ROLLOUT = "obs", "action", "reward", "terminated", "truncated"


def lean(obs: np.ndarray) -> np.ndarray:
    """Pushes against the fall, with a delay."""
    return (obs[:, 3] > 0.2).astype(np.int64)


def swing(obs: np.ndarray) -> np.ndarray:
    return np.tanh(obs[:, :6] + obs[:, 6:12]).astype(np.float32)


def _by_hand(name: str, policy: Any, num_envs: int, steps: int, **options: Any) -> dict[str, Any]:
    """Returns the rollout of one batch that the caller steps."""
    records: dict[str, list[Any]] = {key: [] for key in ROLLOUT}
    ends, finals, returns, lengths = [], [], [], []
    sums, counts = np.zeros(num_envs), np.zeros(num_envs, int)
    with vecrl.make(name, num_envs=num_envs, autoreset_mode="same_step", **options) as envs:
        obs, _ = envs.reset(seed=3)
        for step in range(steps):
            action = policy(obs)
            next_obs, reward, terminated, truncated, info = envs.step(action)
            for key, value in zip(ROLLOUT, (obs, action, reward, terminated, truncated), strict=True):
                records[key].append(value)
            sums, counts, obs = sums + reward, counts + 1, next_obs
            for row in np.flatnonzero(terminated | truncated):
                ends.append([step, row])
                finals.append(info["final_obs"][row])
                returns.append(sums[row])
                lengths.append(counts[row])
                sums[row] = counts[row] = 0
    return {key: np.stack(values) for key, values in records.items() if key != "obs"} | {
        "obs": records["obs"],
        "last_obs": obs,
        "ends": np.array(ends),
        "final_obs": finals,
        "returns": np.array(returns),
        "lengths": np.array(lengths),
    }


def _assert_equal(rollout: Any, expected: dict[str, Any], compare: Any = np.testing.assert_array_equal) -> None:
    for name, value in expected.items():
        found = getattr(rollout, name)
        if name in ("obs", "final_obs") and isinstance(value[0], dict):
            for key in value[0]:
                compare(found[key], np.stack([row[key] for row in value]))
        elif isinstance(value, dict):
            for key in value:
                compare(found[key], value[key])
        else:
            compare(found, value)


@pytest.mark.parametrize(
    ("backend", "workers"), [("serial", 1), ("serial", 3), ("threads", 2), ("processes", 1), ("processes", 2), RAY]
)
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_rollouts_equal_those_of_one_batch(backend: Any, workers: int, arrays: str) -> None:
    options = {"arrays": arrays, "max_episode_steps": 45}
    expected = _by_hand("native::CartPole-v1", lean, 5, 100, **options)
    with RolloutWorkers(
        *("native::CartPole-v1", lean), num_envs=5, env_options=options, backend=backend, num_workers=workers
    ) as own:
        own.reset(seed=3)
        rollout = own.rollout(100)
        assert own.num_envs == 5
    assert expected["terminated"].any()
    assert expected["truncated"].any()
    compare = np.testing.assert_array_equal if arrays == "numpy" else np.testing.assert_allclose
    _assert_equal(rollout, expected, compare)


def test_rollouts_of_mujoco_equal_those_of_one_batch() -> None:
    expected = _by_hand("mujoco::HalfCheetah-v5", swing, 3, 40)
    with RolloutWorkers("mujoco::HalfCheetah-v5", swing, num_envs=3, num_workers=2, seed=3) as own:
        parts = [own.rollout(30), own.rollout(10)]
    for name in ROLLOUT:
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), expected[name])


def test_a_name_of_python_environments_makes_one_function_for_each() -> None:
    with RolloutWorkers(
        "CartPole-v1", lean, num_envs=3, num_workers=2, env_options={"sutton_barto_reward": True}
    ) as own:
        rollout = own.rollout(30)
    assert rollout.reward.shape == (30, 3)
    assert (rollout.reward[~rollout.terminated] == 0).all()


def test_a_reset_within_episodes_starts_their_lengths_again() -> None:
    def full(obs: np.ndarray) -> np.ndarray:
        return np.ones(len(obs), np.int64)

    with RolloutWorkers("native::CartPole-v1", full, num_envs=3, backend="serial", seed=3) as own:
        whole = own.rollout(12)
        assert len(whole.ends) >= 3
        own.reset(seed=3)
        own.rollout(5)
        own.reset(seed=3)
        again = own.rollout(12)
    np.testing.assert_array_equal(again.lengths, whole.lengths)
    np.testing.assert_array_equal(again.returns, whole.returns)


class FailingSimulator:
    """A simulator with observations in a dict, and without `step_and_reset`. One of two workers raises at a time."""

    def __init__(self, num_envs: int, fails_at: int):
        self._simulator: Any = make_native("CartPole-v1", num_envs)
        self.observation_space = spaces.Dict(cart=self._simulator.observation_space)
        self.steps, self.fails_at = 0, fails_at

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("step_and_reset", "step_and_reset_arrays"):
            raise AttributeError(name)
        return getattr(self._simulator, name)

    def reset(self, *args: Any) -> Any:
        self.steps = 0
        return {"cart": self._simulator.reset(*args)}

    def reset_where(self, mask: Any) -> Any:
        return {"cart": self._simulator.reset_where(mask)}

    def step(self, actions: Any) -> BatchStep:
        self.steps += 1
        if self.steps == self.fails_at:
            raise ZeroDivisionError(f"step {self.steps}")
        step = self._simulator.step(actions)
        return BatchStep({"cart": step.next_obs}, step.reward, step.terminated, step.truncated)


def _make_failing(name: str, num_envs: int, *, device: Any = None, infos: bool = True) -> Any:
    """The name is the step that fails. Batches of other numbers of rows fail two steps later."""
    return FailingSimulator(num_envs, int(name) + 2 * (num_envs != 2))


def lean_of_cart(obs: Any) -> np.ndarray:
    return lean(obs["cart"])


@pytest.fixture(autouse=True)
def failing() -> Iterator[None]:
    register("failing", make_batch=_make_failing)
    register("own-maker", maker=lambda *args, **kwargs: None)
    register("sized", env_fn=lambda name, size=1: _cartpole)
    yield
    for prefix in ("failing", "own-maker", "sized"):
        unregister(prefix)


def _cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def test_dicts_without_a_fused_step_equal_one_batch() -> None:
    expected = _by_hand("failing::1000", lean_of_cart, 4, 80)
    with RolloutWorkers("failing::1000", lean_of_cart, num_envs=4, num_workers=2, seed=3) as own:
        rollout = own.rollout(80)
    assert len(expected["ends"]) > 1
    _assert_equal(rollout, expected)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_an_error_in_a_batch_names_the_rows_of_its_worker(backend: Any) -> None:
    with RolloutWorkers("failing::3", lean_of_cart, num_envs=5, backend=backend, num_workers=2, seed=1) as own:
        counts = [own.rollout(1).reward.shape[1] for _ in range(2)]
        assert counts == [5, 5]
        with pytest.raises(WorkerError, match="step 3") as caught:
            own.rollout(1)
        assert [failure.env_ids for failure in caught.value.failures] == [(0, 1)]
        assert isinstance(caught.value, ZeroDivisionError)
        own.reset()
        assert own.rollout(2).reward.shape == (2, 5)


class Remembers:
    """Returns the number of calls since an episode began, as an extra."""

    def initial_state(self, count: int) -> np.ndarray:
        return np.zeros(count)

    def __call__(self, obs: Any, state: Any) -> Any:
        return lean(obs), {"calls": state}, state + 1


@pytest.mark.parametrize("row_by_row", [False, True])
def test_hidden_states_start_again_with_episodes(row_by_row: bool) -> None:
    with RolloutWorkers(
        *("native::CartPole-v1", Remembers()), num_envs=4, num_workers=2, seed=1, row_by_row=row_by_row
    ) as own:
        rollout = own.rollout(80)
    assert len(rollout.ends) > 1
    for row in range(4):
        starts = [0, *(step + 1 for step, of_row in rollout.ends if of_row == row), 80]
        expected = np.concatenate([np.arange(stop - start) for start, stop in itertools.pairwise(starts)])
        np.testing.assert_array_equal(rollout.extras["calls"][:, row], expected)


@pytest.mark.parametrize("name", ["native::CartPole-v1", "CartPole-v1"])
def test_a_policy_may_write_to_its_observations(name: str) -> None:
    def write(obs: np.ndarray) -> np.ndarray:
        action = lean(obs)
        obs[:] = 7.0
        return action

    rollouts = []
    for policy in (lean, write):
        with RolloutWorkers(name, policy, num_envs=3, backend="serial", seed=2) as own:
            rollouts.append(own.rollout(40))
    for key in ROLLOUT:
        np.testing.assert_array_equal(getattr(rollouts[1], key), getattr(rollouts[0], key))


def test_extras_have_names_of_their_own() -> None:
    def policy(obs: np.ndarray) -> Any:
        return lean(obs), {"reward": obs[:, 0]}

    with (
        RolloutWorkers("native::CartPole-v1", policy, num_envs=2, backend="serial") as own,
        pytest.raises(SpaceError, match="with other names than a rollout's, got 'reward'"),
    ):
        own.rollout(2)


class Values(torch.nn.Linear):
    """A policy with log-probabilities, a value and parameters."""

    def forward(self, obs: np.ndarray) -> Any:
        scores = super().forward(torch.as_tensor(obs))
        return scores.argmax(-1), {"value": scores[:, 0]}

    def value(self, obs: np.ndarray) -> torch.Tensor:
        return super().forward(torch.as_tensor(obs))[:, 0]


def test_policies_with_values_and_new_parameters() -> None:
    torch.manual_seed(0)
    policy = Values(4, 2).requires_grad_(False)
    options = {"max_episode_steps": 15}
    with RolloutWorkers("native::CartPole-v1", policy, num_envs=4, num_workers=2, seed=1, env_options=options) as own:
        rollout = own.rollout(40)
        assert len(rollout.ends) > 0
        next_value = rollout.next_value()
        np.testing.assert_allclose(next_value, policy.value(rollout.next_obs().reshape(-1, 4)).reshape(40, 4), 1e-5)
        policy.weight.zero_()
        policy.bias.copy_(torch.tensor([0.0, 1.0]))
        assert (own.rollout(3, policy.state_dict()).action == 1).all()
        assert [part.env_ids.tolist() for part in own.rollouts(5, count=2)] in ([[0, 1], [2, 3]], [[2, 3], [0, 1]])


def test_a_worker_that_raises_leaves_no_simulator_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(SimulatorPool, "close", lambda self: closed.append(self.num_envs))

    class Unseeded:
        def __call__(self, obs: Any) -> Any: ...

        def seed(self, seed: int) -> None:
            raise RuntimeError("no seed")

    with pytest.raises(WorkerError, match="no seed"):
        RolloutWorkers("native::CartPole-v1", Unseeded(), num_envs=4, backend="serial", num_workers=2)
    assert closed == [2, 2]


WRONG: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    r"Expected num_envs with the name 'CartPole-v1', got none\.": (ValueError, {"env_fns": "CartPole-v1"}),
    "Expected no num_envs with functions": (ValueError, {"env_fns": [_cartpole], "num_envs": 1}),
    "Expected no env_options with functions": (ValueError, {"env_fns": [_cartpole], "env_options": {}}),
    "Expected on_failure='raise' for 'native::CartPole-v1', got 'restart'": (ValueError, {"on_failure": "restart"}),
    "num_workers": (SpaceError, {"num_workers": 0}),
    "Expected one of the prefixes": (ValueError, {"env_fns": "unknown::CartPole-v1"}),
    r"Expected arguments of CartPole-v1 \(.*\), got 'speed'": (TypeError, {"env_options": {"speed": 3}}),
    "got 'infos', which is set here": (TypeError, {"env_options": {"infos": True}}),
    "Expected arguments of 'sized::one', got 'sizee'": (
        TypeError,
        {"env_fns": "sized::one", "env_options": {"sizee": 2}},
    ),
    "Expected env_options to be a dict of arguments of the simulator, got 3": (TypeError, {"env_options": 3}),
    r"Expected a policy, got the class Remembers\. Give an instance of it\.": (TypeError, {"policy": Remembers}),
    "of which only a maker is registered": (ValueError, {"env_fns": "own-maker::one"}),
    "Expected the name of an option of workers, got 'check_nan'": (TypeError, {"check_nan": True}),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message: str) -> None:
    error, arguments = WRONG[message]
    count = {"num_envs": 2} if isinstance(arguments.get("env_fns", ""), str) and "got none" not in message else {}
    with pytest.raises(error, match=message):
        RolloutWorkers(**{"env_fns": "native::CartPole-v1", "policy": lean, "backend": "serial", **count, **arguments})
