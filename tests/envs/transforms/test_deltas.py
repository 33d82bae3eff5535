"""Next observations that are stored as differences."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs.transforms import (
    Compose,
    NextObservationDelta,
    NextStateReconstructor,
    StepCounter,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.testing import IndependentRowsEnv


def played(transform: Any) -> Any:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), transform)
    return env, env.rollout(8, break_when_any_done=False)


def test_rollouts_are_restored_at_the_ends_of_episodes_too() -> None:
    env, rollout = played(Compose(StepCounter(), NextObservationDelta()))
    stored = env.transform.inv(rollout)
    assert set(stored["next", "delta"].keys()) == {"observation", "position"}
    assert stored["next", "delta", "position"].dtype == torch.float16
    assert "observation" not in stored["next"].keys()  # noqa: SIM118 - a TensorDict is no dict
    assert stored["next", "ticks"].equal(rollout["next", "ticks"])
    assert ("next", "observation") in rollout.keys(True)
    restored = NextObservationDelta(["observation", "position"])(stored)
    assert set(restored.keys(True, True)) == set(rollout.keys(True, True))
    for key in ("observation", "position"):
        assert restored["next", key].dtype == rollout["next", key].dtype
        torch.testing.assert_close(restored["next", key], rollout["next", key], atol=5e-3, rtol=0)


def test_options() -> None:
    data = TensorDict({"a": {"x": torch.zeros(3)}, "next": {"a": {"x": torch.full((3,), 0.1)}}})
    delta = NextObservationDelta(
        [("a", "x")], delta_dtype=torch.bfloat16, restore_dtype=torch.float64, drop_delta=False
    )
    stored = delta.inv(data)
    assert stored["next", "delta", "a", "x"].dtype == torch.bfloat16
    assert data["next", "a", "x"].dtype == torch.float32
    restored = delta(stored)
    assert restored["next", "a", "x"].dtype == torch.float64
    assert ("next", "delta", "a", "x") in restored.keys(True)
    plain = NextObservationDelta(["x"])(TensorDict({"x": torch.zeros(3), "next": {"x": torch.ones(3)}}))
    assert plain["next", "x"].equal(torch.ones(3))


def test_integers_if_they_are_named() -> None:
    _, rollout = played(StepCounter())
    delta = NextObservationDelta(["ticks"])
    assert delta(delta.inv(rollout))["next", "ticks"].equal(rollout["next", "ticks"])


def test_excluded_dtypes() -> None:
    env, rollout = played(NextObservationDelta(excluded_dtypes=(torch.float32, torch.uint8, torch.bool)))
    assert set(env.transform.inv(rollout)["next", "delta"].keys()) == {"position", "ticks"}


def test_errors() -> None:
    with pytest.raises(ValueError, match="delta_dtype to be a floating-point dtype"):
        NextObservationDelta(delta_dtype=torch.int32)
    with pytest.raises(ValueError, match='a dtype or "root"'):
        NextObservationDelta(restore_dtype="next")
    with pytest.raises(ValueError, match="to have in_keys, got none"):
        NextObservationDelta()(TensorDict(x=torch.zeros(1)))
    with pytest.raises(KeyError, match="expects an entry 'x'"):
        NextObservationDelta(["x"]).inv(TensorDict({"next": {"x": torch.zeros(1)}}))


# -- NextStateReconstructor


def steps(**entries: Any) -> TensorDict:
    """Returns eight steps of two trajectories of four."""
    data = TensorDict({"observation": torch.arange(8.0).reshape(8, 1)}, [8])
    data["next", "done"] = torch.tensor([[False], [False], [False], [True]] * 2)
    data["collector", "traj_ids"] = torch.tensor([0] * 4 + [1] * 4)
    return data.update(entries)


def restored(data: TensorDict, **options: Any) -> list[float]:
    """Returns the next observations, with -1 where they are missing."""
    return NextStateReconstructor(**options)(data)["next", "observation"].nan_to_num(-1).flatten().tolist()


def test_next_observations_follow_in_the_data() -> None:
    assert restored(steps()) == [1, 2, 3, -1, 5, 6, 7, -1]
    assert restored(steps(), traj_key=None) == [1, 2, 3, -1, 5, 6, 7, -1]
    assert restored(steps(), done_key=None) == [1, 2, 3, -1, 5, 6, 7, -1]
    assert restored(steps(), traj_key=None, done_key=None) == [1, 2, 3, 4, 5, 6, 7, -1]
    counts = torch.tensor([[0], [1], [5], [6], [0], [1], [2], [4]])
    assert restored(steps(count=counts), step_count_key="count") == [1, -1, 3, -1, 5, 6, -1, -1]


def test_integers_and_nested_observations_are_restored() -> None:
    data = steps(a={"x": torch.arange(8)})
    assert NextStateReconstructor([("a", "x")], fill_value=-1)(data)["next", "a", "x"].tolist() == [
        *[1, 2, 3, -1],
        *[5, 6, 7, -1],
    ]
    assert data["next", "a", "x"].dtype == torch.int64
    with pytest.raises(SpaceError, match="of which NaN can be a value"):
        NextStateReconstructor([("a", "x")])(data)


def test_a_rollout_is_restored() -> None:
    _, rollout = played(NextStateReconstructor())
    row = rollout[1].exclude(("next", "observation"))
    found = NextStateReconstructor(traj_key=None)(row.copy())["next", "observation"]
    kept = ~rollout["next", "done"][1].squeeze(-1)
    kept[-1] = False
    assert found[kept].equal(rollout["next", "observation"][1][kept])
    assert found[~kept].isnan().all()


def test_missing_entries_and_batches() -> None:
    with pytest.raises(KeyError, match="traj_ids"):
        NextStateReconstructor()(steps().exclude("collector"))
    assert restored(steps().exclude("collector"), strict=False) == [1, 2, 3, -1, 5, 6, 7, -1]
    with pytest.raises(KeyError, match="expects an entry 'x'"):
        NextStateReconstructor("x")(steps())
    with pytest.raises(SpaceError, match="one batch dimension"):
        NextStateReconstructor()(steps().reshape(2, 4))
