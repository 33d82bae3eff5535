"""Batches under transforms, and transforms within batches: as single environments under the same transforms."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import ParallelEnv, SerialEnv
from vecrl.envs.transforms import (
    CatFrames,
    Compose,
    GrayScale,
    Resize,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
    UnsqueezeTransform,
)
from vecrl.specs import Categorical

from .zoo import MAKERS, Talking, Tally, flat

BOTH = pytest.mark.parametrize("kind", [SerialEnv, partial(ParallelEnv, envs_per_worker=1)])


class Screen(Tally):
    """Sees pixels, `[8, 8, 3]` uint8."""

    def __init__(self, limit: int = 3):
        super().__init__(limit)
        spec = self.observation_spec.clone()
        spec["pixels"] = Categorical(256, (8, 8, 3), dtype=torch.uint8)
        self.observation_spec = spec

    def _look(self) -> TensorDict:
        return super()._look().set("pixels", torch.randint(256, (8, 8, 3), generator=self._source, dtype=torch.uint8))


def _unsqueezing(key: str) -> Compose:
    return Compose(UnsqueezeTransform(-1, in_keys=[key]), StepCounter(4))


def _pixels() -> Compose:
    frames = CatFrames(2, -3, in_keys=["pixels"])
    return Compose(ToTensorImage(), GrayScale(), Resize(4, 4), frames, StepCounter(4))


SEEN: dict[str, Any] = {
    "tally": (MAKERS["tally"], partial(_unsqueezing, "seen")),
    "objects": ([partial(Talking, 2), partial(Talking, 3), partial(Talking, 9)], partial(_unsqueezing, "seen")),
    "cartpole": (MAKERS["cartpole"], partial(_unsqueezing, "observation")),
    "pixels": ([partial(Screen, 2), partial(Screen, 3), partial(Screen, 9)], _pixels),
}


def _assert_alike(ours: Any, theirs: Any) -> None:
    """That they hold the same, but for how torch rounds where it resizes many images at once."""
    for mine, other in zip(ours.unbind(0), theirs.unbind(0), strict=True):
        left, right = flat(mine), flat(other)
        assert left.keys() == right.keys()
        for key, value in left.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, right[key], msg=str(key))
            else:
                assert value == right[key], key


@BOTH
@pytest.mark.parametrize("name", list(SEEN))
def test_transforms_that_change_shapes_see_a_batch_as_they_see_its_environments(kind: Any, name: str) -> None:
    makers, transform = SEEN[name]
    outside = TransformedEnv(kind(3, makers), transform())
    inside = SerialEnv(3, [lambda make=make: TransformedEnv(make(), transform()) for make in makers])
    with outside, inside:
        for env in (outside, inside):
            env.set_seed(0)
        actions = torch.stack([outside.action_spec.rand() for _ in range(12)], 1)
        for how in ("any", "all"):
            ours, theirs = (
                env.rollout(12, actions=actions, break_when_any_done=False, break_when_all_done=how == "all")
                for env in (outside, inside)
            )
            _assert_alike(ours, theirs)
            assert ours["next", "done"].any()
        roots = [env.reset() for env in (outside, inside)]
        for number, mask in enumerate(torch.tensor([[True, False, True], [False, True, False], [False, False, True]])):
            stepped = [
                env.step(root.set("action", actions[:, number]).set("_step", mask))
                for env, root in zip((outside, inside), roots, strict=True)
            ]
            _assert_alike(*stepped)
            again = mask.roll(1).unsqueeze(-1)
            roots = [
                env.maybe_reset(env.reset(env.step_mdp(td).set("_reset", again)))
                for env, td in zip((outside, inside), stepped, strict=True)
            ]
            _assert_alike(*roots)


def test_rows_that_are_not_meant_keep_what_the_caller_has() -> None:
    with SerialEnv(3, MAKERS["tally"]) as env:
        mask = torch.tensor([[False], [True], [False]])
        data = env.reset().set("count", torch.full((3, 1), 7)).set("_reset", mask)
        assert env.reset(data)["count"].flatten().tolist() == [7, 0, 7]
        data = env.rand_action(data).set("_step", mask.squeeze(-1))
        assert env.step(data)["next", "count"].flatten().tolist() == [7, 1, 7]
