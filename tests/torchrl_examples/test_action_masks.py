"""Examples: actions that are not always available, for a user's policy and for the default one."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from vecrl.envs import EnvBase
from vecrl.envs.transforms import ActionMask, TransformedEnv
from vecrl.specs import Binary, Categorical, Composite, Unbounded


class MaskedCategorical(torch.distributions.Categorical):
    """Draws among the options that a mask allows."""

    def __init__(self, logits: Tensor, mask: Tensor):
        super().__init__(logits=logits.masked_fill(~mask, -torch.inf))


class Grid(EnvBase):
    """A walk on four cells; a step off either end is not available."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)), action_mask=Binary(2, (2,), dtype=torch.bool))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((*self.batch_size, 1))

    def _at(self, cell: Tensor) -> TensorDict:
        return TensorDict({"observation": cell, "action_mask": torch.cat([cell > 0, cell < 3])})

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return self._at(torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        cell = tensordict["observation"] + tensordict["action"] * 2 - 1
        return self._at(cell).update({"reward": torch.ones(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None: ...


def available(rollout: Any) -> Any:
    return rollout["action_mask"].gather(-1, rollout["action"].unsqueeze(-1)).all()


def test_custom_policies_obey_the_mask() -> None:
    module = TensorDictModule(nn.Linear(1, 2), in_keys=["observation"], out_keys=["logits"])
    dist = ProbabilisticTensorDictModule(
        in_keys={"logits": "logits", "mask": "action_mask"},
        out_keys=["action"],
        distribution_class=MaskedCategorical,
        default_interaction_type="random",
    )
    rollout = Grid().rollout(30, TensorDictSequential(module, dist))
    assert available(rollout)


def test_random_actions_obey_the_mask() -> None:
    env = TransformedEnv(Grid(), ActionMask(action_key="action", mask_key="action_mask"))
    rollout = env.rollout(30)
    assert available(rollout)
    assert ((rollout["next", "observation"] >= 0) & (rollout["next", "observation"] <= 3)).all()
