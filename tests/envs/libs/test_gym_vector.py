"""Vector environments as TensorDict environments, in every auto-reset mode: true final observations, and row resets."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict

from vecrl.envs import GymEnv, GymWrapper, NativeEnv, check_env_specs, default_info_dict_reader
from vecrl.envs.libs.gym.vector import merge_infos_by_row
from vecrl.errors import SpaceError
from vecrl.simulators.native import make_native
from vecrl.vector import AsyncVectorEnv, BatchedVectorEnv, VectorEnv, make_vector_env

MODES = list(AutoresetMode)


class Count(gymnasium.Env[Any, Any]):
    """Observes (episode, step) and ends after `limit` steps, alternately terminated and truncated. The infos repeat
    both."""

    action_space = spaces.Discrete(2)
    g = 9.81

    def __init__(self, limit: int, keyed: bool = False):
        self.limit, self.keyed = limit, keyed
        self.episode = -1
        box = spaces.Box(-1, 99, (2,), np.int64)
        self.observation_space = spaces.Dict(x=box, deep=spaces.Dict(y=box)) if keyed else box

    def _look(self) -> Any:
        now = np.array([self.episode, self.steps])
        return {"x": now, "deep": {"y": now}} if self.keyed else now

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._look(), {"when": 100.0 * self.episode}

    def step(self, action: Any) -> Any:
        self.steps += 1
        is_over = self.steps >= self.limit
        late = is_over and self.episode % 2 == 1
        info = {"when": 100.0 * self.episode + self.steps, "acted": int(action)}
        return self._look(), float(self.steps), is_over and not late, late, info


KINDS: dict[str, Callable[..., Any]] = {
    "ours": VectorEnv,
    "gymnasium's": gymnasium.vector.SyncVectorEnv,
    "without copies": lambda fns, **kwargs: gymnasium.vector.SyncVectorEnv(fns, copy=False, **kwargs),
}


def make(kind: str, mode: AutoresetMode, limits: tuple[int, ...] = (2, 3, 5), **kwargs: Any) -> GymWrapper:
    fns = [lambda limit=limit: Count(limit, **kwargs) for limit in limits]
    return GymWrapper(KINDS[kind](fns, autoreset_mode=mode))


def expected(limit: int, steps: int) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the expected observations before and after each step of one `Count`."""
    before = [[t // limit, t % limit] for t in range(steps)]
    return before, [[episode, step + 1] for episode, step in before]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_hold_final_observations_and_every_step(kind: str, mode: AutoresetMode) -> None:
    env = make(kind, mode)
    rollout = env.rollout(12, break_when_any_done=False)
    assert rollout.shape == (3, 12)
    for row, limit in enumerate((2, 3, 5)):
        before, after = expected(limit, 12)
        assert rollout["observation"][row].tolist() == before
        assert rollout["next", "observation"][row].tolist() == after
        done = [step == limit for _, step in after]
        late = [step == limit and episode % 2 == 1 for episode, step in after]
        assert rollout["next", "done"][row].flatten().tolist() == done
        assert rollout["next", "truncated"][row].flatten().tolist() == late
        assert rollout["next", "reward"][row].flatten().tolist() == [step for _, step in after]
    assert not rollout["done"].any()
    env.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["ours", "gymnasium's"])
def test_nested_observations_become_nested_entries(kind: str, mode: AutoresetMode) -> None:
    rollout = make(kind, mode, keyed=True).rollout(7, break_when_any_done=False)
    for row, limit in enumerate((2, 3, 5)):
        before, after = expected(limit, 7)
        assert rollout["x"][row].tolist() == rollout["deep", "y"][row].tolist() == before
        assert rollout["next", "x"][row].tolist() == rollout["next", "deep", "y"][row].tolist() == after


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["ours", "gymnasium's"])
def test_infos_stay_with_their_observations(kind: str, mode: AutoresetMode) -> None:
    env = make(kind, mode)
    env.set_info_dict_reader(default_info_dict_reader(["when", "acted"]))
    rollout = env.rollout(7, break_when_any_done=False)
    for row, limit in enumerate((2, 3, 5)):
        before, after = expected(limit, 7)
        assert rollout["next", "when"][row].tolist() == [100 * episode + step for episode, step in after]
        assert rollout["when"][row].tolist() == [100 * episode + step for episode, step in before]
        used = rollout["action"][row].argmax(-1)
        assert rollout["next", "acted"][row].tolist() == used.tolist()
        started = torch.tensor([step == 0 for _, step in before])
        assert not rollout["acted"][row][started].any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_specs_match_the_spaces(kind: str, mode: AutoresetMode) -> None:
    check_env_specs(make(kind, mode), break_when_any_done="both")
    check_env_specs(make(kind, mode, keyed=True).auto_register_info_dict(), break_when_any_done="both")


@pytest.mark.parametrize("mode", MODES)
def test_rows_can_be_reset_within_an_episode(mode: AutoresetMode) -> None:
    env = make("ours", mode)
    data = env.reset()
    data = env.step_mdp(env.step(env.rand_action(data)))
    data["_reset"] = torch.tensor([[False], [True], [False]])
    data = env.reset(data)
    assert data["observation"].tolist() == [[0, 1], [1, 0], [0, 1]]
    step_td, data = env.step_and_maybe_reset(env.rand_action(data))
    assert step_td["next", "observation"].tolist() == [[0, 2], [1, 1], [0, 2]]
    assert data["observation"].tolist() == [[1, 0], [1, 1], [0, 2]]


@pytest.mark.parametrize("mode", MODES)
def test_rows_can_be_reset_one_after_another(mode: AutoresetMode) -> None:
    env = make("ours", mode, limits=(1, 1))
    data = env.step_mdp(env.step(env.rand_action(env.reset())))
    for masks, seen in (([True, False], [[1, 0], [0, 1]]), ([False, True], [[1, 0], [1, 0]])):
        data["_reset"] = torch.tensor(masks).unsqueeze(-1)
        data = env.reset(data)
        assert data["observation"].tolist() == seen
    assert env.step(env.rand_action(data))["next", "observation"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_stepping_without_finished_rows(mode: AutoresetMode) -> None:
    rollout = make("gymnasium's", mode).rollout(9, break_when_all_done=True)
    assert rollout.shape == (3, 5)
    assert rollout["next", "observation"][2].tolist() == expected(5, 5)[1]
    assert rollout["next", "done"][:, -1].all()


def test_masking_unfinished_rows_raises() -> None:
    env = make("ours", AutoresetMode.SAME_STEP)
    data = env.rand_action(env.reset()).set("_step", torch.tensor([True, False, True]))
    with pytest.raises(SpaceError, match="steps all rows"):
        env.step(data)


def _equals_single_environments(many: GymWrapper) -> None:
    after = many.set_seed(11)
    actions = many.action_spec.rand((40,)).transpose(0, 1)
    rollout = many.rollout(40, actions=actions, break_when_any_done=False)
    many.close()
    assert rollout["next", "done"].any()
    seed: Any = 11
    for row in range(many.numel()):
        item = GymEnv("CartPole-v1")
        seed = item.set_seed(seed)
        alone = item.rollout(40, actions=actions[row], break_when_any_done=False)
        for key in ("observation", ("next", "observation"), ("next", "reward"), ("next", "done")):
            torch.testing.assert_close(rollout[row][key], alone[key], rtol=0, atol=0)
    assert after == seed


def test_rows_equal_single_environments_with_batch_seeds() -> None:
    _equals_single_environments(GymEnv("CartPole-v1", num_envs=3))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [AsyncVectorEnv, gymnasium.vector.AsyncVectorEnv])
def test_rows_in_processes_equal_single_environments(kind: Callable[..., Any], mode: AutoresetMode) -> None:
    fns = [partial(gymnasium.make, "CartPole-v1")] * 3
    _equals_single_environments(GymWrapper(kind(fns, context="spawn", autoreset_mode=mode)))


@pytest.mark.parametrize("kwargs", [{}, {"num_workers": 2}, {"backend": "threads", "num_workers": 2}])
def test_vector_environments_by_name(kwargs: dict[str, Any]) -> None:
    env = GymEnv("Pendulum-v1", num_envs=4, g=5.0, frame_skip=2, **kwargs)
    assert (env.batch_size, env.g) == ((4,), [5.0] * 4)
    check_env_specs(env, seed=0)
    env.set_seed(1)
    assert env.rollout(300, break_when_any_done=False)["next", "truncated"].sum() == 3 * 4
    assert "VectorEnv" in repr(env)
    env.close()


def test_zero_environments_are_a_single_one() -> None:
    """As in TorchRL, where 0 is the default."""
    for kwargs in ({"num_envs": 0}, {"num_workers": 0}, {"num_workers": 1}):
        assert GymEnv("CartPole-v1", **kwargs).rollout(3).shape == (3,)


@pytest.mark.parametrize("make", [GymEnv, NativeEnv, make_native, make_vector_env])
@pytest.mark.parametrize("value", ["4", 1.5, -1])
def test_wrong_numbers_of_environments_raise(make: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=f"num_envs to be an int of 1 or more.* got {value!r}"):
        make("CartPole-v1", num_envs=value)


def test_num_workers_implies_num_envs() -> None:
    with GymEnv("CartPole-v1", num_workers=2) as env:
        assert env.rollout(3).shape == (2, 3)
    with GymEnv("CartPole-v1", num_envs=1) as env:
        assert env.rollout(3).shape == (1, 3)


@pytest.mark.parametrize("mode", MODES)
def test_vector_environments_may_return_tensors(mode: AutoresetMode) -> None:
    env = GymWrapper(BatchedVectorEnv(make_native("CartPole-v1", num_envs=4), autoreset_mode=mode))
    check_env_specs(env, seed=0, break_when_any_done="both")
    env.set_seed(3)
    rollout = env.rollout(60, break_when_any_done=False)
    done = rollout["next", "done"][:, :-1].squeeze(-1)
    assert done.any()
    is_running = rollout["next", "observation"][:, :-1] == rollout["observation"][:, 1:]
    assert is_running.all(-1).equal(~done)


@pytest.mark.parametrize("mode", MODES)
def test_tensor_vectors_do_not_depend_on_returned_tensors(mode: AutoresetMode) -> None:
    rollout: list[list[Any]] = [[], []]
    for saved, spoil in zip(rollout, (False, True), strict=True):
        env = GymWrapper(BatchedVectorEnv(make_native("CartPole-v1", num_envs=4), autoreset_mode=mode))
        env.set_seed(3)
        torch.manual_seed(0)
        data = env.reset()
        for _ in range(40):
            step_td, data = env.step_and_maybe_reset(env.rand_action(data))
            saved.append(step_td.clone())
            for entry in (step_td, data) if spoil else ():
                entry["observation"].fill_(9.0)
            if spoil:
                step_td["next", "observation"].fill_(9.0)
    assert all((item["next"] == other["next"]).all() for item, other in zip(*rollout, strict=True))


class OneStream(gymnasium.vector.VectorEnv):
    """A batched environment in next-step mode, like gymnasium's `CartPoleVectorEnv`: one seed, no partial resets."""

    num_envs = 2
    single_action_space, action_space = spaces.Discrete(2), spaces.MultiDiscrete([2, 2])
    single_observation_space, observation_space = spaces.Box(-99, 99, (1,)), spaces.Box(-99, 99, (2, 1))
    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, *limits: int):
        self.limits = np.array(limits)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.obs, self.steps = self.np_random.random((2, 1), np.float32), np.zeros(2, int)
        return self.obs.copy(), {}

    def step(self, actions: Any) -> Any:
        self.obs, self.steps = self.obs + 1, self.steps + 1
        return self.obs.copy(), np.ones(2), self.steps >= self.limits, np.zeros(2, bool), {}


def test_single_seed_vectors_use_the_first_seed() -> None:
    env = GymWrapper(OneStream(5, 5))
    env.set_seed(3)
    plain = OneStream(5, 5)
    plain.reset(seed=3)
    expected = plain.reset()[0]
    assert env.rollout(2)["observation"][:, 0].tolist() == expected.tolist()


def test_vectors_without_partial_resets_run_until_needed() -> None:
    assert GymWrapper(OneStream(3, 5)).rollout(20).shape == (2, 3)
    env = GymWrapper(OneStream(3, 3))
    rollout = env.rollout(7, break_when_any_done=False)  # all rows together
    steps = rollout["next", "observation"].squeeze(-1).floor()
    assert steps.tolist() == [[1, 2, 3, 1, 2, 3, 1]] * 2
    env.reset()
    env._env.limits = np.array([2, 5])  # which do not start all rows together
    with pytest.raises(SpaceError, match="got a reset of all rows"):
        env.rollout(9, break_when_any_done=False)


def test_gymnasium_make_vec() -> None:
    env = GymWrapper(gymnasium.make_vec("CartPole-v1", num_envs=3))
    env.set_seed(0)
    rollout = env.rollout(200)
    assert rollout["next", "done"][:, -1].any()
    env.set_seed(0)
    assert (env.reset()["observation"] == rollout["observation"][:, 0]).all()
    with pytest.raises(SpaceError, match=r"CartPoleVectorEnv.*make_vec"):
        env.rollout(200, break_when_any_done=False)


class OmitsFinalObs(gymnasium.vector.SyncVectorEnv):
    """Omits final observations."""

    def step(self, actions: Any) -> Any:
        *remaining, info = super().step(actions)
        return *remaining, {key: value for key, value in info.items() if "final" not in key}


def test_missing_final_observations_are_filled() -> None:
    fns = [lambda: gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 3)] * 2
    for missing in (float("nan"), -7.0):
        env = GymWrapper(OmitsFinalObs(fns, autoreset_mode=AutoresetMode.SAME_STEP), missing_obs_value=missing)
        rollout = env.rollout(7, break_when_any_done=False)
        lost = rollout["next", "observation"]
        wrong = lost.isnan() if missing != missing else lost == missing
        assert wrong.all(-1).equal(rollout["next", "done"].squeeze(-1))
        assert not rollout["observation"].isnan().any()


def test_old_gym_vectors_raise() -> None:
    class Old:
        num_envs = 1
        single_observation_space, single_action_space = spaces.Box(0, 1), spaces.Discrete(2)

        def reset(self) -> Any: ...

    with pytest.raises(SpaceError, match="which takes no seed in reset"):
        GymWrapper(Old())


class IgnoresResetMask(gymnasium.vector.SyncVectorEnv):
    """Resets all rows, whatever the mask."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


def test_vectors_ignoring_reset_mask_are_detected() -> None:
    env = GymWrapper(IgnoresResetMask([lambda: Count(2), lambda: Count(3)], autoreset_mode=AutoresetMode.NEXT_STEP))
    with pytest.raises(SpaceError, match="ignores options"):
        env.rollout(7, break_when_any_done=False)


def test_unsupported_vector_options_raise() -> None:
    fns = [lambda: Count(2)]
    for kwargs in ({"from_pixels": True}, {"frame_skip": 2}):
        with pytest.raises(SpaceError, match="to its single environments"):
            GymWrapper(VectorEnv(fns), **kwargs)
    with pytest.raises(SpaceError, match=r"batch size of \(1,\), got \(2,\)"):
        GymWrapper(VectorEnv(fns), batch_size=[2])


def test_environment_attributes_can_be_read() -> None:
    env = make("ours", AutoresetMode.SAME_STEP)
    assert env.limit == [2, 3, 5]
    assert env.num_envs == 3
    assert not hasattr(env, "no_such_thing")


def test_infos_are_merged_over_rows() -> None:
    rows = np.array([False, True])
    old = {"x": np.array([1.0, 2.0]), "o": np.array(["a", "b"], object), "deep": {"y": np.array([1, 2])}}
    found = merge_infos_by_row(old, {"x": np.array([0.0, 5.0]), "z": np.array([0, 3])}, rows)
    assert found["x"].tolist() == [1, 5]
    assert found["o"].tolist() == ["a", None]
    assert found["deep"]["y"].tolist() == [1, 0]
    assert found["z"].tolist() == [0, 3]
    listed = merge_infos_by_row({}, np.array([None, {"w": 4}], object), rows)
    assert listed["w"].tolist() == [0, 4]


def test_tuple_actions_reach_the_environments() -> None:
    class Pair(Count):
        action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return super().step(action[0])

    assert GymWrapper(Pair(3)).rollout(5).shape == (3,)
    assert GymWrapper(VectorEnv([lambda: Pair(3)] * 2)).rollout(5).shape == (2, 3)


def test_reset_masks_on_other_keys_raise() -> None:
    env = make("ours", AutoresetMode.SAME_STEP)
    with pytest.raises(SpaceError, match="Expected a mask beside one of the done flags"):
        env.reset(TensorDict({"deep": TensorDict({"_reset": torch.ones(3, 1, dtype=torch.bool)}, [3])}, [3]))


def test_graphs_stay_graphs() -> None:
    graphs = spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3))

    class GraphObsEnv(Count):
        def __init__(self) -> None:
            super().__init__(3)
            self.observation_space = graphs

        def reset(self, **kwargs: Any) -> Any:
            return self.observation_space.sample(), super().reset(**kwargs)[1]

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), *super().step(action)[1:]

    vectors: Any = gymnasium.vector
    for vector in (vectors.SyncVectorEnv([GraphObsEnv] * 2), VectorEnv([GraphObsEnv] * 2)):
        env = GymWrapper(vector)
        check_env_specs(env)
        seen = env.rollout(2)["next", "observation"]
        assert all(graphs.contains(graph) for row in seen for graph in row)
