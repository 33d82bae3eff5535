"""`GymLikeEnv`: result tuples read part by part, and infos."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import GymEnv, GymLikeEnv, GymWrapper, check_env_specs, default_info_dict_reader
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, OneHot, Unbounded


class Walk:
    """A simulator with its own form of result tuples."""

    speed = 1.0

    def reset(self) -> Any:
        self.x = np.zeros(1)
        return {"x": self.x, "deep": {"y": 2 * self.x}, "not asked for": None}

    def step(self, action: Any) -> Any:
        self.x = self.x + self.speed * action
        return {"x": self.x, "deep": {"y": 2 * self.x}}, {"pay": self.x.sum(), "over": self.x.sum() >= 3}


class WalkEnv(GymLikeEnv):
    def _build_env(self, **kwargs: Any) -> Any:
        self.built_with = kwargs
        return Walk()

    def _make_specs(self, env: Any) -> None:
        deep = Composite(y=Unbounded((1,)))
        self.observation_spec = Composite(x=Unbounded((1,), dtype=torch.float64), deep=deep)
        self.action_spec = Bounded(-1, 1, (1,), dtype=torch.float64)
        self.full_reward_spec = Composite({("walker", "reward"): Unbounded((1,))})

    def _output_transform(self, out: Any) -> Any:
        obs, remaining = out
        return obs, remaining["pay"], remaining["over"], None, remaining["over"], {}

    def _reset_output_transform(self, out: Any) -> Any:
        return out, {}

    def _set_seed(self, seed: int | None) -> None: ...


def test_other_result_tuples_can_be_converted() -> None:
    env = WalkEnv(color="red")
    assert env.built_with == {"color": "red"}
    check_env_specs(env)
    rollout = env.rollout(10, actions=torch.ones(10, 1, dtype=torch.float64))
    assert rollout["next", "x"].flatten().tolist() == [1, 2, 3]
    assert rollout["next", "deep", "y"].flatten().tolist() == [2, 4, 6]
    assert rollout["next", "walker", "reward"].flatten().tolist() == [1, 2, 3]
    assert env.speed == 1.0
    with pytest.raises(AttributeError):
        _ = env.no_such_thing


def test_frame_skip_stops_at_the_end_of_the_episode() -> None:
    rollout = WalkEnv(frame_skip=2).rollout(10, actions=torch.ones(10, 1, dtype=torch.float64))
    assert rollout["next", "walker", "reward"].flatten().tolist() == [3, 3]
    with pytest.raises(ValueError, match=r"frame_skip (of|to be an int of) 1 or more"):
        WalkEnv(frame_skip=0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"done": True}, (True, None, True, True)),
        ({"terminated": True, "truncated": False}, (True, False, True, True)),
        ({"done": True, "truncated": True}, (False, True, True, True)),
        ({"terminated": np.array([False, True])}, ([False, True], None, [False, True], True)),
        ({"done": np.zeros(2, bool), "truncated": np.zeros(2, bool)}, ([False] * 2, [False] * 2, [False] * 2, False)),
    ],
)
def test_missing_done_flags_are_derived(given: Any, expected: Any) -> None:
    found = WalkEnv().read_done(**given)
    assert tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in found) == expected


def test_each_reader_method_can_be_overridden() -> None:
    class Other(GymWrapper):
        def read_action(self, action: Any) -> Any:
            return 1 - super().read_action(action)

        def read_reward(self, reward: Any) -> Any:
            return super().read_reward(2 * reward)

        def read_obs(self, observations: Any) -> Any:
            return super().read_obs(-observations)

        def read_done(self, terminated: Any = None, truncated: Any = None, done: Any = None) -> Any:
            return super().read_done(terminated, True, True)

    env, plain = Other(gymnasium.make("CartPole-v1")), GymEnv("CartPole-v1")
    actions = env.action_spec.rand((4,))
    for each in (env, plain):
        each.set_seed(0)
    invalid, even = env.rollout(4, actions=actions), plain.rollout(4, actions=1 - actions)
    assert invalid.shape == (1,)
    assert invalid["next", "reward"].tolist() == [[2.0]]
    assert invalid["next", "observation"][0].equal(-even["next", "observation"][0])
    assert invalid["next", "truncated"].all()


def test_actions_may_stay_tensors() -> None:
    class Torch(Walk):
        def step(self, action: Any) -> Any:
            assert isinstance(action, torch.Tensor)
            return super().step(action.numpy())

    class TorchEnv(WalkEnv):
        def _build_env(self, **kwargs: Any) -> Any:
            return Torch()

    assert TorchEnv(convert_actions_to_numpy=False).rollout(2).shape == (2,)


# -- infos


class InfoWalk(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reports the number of steps, a lateness flag, and a private entry."""

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        obs, _ = self.env.reset(**kwargs)
        return obs, {"steps": 0}

    def step(self, action: Any) -> Any:
        *remaining, _ = self.env.step(action)
        self.steps += 1
        info = {"steps": self.steps, "_secret": 1, "deep": {"late": np.float32(self.steps / 10)}, "pair": [1.0, 2.0]}
        return *remaining, info


def info_env() -> GymWrapper:
    return GymWrapper(InfoWalk(gymnasium.make("CartPole-v1")))


def test_info_entries_are_selected_by_key() -> None:
    env = info_env().set_info_dict_reader(default_info_dict_reader(["steps"]))
    check_env_specs(env)
    rollout = env.rollout(4)
    assert rollout["steps"].tolist() == [0, 1, 2, 3]
    assert rollout["next", "steps"].tolist() == [1, 2, 3, 4]
    assert rollout["steps"].dtype == torch.float32
    assert ("next", "deep") not in rollout.keys(True)


def test_auto_register_info_dict_infers_info_specs() -> None:
    env = info_env().auto_register_info_dict()
    check_env_specs(env, break_when_any_done="both")
    rollout = env.rollout(4)
    assert rollout["next", "steps"].tolist() == [1, 2, 3, 4]
    assert rollout["steps"].dtype == torch.int64
    torch.testing.assert_close(rollout["next", "deep", "late"], torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert rollout["deep", "late"].tolist()[0] == 0
    assert rollout["next", "pair"].shape == (4, 2)
    assert ("next", "_secret") not in rollout.keys(True)
    assert ("_secret",) in info_env().auto_register_info_dict(ignore_private=False).observation_spec.keys(True)


def test_inferred_info_specs_keep_the_dtypes_of_numpy() -> None:
    info = {"double": np.float64(0.1), "single": np.float32(0.1), "python": 0.1, "rows": np.full(2, 0.1)}

    class Infos(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            return *self.env.step(action)[:4], info

    env = GymWrapper(Infos(gymnasium.make("CartPole-v1"))).auto_register_info_dict()
    check_env_specs(env)
    entries = env.rollout(2)["next"]
    assert [entries[key].dtype for key in info] == [torch.float64, torch.float32, torch.float32, torch.float64]
    assert entries["double"].tolist() == [0.1, 0.1]


def test_info_entries_without_a_value_are_skipped() -> None:
    class Absent(InfoWalk):
        def step(self, action: Any) -> Any:
            *remaining, info = super().step(action)
            return *remaining, {**info, "absent": None, "deep": {**info["deep"], "absent": None}}

    env = GymWrapper(Absent(gymnasium.make("CartPole-v1"))).auto_register_info_dict()
    check_env_specs(env)
    keys = env.rollout(2)["next"].keys(True)
    assert ("deep", "late") in keys
    assert "absent" not in keys
    assert ("deep", "absent") not in keys


def test_info_specs_may_be_given() -> None:
    spec = Composite(steps=Unbounded((), dtype=torch.int32))
    for reader in (
        default_info_dict_reader(spec=spec),
        default_info_dict_reader(["steps"], [spec["steps"]]),
        default_info_dict_reader(["steps"], {"steps": spec["steps"]}),
    ):
        assert reader.info_spec == spec
        env = info_env().auto_register_info_dict(info_dict_reader=reader)
        assert env.rollout(2)["next", "steps"].dtype == torch.int32
        check_env_specs(env)
    with pytest.raises(SpaceError, match="a spec for each"):
        default_info_dict_reader(["a", "b"], [spec["steps"]])


def test_info_keys_default_to_the_first_info() -> None:
    reader = default_info_dict_reader()
    assert len(reader.info_spec) == 0
    data = reader({"x": 1, "_x": 2, "deep": {"y": 2.0}}, TensorDict({}))
    assert sorted(data.keys(True, True), key=str) == [("deep", "y"), "x"]
    assert reader({}, TensorDict({}))["x"] == 0
    assert set(reader.info_spec.keys(True, True)) == {"x", ("deep", "y")}


def test_functions_can_be_info_readers() -> None:
    def read(info: Any, data: Any) -> None:
        data["double"] = torch.tensor(2 * info["steps"])

    assert info_env().set_info_dict_reader(read).rollout(3)["next", "double"].tolist() == [2, 4, 6]
    renamed = info_env().set_info_dict_reader(lambda info, data: data.clone().set("n", torch.tensor(info["steps"])))
    assert renamed.rollout(3)["n"].tolist() == [0, 1, 2]


def test_several_info_readers_can_be_set() -> None:
    env = info_env()
    env.set_info_dict_reader(default_info_dict_reader(["steps"]))
    env.set_info_dict_reader(default_info_dict_reader(spec={"pair": Unbounded((2,))}))
    assert env.rollout(2)["next"].select("steps", "pair")["pair"].shape == (2, 2)


def test_non_numeric_infos_raise() -> None:
    class Text(InfoWalk):
        def step(self, action: Any) -> Any:
            *remaining, _ = super().step(action)
            return *remaining, {"text": "hello"}

    with pytest.raises(SpaceError, match=r"got 'hello' at 'text'.*Name the keys"):
        GymWrapper(Text(gymnasium.make("CartPole-v1"))).auto_register_info_dict()
    env = GymWrapper(InfoWalk(gymnasium.make("CartPole-v1")))
    env.set_info_dict_reader(default_info_dict_reader(spec={"pair": OneHot(3)}))
    with pytest.raises(SpaceError, match=r"Expected shape \(3,\) at info 'pair', got \(2,\)"):
        env.rollout(2)


class Named(gymnasium.Env[Any, Any]):
    """Has an info with the name of an environment entry."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, name: str):
        self.name = name

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(2, np.float32), {self.name: 7.0}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {self.name: 7.0}


@pytest.mark.parametrize("name", ["observation", "action", "reward", "done", "terminated", "truncated", "next"])
def test_infos_must_not_replace_environment_entries(name: str) -> None:
    ways = (
        lambda env: env.auto_register_info_dict(),
        lambda env: env.set_info_dict_reader().rollout(2),
        lambda env: env.set_info_dict_reader(default_info_dict_reader([name])),
        lambda env: env.set_info_dict_reader(default_info_dict_reader([(name, "deep")])),
    )
    for read in ways:
        with pytest.raises(SpaceError, match=f"keys that the environment does not use, got .*{name}"):
            read(GymWrapper(Named(name)))
    env = GymWrapper(Named("fine")).set_info_dict_reader(default_info_dict_reader(["fine"]))
    assert env.set_info_dict_reader(default_info_dict_reader(["fine"])).rollout(2)["fine"].tolist() == [7, 7]
    with pytest.raises(TypeError, match="as a reader, got 5"):
        env.set_info_dict_reader(5)  # pyright: ignore[reportArgumentType]
