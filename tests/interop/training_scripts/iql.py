"""IQL on Pendulum, offline: the stateless PendulumEnv gives a batch of trajectories of random actions."""

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.tensor_specs import Bounded
from torchrl.envs import CatTensors, Compose, PendulumEnv, StepCounter, TransformedEnv, UnsqueezeTransform
from torchrl.envs.transforms.transforms import Transform, _apply_to_composite
from torchrl.envs.utils import check_env_specs
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import IQLLoss, SoftUpdate

ROWS, STEPS, UPDATES = 20, 50, 60


class Map(Transform):
    """Applies a function with values in [-1, 1] to entries."""

    def __init__(self, function: Callable[[Tensor], Tensor], in_keys: list[str], out_keys: list[str]):
        super().__init__(in_keys=in_keys, out_keys=out_keys)
        self.function = function

    def _apply_transform(self, obs: Tensor) -> Tensor:
        return self.function(obs)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    @_apply_to_composite
    def transform_observation_spec(self, observation_spec: Bounded) -> Bounded:
        spec = observation_spec
        return Bounded(low=-1, high=1, shape=spec.shape, dtype=spec.dtype, device=spec.device)


def make_env(seed: int) -> TransformedEnv:
    env = TransformedEnv(
        PendulumEnv(),
        Compose(
            UnsqueezeTransform(dim=-1, in_keys=["th", "thdot"], in_keys_inv=["th", "thdot"]),
            Map(torch.sin, in_keys=["th"], out_keys=["sin"]),
            Map(torch.cos, in_keys=["th"], out_keys=["cos"]),
            CatTensors(in_keys=["sin", "cos", "thdot"], out_key="observation", dim=-1, del_keys=False),
            StepCounter(),
        ),
    )
    env.set_seed(seed)
    return env


def rollout(env: TransformedEnv, seed: int, policy: nn.Module | None = None) -> TensorDictBase:
    start = env.reset(env.gen_params(batch_size=[ROWS]))
    torch.manual_seed(seed)
    return env.rollout(STEPS, policy, auto_reset=False, tensordict=start)


def main(seed: int) -> list[float]:
    env = make_env(seed)
    check_env_specs(env)
    env.set_seed(seed)
    data = rollout(env, seed)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS * STEPS), batch_size=64)
    buffer.extend(data.exclude("params", ("next", "params")).reshape(-1))

    network = nn.Sequential(MLP(3, 2, num_cells=[64, 64], activation_class=nn.ReLU), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=IndependentNormal,
        return_log_prob=False,
    )
    qvalue = ValueOperator(MLP(4, 1, num_cells=[64, 64]), in_keys=["observation", "action"])
    value = ValueOperator(MLP(3, 1, num_cells=[64, 64]), in_keys=["observation"])
    loss_module = IQLLoss(actor, qvalue, value, temperature=3.0, expectile=0.7)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, tau=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for _ in range(UPDATES):
        losses = loss_module(buffer.sample())
        loss = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_value"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target_update.step()
        results.append(loss.item())
    with torch.no_grad():
        returns = rollout(env, seed, actor)["next", "reward"].sum(1)
    return results + returns.flatten().tolist()


if __name__ == "__main__":
    print(main(seed=0))
