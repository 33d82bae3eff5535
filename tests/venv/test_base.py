"""The contract of a synchronous vector environment, call by call, for every class."""

from __future__ import annotations

import inspect
import subprocess
import sys

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from tests.fixtures.venv_envs import FEW, KINDS, DuckTypedEnv, GatedCountingEnv, SeededDuckTypedEnv, ids_of, make

from vecrl.errors import PendingError, SpaceError, StepTimeout, WorkerError
from vecrl.venv import BaseVectorEnv, DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, VectorEnvWrapper


@pytest.fixture(params=FEW, ids=lambda p: f"{p[0]}-{p[1]}")
def envs(request):
    with make(request.param[0], 3, request.param[1]) as envs:
        yield envs


def test_reset_all_and_some(envs):
    obs, infos = envs.reset()
    assert (obs.dtype, obs.tolist()) == (np.float32, [[0, 0, 0], [1, 0, 0], [2, 0, 0]])
    assert (infos.dtype, infos.shape, infos.tolist()) == (object, (3,), [{"episode_index": 0}] * 3)
    assert envs.reset(1)[0].tolist() == [[1, 1, 0]]
    for ids in ([2, 0], np.array([2, 0]), (2, 0)):
        obs, infos = envs.reset(ids)
        assert obs[:, 0].tolist() == [2, 0]
    assert [info["episode_index"] for info in infos] == [3, 3]
    assert envs.reset(env_id=[1])[1][0] == {"episode_index": 2}


def test_step_all_and_some(envs):
    envs.reset()
    obs, rew, terminated, truncated, infos = envs.step(np.array([0, 1, 0]))
    assert obs.tolist() == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]
    assert (rew.dtype, rew.tolist()) == (np.float64, [0, 1, 2])
    assert (terminated.dtype, terminated.any(), truncated.dtype, truncated.any()) == (bool, False, bool, False)
    assert infos.tolist() == [{"count": 1, "env_id": i} for i in range(3)]
    assert type(infos[0]["count"]) is int
    obs, rew, _, _, infos = envs.step([1, 0], [2, 0])
    assert (obs[:, 0].tolist(), rew.tolist(), ids_of(infos)) == ([2, 0], [2, 0], [2, 0])
    assert envs.step([0], 1)[0].tolist() == [[1, 0, 2]]
    obs, _, _, _, infos = envs.step([0, 0, 0], np.arange(3))
    assert (obs[:, 2].tolist(), ids_of(infos)) == ([3, 3, 3], [0, 1, 2])
    assert envs.step([0, 0, 0], [1, 2, 0])[0][:, 0].tolist() == [1, 2, 0]


def test_no_autoreset(envs):
    envs.reset()
    ends = [envs.step([0, 0, 0])[2].tolist() for _ in range(4)]
    assert ends == [[False] * 3, [False] * 3, [True] * 3, [True] * 3]
    envs.reset([1])
    assert envs.step([0, 0, 0])[0][:, 1:].tolist() == [[0, 5], [1, 1], [0, 5]]


def test_tensor_actions_are_cast_to_the_space_dtype(envs):
    envs.reset()
    for action in (torch.tensor([0, 1, 0]), [0, 1, 0], np.array([0, 1, 0], np.int32)):
        envs.step(action)
    assert [type(action) for action in envs.get_env_attr("action")] == [np.int64] * 3


@pytest.mark.parametrize(
    ("action", "ids", "error"),
    [
        ([0, 1], None, SpaceError),
        ([0, 1], [2], SpaceError),
        (0, 1, SpaceError),
        ([0.5, 0.5, 0.5], None, SpaceError),
        ([0, 0], [1, 1], SpaceError),
        ([0], [3], IndexError),
        ([0], [-1], IndexError),
        ([], [], SpaceError),
        (None, None, ValueError),
    ],
)
def test_invalid_steps_raise(envs, action, ids, error):
    envs.reset()
    with pytest.raises(error, match="Expected"):
        envs.step(action, ids)
    assert envs.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]


def test_keywords_of_reset_reach_the_environments(envs):
    envs.reset(seed=5, options={"x": 1}, further=2)
    envs.reset([2, 0], seed=[7, 8])
    envs.reset()
    first = (5, {"x": 1}, {"further": 2})
    none = (None, None, {})
    assert envs.get_env_attr("seen") == [[first, (8, None, {}), none], [first, none], [first, (7, None, {}), none]]


def test_seeds_are_used_by_the_next_reset(envs):
    assert envs.seed(3) == [[3], [4], [5]]
    envs.reset([1])
    envs.reset()
    envs.reset()
    assert [[seed for seed, *_ in seen] for seen in envs.get_env_attr("seen")] == [
        [3, None],
        [4, None, None],
        [5, None],
    ]
    assert envs.seed() == [[None]] * 3
    assert envs.seed([9, 8, 7]) == envs.seed(np.array([9, 8, 7])) == [[9], [8], [7]]
    envs.reset(seed=1)
    assert [seen[-1][0] for seen in envs.get_env_attr("seen")] == [1, 1, 1]
    assert envs.seed(np.int64(2)) == [[2], [3], [4]]
    assert envs.seed(None) == [[None]] * 3
    envs.reset()
    assert [seen[-1][0] for seen in envs.get_env_attr("seen")] == [None] * 3
    with pytest.raises(SpaceError, match="one seed or 3"):
        envs.seed([1])


def test_attributes(envs):
    assert envs.get_env_attr("i") == [0, 1, 2]
    assert envs.get_env_attr("i", 1) == [1]
    assert envs.get_env_attr("i", [2, 0]) == envs.get_env_attr("i", np.array([2, 0])) == [2, 0]
    envs.set_env_attr("i", 9, [1])
    envs.set_env_attr("brand", "new")
    assert envs.get_env_attr("i") == [0, 9, 2]
    assert envs.get_env_attr("brand", [1]) == ["new"]
    with pytest.raises(WorkerError, match="no attribute 'nope'"):
        envs.get_env_attr("nope")
    assert envs.reset()[0][:, 0].tolist() == [0, 9, 2]


def test_reserved_names_list_every_environment(envs):
    assert envs.metadata == [GatedCountingEnv.metadata] * 3
    assert envs.spec == [None] * 3
    assert envs.action_space == [GatedCountingEnv.action_space] * 3
    assert envs.observation_space == [GatedCountingEnv.observation_space] * 3
    assert envs.reward_range == [(-np.inf, np.inf)] * 3
    envs.set_env_attr("action_space", gymnasium.spaces.Discrete(7), 1)
    assert envs.action_space[1].n == 7
    with pytest.raises(AttributeError):
        _ = envs.viewer


def test_render(envs):
    assert envs.render() == [(0, {}), (1, {}), (2, {})]
    assert envs.render(mode="human") == [(i, {"mode": "human"}) for i in range(3)]


class Label(gymnasium.Wrapper):
    label, i = "outside", "hidden"


@pytest.mark.parametrize("kind", ["dummy", "subproc"])
def test_get_reads_through_wrappers_and_set_reaches_the_innermost(kind):
    """As in Tianshou's worker processes; its dummy class reads only the innermost environment."""
    with make(kind, 2, maker=lambda i: Label(gymnasium.wrappers.TimeLimit(GatedCountingEnv(i), 2))) as envs:
        assert envs.get_env_attr("label") == ["outside"] * 2
        assert envs.get_env_attr("i") == ["hidden"] * 2
        assert envs.get_env_attr("length") == [3, 3]
        envs.set_env_attr("i", 4, 0)
        assert envs.get_env_attr("i") == ["hidden"] * 2
        assert envs.reset()[0][:, 0].tolist() == [4, 1]


def test_size_and_state(envs):
    assert (len(envs), envs.env_num, envs.is_async, envs.is_closed, bool(envs)) == (3, 3, False, False, True)
    assert (envs.wait_num, envs.timeout, envs.waiting_id, envs.ready_id) == (3, None, [], [0, 1, 2])
    assert isinstance(envs, BaseVectorEnv)
    assert "env_num=3" in repr(envs)


def test_exceptions_name_their_environment_and_others_continue(envs):
    envs.reset()
    with pytest.raises(WorkerError, match=r"environment 1 .*ZeroDivisionError") as exc_info:
        envs.step([0, 3, 0])
    assert "requested failure" in str(exc_info.value)
    assert isinstance(exc_info.value.__cause__, ZeroDivisionError)
    assert exc_info.value.transition.obs[[0, 2], 2].tolist() == [1, 1]
    with pytest.raises(PendingError, match=r"\[1\] failed before"):
        envs.step([0, 0, 0])
    assert envs.step([0, 0], [0, 2])[0][:, 2].tolist() == [2, 2]
    envs.reset(1)
    assert envs.step([0, 0, 0])[0][:, 2].tolist() == [3, 1, 3]


@pytest.mark.parametrize(("kind", "num_workers"), FEW)
@pytest.mark.parametrize("ids", [None, [1, 2]])
def test_timed_out_steps_do_not_shift_later_ones(kind, num_workers, ids, tmp_path):
    """The late step is collected by `step(None)` or dropped by a reset; no later step is mistaken for it."""
    gate, patience = tmp_path / "gate", 0.2 if kind == "dummy" else 30
    with make(kind, 3, num_workers, step_timeout=0.1, maker=lambda i: GatedCountingEnv(i, 9, gate, patience)) as envs:
        envs._pool.step_timeout = 30
        envs.reset()
        envs._pool.step_timeout = 0.1
        action = [0, 0, 2] if ids is None else [0, 2]
        with pytest.raises(StepTimeout, match="2"):
            envs.step(action, ids)
        with pytest.raises(PendingError):
            envs.step([0, 0, 0])
        gate.touch()
        envs._pool.step_timeout = 30
        obs, _, _, _, infos = envs.step(None)
        assert (obs[:, 2].tolist(), ids_of(infos)) == ([1] * len(action), ids or [0, 1, 2])
        assert envs.step([0, 0, 0])[0][2].tolist() == [2, 0, 2]
        gate.unlink()
        envs._pool.step_timeout = 0.1
        with pytest.raises(StepTimeout):
            envs.step(action, ids)
        gate.touch()
        envs._pool.step_timeout = 30
        assert envs.reset()[0][:, 1:].tolist() == [[1, 0]] * 3
        assert envs.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("ids", [None, 2, [1, 2]])
def test_timed_out_environments_can_be_cancelled(ids, tmp_path):
    never = tmp_path / "gate"
    with VectorEnvWrapper(
        make("shmem", 3, 3, maker=lambda i: GatedCountingEnv(i, 9, never, 600), step_timeout=0.3)
    ) as envs:
        envs.reset()
        with pytest.raises(StepTimeout, match="2"):
            envs.step([0, 0, 2])
        assert envs.cancel(ids).tolist() == [2]
        assert envs.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert envs.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]
        assert envs.cancel().tolist() == []


class WithoutSpaces(gymnasium.Env):
    """An environment of gymnasium that declares no spaces."""

    def reset(self, *, seed=None, options=None):
        return f"seed {seed}", {}

    def step(self, action):
        return {"action": action}, 1.0, False, True, {}


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
@pytest.mark.parametrize("trust", [True, False])
def test_environments_without_spaces(kind, trust):
    with KINDS[kind]([WithoutSpaces] * 2, trust_spaces=trust) as envs:
        assert envs.reset(seed=3)[0].tolist() == ["seed 3", "seed 3"]
        obs, rew, terminated, truncated, _ = envs.step([5, "left"])
        assert obs.tolist() == [{"action": 5}, {"action": "left"}]
        assert (rew.tolist(), terminated.tolist(), truncated.tolist()) == ([1, 1], [False] * 2, [True] * 2)
        assert envs.action_space == envs.observation_space == [None, None]


@pytest.mark.parametrize("kind", ["dummy", "shmem"])
def test_duck_typed_environments(kind):
    """Covers environments without declarations, which Tianshou's workers accept, and the old gym interface."""
    makers = [DuckTypedEnv, lambda: DuckTypedEnv(old=True), SeededDuckTypedEnv]
    with KINDS[kind](makers) as envs:
        assert envs.seed(3) == [[3], [4], [5, 7]]
        with pytest.raises(WorkerError, match=r"environments? 0.*to take seed and options, got reset\(easy\)"):
            envs.reset()
        envs.seed(None)
        obs, infos = envs.reset(easy=True)
        assert obs.tolist() == [[1, 1]] * 3
        assert infos.tolist() == [{"easy": True}, {}, {"easy": True}]
        obs, rew, terminated, truncated, infos = envs.step([5, 6, 7])
        assert obs.tolist() == [[5, 5], [6, 6], [7, 7]]
        assert (rew.tolist(), terminated.tolist(), truncated.tolist()) == (
            [1] * 3,
            [True, False, True],
            [False, True, False],
        )
        assert envs.get_env_attr("said", 2) == [None]
        assert (envs.metadata, envs.spec) == ([{}] * 3, [None] * 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"wait_num": 0}, "wait_num to be an integer from 1 to 2"),
        ({"wait_num": 3}, "wait_num"),
        ({"wait_num": 1.5}, "wait_num"),
        ({"timeout": 0}, "timeout to be a number of seconds above 0"),
        ({"timeout": -1}, "timeout"),
        ({"num_workers": 0}, "num_workers"),
        ({"step_timeout": 0}, "step_timeout"),
    ],
)
def test_invalid_arguments_raise(arguments, text):
    with pytest.raises(ValueError, match=f"Expected {text}"):
        DummyVectorEnv([GatedCountingEnv] * 2, **arguments)


def test_invalid_start_methods_raise():
    with pytest.raises(ValueError, match="context"):
        SubprocVectorEnv([GatedCountingEnv], context="thread")


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_start_methods_are_accepted(context):
    with SubprocVectorEnv([lambda: gymnasium.make("CartPole-v1")], None, None, True, context) as envs:
        assert envs.share_memory
        assert envs.reset()[0].shape == (1, 4)


def test_accepts_tianshous_positional_arguments():
    first = ["env_fns", "wait_num", "timeout"]
    for kind in (DummyVectorEnv, ShmemVectorEnv, RayVectorEnv):
        assert list(inspect.signature(kind).parameters)[:3] == first
    assert list(inspect.signature(SubprocVectorEnv).parameters)[:5] == [*first, "share_memory", "context"]


def test_one_worker_per_environment_by_default():
    with (
        ShmemVectorEnv([GatedCountingEnv] * 4) as apart,
        ShmemVectorEnv([GatedCountingEnv] * 4, num_workers=2) as together,
    ):
        own = {pid for envs in (apart, together) for pid in (card.pid for card in envs._pool.worker_infos)}
        assert len(own) == 6


def test_exiting_processes_end_their_workers():
    code = (
        "import gymnasium; from vecrl.venv import SubprocVectorEnv\n"
        "envs = SubprocVectorEnv([lambda: gymnasium.make('CartPole-v1')] * 2); envs.reset()\n"
        "print(*[card.pid for card in envs._pool.worker_infos])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (completed.returncode, completed.stderr) == (0, "")
    alive = [psutil.Process(int(pid)) for pid in completed.stdout.split() if psutil.pid_exists(int(pid))]
    assert not psutil.wait_procs(alive, 5)[1]
