"""`checkpoint.save` and `load`: whole training jobs continue, also in another process, and invalid files raise."""

import os
import pickle
import random
import subprocess
import sys
import textwrap
from collections import OrderedDict
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.fixtures.state_envs import Enemy, Place, RichStateEnv, play
from vecrl import checkpoint
from vecrl.envs import GymEnv, ParallelEnv
from vecrl.envs.transforms import Compose, RewardSum, TransformedEnv, VecNorm
from vecrl.errors import CheckpointError, ClosedError, StateError
from vecrl.policy.obs_norm import RunningNorm
from vecrl.policy.population_search import PopulationSearch
from vecrl.running_stats import RunningStats
from vecrl.simulators.native import make_native
from vecrl.vector import BatchedVectorEnv, VectorEnv

VALUES = {
    "steps": 7,
    "nothing": None,
    "curve": [1.0, float("nan"), float("inf")],
    "nested": (1, {2: b"x", "$": 1j}, OrderedDict(a={1, 2})),
    "array": np.arange(6, dtype="i2").reshape(2, 3).T,
    "number": np.float32(2),
    "tensor": torch.ones(2, dtype=torch.bfloat16),
}


def same_value(a, b):
    if isinstance(a, np.ndarray | torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and bool((a == b).all())
    return type(a) is type(b) and repr(a) == repr(b)


def test_values_round_trip(tmp_path):
    data = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(3, 2)}}, [3])
    checkpoint.save(tmp_path / "a.ckpt", data=data, **VALUES)
    loaded = checkpoint.load(tmp_path / "a.ckpt")
    assert list(loaded) == ["data", *VALUES]
    assert (loaded.pop("data") == data).all()
    assert all(same_value(loaded[name], value) for name, value in VALUES.items())
    assert os.listdir(tmp_path) == ["a.ckpt"]


class Job:
    """A small training job: an environment, a policy that learns, statistics, a search and generators."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.envs = make()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.stats, self.norm = RunningStats((4,)), RunningNorm(shape=4)
        self.search = PopulationSearch(torch.zeros(3), 4, seed=1)
        self.rng, self.torch_rng = np.random.default_rng(4), torch.Generator()
        self.globals = checkpoint.GlobalGenerators()
        self.obs = self.envs.reset(seed=1)[0]

    def run(self, steps):
        seen = []
        for _ in range(steps):
            obs, reward, *_ = self.envs.step(self.envs.action_space.sample())
            obs = torch.as_tensor(obs)
            self.stats.update(obs.numpy())
            self.norm.update(obs)
            loss = self.net(self.norm.normalize(obs).float()).square().mean() + torch.rand((), generator=self.torch_rng)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.search.tell(self.search.ask().sum(1) + self.rng.normal())
            seen.append(
                (
                    obs.tolist(),
                    list(reward),
                    float(loss.detach()),
                    self.search.center.tolist(),
                    self.stats.mean.tolist(),
                )
            )
        return seen

    def objects(self):
        return {name: value for name, value in vars(self).items() if name != "obs"}


MAKERS = {
    "native": lambda: BatchedVectorEnv(make_native("CartPole-v1", 8), episode_stats=True),
    "serial": partial(VectorEnv, [partial(gymnasium.make, "CartPole-v1")] * 3),
    "processes": partial(VectorEnv, [partial(gymnasium.make, "CartPole-v1")] * 3, backend="processes", num_workers=2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_jobs_continue_from_their_checkpoint(tmp_path, name):
    job = Job(MAKERS[name])
    job.run(12)
    checkpoint.save(tmp_path / "a.ckpt", steps=12, **job.objects())
    expected = job.run(12)
    for other in (job, Job(MAKERS[name])):
        loaded = checkpoint.load(tmp_path / "a.ckpt", **other.objects())
        assert loaded["steps"] == 12
        assert loaded["net"] is other.net
        assert other.run(12) == expected
        other.envs.close()


SCRIPT = """
import sys
import gymnasium, numpy as np
from vecrl import checkpoint
from vecrl.vector import VectorEnv
class Walk(gymnasium.Env):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = []
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = [Step(0.0)]
        return self.look(), {}
    def step(self, action):
        self.steps.append(Step(self.np_random.normal()))
        return self.look(), 1.0, len(self.steps) > 9, False, {}
    def look(self):
        return np.array([sum(step.length for step in self.steps)], np.float32)
class Step:
    def __init__(self, length):
        self.length = length
path, what, backend, num_workers = sys.argv[1:]
envs = VectorEnv([Walk] * 3, backend=backend, num_workers=int(num_workers))
if what == "save":
    envs.reset(seed=3)
    for _ in range(13):
        envs.step(envs.action_space.sample())
    checkpoint.save(path, envs=envs)
else:
    checkpoint.load(path, envs=envs)
print([[value.tolist() for value in envs.step(envs.action_space.sample())[:4]] for _ in range(20)])
envs.close()
"""


@pytest.mark.parametrize(("backend", "num_workers"), [("serial", "1"), ("processes", "2")])
def test_other_processes_can_continue(tmp_path, backend, num_workers):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(SCRIPT))
    commands = [
        [sys.executable, str(script), str(tmp_path / "a.ckpt"), what, backend, num_workers] for what in ("save", "load")
    ]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout for command in commands
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 500


def test_one_file_holds_transforms_statistics_and_workers(tmp_path):
    def make():
        inner = ParallelEnv(2, lambda: TransformedEnv(GymEnv("CartPole-v1"), RewardSum()))
        return TransformedEnv(inner, Compose(VecNorm(in_keys=["observation"])))

    env = make()
    env.set_seed(0)
    env.rollout(5, break_when_any_done=False)
    root = env.reset()
    checkpoint.save(tmp_path / "a.ckpt", env=env, root=root)
    actions = torch.nn.functional.one_hot(torch.arange(20).view(2, 10) % 2)

    def go_on(env, root):
        seen = []
        for step in range(10):
            step_td, root = env.step_and_maybe_reset(root.set("action", actions[:, step]))
            seen.append(step_td.clone())
        return torch.stack(seen)

    expected = go_on(env, root.clone())
    env.close()
    with make() as other:
        loaded = checkpoint.load(tmp_path / "a.ckpt", env=other)
        assert (go_on(other, loaded["root"]) == expected).all()


def test_new_classes_must_be_allowed(tmp_path):
    env = gymnasium.Wrapper(RichStateEnv())
    env.reset(seed=1)
    env.rival = Enemy(Place(1.0, 1.0))
    checkpoint.save(tmp_path / "a.ckpt", env=env)
    play(env, 3)
    env.rival = env.unwrapped.enemies = env.unwrapped.boss = env.unwrapped.grid = None
    with pytest.raises(
        StateError,
        match=r"'env' in .*a\.ckpt does not fit the object given: .*allow=\['tests.fixtures.state_envs.Enemy'\]",
    ):
        checkpoint.load(tmp_path / "a.ckpt", env=env)
    checkpoint.load(
        tmp_path / "a.ckpt",
        env=env,
        allow=[Enemy, "tests.fixtures.state_envs.Place", "tests.fixtures.state_envs.Mood"],
    )
    assert env.rival == Enemy(Place(1.0, 1.0))
    env.close()


# -- errors


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.ckpt"
    checkpoint.save(path, x=1, net=torch.nn.Linear(2, 2), envs=MAKERS["serial"]())
    return path


def test_a_subset_of_objects_can_be_loaded(file):
    net = torch.nn.Linear(2, 2)
    loaded = checkpoint.load(file, net=net)
    assert loaded["net"] is net
    assert loaded["envs"]["vecrl"] == "state"
    assert torch.equal(checkpoint.load(file)["net"]["weight"], net.weight)


def test_unknown_names_raise(file):
    net = torch.nn.Linear(2, 2)
    before = net.weight.clone()
    with pytest.raises(CheckpointError, match=r"a\.ckpt to contain 'policy', got x, net, envs"):
        checkpoint.load(file, net=net, policy=net)
    with pytest.raises(CheckpointError, match=r"'x' in .* to be the state of an object, got a value"):
        checkpoint.load(file, net=net, x=2)
    reported = "Expected an object with set_state for 'envs' in .*, got TimeLimit"
    with pytest.raises(StateError, match=reported):
        checkpoint.load(file, net=net, envs=gymnasium.make("CartPole-v1"))
    assert torch.equal(net.weight, before)


def test_generators_of_another_kind_raise(tmp_path):
    checkpoint.save(tmp_path / "g.ckpt", g=np.random.default_rng(1))
    for other in (torch.Generator(), random.Random(1), np.random.Generator(np.random.MT19937(1)), [1]):
        with pytest.raises(StateError, match=r"'g' in .* does not fit the object given"):
            checkpoint.load(tmp_path / "g.ckpt", g=other)


def test_mismatching_objects_raise(file):
    cases = [
        ({"net": torch.nn.Linear(3, 2)}, "'net' in .* does not fit the object given"),
        (
            {"envs": VectorEnv([partial(gymnasium.make, "CartPole-v1")] * 4)},
            "with num_envs 4, as .* got one with 3",
        ),
        ({"envs": VectorEnv([partial(gymnasium.make, "Pendulum-v1")] * 3)}, "with observation_space Box"),
        (
            {"envs": VectorEnv([partial(gymnasium.make, "CartPole-v1")] * 3, autoreset_mode="same_step")},
            "autoreset_mode",
        ),
        ({"envs": BatchedVectorEnv(make_native("CartPole-v1", 3))}, "does not fit"),
    ]
    for objects, text in cases:
        with pytest.raises(StateError, match=text):
            checkpoint.load(file, **objects)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"VECRL", "is cut short"),
        (pickle.dumps({"x": 1}), "is no checkpoint of vecrl"),
        (None, "to contain objects by name, got other data"),
    ],
)
def test_invalid_files_raise(tmp_path, content, text):
    from vecrl.snapshot.serialization import dump

    path = tmp_path / "a.ckpt"
    path.write_bytes(b"".join(map(bytes, dump([1]))) if content is None else content)
    with pytest.raises(CheckpointError, match=rf"a\.ckpt {text}"):
        checkpoint.load(path)
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "b.ckpt")
    with pytest.raises(FileNotFoundError, match=r"the folder does not exist; create it first: '.*/absent'$"):
        checkpoint.save(tmp_path / "absent" / "c.ckpt", x=1)
    with pytest.raises(IsADirectoryError, match="the path of a file, got a folder"):
        checkpoint.save(tmp_path, x=1)
    checkpoint.save(path, x=1)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(CheckpointError, match="is damaged: expected"):
        checkpoint.load(path)


def test_unsaveable_objects_raise_and_keep_the_old_file(tmp_path, file):
    before = file.read_bytes()
    with pytest.raises(
        StateError, match=r"'odd' cannot be saved: The state of Enemy cannot be captured: at env\.place"
    ):
        checkpoint.save(file, odd=Enemy(iter([1])))
    with pytest.raises(
        StateError, match=r"'pair' to be plain data, got a value that contains .*Enemy\. Save that object"
    ):
        checkpoint.save(file, pair=[1, Enemy(Place(1.0, 2.0))])
    with pytest.raises(StateError, match="The objects cannot be saved"):
        checkpoint.save(file, odd=type("Odd", (), {"state_dict": lambda s: {"x": len}, "load_state_dict": print})())
    with pytest.raises(ClosedError):
        checkpoint.save(file, env=_closed())
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.ckpt"]


def _closed():
    envs = MAKERS["serial"]()
    envs.close()
    return envs


@pytest.mark.parametrize("nothing", [len, lambda: 1, dict, object()], ids=["builtin", "function", "class", "object"])
def test_objects_without_state_raise(nothing, tmp_path):
    with pytest.raises(StateError, match="Expected 'a' to have a state, got"):
        checkpoint.save(tmp_path / "f", a=nothing)
    assert not list(tmp_path.iterdir())
