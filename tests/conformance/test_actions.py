"""Actions of every space and array type reach the environments as in gymnasium. Invalid actions raise."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.fixtures.gym_envs import SPACES, echoes, fold_to_number, noise

from vecrl.errors import SpaceError
from vecrl.vector import VectorEnv

N = 3
PLACES = [("serial", 1), ("threads", 3), ("processes", 2)]


def folded(envs: Any, steps: int = 4) -> list[list[float]]:
    """Returns the numbers that environments fold from sampled actions: values, types and dtypes."""
    envs.reset(seed=1)
    envs.action_space.seed(3)
    rewards = [envs.step(envs.action_space.sample())[1].tolist() for _ in range(steps)]
    envs.close()
    return rewards


@pytest.mark.ray
@pytest.mark.parametrize("name", ["dict", "dict_of_text"])
def test_action_spaces_on_ray(name):
    test_actions_of_every_space_equal_gymnasium(name, "ray", 2)


@pytest.mark.parametrize(("backend", "num_workers"), PLACES)
@pytest.mark.parametrize("name", SPACES)
def test_actions_of_every_space_equal_gymnasium(name, backend, num_workers):
    """Every environment receives the element, type and dtype that gymnasium would pass."""
    fns = noise("box", N, name, infos=False)
    actual = folded(VectorEnv(fns, backend=backend, num_workers=num_workers, autoreset_mode="same_step"))
    reference = folded(gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP))
    assert actual == reference


@pytest.mark.parametrize("kind", ["tensor", "array", "list", "tuple", "wide tensor"])
def test_actions_may_be_tensors_arrays_or_lists(kind):
    """The same actions as tensors, arrays and lists, in the precision of the caller."""
    values = np.array([[0.5, -0.5], [1.0, 0.0], [0.25, 0.125]], np.float32)
    inputs = {
        "tensor": torch.tensor(values),
        "array": values,
        "list": values.tolist(),
        "tuple": tuple(values),
        "wide tensor": torch.tensor(values, dtype=torch.float64),
    }[kind]
    subs, fns = echoes(N)
    with VectorEnv(fns) as envs:
        envs.reset()
        envs.step(inputs)
    received = [sub.calls[-2] for sub in subs]
    assert [action.tolist() for action in received] == values.tolist()
    wide = kind in ("list", "wide tensor")
    assert {action.dtype for action in received} == {np.dtype(np.float64 if wide else np.float32)}


def test_nested_actions_may_have_tensor_leaves():
    """Dict and Tuple actions with tensor leaves."""
    fns = noise("box", 2, "dict", infos=False)
    with VectorEnv(fns) as envs:
        envs.reset(seed=1)
        action = envs.action_space.sample()
        expected = envs.step(action)[1]
        envs.reset(seed=1)
        inner = {key: torch.as_tensor(value) for key, value in action["inner"].items()}
        assert envs.step({"inner": inner, "pair": tuple(map(torch.as_tensor, action["pair"]))})[1].tolist() == (
            expected.tolist()
        )


def test_actions_kept_by_environments_are_not_overwritten():
    """The array that an environment received is not written again."""
    subs, fns = echoes(2)
    with VectorEnv(fns) as envs:
        envs.reset()
        inputs = np.zeros((2, 2), np.float32)
        for _ in range(3):
            inputs += 1
            envs.step(inputs)
    assert [action.tolist() for action in subs[0].calls if isinstance(action, np.ndarray)] == [[1, 1], [2, 2], [3, 3]]


WRONG: dict[str, tuple[str, Any, str]] = {
    "too few": ("box", np.zeros((2, 2, 3), np.float32), r"shape \(3, 2, 3\).*got \(2, 2, 3\)"),
    "too many": ("discrete", [0, 1, 2, 3], r"shape \(3,\).*got \(4,\)"),
    "one for all": ("discrete", 0, r"shape \(3,\).*got \(\)"),
    "single row": ("box", np.zeros((2, 3), np.float32), r"shape \(3, 2, 3\)"),
    "floats for integers": ("discrete", [0.0, 1.0, 2.0], "int64.*got float64"),
    "text for numbers": ("discrete", ["a", "b", "c"], "int64"),
    "complex": ("box", np.zeros((3, 2, 3), complex), "float32.*got complex128"),
    "missing key": ("dict", {"inner": {"image": np.zeros((3, 2, 2)), "number": np.zeros(3)}}, "'pair'"),
    "no dict": ("dict", np.zeros(3), "Expected"),
    "short tuple": ("tuple", (np.zeros(3, int),), r"\[1\]"),
    "too few words": ("text", ("a", "b"), "3 actions.*got 2"),
}


@pytest.mark.parametrize(("backend", "num_workers"), [("serial", 1), ("serial", 2), ("processes", 2)])
@pytest.mark.parametrize("name", WRONG)
def test_invalid_actions_raise(name, backend, num_workers):
    """Actions are checked before any environment is stepped. The message has the expected and the actual value."""
    space, action, text = WRONG[name]
    with VectorEnv(noise("box", N, space, infos=False), backend=backend, num_workers=num_workers) as envs:
        envs.reset(seed=1)
        with pytest.raises(SpaceError, match=text):
            envs.step(action)
        assert envs.step(envs.action_space.sample())[1].shape == (N,)


def test_fold_distinguishes_types():
    """The fold that these tests use distinguishes values, shapes, dtypes and types."""
    kinds = [0, 1, np.int64(1), np.array(1), np.int32(1), np.float32(1), np.ones(1), "1", (1, 2), (2, 1), {"a": 2}]
    assert len({fold_to_number(kind) for kind in kinds}) == len(kinds)
