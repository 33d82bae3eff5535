"""World models as environments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from vecrl.envs import GymEnv, RandomPolicy, SerialEnv, check_env_specs
from vecrl.envs.model_based import DreamerDecoder, DreamerEnv, ImaginedEnv, ModelBasedEnvBase, WorldModelWrapper
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, Unbounded


def latent_model() -> WorldModelWrapper:
    torch.manual_seed(0)
    return WorldModelWrapper(
        TensorDictModule(Transition(), ["hidden", "action"], ["hidden"]),
        TensorDictModule(nn.Linear(4, 1), ["hidden"], ["reward"]),
    )


class Transition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, hidden: Tensor, action: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat([hidden, action], -1)))


class Latent(ModelBasedEnvBase):
    """An environment over `latent_model`."""

    def __init__(self, world_model: Any = None, **options: Any):
        super().__init__(latent_model() if world_model is None else world_model, **options)
        batch = self.batch_size
        self.observation_spec = Composite(hidden=Unbounded((*batch, 4)), shape=batch)
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-1, 1, (*batch, 1))
        self.reward_spec = Unbounded((*batch, 1))

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        return TensorDict({"hidden": torch.zeros(*shape, 4)}, shape)


@pytest.mark.parametrize("batch_size", [None, [], [3], [2, 3]])
def test_specs_hold(batch_size: Any) -> None:
    check_env_specs(Latent(batch_size=batch_size))


def test_any_batch_size_without_one() -> None:
    env = Latent()
    assert not env.batch_locked
    assert env.rollout(5, tensordict=TensorDict(batch_size=[2, 7]))["next", "hidden"].shape == (2, 7, 5, 4)
    assert Latent(batch_size=[3]).batch_locked


def test_steps_are_calls_of_the_model() -> None:
    env = Latent(batch_size=[3])
    data = env.rollout(4)
    expected = env.world_model(data.select("hidden", "action").clone())
    torch.testing.assert_close(data["next", "hidden"], expected["hidden"])
    torch.testing.assert_close(data["next", "reward"], expected["reward"])
    assert not data["next", "done"].any()


def test_gradients_reach_actions_parameters_and_initial_states() -> None:
    env = Latent()
    actions = torch.zeros(2, 5, 1, requires_grad=True)
    start = torch.zeros(2, 4, requires_grad=True)
    root = TensorDict({"hidden": start}, [2])
    step = iter(actions.unbind(1))
    data = env.rollout(
        5, lambda td: td.set("action", next(step)), tensordict=env.reset(root).set("hidden", start), auto_reset=False
    )
    data["next", "reward"].sum().backward()
    assert actions.grad is not None
    assert (actions.grad != 0).all()
    assert start.grad is not None
    assert (start.grad != 0).all()
    assert all((parameter.grad != 0).any() for parameter in env.world_model.parameters())


def test_given_parameters_replace_those_of_the_model() -> None:
    model = latent_model()
    halved = [parameter.detach() / 2 for parameter in model.parameters()]
    env, other = Latent(model, params=halved), Latent(latent_model())
    for parameter in other.world_model.parameters():
        parameter.data /= 2
    actions = torch.ones(4, 1)
    expected = other.rollout(4, actions=actions)
    torch.testing.assert_close(env.rollout(4, actions=actions)["next", "hidden"], expected["next", "hidden"])


def test_parameters_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected params for \[.*\], got 1 tensors. Give one for each"):
        Latent(params=[torch.zeros(1)])


def test_a_model_may_write_under_next() -> None:
    model = TensorDictModule(
        lambda hidden: (hidden + 1, hidden.sum(-1, keepdim=True), hidden.sum(-1, keepdim=True) > 7),
        ["hidden"],
        [("next", "hidden"), ("next", "reward"), ("next", "done")],
    )
    data = Latent(model).rollout(10)
    torch.testing.assert_close(data["next", "hidden"][:, 0], torch.arange(1.0, 4.0))
    assert data["next", "done"].flatten().tolist() == [False, False, True]


def test_a_model_without_reward_is_refused() -> None:
    env = Latent(TensorDictModule(lambda hidden: hidden, ["hidden"], ["hidden"]))
    with pytest.raises(SpaceError, match=r"Expected a world model that writes \['reward'\], got one that writes"):
        env.rollout(2)


def test_seeds_repeat_stochastic_models() -> None:
    model = WorldModelWrapper(
        TensorDictModule(lambda hidden: hidden + torch.randn_like(hidden), ["hidden"], ["hidden"]),
        TensorDictModule(lambda hidden: hidden.sum(-1, keepdim=True), ["hidden"], ["reward"]),
    )
    env = Latent(model)
    results = []
    for _ in range(2):
        env.set_seed(3)
        results.append(env.rollout(4, actions=torch.zeros(4, 1))["next", "reward"])
    torch.testing.assert_close(*results)


def test_world_model_parts() -> None:
    model = latent_model()
    assert isinstance(model.get_transition_model_operator().module, Transition)
    assert isinstance(model.get_reward_operator().module, nn.Linear)


# -- ImaginedEnv


def gaussian_model() -> TensorDictModule:
    def predict(action: Tensor, observation: Any) -> tuple[Tensor, Tensor]:
        return observation["mean"] + action, observation["var"] + torch.eye(3)

    return TensorDictModule(
        predict, ["action", "observation"], [("next", "observation", "mean"), ("next", "observation", "var")]
    )


def test_imagined_rollouts_start_at_real_observations() -> None:
    real, env = GymEnv("Pendulum-v1"), ImaginedEnv(gaussian_model(), GymEnv("Pendulum-v1"))
    real.set_seed(1)
    env.set_seed(1)
    data = env.rollout(4, RandomPolicy(env.full_action_spec))
    assert data.batch_size == (1, 4)
    torch.testing.assert_close(data["observation", "mean"][0, 0], real.reset()["observation"])
    torch.testing.assert_close(data["next", "observation", "var"][0, -1], 4 * torch.eye(3))
    expected = data["observation", "mean"][:, :1] + data["action"].cumsum(1)
    torch.testing.assert_close(data["next", "observation", "mean"], expected)
    assert (data["next", "reward"] == 0).all()


def test_imagined_specs_hold() -> None:
    check_env_specs(ImaginedEnv(gaussian_model(), GymEnv("Pendulum-v1")))
    check_env_specs(ImaginedEnv(gaussian_model(), SerialEnv(2, lambda: GymEnv("Pendulum-v1"))))
    check_env_specs(ImaginedEnv(gaussian_model(), GymEnv("Pendulum-v1"), batch_size=4))


def test_imagined_env_takes_one_vector() -> None:
    with pytest.raises(SpaceError, match="Expected a base_env with one vector as its observation"):
        ImaginedEnv(gaussian_model(), GymEnv("Blackjack-v1"))
    with pytest.raises(SpaceError, match=r"Expected a model that writes 'mean' and 'var' under 'elsewhere'"):
        ImaginedEnv(gaussian_model(), GymEnv("Pendulum-v1"), next_observation_key="elsewhere").rollout(2)


# -- DreamerEnv


def dreamer(**options: Any) -> DreamerEnv:
    model = WorldModelWrapper(
        TensorDictModule(
            lambda state, belief, action: (state + 1, belief + action.sum(-1, keepdim=True)),
            ["state", "belief", "action"],
            ["state", "belief"],
        ),
        TensorDictModule(lambda belief: belief.mean(-1, keepdim=True), ["belief"], ["reward"]),
    )
    decoder = TensorDictModule(
        lambda state: state.mean(-1)[..., None, None, None].expand(*state.shape[:-1], 3, 8, 8),
        ["state"],
        ["reco_pixels"],
    )
    env = DreamerEnv(model, prior_shape=(4,), belief_shape=(5,), obs_decoder=decoder, **options)
    env.set_specs_from_env(GymEnv("Pendulum-v1"))
    return env


def test_dreamer_specs_hold() -> None:
    check_env_specs(dreamer())
    check_env_specs(dreamer().append_transform(DreamerDecoder()))


def test_dreamer_starts_from_given_latents() -> None:
    env = dreamer()
    latents = TensorDict({"state": torch.full((3, 4), 7.0), "belief": torch.ones(3, 5)}, [3])
    data = env.rollout(2, tensordict=latents)
    assert data["next", "state"].shape == (3, 2, 4)
    torch.testing.assert_close(data["next", "state"][0, :, 0], torch.tensor([8.0, 9.0]))
    assert (env.reset()["belief"] == 0).all()


def test_dreamer_decodes() -> None:
    env = dreamer().append_transform(DreamerDecoder())
    assert env.observation_spec["reco_pixels"].shape == (3, 8, 8)
    data = env.rollout(3)
    torch.testing.assert_close(data["next", "reco_pixels"][:, 0, 0, 0], torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(TypeError, match="Expected DreamerDecoder in a DreamerEnv"):
        GymEnv("Pendulum-v1").append_transform(DreamerDecoder()).reset()
