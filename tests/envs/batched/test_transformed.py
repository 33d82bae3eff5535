"""Batches under transforms and transforms within batches equal single environments under the same transforms."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.batch_reference import assert_same, flat
from tests.fixtures.tensordict_envs import MAKERS, CountingTensorDictEnv, ObjectObsEnv

from vecrl.envs import EnvBase, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    CatFrames,
    CatTensors,
    Compose,
    FiniteTensorDictCheck,
    GrayScale,
    ObservationNorm,
    RenameTransform,
    Resize,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    ToTensorImage,
    TransformedEnv,
    UnsqueezeTransform,
    VecNorm,
)
from vecrl.errors import SpaceError
from vecrl.specs import Categorical, Composite, Unbounded

BOTH = pytest.mark.parametrize("kind", [SerialEnv, partial(ParallelEnv, envs_per_worker=1)])


class Screen(CountingTensorDictEnv):
    """Observes pixels, `[8, 8, 3]` uint8."""

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
    "counting": (MAKERS["counting"], partial(_unsqueezing, "seen")),
    "objects": (
        [partial(ObjectObsEnv, 2), partial(ObjectObsEnv, 3), partial(ObjectObsEnv, 9)],
        partial(_unsqueezing, "seen"),
    ),
    "cartpole": (MAKERS["cartpole"], partial(_unsqueezing, "observation")),
    "pixels": ([partial(Screen, 2), partial(Screen, 3), partial(Screen, 9)], _pixels),
}


def _assert_alike(actual: Any, expected: Any) -> None:
    """Asserts that two TensorDicts are equal, except for torch's rounding when it resizes several images together."""
    for row, expected_row in zip(actual.unbind(0), expected.unbind(0), strict=True):
        entries, expected_entries = flat(row), flat(expected_row)
        assert entries.keys() == expected_entries.keys()
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, expected_entries[key], msg=str(key))
            else:
                assert value == expected_entries[key], key


@BOTH
@pytest.mark.parametrize("name", list(SEEN))
def test_shape_transforms_are_equal_inside_and_outside_a_batch(kind: Any, name: str) -> None:
    makers, transform = SEEN[name]
    outside = TransformedEnv(kind(3, makers), transform())
    inside = SerialEnv(3, [lambda make=make: TransformedEnv(make(), transform()) for make in makers])
    with outside, inside:
        for env in (outside, inside):
            env.set_seed(0)
        actions = torch.stack([outside.action_spec.rand() for _ in range(12)], 1)
        for options in ("any", "all"):
            actual, expected = (
                env.rollout(12, actions=actions, break_when_any_done=False, break_when_all_done=options == "all")
                for env in (outside, inside)
            )
            _assert_alike(actual, expected)
            assert actual["next", "done"].any()
        roots = [env.reset() for env in (outside, inside)]
        for number, mask in enumerate(torch.tensor([[True, False, True], [False, True, False], [False, False, True]])):
            step_td = [
                env.step(root.set("action", actions[:, number]).set("_step", mask))
                for env, root in zip((outside, inside), roots, strict=True)
            ]
            _assert_alike(*step_td)
            repeated = mask.roll(1).unsqueeze(-1)
            roots = [
                env.maybe_reset(env.reset(env.step_mdp(td).set("_reset", repeated)))
                for env, td in zip((outside, inside), step_td, strict=True)
            ]
            _assert_alike(*roots)


def test_unselected_rows_keep_the_callers_values() -> None:
    with SerialEnv(3, MAKERS["counting"]) as env:
        mask = torch.tensor([[False], [True], [False]])
        data = env.reset().set("count", torch.full((3, 1), 7)).set("_reset", mask)
        assert env.reset(data)["count"].flatten().tolist() == [7, 0, 7]
        data = env.rand_action(data).set("_step", mask.squeeze(-1))
        assert env.step(data)["next", "count"].flatten().tolist() == [7, 1, 7]


@pytest.mark.parametrize("kinds", ["counting", "cartpole", "classes", "groups"])
def test_empty_resets_fill_missing_entries_with_zeros(kinds: str) -> None:
    with SerialEnv(3, MAKERS[kinds]) as env:
        complete = env.reset()
        none_selected = {
            key: torch.zeros(env.full_done_spec[done].shape, dtype=torch.bool) for key, done in _masks(env)
        }
        mask = TensorDict({}, [3])
        for key, flags in none_selected.items():
            mask.set(key, flags)
        first = env.reset(mask)
        for row, full in zip(first.unbind(0), complete.unbind(0), strict=True):
            assert flat(row).keys() == flat(full).keys()
            assert not any(bool(value.any()) for value in flat(row).values() if isinstance(value, torch.Tensor))
        for key, flags in none_selected.items():
            complete.set(key, flags)
        saved = complete.copy()
        assert_same(env.reset(complete), saved.exclude(*env.reset_keys))


def _masks(env: Any) -> Any:
    return [
        (key, key.replace("_reset", "done") if isinstance(key, str) else (*key[:-1], "done")) for key in env.reset_keys
    ]


def _recurring(limits: Sequence[int], sizes: Sequence[int]) -> Any:
    return [
        lambda limit=limit, size=size: TransformedEnv(
            CountingTensorDictEnv(limit), TensorDictPrimer(h=Unbounded((size,)))
        )
        for limit, size in zip(limits, sizes, strict=True)
    ]


@BOTH
@pytest.mark.parametrize("sizes", [(4, 4), (4, 5)])
def test_recurrent_states_reach_environments_with_primers(kind: Any, sizes: Sequence[int]) -> None:
    def remembered(data: Any) -> list[Any]:
        return [row["h"][..., 0].tolist() for row in data.unbind(0)]

    with kind(2, _recurring([3, 9], sizes)) as env:
        if len(set(sizes)) == 1:
            rollout = env.rollout(5, _adding(env), break_when_any_done=False)
            assert remembered(rollout) == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]
            assert remembered(rollout["next"]) == [[1, 2, 3, 1, 2], [1, 2, 3, 4, 5]]
        root = env.reset()
        seen = []
        for _ in range(5):
            step_td, root = env.step_and_maybe_reset(_adding(env)(root))
            seen.append((remembered(step_td["next"]), remembered(root)))
        assert [after for after, _ in seen] == [[1, 1], [2, 2], [3, 3], [1, 4], [2, 5]]
        assert [started for _, started in seen] == [[1, 1], [2, 2], [0, 3], [1, 4], [2, 5]]
        step_td = env.step(_adding(env)(env.reset()))
        assert remembered(step_td["next"]) == [1, 1]
        root = env.step_mdp(step_td)
        assert remembered(env.step(env.rand_action(root))["next"]) == [1, 1], "it stays where no policy writes it"


def _adding(env: Any) -> Any:
    def policy(data: Any) -> Any:
        data = env.rand_action(data)
        rows = [row.set("next", TensorDict({"h": row["h"] + 1})) for row in data.unbind(0)]
        return torch.stack(rows) if type(data) is TensorDict else type(data).lazy_stack(rows, 0)

    return policy


class Wide(EnvBase):
    """Observes `size` zeros."""

    def __init__(self, width: int, first: float = 0.0):
        super().__init__()
        self.observation_spec = Composite(seen=Unbounded((width,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.first = torch.full((width,), first)

    def _reset(self, tensordict: Any = None) -> Any:
        return TensorDict({"seen": self.first})

    def _step(self, tensordict: Any) -> Any:
        return TensorDict({"seen": self.first, "reward": torch.ones(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None: ...


def wide(first: float = 0.0) -> SerialEnv:
    return SerialEnv(2, [lambda: Wide(2), lambda: Wide(3, first)])


def test_heterogeneous_rows_can_be_renamed_counted_and_checked() -> None:
    norm = ObservationNorm(1.0, 2.0, in_keys=["seen"])
    transform = Compose(norm, RenameTransform(["seen"], ["other"]), StepCounter(), RewardSum(), FiniteTensorDictCheck())
    env = TransformedEnv(wide(), transform)
    check_env_specs(env)
    rollout = env.rollout(3)
    assert [row["other"].shape for row in rollout.unbind(0)] == [(3, 2), (3, 3)]
    assert all((row["other"] == 1).all() for row in rollout.unbind(0))
    assert rollout[1]["next", "step_count"].flatten().tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"'seen' \(3 of 3\)"):
        TransformedEnv(wide(float("nan")), FiniteTensorDictCheck()).reset()


@pytest.mark.parametrize(
    "make",
    [
        lambda: CatTensors(["seen"], "joined"),
        lambda: Compose(StepCounter(), UnsqueezeTransform(-1, in_keys=["seen"])),
        lambda: VecNorm(in_keys=["seen"]),
        lambda: lambda td: td.set("twice", 2 * td["seen"]),
    ],
)
def test_other_transforms_of_heterogeneous_rows_raise(make: Any) -> None:
    with pytest.raises(SpaceError, match=r"(?s)Expected environments with equal specs, .*lambda: TransformedEnv\("):
        TransformedEnv(wide(), make()).rollout(2)
