"""TorchRL's modules, losses, replay buffers and functions over vecrl's specs and rollouts."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from vecrl import specs
from vecrl.envs import EnvBase, GymEnv, SerialEnv
from vecrl.envs import exploration_type as own_exploration_type
from vecrl.envs.transforms import Compose, InitTracker, RewardSum, StepCounter, TransformedEnv

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


def cart_pole(categorical: bool = False) -> EnvBase:
    return GymEnv("CartPole-v1", categorical_action_encoding=categorical)


def pendulum() -> EnvBase:
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(7), RewardSum(), InitTracker()))


def linear(inputs: int, outputs: int, *keys: str) -> TensorDictModule:
    return TensorDictModule(nn.Linear(inputs, outputs), in_keys=[keys[0]], out_keys=list(keys[1:]))


def gaussian_policy(spec: Any) -> Any:
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal

    network = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        out_keys=["action"],
        spec=spec,
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def action_value() -> Any:
    from torchrl.modules import MLP, ValueOperator

    return ValueOperator(MLP(in_features=4, out_features=1, num_cells=[8]), in_keys=["observation", "action"])


def rollout(env: EnvBase, policy: Any, steps: int = 8) -> Any:
    with torch.no_grad():
        return env.rollout(steps, policy, break_when_any_done=False)


def check_loss(loss: Any, data: Any) -> None:
    """Checks that the loss is finite and that its gradient reaches the parameters."""
    values = loss(data.reshape(-1))
    total = sum(value for key, value in values.items() if key.startswith("loss"))
    total.backward()
    assert torch.isfinite(total)
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in loss.parameters())


@pytest.mark.parametrize("env", [cart_pole(), SerialEnv(2, cart_pole)])
def test_equal_q_values_select_the_first_action(env: EnvBase) -> None:
    from torchrl.modules import QValueActor

    network = nn.Linear(4, 2)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    steps = rollout(env, QValueActor(network, in_keys=["observation"], spec=env.action_spec), 3)
    assert steps["action"].all()
    first = torch.zeros_like(steps["action"]).index_fill(-1, torch.tensor(0), 1)
    env.set_seed(0)
    expected = env.rollout(3, actions=first)
    env.set_seed(0)
    torch.testing.assert_close(env.rollout(3, actions=steps["action"])["next"], expected["next"])


@pytest.mark.parametrize("categorical", [False, True])
def test_random_policies_take_specs(categorical: bool) -> None:
    from torchrl.modules import RandomPolicy

    env = SerialEnv(2, lambda: cart_pole(categorical))
    for spec in (env.full_action_spec, env.action_spec):
        data = rollout(env, RandomPolicy(spec))
        assert env.action_spec.is_in(data["action"][:, 0])
        assert data["action"].float().std() > 0


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("categorical", [False, True])
def test_q_values_take_specs(categorical: bool, full: bool) -> None:
    from torchrl.modules import EGreedyModule, QValueActor, QValueModule
    from torchrl.objectives import DQNLoss

    env = cart_pole(categorical)
    spec = env.full_action_spec if full else env.action_spec
    actor = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=spec)
    module = TensorDictSequential(linear(4, 2, "observation", "action_value"), QValueModule(spec=env.action_spec))
    explore = EGreedyModule(spec=spec, eps_init=1.0, eps_end=1.0, annealing_num_steps=1)
    for policy in (actor, module, TensorDictSequential(actor, explore)):
        data = rollout(env, policy)
        assert env.action_spec.is_in(data["action"][0])
        loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
        assert loss.action_space == ("categorical" if categorical else "one_hot")
        check_loss(loss, data)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (specs.OneHot(2), "one_hot"),
        (specs.Categorical(2), "categorical"),
        (specs.Binary(2), "binary"),
        (specs.MultiOneHot([2, 2]), "mult_one_hot"),
        (specs.MultiCategorical([2, 2]), "multi_categorical"),
    ],
)
def test_losses_find_the_action_space_of_a_spec(spec: specs.TensorSpec, name: str) -> None:
    from torchrl.objectives import DQNLoss

    assert DQNLoss(linear(4, 2, "observation", "action_value"), action_space=spec).action_space == name


@pytest.mark.parametrize("full", [False, True])
def test_losses_of_continuous_actions_take_specs(full: bool) -> None:
    from torchrl import objectives
    from torchrl.modules import Actor

    env = pendulum()
    spec = env.full_action_spec if full else env.action_spec
    actor = Actor(nn.Linear(3, 1), in_keys=["observation"], spec=spec)
    data = rollout(env, actor)
    check_loss(objectives.TD3Loss(actor, action_value(), action_spec=spec), data)
    check_loss(objectives.DDPGLoss(actor, action_value()), data)
    policy = gaussian_policy(spec)
    data = rollout(env, policy)
    for name in ("SACLoss", "REDQLoss", "CrossQLoss", "CQLLoss"):
        loss = getattr(objectives, name)(policy, action_value(), action_spec=spec)
        assert loss.target_entropy == -1
        check_loss(loss, data)


def test_losses_of_policy_gradients_train_on_rollouts() -> None:
    from torchrl.modules import ValueOperator
    from torchrl.objectives import A2CLoss, ClipPPOLoss, IQLLoss
    from torchrl.objectives.value import GAE

    env = SerialEnv(2, pendulum)
    policy, critic = gaussian_policy(env.action_spec), ValueOperator(nn.Linear(3, 1), in_keys=["observation"])
    data = rollout(env, policy, 20)
    with torch.no_grad():
        GAE(gamma=0.99, lmbda=0.95, value_network=critic)(data)
    for loss in (ClipPPOLoss(policy, critic), A2CLoss(policy, critic), IQLLoss(policy, action_value(), critic)):
        check_loss(loss, data)


@pytest.mark.parametrize("categorical", [False, True])
def test_losses_of_discrete_actions_take_specs(categorical: bool) -> None:
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, QValueActor
    from torchrl.objectives import DiscreteCQLLoss, DiscreteSACLoss

    env = cart_pole(categorical)
    policy = ProbabilisticActor(
        linear(4, 2, "observation", "logits"),
        in_keys=["logits"],
        out_keys=["action"],
        spec=env.full_action_spec,
        distribution_class=torch.distributions.Categorical if categorical else OneHotCategorical,
    )
    data, values = rollout(env, policy), linear(4, 2, "observation", "action_value")
    assert env.action_spec.is_in(data["action"][0])
    check_loss(DiscreteSACLoss(policy, values, action_space=env.action_spec, num_actions=2), data)
    actor = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=env.action_spec)
    check_loss(DiscreteCQLLoss(actor, action_space=env.action_spec), rollout(env, actor))


def test_safe_modules_project_by_specs() -> None:
    from torchrl.modules import SafeModule, TanhModule

    env = pendulum()
    inputs = TensorDict(observation=torch.full((4, 3), 1e4), batch_size=4)
    for spec in (env.action_spec, env.full_action_spec, specs.Composite(action=env.action_spec)):
        module = SafeModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"], spec=spec, safe=True)
        assert module(inputs.clone())["action"].abs().max() == 2
        assert module.spec["action"] == env.action_spec
    squash = TanhModule(in_keys=["action"], spec=env.action_spec)
    assert squash(TensorDict(action=torch.full((1,), 9.0)))["action"] == pytest.approx(2)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_exploration_modules_take_specs(full: bool, batched: bool) -> None:
    from torchrl.modules import AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule

    env = SerialEnv(2, pendulum) if batched else pendulum()
    spec = env.full_action_spec.clone() if full else env.action_spec
    for noise in (AdditiveGaussianModule(spec=spec, sigma_init=9.0), OrnsteinUhlenbeckProcessModule(spec=spec)):
        action = rollout(env, TensorDictSequential(linear(3, 1, "observation", "action"), noise))["action"]
        assert action.abs().max() <= 2
        assert action.std() > 0


def test_masks_of_egreedy_modules() -> None:
    from torchrl.modules import EGreedyModule

    module = EGreedyModule(spec=specs.OneHot(3), eps_init=1.0, eps_end=1.0, action_mask_key="mask")
    rows = TensorDict(
        action=torch.tensor([[True, False, False]] * 9),
        mask=torch.tensor([[False, True, True]] * 9),
        batch_size=9,
    )
    assert not module(rows)["action"][:, 0].any()


def test_replay_buffers_store_rollouts() -> None:
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

    data = SerialEnv(2, pendulum).rollout(21, break_when_any_done=False)
    sampler = SliceSampler(slice_len=7, end_key=("next", "done"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=14, sampler=sampler)
    buffer.extend(data.reshape(-1))
    assert len(buffer) == 42
    assert buffer.sample().reshape(2, 7)["step_count"].squeeze(-1).tolist() == [list(range(7))] * 2
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(42), batch_size=42)
    buffer.extend(data.reshape(-1))
    assert (buffer[:].exclude("index") == data.reshape(-1)).all()


def test_step_mdp_of_torchrl_equals_vecrls() -> None:
    from torchrl.envs.utils import step_mdp

    env = pendulum()
    data = env.rand_step(env.reset())
    expected = env.step_mdp(data)
    assert set(step_mdp(data).keys()) == set(expected.keys())
    assert (step_mdp(data) == expected).all()


def test_set_exploration_type_of_torchrl() -> None:
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    env = pendulum()
    policy = gaussian_policy(env.action_spec)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert own_exploration_type() == ExplorationType.DETERMINISTIC
        env.set_seed(1)
        first = rollout(env, policy)
        env.set_seed(1)
        assert rollout(env, policy)["action"].equal(first["action"])
