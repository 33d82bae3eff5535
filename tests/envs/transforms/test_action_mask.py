"""Random actions under masks."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, RandomPolicy, SerialEnv, check_env_specs
from vecrl.envs.transforms import ActionMask, RewardSum, StepCounter, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from vecrl.testing import IndependentRowsEnv


class Masked(EnvBase):
    """Allows other actions at every step, drawn at random."""

    def __init__(self, batch: tuple[int, ...], spec: Any, options: int = 4, locked: bool = True):
        super().__init__(batch_size=batch)
        self._batch_locked = locked
        self.action_spec = spec
        self.reward_spec = Unbounded((*self.batch_size, 1))
        mask = Binary(options, (*batch, options), dtype=torch.bool)
        self.observation_spec = Composite(action_mask=mask, shape=batch)
        self.options = options

    def _seen(self, batch: torch.Size) -> TensorDict:
        mask = torch.rand(*batch, self.options) > 0.5
        mask[..., :: self.options // 2 or 1] = True
        return TensorDict({"action_mask": mask}, batch)

    def _reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return self._seen(self.batch_size if tensordict is None else tensordict.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        batch = tensordict.batch_size
        done = torch.rand(*batch, 1) > 0.8
        return self._seen(batch).update({"reward": torch.ones(*batch, 1), "done": done})

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("kind", ["Categorical", "OneHot", "MultiCategorical", "MultiOneHot"])
def test_random_actions_are_allowed(kind: str, batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    spec = {
        "Categorical": Categorical(4, batch),
        "OneHot": OneHot(4, (*batch, 4)),
        "MultiCategorical": MultiCategorical([2, 2], (*batch, 2)),
        "MultiOneHot": MultiOneHot([2, 2], (*batch, 4)),
    }[kind]
    env = TransformedEnv(Masked(batch, spec), ActionMask())
    check_env_specs(env)
    rollout = env.rollout(60, break_when_any_done=False)
    action, mask = rollout["action"], rollout["action_mask"]
    if kind == "Categorical":
        assert mask.gather(-1, action.unsqueeze(-1)).all()
    elif kind == "MultiCategorical":
        assert mask.unflatten(-1, (2, 2)).gather(-1, action.unsqueeze(-1)).all()
    else:
        assert not (action & ~mask).any()
    assert not mask.all()


def test_an_environment_of_any_batch_size() -> None:
    env = TransformedEnv(Masked((), Categorical(4), locked=False), ActionMask())
    root = env.reset(TensorDict({}, [50]))
    assert root["action_mask"].gather(-1, env.rand_action(root)["action"].unsqueeze(-1)).all()
    assert env.action_spec.mask is None


def test_the_mask_is_read_from_the_data_or_the_last_step() -> None:
    env = TransformedEnv(Masked((), Categorical(4)), ActionMask())
    _ = env.action_spec
    for only in range(4):
        mask = torch.arange(4) == only
        assert int(env.rand_action(TensorDict({"action_mask": mask}))["action"]) == only
    last = env.step(env.rand_action(env.reset()))["next", "action_mask"]
    assert torch.equal(env.action_spec.mask, last)
    policy = RandomPolicy(env.full_action_spec)
    assert all(last[policy(TensorDict({}))["action"]] for _ in range(20))


def test_masks_apply_through_outer_transforms() -> None:
    env = TransformedEnv(Masked((3,), Categorical(4, (3,))), ActionMask()).append_transform(RewardSum())
    nested = TransformedEnv(env, StepCounter())
    _ = nested.action_spec
    rollout = nested.rollout(40, break_when_any_done=False)
    assert rollout["action_mask"].gather(-1, rollout["action"].unsqueeze(-1)).all()


def test_masks_apply_to_batched_environments() -> None:
    env = TransformedEnv(SerialEnv(3, lambda: IndependentRowsEnv(0)), ActionMask("choice"))
    rollout = env.rollout(30, break_when_any_done=False)
    env.close()
    assert rollout["action_mask"].gather(-1, rollout["choice"].unsqueeze(-1)).all()


def test_unselected_rows_keep_their_masks() -> None:
    env = TransformedEnv(Masked((2,), Categorical(4, (2,))), ActionMask())
    _ = env.action_spec
    root = env.reset()
    saved = root["action_mask"][1].clone()
    for name in ("_reset", "_step"):
        mask = torch.tensor([True, False])
        if name == "_reset":
            root = env.reset(root.set(name, mask.unsqueeze(-1)))
        else:
            root = env.step_mdp(env.step(env.rand_action(root).set(name, mask)))
        assert torch.equal(env.action_spec.mask[1], saved)
        assert torch.equal(env.action_spec.mask, root["action_mask"])


def test_invalid_arguments_raise() -> None:
    with pytest.raises(RuntimeError, match="environment"):
        ActionMask()(TensorDict({"action_mask": torch.ones(4, dtype=torch.bool)}))
    with pytest.raises(SpaceError, match="Categorical"):
        TransformedEnv(Masked((), Bounded(-1, 1, (2,))), ActionMask()).reset()
    with pytest.raises(SpaceError, match="'mask'"):
        TransformedEnv(Masked((), Categorical(4)), ActionMask(mask_key="mask")).reset()
