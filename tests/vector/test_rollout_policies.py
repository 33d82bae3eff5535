"""What policies of `RolloutWorkers` may return beside actions: extras, values and hidden states."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import nn

from vecrl.errors import SpaceError
from vecrl.vector import Rollout, RolloutWorkers, VectorEnv

BACKENDS = [
    ("serial", 1),
    ("serial", 2),
    ("threads", 2),
    ("processes", 2),
    pytest.param("ray", 2, marks=pytest.mark.ray),
]
STEPS = 60


def _cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def _lean(obs: np.ndarray) -> np.ndarray:
    return (obs[:, 3] > 0.2).astype(np.int64)


class Critic:
    """Returns the actions with "value" and "log_prob", which depend on the observation."""

    form = "tuple"

    def __init__(self, form: str = "tuple"):
        self.form = form

    def __call__(self, obs: np.ndarray) -> Any:
        extras = {"value": self.value(obs), "log_prob": torch.from_numpy(obs[:, :2] - 1)}
        if self.form == "tuple":
            return _lean(obs), extras
        if self.form == "dict":
            return {"action": torch.from_numpy(_lean(obs)), **extras}
        return TensorDict({"action": _lean(obs), **extras, "nested": {"other": obs}}, [len(obs)])

    def value(self, obs: np.ndarray) -> np.ndarray:
        return obs[:, 0] + 10 * obs[:, 2]


class Memory:
    """Pushes by the sum of the angles of the episode, its hidden state, and the number of steps, a tensor."""

    def initial_state(self, count: int) -> Any:
        return {"sum": np.full(count, 0.5, np.float32), "steps": torch.zeros(count, 1, dtype=torch.int64)}

    def __call__(self, obs: np.ndarray, state: Any) -> Any:
        state = {"sum": state["sum"] + obs[:, 2], "steps": state["steps"] + 1}
        return (state["sum"] > 0.5).astype(np.int64), {"sum": state["sum"]}, state

    def value(self, obs: np.ndarray, state: Any) -> Any:
        return torch.from_numpy(state["sum"] + obs[:, 2]).unsqueeze(1)


def _rollouts(policy: Any, backend: Any = "serial", workers: int = 1, count: int = 1, **options: Any) -> list[Rollout]:
    with RolloutWorkers([_cartpole] * 4, policy, backend=backend, num_workers=workers, **options) as made:
        made.reset(seed=3)
        return [made.rollout(STEPS) for _ in range(count)]


@pytest.mark.parametrize("form", ["tuple", "dict", "tensordict"])
@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_extras_and_values_are_those_of_the_observations(backend: Any, workers: int, form: str) -> None:
    critic = Critic(form)
    (rollout,) = _rollouts(critic, backend, workers)
    (actions_only,) = _rollouts(_lean)
    assert np.array_equal(rollout.obs, actions_only.obs)
    assert np.array_equal(rollout.action, actions_only.action)
    assert rollout.extras.keys() == {"value", "log_prob"}
    assert np.array_equal(rollout.extras["value"], rollout.obs[..., 0] + 10 * rollout.obs[..., 2])
    assert np.array_equal(rollout.extras["log_prob"], rollout.obs[..., :2] - 1)
    assert len(rollout.ends) >= 4
    assert rollout.last_value is not None
    assert rollout.final_value is not None
    assert np.allclose(rollout.last_value, critic.value(rollout.last_obs))
    assert np.allclose(rollout.final_value, critic.value(rollout.final_obs))


def test_policies_without_extras_have_none() -> None:
    (rollout,) = _rollouts(_lean)
    assert rollout.extras == {}
    assert rollout.first_state is rollout.last_state is rollout.last_value is rollout.final_value is None
    with pytest.raises(ValueError, match=r"Expected a policy with a method value\(obs\)"):
        rollout.next_value()
    (rollout,) = _rollouts(Critic())
    with pytest.raises(KeyError, match="'state_value' beside its actions, got these extras: value, log_prob"):
        rollout.next_value("state_value")


def test_next_values_and_observations_are_those_after_the_step() -> None:
    (rollout,) = _rollouts(Critic())
    obs, value = rollout.next_obs(), rollout.next_value()
    assert np.allclose(value, obs[..., 0] + 10 * obs[..., 2])
    ended = rollout.terminated | rollout.truncated
    assert np.array_equal(obs[:-1][~ended[:-1]], rollout.obs[1:][~ended[:-1]])
    assert np.array_equal(obs[-1][~ended[-1]], rollout.last_obs[~ended[-1]])
    assert np.array_equal(obs[ended], rollout.final_obs)


@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
@pytest.mark.parametrize("row_by_row", [False, True])
def test_hidden_states_are_carried_and_restarted_by_row(backend: Any, workers: int, row_by_row: bool) -> None:
    """As in a loop of the caller, over two rollouts."""
    rollouts = _rollouts(Memory(), backend, workers, 2, row_by_row=row_by_row)
    memory = Memory()
    with VectorEnv([_cartpole] * 4, autoreset_mode="same_step") as envs:
        obs, _ = envs.reset(seed=3)
        state = memory.initial_state(4)
        for rollout in rollouts:
            assert np.array_equal(rollout.first_state["sum"], state["sum"])
            finals: list[float] = []
            for step in range(STEPS):
                action, extras, state = memory(obs, state)
                assert np.array_equal(rollout.obs[step], obs)
                assert np.array_equal(rollout.action[step], action)
                assert np.array_equal(rollout.extras["sum"][step], extras["sum"])
                obs, _, terminated, truncated, info = envs.step(action)
                for row in np.flatnonzero(terminated | truncated):
                    finals.append(state["sum"][row] + info["final_obs"][row][2])
                    state["sum"][row], state["steps"][row] = 0.5, 0
            assert np.array_equal(rollout.last_state["sum"], state["sum"])
            assert np.array_equal(rollout.last_state["steps"], state["steps"].numpy())
            assert rollout.last_value is not None
            assert np.allclose(rollout.last_value, memory.value(obs, state)[:, 0])
            assert np.array_equal(np.asarray(rollout.final_value, np.float32), np.array(finals, np.float32))
            assert len(finals) > 3


def test_a_reset_restarts_hidden_states() -> None:
    with RolloutWorkers([_cartpole] * 4, Memory(), backend="serial") as workers:
        first = [workers.reset(seed=3), workers.rollout(7)][1]
        workers.rollout(5)
        again = [workers.reset(seed=3), workers.rollout(7)][1]
    assert np.array_equal(first.obs, again.obs)
    assert first.first_state["sum"].tolist() == again.first_state["sum"].tolist() == [0.5] * 4


class Recurrent(nn.Module):
    """An LSTM cell of torch, which returns no extras."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 8), nn.Linear(8, 2)

    def initial_state(self, count: int) -> Any:
        return torch.zeros(count, 8), torch.zeros(count, 8)

    def forward(self, obs: np.ndarray, state: Any) -> Any:
        h, c = self.cell(torch.from_numpy(obs), state)
        return self.head(h).argmax(1), (h, c)


def test_modules_may_be_recurrent_and_get_new_parameters() -> None:
    module = Recurrent()
    with RolloutWorkers([_cartpole] * 4, module, backend="processes", num_workers=2) as workers:
        workers.reset(seed=1)
        rollout = workers.rollout(20, module.state_dict())
    assert [leaf.shape for leaf in rollout.last_state] == [(4, 8), (4, 8)]
    assert not rollout.first_state[0].any()
    assert rollout.last_state[0].any()


def test_batches_are_in_the_order_of_the_steps() -> None:
    (rollout,) = _rollouts(Critic())
    flat = rollout.flat()
    assert flat.keys() == {"obs", "action", "reward", "terminated", "truncated", "value", "log_prob"}
    assert np.array_equal(flat["obs"], rollout.obs.reshape(-1, 4))
    assert flat["log_prob"].shape == (STEPS * 4, 2)
    assert np.array_equal(flat["value"][4:8], rollout.extras["value"][1])


class Mixed(gymnasium.Env[Any, Any]):
    """Observes a Dict with a word; its actions are a Tuple with a Dict."""

    observation_space = spaces.Dict(count=spaces.Box(0, 9, (2,), np.float32), word=spaces.Text(9))
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float32))])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"count": np.zeros(2, np.float32), "word": "a"}, {}

    def step(self, action: Any) -> Any:
        return {"count": np.ones(2, np.float32), "word": "b"}, float(action[0]), False, False, {}


def _pair(obs: Any) -> Any:
    count = len(obs["count"])
    return np.ones(count, np.int64), {"push": np.zeros((count, 2), np.float32)}


def test_pairs_that_are_actions_are_no_extras() -> None:
    with RolloutWorkers([Mixed] * 3, _pair, backend="serial") as workers:
        rollout = workers.rollout(4)
    assert rollout.extras == {}
    assert rollout.action[1]["push"].shape == (4, 3, 2)
    with pytest.raises(ValueError, match="Expected observations and actions of arrays, got str"):
        rollout.flat()


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (lambda obs: (_lean(obs), {"value": np.zeros(1)}), r"the policy's 'value' to be an array of 4 rows, .* \(1,\)"),
        (
            lambda obs: (_lean(obs), {"value": 1.0}),
            "the policy's 'value' to be an array of 4 rows, one per environment",
        ),
        (
            lambda obs: (_lean(obs), {"up": obs[:, 0]} if obs[0, 2] > 0 else {}),
            r"return the extras \['up'\] in each step",
        ),
    ],
)
def test_extras_that_do_not_fit_are_named(policy: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        _rollouts(policy)


class Forgetful(Memory):
    def __call__(self, obs: np.ndarray, state: Any) -> Any:
        return _lean(obs)


class Short(Memory):
    def initial_state(self, count: int) -> Any:
        return np.zeros(2)


class Summed(Critic):
    def value(self, obs: np.ndarray) -> Any:
        return super().value(obs).sum()

    def __call__(self, obs: np.ndarray) -> Any:
        return _lean(obs)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Forgetful(), r"\(action, state\) or \(action, extras, state\) from a policy with initial_state, got ndarray"),
        (Short(), r"the policy's initial_state to be an array of 4 rows, .* got the shape \(2,\)"),
        (Summed(), r"one number per observation from the policy's method value, 4 in all, got an array of shape \(\)"),
    ],
)
def test_states_and_values_that_do_not_fit_are_named(policy: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        _rollouts(policy)


def test_tensordicts_have_the_keys_of_torchrl() -> None:
    (rollout,) = _rollouts(lambda obs: {"action": _lean(obs), "log_prob": obs[:, 0]})
    data = rollout.to_tensordict()
    assert data.shape == (4, STEPS)
    assert data["observation"].shape == (4, STEPS, 4)
    assert data["log_prob"].shape == (4, STEPS), "as in a Collector of TorchRL"
    assert torch.equal(data["observation"], torch.from_numpy(rollout.obs.swapaxes(0, 1)))
    assert torch.equal(data["next", "observation"], torch.from_numpy(rollout.next_obs().swapaxes(0, 1)))
    assert data["next"].keys() == {"observation", "reward", "done", "terminated", "truncated"}
    assert data["next", "reward"].dtype == torch.float32
    assert data["next", "done"].sum() == len(rollout.ends)
