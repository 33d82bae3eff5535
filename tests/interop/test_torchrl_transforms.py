"""TorchRL's transforms in environments of vecrl: their results and specs are those in TorchRL's environments."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

import vecrl.envs
from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, TransformedEnv
from vecrl.envs.transforms import Compose, RewardSum, StepCounter

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

Make = Callable[[Any], Any]  # takes the module of TorchRL's transforms

OBS = ["observation"]
SIZES = {"single": 0, "batch": 3}


def _zero_action(td: TensorDictBase) -> TensorDictBase:
    return td.set("action", torch.zeros_like(td["action"]))


def _on_steps(t: Any) -> Any:
    class Halve(t.Transform):
        """A transform as a user writes it."""

        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            return next_tensordict.set("half", next_tensordict["observation"] / 2)

        def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
            return self._call(tensordict_reset)

        def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
            return tensordict.set("action", tensordict["action"] / 2)

        def transform_observation_spec(self, observation_spec: Any) -> Any:
            observation_spec["half"] = observation_spec["observation"].clone()
            return observation_spec

    return Halve()


def _primer(t: Any) -> Any:
    from torchrl.data import Unbounded

    return t.TensorDictPrimer(memory=Unbounded((2,)), default_value=3.0, expand_specs=True)


CASES: dict[str, Make] = {
    "ActionDiscretizer": lambda t: t.ActionDiscretizer(5),
    "CatFrames": lambda t: t.CatFrames(N=3, dim=-1, in_keys=OBS),
    "CatTensors": lambda t: t.CatTensors(OBS, "x", del_keys=False),
    "ClipTransform": lambda t: t.ClipTransform(OBS, low=-0.1, high=0.1),
    "Compose": lambda t: t.Compose(
        t.StepCounter(), t.CatFrames(N=2, dim=-1, in_keys=OBS), t.RandomTruncationTransform(3, 5)
    ),
    "ConditionalPolicySwitch": lambda t: t.ConditionalPolicySwitch(
        _zero_action, lambda td: td["observation"].sum() > 9
    ),
    "ConditionalSkip": lambda t: t.ConditionalSkip(lambda td: td["observation"][..., 0] > 0),
    "DoubleToFloat": lambda t: t.DoubleToFloat(),
    "ExcludeTransform": lambda t: t.ExcludeTransform("truncated"),
    "FlattenObservation": lambda t: t.Compose(
        t.UnsqueezeTransform(-1, in_keys=OBS), t.FlattenObservation(-2, -1, in_keys=OBS)
    ),
    "FrameSkipTransform": lambda t: t.FrameSkipTransform(2),
    "InitTracker": lambda t: t.InitTracker(),
    "ModuleTransform": lambda t: t.ModuleTransform(module=TensorDictModule(torch.tanh, ["reward"], ["reward"])),
    "MultiAction": lambda t: t.MultiAction(),
    "ObservationNorm": lambda t: t.ObservationNorm(1.0, 2.0, in_keys=OBS),
    "RenameTransform": lambda t: t.RenameTransform(OBS, ["obs"]),
    "RewardScaling": lambda t: t.RewardScaling(1.0, 2.0),
    "RewardSum": lambda t: t.RewardSum(),
    "SelectTransform": lambda t: t.SelectTransform("observation"),
    "SignTransform": lambda t: t.SignTransform(in_keys=["reward"]),
    "Stack": lambda t: t.Compose(
        t.RenameTransform(OBS, ["b"], create_copy=True), t.Stack([*OBS, "b"], out_key="s", dim=-1)
    ),
    "StepCounter": lambda t: t.StepCounter(max_steps=5),
    "TargetReturn": lambda t: t.TargetReturn(5.0),
    "TensorDictPrimer": _primer,
    "TerminateTransform": lambda t: t.TerminateTransform(lambda td: td["observation"][..., :1] > 0.1),
    "TimeMaxPool": lambda t: t.TimeMaxPool(OBS, T=3),
    "TrajCounter": lambda t: t.Compose(t.StepCounter(4), t.TrajCounter()),
    "UnaryTransform": lambda t: t.UnaryTransform(OBS, ["u"], fn=lambda x: x * 2),
    "VecNorm": lambda t: t.VecNorm(in_keys=OBS),
    "VecNormV2": lambda t: t.VecNormV2(in_keys=OBS),
    "VecNormV2: stateless": lambda t: t.VecNormV2(in_keys=OBS, stateful=False),
    "a user's class": _on_steps,
}


def make_env(library: Any, transformed: Any, transform: Any, size: int = 0) -> Any:
    """Returns an environment of the library `library` with a transform, in the library `transformed`."""
    item = partial(library.GymEnv, "Pendulum-v1")
    return transformed.TransformedEnv(library.SerialEnv(size, item) if size else item(), transform)


def results_of(env: Any, actions: torch.Tensor) -> list[TensorDictBase]:
    """Returns the results of a reset and of steps with given actions, in the environment with the seed 7."""
    env.set_seed(7)
    torch.manual_seed(3)
    root = env.reset()
    results = [root.clone()]
    for number, action in enumerate(actions):
        step, root = env.step_and_maybe_reset(root.copy().set("action", action.clone()))
        if number == 6 and root.batch_dims:
            root = env.reset(root.set("_reset", torch.tensor([[True], [False], [True]])))
        results += [step["next"].clone(), root.exclude("action").clone()]
    return results


def entries(td: TensorDictBase) -> dict[str, Any]:
    return {str(key): td[key] for key in td.keys(include_nested=True, leaves_only=True)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_results_and_specs_equal_torchrl(name: str, size: str) -> None:
    from torchrl import envs
    from torchrl.envs import transforms

    from vecrl.interop.torchrl.spec_conversion import to_torchrl

    theirs = make_env(envs, envs, CASES[name](transforms), SIZES[size])
    own = make_env(vecrl.envs, vecrl.envs, CASES[name](transforms), SIZES[size])
    torch.manual_seed(0)
    actions = torch.stack([theirs.full_action_spec.rand()["action"] for _ in range(10)])
    for expected, actual in zip(results_of(theirs, actions), results_of(own, actions), strict=True):
        torch.testing.assert_close(entries(actual), entries(expected))
    for kind in ("action", "state", "observation", "reward", "done"):
        specs = [getattr(env, f"full_{kind}_spec") for env in (own, theirs)]
        assert entries(to_torchrl(specs[0])) == entries(specs[1])
    own.check_env_specs()


def _rollout(env: EnvBase, policy: Any) -> TensorDictBase:
    return env.rollout(9, policy, break_when_any_done=False)


def _collect(env: EnvBase, policy: Any) -> TensorDictBase:
    from torchrl.collectors import Collector

    frames = 9 * env.numel()
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=frames)
    try:
        return next(iter(collector)).clone()
    finally:
        collector.shutdown(close_env=False)


@pytest.mark.parametrize("kind", ["LSTMModule", "GRUModule"])
@pytest.mark.parametrize("batch", [None, SerialEnv, ParallelEnv])
@pytest.mark.parametrize("steps", [_rollout, _collect])
def test_memories_of_recurrent_policies_are_carried_and_reset(kind: str, batch: Any, steps: Any) -> None:
    from torchrl import modules

    torch.manual_seed(0)
    recurrent = getattr(modules, kind)(input_size=3, hidden_size=4, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(4, 1), ["features"], ["action"])
    item = partial(GymEnv, "Pendulum-v1")
    env = (item() if batch is None else batch(2, item)).append_transform(StepCounter(max_steps=4))
    env.append_transform(recurrent.make_tensordict_primer())
    env.append_transform(vecrl.envs.InitTracker())
    data = steps(env, TensorDictSequential(recurrent, head))
    env.close()
    next_keys = [key for key in recurrent.out_keys if isinstance(key, tuple)]
    is_first = (torch.arange(9) % 4 == 0).expand(data.shape)
    assert data["is_init"].squeeze(-1).equal(is_first)
    for next_key in next_keys:
        memory, next_memory = data[next_key[1]], data[next_key]
        assert not memory[is_first].any()
        assert memory[..., 1:, :, :][~is_first[..., 1:]].equal(next_memory[..., :-1, :, :][~is_first[..., 1:]])
        assert next_memory.flatten(-2).any(-1).all()
    assert len(next_keys) == (2 if kind == "LSTMModule" else 1)


@pytest.mark.parametrize("kind", ["LSTMModule", "GRUModule"])
@pytest.mark.parametrize("num_envs", [0, 2])
def test_environments_get_the_memory_of_their_policy_as_in_torchrl(kind: str, num_envs: int) -> None:
    import torchrl.envs
    from torchrl import modules

    module = getattr(modules, kind)(input_size=3, hidden_size=4, in_key="observation", out_key="features")
    policy = TensorDictSequential(module, TensorDictModule(nn.Linear(4, 1), ["features"], ["action"]))
    data: list[TensorDictBase] = []
    for library in (vecrl.envs, torchrl.envs):
        if "policy" not in (library.EnvBase.__doc__ or ""):
            pytest.skip("This version of TorchRL has no argument policy.")
        make = partial(library.GymEnv, "Pendulum-v1")
        env = library.SerialEnv(num_envs, make, policy=policy) if num_envs else make(policy=policy)
        data.append(env.rollout(3, policy))
        env.close()
    shapes = [{key: value.shape for key, value in td.items(True, True)} for td in data]
    assert shapes[0] == shapes[1]


def test_inverse_transforms_change_random_actions() -> None:
    from torchrl.envs.transforms import ActionDiscretizer

    env = TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(5, out_action_key="interval"))
    data = env.rollout(20)
    assert data["interval"].shape == (20, 1)
    assert set(data["interval"].flatten().tolist()) == set(range(5))


@pytest.mark.parametrize("compose", ["Sequential", "vecrl", "TorchRL", "TorchRL within vecrl", "nested"])
def test_transforms_of_both_libraries_are_combined(compose: str) -> None:
    from torchrl.envs import transforms

    primer, counter = _primer(transforms), StepCounter(max_steps=5)
    combined = {
        "Sequential": lambda: nn.Sequential(primer, counter),
        "vecrl": lambda: Compose(primer, counter),
        "TorchRL": lambda: transforms.Compose(primer, counter),
        "TorchRL within vecrl": lambda: Compose(transforms.Compose(primer), counter),
        "nested": lambda: nn.Sequential(transforms.Compose(primer, nn.Sequential(counter))),
    }[compose]()
    env = SerialEnv(2, partial(GymEnv, "Pendulum-v1")).append_transform(combined)
    env.append_transform(RewardSum())
    env.append_transform(transforms.RenameTransform(["episode_reward"], ["total"], create_copy=True))
    env.check_env_specs()
    data = env.rollout(12, lambda td: env.rand_action(td).set(("next", "memory"), td["memory"] + 1))
    assert data["memory"][0, :, 0].tolist() == [3, 4, 5, 6, 7]
    torch.testing.assert_close(data["next", "total"], data["next", "reward"].cumsum(1))
    assert data["next", "truncated"].squeeze(-1).sum(1).tolist() == [1, 1]


def test_owners_of_a_transform_can_call_its_methods() -> None:
    from torchrl.envs.transforms import ObservationNorm

    norm = ObservationNorm(in_keys=OBS)
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), norm))
    norm.init_stats(50)
    assert env.transform[1].loc is norm.loc
    assert "step_count" in norm.parent.observation_spec
    env.check_env_specs()
    last = ObservationNorm(in_keys=OBS)
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(ObservationNorm(100.0, 1.0, in_keys=OBS), last))
    last.init_stats(50)
    assert (-last.loc / last.scale).round(decimals=-2).tolist() == [100] * 3  # the means of its inputs


def test_states_are_saved_and_loaded() -> None:
    from torchrl import envs
    from torchrl.envs.transforms import ObservationNorm

    def norm(loc: float) -> Any:
        return ObservationNorm(torch.full((3,), loc), torch.ones(3), in_keys=OBS)

    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), norm(2.0)))
    other = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), norm(0.0)))
    other.load_state_dict(env.state_dict())
    assert other.transform[1].loc.tolist() == [2, 2, 2]
    theirs = envs.TransformedEnv(envs.GymEnv("Pendulum-v1"), norm(5.0))
    single = TransformedEnv(GymEnv("Pendulum-v1"), norm(0.0))
    single.load_state_dict(theirs.state_dict())
    assert single.transform.loc.tolist() == [5, 5, 5]


@pytest.mark.parametrize("name", ["VecNorm", "VecNormV2"])
def test_full_states_include_running_statistics(name: str) -> None:
    from torchrl.envs import transforms

    def make(seed: int) -> EnvBase:
        env = TransformedEnv(GymEnv("Pendulum-v1"), getattr(transforms, name)(in_keys=OBS))
        env.set_seed(seed)
        env.rollout(5)
        return env

    env, other = make(0), make(1)
    state = env.get_state()
    other.set_state(state)
    rollouts = []
    for each in (env, other):
        torch.manual_seed(0)
        rollouts.append(each.rollout(5))
    assert rollouts[0]["observation"].any()
    assert (rollouts[0] == rollouts[1]).all()


def test_transforms_in_worker_processes() -> None:
    def make() -> EnvBase:
        from torchrl.envs import transforms

        return GymEnv("Pendulum-v1").append_transform(transforms.CatFrames(N=2, dim=-1, in_keys=OBS))

    data = []
    for batch in (SerialEnv, ParallelEnv):
        with batch(2, make) as env:
            env.set_seed(0)
            torch.manual_seed(0)
            data.append(env.rollout(5))
    assert data[0].batch_size == (2, 5)
    assert (data[0] == data[1]).all()
    assert data[0]["observation"].shape == (2, 5, 6)


def test_copies_keep_the_transform() -> None:
    from torchrl.envs.transforms import RewardScaling

    env = TransformedEnv(GymEnv("Pendulum-v1"), RewardScaling(1.0, 2.0))
    clone = env.transform.clone()
    assert clone.container is None
    assert clone.scale is not None
    copy = pickle.loads(pickle.dumps(env.transform))
    for transform in (clone, copy):
        other = TransformedEnv(GymEnv("Pendulum-v1"), transform)
        rewards = []
        for each in (env, other):
            each.set_seed(1)
            rewards.append(each.rollout(3, _zeros)["next", "reward"])
        assert rewards[0].equal(rewards[1])


def _zeros(td: TensorDictBase) -> TensorDictBase:
    return td.set("action", torch.zeros(1))


def test_stored_data_are_changed_as_in_torchrl() -> None:
    from torchrl.envs import transforms

    data = TensorDict({"next": {"reward": torch.ones(4, 1), "done": torch.tensor([[False]] * 3 + [[True]])}}, [4])
    both = [transforms.Reward2GoTransform(gamma=0.5), Compose(transforms.Reward2GoTransform(gamma=0.5))]
    expected, actual = (transform.inv(data.clone()) for transform in both)
    assert actual["next", "reward"].equal(expected["next", "reward"])
    image = TensorDict({"pixels": torch.randint(255, (4, 8, 8, 3), dtype=torch.uint8)}, [4])
    assert Compose(transforms.ToTensorImage())(image.clone())["pixels"].shape == (4, 3, 8, 8)


@pytest.mark.parametrize("name", ["ActionMask", "AutoResetTransform", "BatchSizeTransform", "NextObservationDelta"])
def test_transforms_that_change_environments_are_refused(name: str) -> None:
    from torchrl.envs import transforms

    arguments = {"NextObservationDelta": {"in_keys": OBS}, "BatchSizeTransform": {"batch_size": ()}}
    made = getattr(transforms, name)(**arguments.get(name, {}))
    for transform in (made, transforms.Compose(made)):
        with pytest.raises(TypeError, match=rf"Use vecrl\.envs\..*{name}\.$"):
            TransformedEnv(GymEnv("Pendulum-v1"), transform)


def test_modules_with_a_transform_are_refused() -> None:
    from torchrl.envs.transforms import StepCounter as Theirs

    module = nn.Module()
    module.part = Theirs()
    with pytest.raises(TypeError, match=r"Use vecrl\.envs\.StepCounter\.$"):
        GymEnv("Pendulum-v1").append_transform(module)


def test_a_transform_has_one_environment() -> None:
    from torchrl.envs.transforms import StepCounter as Theirs

    counter = Theirs()
    env = GymEnv("Pendulum-v1").append_transform(counter)
    with pytest.raises(AttributeError, match=r"Use transform\.clone\(\)"):
        GymEnv("Pendulum-v1").append_transform(counter)
    assert "step_count" in env.reset()
