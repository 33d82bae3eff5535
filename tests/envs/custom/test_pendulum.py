"""The stateless pendulum: the values of TorchRL for equal inputs, and any batch size."""

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import PendulumEnv, check_env_specs


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3)])
def test_specs_of_the_pendulum(batch: tuple[int, ...]) -> None:
    env = PendulumEnv()
    check_env_specs(env)
    check_env_specs(env, tensordict=env.gen_params(batch_size=batch))
    assert env.rollout(4, tensordict=env.gen_params(batch_size=batch)).shape == (*batch, 4)


def test_initial_states_equal_torchrl() -> None:
    env = PendulumEnv()
    env.set_seed(0)
    first = env.reset(env.gen_params(batch_size=[3]))
    assert first["th"].allclose(torch.tensor([-0.0235, 1.6853, -2.5857]), atol=1e-4)
    assert first["thdot"].allclose(torch.tensor([-0.7359, -0.3852, 0.2682]), atol=1e-4)
    assert PendulumEnv(seed=0).reset()["th"].allclose(torch.tensor(-0.0235), atol=1e-4)


def test_steps_equal_torchrl() -> None:
    env = PendulumEnv()
    data = env.gen_params(batch_size=[3])
    data["th"], data["thdot"] = torch.tensor([0.1, 3.0, -4.0]), torch.tensor([1.0, -9.0, 7.9])
    data["action"] = torch.tensor([[3.0], [-1.0], [0.5]])
    next_td = env.step(data)["next"]
    assert next_td["th"].allclose(torch.tensor([0.1687, 2.6000, 2.6832]), atol=1e-4)
    assert next_td["thdot"].allclose(torch.tensor([1.3749, -8.0, 8.0]), atol=1e-4)
    assert next_td["reward"].allclose(torch.tensor([[-0.1140], [-17.1010], [-11.4542]]), atol=1e-4)
    assert not next_td["done"].any()


def test_physics_are_read_from_the_input() -> None:
    """Each row uses its own physics; the constructor's values apply if the input has none."""
    env = PendulumEnv()
    data = env.gen_params(batch_size=[2])
    data["params", "g"] = torch.tensor([10.0, 0.0])
    data = env.reset(data.update({"th": torch.ones(2), "thdot": torch.zeros(2)}))
    next_td = env.step(data.set("action", torch.zeros(2, 1)))["next"]
    assert next_td["thdot"].ne(0).tolist() == [True, False]
    weak = PendulumEnv.gen_params(g=3.0)
    weak["params", "max_torque"] = torch.tensor(1.0)
    other = PendulumEnv(weak)
    assert other.reset()["params", "g"] == 3.0
    assert other.reset(TensorDict({}, [4]))["params", "g"].tolist() == [3.0] * 4
    assert other.action_spec.space.high.item() == 1.0
    with pytest.raises(ValueError, match="without a batch size"):
        PendulumEnv(PendulumEnv.gen_params(batch_size=[2]))


def test_reset_from_given_states() -> None:
    """Resets start from the state in the input, except for rows in the mask or if that is disabled."""
    env = PendulumEnv(seed=0)
    inputs = env.gen_params(batch_size=[2]).update({"th": torch.ones(2), "thdot": torch.ones(2)})
    assert env.reset(inputs.clone())["th"].tolist() == [1, 1]
    assert env.reset(inputs.clone(), set_state=True)["th"].tolist() == [1, 1]
    assert env.reset(inputs.clone(), set_state=False)["th"].ne(1).all()
    masked = env.reset(inputs.clone().set("_reset", torch.tensor([[True], [False]])))
    assert masked["th"].eq(1).tolist() == [False, True]


def test_angles_stay_in_the_spec() -> None:
    env = PendulumEnv(seed=0)
    rollout = env.rollout(100, tensordict=env.gen_params(batch_size=[50]))
    assert rollout["next", "th"].abs().max() > torch.pi
    assert env.observation_spec["th"].is_in(rollout["next", "th"])


def test_random_states_are_within_the_ranges() -> None:
    first = PendulumEnv(seed=1).reset(TensorDict({}, [5000]))
    assert 3.0 < first["th"].abs().max() <= torch.pi
    assert 0.99 < first["thdot"].abs().max() <= 1.0


def test_gradients_reach_the_physics_parameters() -> None:
    env = PendulumEnv(seed=0)
    length = torch.ones(3, requires_grad=True)
    data = env.reset(env.gen_params(batch_size=[3]).set(("params", "l"), length))
    total = torch.zeros(())
    for _ in range(3):
        data = env.step(data.set("action", torch.ones(3, 1)))["next"]
        total = total + data["reward"].sum()
    (slope,) = torch.autograd.grad(total, length)
    assert slope.ne(0).all()
