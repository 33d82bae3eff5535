"""`workers` and `_wrap_id`, by which scripts and subclasses for Tianshou reach environments."""

import gymnasium
import numpy as np
import pytest

from vecrl.venv import DummyVectorEnv, SubprocVectorEnv


def test_workers_of_this_process_have_their_environments():
    made = [gymnasium.make("CartPole-v1") for _ in range(2)]
    envs = DummyVectorEnv([lambda env=env: env for env in made])
    assert [worker.env for worker in envs.workers] == made
    envs.reset()
    assert envs.workers[1].env.unwrapped.state is not None
    envs.close()


def test_workers_of_other_processes_name_what_to_use():
    envs = SubprocVectorEnv([lambda: gymnasium.make("CartPole-v1")], step_timeout=float("inf"))
    assert len(envs.workers) == 1
    with pytest.raises(AttributeError, match=r"in other processes. Use get_env_attr\(name, 0\)"):
        _ = envs.workers[0].env
    envs.close()  # also without a limit of time


def test_subclasses_can_wrap_ids():
    class Finite(DummyVectorEnv):
        def reset(self, ids=None, **kwargs):
            return super().reset(self._wrap_id(ids), **kwargs)

    envs = Finite([lambda: gymnasium.make("CartPole-v1")] * 3)
    assert len(envs.reset()[0]) == 3
    assert len(envs.reset(1)[0]) == 1
    assert envs._wrap_id() == [0, 1, 2]
    assert envs._wrap_id(np.int64(1)) == [1]
    assert envs._wrap_id([2, 0]) == [2, 0]
    envs.close()
