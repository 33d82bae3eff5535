"""Entries that a policy needs and an environment does not know."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import SerialEnv, check_env_specs
from vecrl.envs.transforms import Compose, StepCounter, TensorDictPrimer, TransformedEnv
from vecrl.specs import Bounded, Composite, Unbounded

from ..counting import Counting, Groups
from ..rows import Rows


def primed(*args: Any, **kwargs: Any) -> TransformedEnv:
    return TransformedEnv(Counting(2, 3), TensorDictPrimer(*args, **kwargs))


def test_a_recurrent_policy_finds_its_state_again() -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        td["action"] = torch.zeros(2, 2)
        td["next", "hidden"] = td["hidden"] + 1
        return td

    played = primed(hidden=Unbounded((1,))).rollout(5, policy, break_when_any_done=False)
    assert played["hidden"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    assert played["next", "hidden"].squeeze(-1).tolist() == [[1, 2, 1, 2, 1], [1, 2, 3, 1, 2]]


def test_without_such_a_policy_values_are_carried() -> None:
    env = primed(hidden=Unbounded((2,)), default_value=1.5)
    root = env.reset()
    root["hidden"] += 1
    assert (env.rand_step(root)["next", "hidden"] == 2.5).all()
    assert (env.rand_step(env.reset().exclude("hidden"))["next", "hidden"] == 1.5).all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 0]),
        (3, [3, 3]),
        (lambda: torch.tensor([7.0, 8.0]), [7, 8]),
        (lambda: 2.0, [2, 2]),
        ({"hidden": 4.0}, [4, 4]),
        ({"hidden": lambda: torch.tensor([5.0, 6.0])}, [5, 6]),
        ({"hidden": torch.tensor([1.0, 2.0])}, [1, 2]),
    ],
)
def test_default_values(value: Any, expected: list[float]) -> None:
    assert primed(hidden=Unbounded((2,)), default_value=value).reset()["hidden"].tolist() == [expected] * 2


def test_random_values_are_in_the_spec_and_differ() -> None:
    env = primed(hidden=Bounded(2, 3, (2,)), random=True)
    check_env_specs(env)
    hidden = env.reset()["hidden"]
    assert ((hidden >= 2) & (hidden <= 3)).all()
    assert hidden.unique().numel() == 4


def test_one_function_for_all_entries_is_told_who_is_reset() -> None:
    asked: list[list[bool]] = []

    def make(reset: torch.Tensor) -> TensorDict:
        asked.append(reset.tolist())
        n = int(reset.sum())
        return TensorDict({"a": torch.full((n, 1), float(len(asked))), "b": torch.zeros(n)}, [n])

    env = primed(a=Unbounded((1,)), b=Unbounded(()), default_value=make, single_default_value=True)
    root = env.reset()
    root = env.reset(root.set("_reset", torch.tensor([[False], [True]])))
    assert asked == [[True, True], [False, True]]
    assert root["a"].flatten().tolist() == [1, 2]


def test_specs_are_expanded_unless_they_have_the_batch_size() -> None:
    assert primed(x=Unbounded((2, 4))).reset()["x"].shape == (2, 2, 4)
    assert primed(x=Unbounded((2, 4)), expand_specs=True).reset()["x"].shape == (2, 2, 4)
    assert primed(x=Unbounded((2, 4)), expand_specs=False).reset()["x"].shape == (2, 4)
    assert primed(Composite(x=Unbounded((2, 4)), shape=(2,))).reset()["x"].shape == (2, 4)
    assert primed({"x": Unbounded((4,))}).full_state_spec["x"].shape == (2, 4)


def test_entries_of_groups_begin_with_their_groups() -> None:
    env = TransformedEnv(Groups(("a", "b"), root=False), TensorDictPrimer({("a", "h"): Unbounded((2, 1))}))
    root = env.reset()
    root["a", "h"] += 1
    root["a", "_reset"] = torch.tensor([[True], [False]])
    root["b", "_reset"] = torch.ones(2, 1, dtype=torch.bool)
    assert env.reset(root)["a", "h"].flatten().tolist() == [0, 1]


def test_an_environment_may_see_them_at_its_reset() -> None:
    seen: list[Any] = []

    class Seeing(Rows):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            seen.append(None if tensordict is None else tensordict.get("hidden", None))
            return super()._reset(tensordict, **kwargs)

    for before in (True, False):
        primer = TensorDictPrimer(hidden=Unbounded((1,)), default_value=2, call_before_env_reset=before)
        assert TransformedEnv(Seeing(0), primer).reset()["hidden"].tolist() == [2]
    assert seen == [torch.tensor([2.0]), None]


def test_a_mask_of_another_name() -> None:
    env = primed(hidden=Unbounded(()), reset_key="anew")
    root = env.reset()
    root["hidden"] += 1
    assert env.reset(root.set("anew", torch.tensor([True, False])))["hidden"].tolist() == [0, 1]


def test_stored_data() -> None:
    primer = TensorDictPrimer(hidden=Unbounded((2,)), default_value=2)
    assert primer(TensorDict({}, [4]))["hidden"].tolist() == [[2, 2]] * 4
    assert TensorDictPrimer(hidden=Unbounded((4, 2)))(TensorDict({}, [4]))["hidden"].shape == (4, 2)


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="both"):
        TensorDictPrimer({"a": Unbounded(())}, b=Unbounded(()))
    with pytest.raises(ValueError, match="both"):
        TensorDictPrimer(a=Unbounded(()), random=True, default_value=1.0)
    with pytest.raises(ValueError, match="keys"):
        TensorDictPrimer(a=Unbounded(()), default_value={"b": 1.0})


def test_the_environment_sees_what_is_primed_wherever_it_begins_anew() -> None:
    seen: list[float] = []

    class Sees(Rows):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            assert tensordict is not None
            seen.append(tensordict["hidden"].sum().item())
            return super()._reset(tensordict, **kwargs)

    primer = TensorDictPrimer(hidden=Unbounded((1,)), default_value=2.0, call_before_env_reset=True)
    env = TransformedEnv(Sees((0,)), Compose(primer, StepCounter(max_steps=2)))
    env.rollout(6, break_when_any_done=False)
    assert len(seen) >= 3
    assert set(seen) == {2.0}


def test_what_is_primed_before_resets_is_so_where_a_batch_begins_anew_with_the_step() -> None:
    primer = TensorDictPrimer(hidden=Unbounded((1,)), default_value=2.0, call_before_env_reset=True)
    env = TransformedEnv(SerialEnv(2, Rows), Compose(primer, StepCounter(max_steps=3)))
    root = env.reset()
    for _ in range(8):
        acted = env.rand_action(root).set("next", TensorDict({"hidden": torch.full((2, 1), 9.0)}, [2]))
        stepped, root = env.step_and_maybe_reset(acted)
        assert root["hidden"].equal(torch.where(stepped["next", "done"], 2.0, 9.0))
