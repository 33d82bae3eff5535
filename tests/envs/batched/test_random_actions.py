"""Random actions of batches of environments that override `rand_action`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, TicTacToeEnv
from vecrl.envs.transforms import ActionMask, StepCounter, TransformedEnv
from vecrl.specs import Binary, Categorical, Composite, Unbounded


class Masked(EnvBase):
    """Allows only the actions 2 and 3."""

    def __init__(self, options: int = 4):
        super().__init__()
        self.observation_spec = Composite(action_mask=Binary(options, (options,), dtype=torch.bool))
        self.action_spec = Categorical(options)
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.mask = torch.arange(options) >= 2

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return TensorDict({"action_mask": self.mask.clone()})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset().update({"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None: ...


class Left(GymEnv):
    """Always draws the same action; steps like the base class."""

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        data = TensorDict({}) if tensordict is None else tensordict
        return data.set("action", torch.tensor([1, 0]))


def masked(options: int = 4) -> Any:
    return TransformedEnv(Masked(options), ActionMask())


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_game_rules_hold_in_a_batch(kind: Callable[..., Any]) -> None:
    with kind(2, TicTacToeEnv) as env:
        assert env.rollout(30, break_when_any_done=False).shape == (2, 30)
        assert TransformedEnv(env, StepCounter()).rollout(9).shape[0] == 2


@pytest.mark.parametrize(("makers", "most"), [(masked, 3), ([masked, lambda: masked(5)], 4), ([Masked, masked], 3)])
def test_environment_masks_hold_in_a_batch(makers: Any, most: int) -> None:
    rollout = SerialEnv(2, makers).rollout(40)
    rows = [row["action"] for row in rollout.unbind(0)]
    assert (int(rows[1].min()), int(rows[1].max())) == (2, most)
    assert int(rows[0].min()) == (0 if isinstance(makers, list) and makers[0] is Masked else 2)


def test_gymnasium_environments_draw_their_own_actions() -> None:
    env = SerialEnv(2, lambda: Left("CartPole-v1"))
    assert env.rollout(5)["action"][..., 0].all()
    assert env.rand_action()["action"].tolist() == [[1, 0]] * 2


def test_torch_seed_determines_random_actions_on_every_backend() -> None:
    rollout = []
    for make in (lambda: SerialEnv(3, TicTacToeEnv), lambda: ParallelEnv(3, TicTacToeEnv, envs_per_worker=1)):
        torch.manual_seed(5)
        with make() as env:
            rollout.append(env.rollout(4)["action"])
    assert rollout[0].equal(rollout[1])
    assert not rollout[0][0].equal(rollout[0][1])
