"""`BraxEnv` and `BraxWrapper`: entries as TorchRL's, batch sizes, masks, gradients."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import BraxEnv, BraxWrapper, EnvBase, check_env_specs, make_env
from vecrl.testing import EnvConformance

pytestmark = pytest.mark.simulators


class TestFast(EnvConformance):
    num_steps = 8
    deterministic = True

    def make(self) -> EnvBase:
        return BraxEnv("fast", batch_size=[2], episode_length=5)


def test_entries_are_those_of_torchrl() -> None:
    env = BraxEnv("fast")
    assert env.done_keys == ["done", "terminated"]
    keys = ["q", "qd", ("x", "pos"), ("x", "rot"), ("xd", "ang"), ("xd", "vel")]
    paths = [("state", "pipeline_state", *(key if isinstance(key, tuple) else (key,))) for key in keys]
    paths += [("state", "obs"), ("state", "reward"), ("state", "done")]
    assert {*env.state_spec.keys(True, True)} == {*paths}
    assert env.action_spec.shape == (1,)
    assert (env.action_spec.low, env.action_spec.high) == (-1, 1)
    step = env.rand_step(env.reset())
    assert step["next", "reward"].shape == (1,)
    assert step["next", "state", "pipeline_state", "x", "rot"].shape == (4,)
    assert env.reset(TensorDict(batch_size=[4, 2]))["observation"].shape == (4, 2, 2)
    check_env_specs(env)


def test_limits_truncate() -> None:
    rollout = make_env("brax::fast", 2, episode_length=3).rollout(7, break_when_any_done=False)
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [[False, False, True, False, False, True, False]] * 2
    assert not rollout["next", "terminated"].any()


@pytest.mark.timeout(300)  # the backward step compiles
def test_gradients_equal_finite_differences() -> None:
    env = BraxEnv("inverted_pendulum", batch_size=[2], requires_grad=True)
    assert "inverted_pendulum" in BraxEnv.available_envs
    env.set_seed(0)
    start = env.reset()

    def final_sum(action: torch.Tensor) -> torch.Tensor:
        root = start.clone()
        for _ in range(2):
            root = env.step_mdp(env.step(root.set("action", action)))
        return root["observation"].double().sum()

    action = torch.full((2, 1), 0.3, requires_grad=True)
    final_sum(action).backward()
    assert action.grad is not None
    with torch.no_grad():
        for row in range(2):
            shift = torch.zeros(2, 1)
            shift[row] = 0.05
            difference = (final_sum(action + shift) - final_sum(action - shift)) / 0.1
            torch.testing.assert_close(action.grad[row, 0].double(), difference, rtol=0.05, atol=1e-3)


def test_wrappers_and_errors() -> None:
    import brax.envs

    env = BraxWrapper(brax.envs.get_environment("fast"), cache_clear_frequency=2, batch_size=[3])
    assert env.rollout(3, break_when_any_done=False).shape == (3, 3)
    assert env.batch_locked
    with pytest.raises(TypeError, match=r"environment of Brax, got int\. Use brax\.envs\.get_environment"):
        BraxWrapper(3)
    with pytest.raises(ValueError, match=r"Expected the name of a Brax environment, got 'nothing'. There are ant,"):
        BraxEnv("nothing")
