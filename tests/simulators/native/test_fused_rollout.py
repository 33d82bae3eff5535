"""Fused rollouts equal single steps."""

import pytest
import torch

from vecrl.errors import PendingError
from vecrl.simulators.native import NATIVE, make_native
from vecrl.simulators.native.fused_rollout import FusedRollout, rollout

torch.set_num_threads(1)
N = 11


def make(name, **kwargs):
    simulator = make_native(name, N, max_episode_steps=4, **kwargs)
    simulator.reset(range(N))
    return simulator


def policy_for(simulator):
    """Returns a deterministic policy that depends on the observations and is scaled by `params`."""
    if simulator.action_space.shape == ():
        return lambda obs, params=1.0: (obs.sum(-1) * params > 0).long()
    return lambda obs, params=1.0: (obs.sum(-1, keepdim=True) * params).sin()


def stepwise(simulator, policy, num_steps, params):
    obs, used = simulator.reset_where(torch.zeros(N, dtype=torch.bool)), []
    for _ in range(num_steps):
        actions = policy(obs, params)
        step, _, next_td = simulator.step_and_reset(actions)
        used.append((obs, actions, step.reward, step.terminated, step.truncated, step.next_obs))
        obs = next_td
    return [torch.stack(many) for many in zip(*used, strict=True)], obs


def check(record, expected, last):
    fields = (record.obs, record.actions, record.reward, record.terminated, record.truncated, record.next_obs)
    for actual, expected_value in zip(fields, expected, strict=True):
        torch.testing.assert_close(actual, expected_value, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(record.last_obs, last, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NATIVE)
def test_fused_rollout_equals_steps(name):
    item, other = make(name), make(name)
    policy = policy_for(item)
    run = FusedRollout(item, policy, next_obs=True)
    for num_steps, params in ((10, 1.0), (3, -0.5)):  # the second rollout continues from the end of the first
        check(run(num_steps, params), *stepwise(other, policy, num_steps, params))
    for field, value in item.get_state().items():
        assert torch.equal(value, other.get_state()[field])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised by torch while it imports its compiler
def test_compiled_chunks_equal_steps():
    item, other = make("CartPole-v1", compile=True), make("CartPole-v1")
    policy = policy_for(item)
    run = FusedRollout(item, policy, chunk=2, next_obs=True)
    for params in (torch.tensor(1.0), torch.tensor(-1.0)):
        check(run(5, params), *stepwise(other, policy, 5, params))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_in_place_changes_of_the_policy_apply():
    simulator = make("CartPole-v1")
    bias = torch.zeros(())
    run = FusedRollout(simulator, lambda obs: (obs[:, 0] * 0 + bias > 0).long(), chunk=1, compile=True)
    assert not run(1).actions.any()
    bias.fill_(1)
    assert run(1).actions.all()


def test_without_params_or_successors():
    record = rollout(make("Pendulum-v1"), lambda obs: obs[:, :1], 6)
    assert record.next_obs is None
    assert record.actions.shape == (6, N, 1)
    assert record.terminated.dtype == record.truncated.dtype == torch.bool
    assert record.truncated.nonzero()[:, 0].unique().tolist() == [3]


def test_no_host_synchronization():
    simulator = make("CartPole-v1", device="meta")
    assert rollout(simulator, lambda obs: (obs[:, 0] > 0).long(), 2).obs.shape == (2, N, 4)


def test_invalid_use_raises():
    with pytest.raises(PendingError, match="reset first"):
        rollout(make_native("CartPole-v1", 1), lambda obs: obs, 1)
    with pytest.raises(ValueError, match="num_steps"):
        rollout(make("CartPole-v1"), lambda obs: obs, 0)
    with pytest.raises(ValueError, match="chunk"):
        FusedRollout(make("CartPole-v1"), lambda obs: obs, chunk=0)
