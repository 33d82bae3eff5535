"""`SyncVectorEnv`: its constructor, resets, seeds, steps and errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tests.fixtures.gym_envs import UNIT, CountingEnv, EchoEnv, counting, echoes, ones

from vecrl.errors import SpaceError, StepTimeout, WorkerError
from vecrl.vector import SyncVectorEnv
from vecrl.vector.base import BaseVectorEnv

INTEGERS = spaces.Box(0, 9, (2,), np.int32)


# -- eager auto-reset ------------------------------------------------------------------------------


def test_environments_run_one_after_another_in_this_process():
    order: list[int] = []

    class Ordered(EchoEnv):
        def step(self, action):
            order.append(int(action[0]))
            return super().step(action)

    with SyncVectorEnv([Ordered] * 3) as env:
        env.reset()
        env.step(np.array([[2, 0], [0, 0], [1, 0]], np.float32))
    assert order == [2, 0, 1]


def test_resets_within_the_same_step():
    """Returns the observation and info of the new episode with the flags and reward of the step."""
    with SyncVectorEnv(counting(2, 2)) as env:
        env.reset()
        env.step(np.zeros(2, int))
        obs, reward, terminated, truncated, info = env.step(np.array([1, 1]))
        assert obs.tolist() == [[0, 1, 0], [1, 0, 2]]
        assert reward.tolist() == [3, 3]
        assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, False])
        assert info["episode_index"] == [1, None]
        assert info["count"] == [None, 2]
        *_, terminated, truncated, _ = env.step(np.zeros(2, int))
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])


def test_metadata_has_the_autoreset_mode():
    """`metadata["autoreset_mode"]` is SAME_STEP."""
    with SyncVectorEnv(counting(1)) as env:
        assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        assert env.metadata["render_fps"] == 7
        assert isinstance(env, BaseVectorEnv)
        assert isinstance(env, gymnasium.vector.VectorEnv)


# -- what it takes ---------------------------------------------------------------------------------


def test_first_wrong_observation_space_is_named():
    """Observations must all be (nested) arrays: the first other space is a TypeError."""
    with pytest.raises(TypeError, match=r"environment 0 has Text\("):
        SyncVectorEnv([lambda: EchoEnv(spaces.Text(3))])
    with pytest.raises(TypeError, match=r"environment 1.*Discrete\(3\)"):
        SyncVectorEnv([EchoEnv, lambda: EchoEnv(spaces.Discrete(3)), lambda: EchoEnv(spaces.Dict())])


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"observation": UNIT}, {"observation": spaces.Box(-1.0, 1.0, (3,))}),
        ({"observation": UNIT}, {"observation": INTEGERS}),
        ({"action": spaces.Discrete(2)}, {"action": spaces.Discrete(3)}),
        ({"action": spaces.Discrete(2)}, {"action": UNIT}),
        ({"action": UNIT}, {"action": spaces.Box(-1.0, 1.0, (3,))}),
        ({"action": spaces.Discrete(2)}, {"action": spaces.Discrete(2, start=1)}),
    ],
)
@pytest.mark.parametrize("place", [{}, {"backend": "threads", "num_workers": 3}], ids=["serial", "threads"])
def test_differing_spaces_raise_with_their_index(first, other, place):
    """A ValueError or TypeError names the two spaces and the index."""
    with pytest.raises(SpaceError, match="environment 2") as exc_info:
        SyncVectorEnv([partial(EchoEnv, **first), partial(EchoEnv, **first), partial(EchoEnv, **other)], **place)
    assert isinstance(exc_info.value, ValueError)
    assert isinstance(exc_info.value, TypeError)
    for space in (*first.values(), *other.values()):
        assert str(space) in str(exc_info.value)


def test_invalid_action_spaces_raise_and_close_environments():
    """Actions are arrays (`BaseVectorEnv`). On an error, all environments made so far are closed."""
    envs, makers = echoes(2, action=spaces.Text(2))
    with pytest.raises(TypeError, match="Text"):
        SyncVectorEnv(makers)
    assert [env.calls for env in envs] == [["close"], ["close"]]


def test_bounds_may_differ_but_action_shapes_must_match():
    """Shapes are compared, not bounds. For actions, the action shape is compared (the source compares the
    observation's)."""
    wide = spaces.Box(-9.0, 9.0, (2,), np.float32)
    with SyncVectorEnv([EchoEnv, lambda: EchoEnv(wide, wide)]) as env:
        env.reset()
        assert env.step(9 * ones(2))[0].shape == (2, 2)
        assert env.single_observation_space == UNIT


# -- reset and seeds -------------------------------------------------------------------------------


def test_reset_returns_observation_and_info():
    with SyncVectorEnv(counting(3)) as env:
        obs, info = env.reset()
    assert obs.dtype == np.float64
    assert obs[:, 0].tolist() == [0, 1, 2]
    assert info["episode_index"].tolist() == [0, 0, 0]


def seeds_of(envs: list[EchoEnv]) -> list[Any]:
    return [env.calls[-1].get("seed") for env in envs]


def test_sub_seeds_equal_the_source():
    """Each environment gets a 32-bit seed from RandomState(S).randint(0, 2**32, n), for this reset only."""
    envs, makers = echoes(4)
    with SyncVectorEnv(makers) as env:
        env.reset(seed=7)
        expected = np.random.RandomState(7).randint(0, 2**32, 4).tolist()
        assert seeds_of(envs) == expected
        assert seeds_of(envs) == [327741615, 976413892, 3349725721, 1369975286]
        env.reset()
        assert seeds_of(envs) == [None] * 4
        env.reset(seed=8)
        assert seeds_of(envs) != expected
        assert all(type(seed) is int for seed in seeds_of(envs))


def test_seed_applies_to_the_next_reset():
    """`seed(S)` followed by `reset()` equals `reset(seed=S)`; `seed=None` drops an earlier `seed(...)`."""
    envs, makers = echoes(3)
    with SyncVectorEnv(makers) as env:
        env.reset(seed=7)
        expected = seeds_of(envs)
        env.seed(7)
        env.reset()
        assert seeds_of(envs) == expected
        env.reset()
        assert seeds_of(envs) == [None] * 3
        env.seed(7)
        env.reset(seed=None)
        assert seeds_of(envs) == [None] * 3
        env.reset()
        assert seeds_of(envs) == [None] * 3
        env.seed(7)
        env.seed(None)
        env.reset()
        assert seeds_of(envs) == [None] * 3


@pytest.mark.parametrize("place", [{}, {"backend": "threads", "num_workers": 2}], ids=["serial", "threads"])
def test_other_keywords_are_passed_to_environments(place):
    envs, makers = echoes(2)
    with SyncVectorEnv(makers, **place) as env:
        env.reset(seed=1, options={"easy": True}, level=3)
        for sub in envs:
            assert sub.calls[-1] | {"seed": 0} == {"seed": 0, "options": {"easy": True}, "level": 3}
        env.reset(level=4)
        assert envs[1].calls[-1] == {"seed": None, "options": None, "level": 4}


# -- step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, list], ids=["array", "tensor", "list"])
def test_actions_of_any_kind(convert):
    """Actions are an array or a tensor with leading size `num_envs`."""
    with SyncVectorEnv(counting(3)) as env:
        env.reset()
        assert env.step(convert([1, 2, 3]))[1].tolist() == [2, 3, 4]


def test_actions_may_require_grad():
    """A tensor as a policy returns it."""
    envs, makers = echoes(2)
    with SyncVectorEnv(makers) as env:
        env.reset()
        env.step(torch.full((2, 2), 0.5, requires_grad=True))
        assert envs[1].calls[-1].tolist() == [0.5, 0.5]
        assert envs[1].calls[-1].dtype == np.float32


@pytest.mark.parametrize("action", [1, np.array(1), torch.tensor(1), [0, 1], [0] * 4, [[0], [1], [2]], [0.5, 1.5, 2.5]])
@pytest.mark.parametrize("num_episodes", [None, 2])
def test_invalid_actions_raise(action, num_episodes):
    """A scalar or another leading size is a ValueError, and no environment is stepped."""
    with SyncVectorEnv(counting(3), num_episodes=num_episodes) as env:
        env.reset()
        with pytest.raises(ValueError, match="Expected"):
            env.step(action)
        assert env.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("space", [UNIT, INTEGERS, spaces.Box(0, 255, (2,), np.uint8)], ids=lambda s: s.dtype.name)
def test_result_dtypes(space):
    """Observations have the space's dtype, rewards are float64, flags bool."""
    with SyncVectorEnv([lambda: EchoEnv(space)] * 2) as env:
        assert env.reset()[0].dtype == space.dtype
        obs, reward, terminated, truncated, _ = env.step(ones(2))
    assert (obs.dtype, reward.dtype) == (space.dtype, np.float64)
    assert terminated.dtype == truncated.dtype == bool


def test_observations_are_cast_to_their_space():
    """Observations have the space's dtype, whatever precision the environment returns."""

    class Doubles(EchoEnv):
        def observe(self):
            return super().observe().astype(np.float64)

    with SyncVectorEnv([Doubles] * 2) as env:
        assert env.reset()[0].dtype == np.float32
        assert env.step(ones(2))[0].dtype == np.float32


def test_actions_may_be_bfloat16_tensors():
    """Actions may be tensors of any dtype."""
    envs, makers = echoes(1)
    with SyncVectorEnv(makers) as env:
        env.reset()
        env.step(torch.full((1, 2), 0.5, dtype=torch.bfloat16))
        assert envs[0].calls[-1].tolist() == [0.5, 0.5]


# -- render, close, faults -------------------------------------------------------------------------


def test_render_returns_one_frame_per_environment():
    """Returns a list of the environments' frames if they were made with a render mode, else None."""
    with SyncVectorEnv(counting(2, render_mode="rgb_array")) as env:
        env.reset()
        frames = env.render()
        assert env.render_mode == "rgb_array"
    assert isinstance(frames, list)
    assert [frame[0, 0, 0] for frame in frames] == [0, 1]
    with SyncVectorEnv(counting(2)) as env:
        assert env.render() is None


def test_exceptions_have_index_and_traceback():
    """The error has the index of the environment and its traceback; the batch continues after `reset`."""
    with SyncVectorEnv([EchoEnv, EchoEnv, lambda: EchoEnv(fault_at=2), EchoEnv]) as env:
        env.reset()
        env.step(ones(4))
        with pytest.raises(
            WorkerError, match=r"environment 2 .*'step' number 2: ZeroDivisionError: requested failure"
        ) as exc_info:
            env.step(ones(4))
        assert 'raise ZeroDivisionError("requested failure")' in str(exc_info.value)
        assert env.reset()[0].shape == (4, 2)
        assert env.step(ones(4))[0].tolist() == [[1, 1]] * 4


def test_failing_factories_raise():
    """The error names the factory, and environments made before are closed."""
    envs, makers = echoes(1)

    def broken():
        raise OSError("no simulator here")

    with pytest.raises(WorkerError, match=r"environment 1 .*OSError: no simulator here"):
        SyncVectorEnv([*makers, broken])
    assert envs[0].calls == ["close"]


def test_step_timeout():
    """Options of the engine are accepted: late environments are named."""
    slow = partial(CountingEnv, 1, delay=0.0)

    class Slow(CountingEnv):
        def step(self, action):
            import time

            time.sleep(0.3)
            return super().step(action)

    with SyncVectorEnv([slow, lambda: Slow(1)], backend="threads", num_workers=2, step_timeout=0.05) as env:
        env.reset()
        with pytest.raises(StepTimeout, match="environment 1 "):
            env.step([0, 0])
        env._pool.step_timeout = None
        assert env.reset()[0][:, 2].tolist() == [0, 0]


def test_a_sequence_has_one_seed_per_environment() -> None:
    with SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2) as env:
        first, _ = env.reset(seed=[5, 6])
        swapped, _ = env.reset(seed=[6, 5])
        expected = [gymnasium.make("CartPole-v1").reset(seed=seed)[0] for seed in (5, 6)]
        np.testing.assert_array_equal(first, expected)
        np.testing.assert_array_equal(swapped, expected[::-1])
        with pytest.raises(SpaceError, match="Expected one seed or 2"):
            env.reset(seed=[5])
