"""Simulators that reset themselves. The expected numbers are from TorchRL 0.14.1."""

from math import isnan, nan
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.tensordict_envs import CountingRowsEnv

from vecrl.envs import EnvBase
from vecrl.envs.transforms import (
    AutoResetEnv,
    AutoResetTransform,
    CatFrames,
    Compose,
    InitTracker,
    StepCounter,
    TransformedEnv,
    VecGymEnvTransform,
)
from vecrl.specs import Composite, Unbounded


class Restarting(CountingRowsEnv):
    """Row i counts, and restarts at -10 when its episode ends. If `final`, the final observation is below "final"."""

    def __init__(self, *limits: int, final: bool = False, **kwargs: Any):
        super().__init__(*limits, **kwargs)
        shape = (len(limits), 1)
        kinds = {"value": torch.float32, "whole": torch.int64, "byte": torch.uint8, "flag": torch.bool}
        leaves = {name: Unbounded(shape, dtype=dtype) for name, dtype in kinds.items()}
        self.final = final
        if final:
            leaves = {"value": leaves["value"], "final": Composite(value=leaves["value"], shape=self.batch_size)}
        self.observation_spec = Composite(leaves, shape=self.batch_size)

    def _seen(self, final: torch.Tensor) -> TensorDict:
        data = TensorDict({"value": self.count.float()}, self.batch_size)
        if self.final:
            return data.set("final", TensorDict({"value": final}, self.batch_size))
        ones = torch.ones_like(self.count)
        return data.update({"whole": 5 * ones, "byte": (5 * ones).to(torch.uint8), "flag": ones.bool()})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.resets += 1
        if tensordict is None or tensordict.get("_reset", None) is None:
            self.count = torch.zeros_like(self.count)
        return self._seen(torch.full_like(self.count, -1).float())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        count = self.count + 1
        done = (count == self.limits) | (count == self.limits - 10)
        self.count = torch.where(done, -10, count)
        final = torch.where(done, count.float(), -1.0)
        return self._seen(final).update({"reward": torch.ones_like(final), "done": done})


def column(rollout: Any, *key: str) -> list[list[Any]]:
    values = rollout[key].squeeze(-1).tolist()
    return [["nan" if isnan(value) else value for value in row] for row in values]


@pytest.mark.parametrize("way", ["transform", "environment"])
def test_first_observations_are_placed_correctly(way: str) -> None:
    own = Restarting(3, 4, auto_reset=True)
    env: EnvBase = own if way == "environment" else AutoResetEnv(Restarting(3, 4))
    rollout = env.rollout(6, break_when_any_done=False)
    assert column(rollout, "value") == [[0, 1, 2, -10, -9, -8], [0, 1, 2, 3, -10, -9]]
    assert column(rollout, "next", "value") == [[1, 2, "nan", -9, -8, "nan"], [1, 2, 3, "nan", -9, -8]]
    assert not rollout["done"].any()
    assert column(rollout, "next", "whole") == [[5, 5, -1, 5, 5, -1], [5, 5, 5, -1, 5, 5]], "0 may be an observation"


@pytest.mark.parametrize("way", ["transform", "environment"])
def test_a_reset_of_the_simulator_discards_stored_observations(way: str) -> None:
    own = Restarting(1, 4, auto_reset=True)
    env: EnvBase = own if way == "environment" else AutoResetEnv(Restarting(1, 4))
    env.step(env.rand_action(env.reset()))
    assert env.reset()["value"].tolist() == [[0.0], [0.0]]
    partial_reset = env.reset(TensorDict({"_reset": torch.tensor([[True], [False]])}, [2]))
    assert partial_reset["value"].tolist() == [[0.0], [0.0]]


def test_missing_values_are_filled() -> None:
    rollout = AutoResetEnv(Restarting(3)).rollout(4, break_when_any_done=False)
    last = rollout["next"][0, 2]
    assert [last[name].item() for name in ("whole", "byte", "flag")] == [-1, 0, False]
    filled = AutoResetTransform(fill_float=-3.0, fill_int=7, fill_bool=True)
    last = AutoResetEnv(Restarting(3), filled).rollout(4, break_when_any_done=False)["next"][0, 2]
    assert [last[name].item() for name in ("value", "whole", "byte", "flag")] == [-3, 7, 7, True]
    unreplaced = AutoResetEnv(Restarting(3), AutoResetTransform(replace=False)).rollout(4, break_when_any_done=False)
    assert column(unreplaced, "next", "value") == [[1, 2, -10, -9]]
    assert column(unreplaced, "value") == [[0, 1, 2, -10]]


def test_the_simulator_is_reset_once() -> None:
    base = Restarting(3, 4)
    AutoResetEnv(base).rollout(20, break_when_any_done=False)
    assert base.resets == 1


@pytest.mark.parametrize("kind", [AutoResetEnv, TransformedEnv])
def test_outer_transforms_receive_resets(kind: type[TransformedEnv]) -> None:
    around = Compose(CatFrames(2, -1, in_keys=["value"]), StepCounter(), InitTracker())
    base = Restarting(3, 4, auto_reset=kind is TransformedEnv)
    rollout = kind(base, around).rollout(6, break_when_any_done=False)
    assert column(rollout, "step_count") == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1]]
    assert column(rollout, "is_init") == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0]]
    assert rollout["value"][0].tolist() == [[0, 0], [0, 1], [1, 2], [-10, -10], [-10, -9], [-9, -8]]


def test_transform_must_be_innermost() -> None:
    env = AutoResetEnv(Restarting(3), StepCounter())
    assert isinstance(env.transform[0], AutoResetTransform)
    with pytest.raises(ValueError, match="after the AutoResetTransform"):
        env.insert_transform(0, InitTracker())
    assert len(env.transform) == 2
    plain = TransformedEnv(Restarting(3), AutoResetTransform())
    with pytest.raises(RuntimeError, match="AutoResetEnv"):
        plain.rollout(5, break_when_any_done=False)


def test_requested_rows_are_reset_and_others_stay_pending() -> None:
    for env in (AutoResetEnv(CountingRowsEnv(2, 5)), CountingRowsEnv(2, 5, auto_reset=True)):
        root = env.reset()
        for _ in range(2):
            root = env.step_mdp(env.rand_step(root))
        assert root["done"].flatten().tolist() == [True, False]
        root = env.reset(root.set("_reset", torch.tensor([[False], [True]])))
        assert root["count"].flatten().tolist()[1] == 0
        root = env.reset(root.set("_reset", torch.tensor([[True], [False]])))
        assert root["count"].flatten().tolist() == [2, 0]  # the "first" observation that this simulator gave
        assert not root["done"].any()


def test_final_observations_of_vector_environments() -> None:
    env = TransformedEnv(Restarting(3, 4, final=True), VecGymEnvTransform())
    assert list(env.observation_spec.keys(True, True)) == ["value"]
    rollout = env.rollout(6, break_when_any_done=False)
    assert column(rollout, "value") == [[0, 1, 2, -10, -9, -8], [0, 1, 2, 3, -10, -9]]
    assert column(rollout, "next", "value") == [[1, 2, 3, -9, -8, -7], [1, 2, 3, 4, -9, -8]]
    assert "final" not in rollout["next"]
    assert "final" not in rollout


def test_missing_final_observations_raise_or_are_filled() -> None:
    class Silent(Restarting):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).exclude("final")

    for transform, expected in (
        (VecGymEnvTransform(missing_obs_value=-99.0), -99.0),
        (VecGymEnvTransform(native_autoreset=True), nan),
    ):
        base = Silent(3, final=True) if expected == -99.0 else Restarting(3, final=True)
        rollout = TransformedEnv(base, transform).rollout(4, break_when_any_done=False)
        torch.testing.assert_close(rollout["next", "value"][0, 2, 0], torch.tensor(expected), equal_nan=True)
        assert column(rollout, "value") == [[0, 1, 2, -10]]
