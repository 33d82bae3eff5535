"""`capture` and `restore`: supported state is restored, unsupported objects are kept or raise, and a state cannot run
code by naming it."""

import datetime
import multiprocessing
import random
import subprocess
import sys
import threading
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict
from tests.fixtures.state_envs import (
    Enemy,
    HiddenStateEnv,
    Law,
    Mood,
    OwnStateEnv,
    Place,
    RichStateEnv,
    Thing,
    Window,
    play,
    through_bytes,
)

from vecrl.errors import StateError
from vecrl.snapshot import capture, restore
from vecrl.snapshot.serialization import dump
from vecrl.specs import Bounded


def reset_env(make, seed=3):
    env = make()
    env.reset(seed=seed)
    env.action_space.seed(seed)
    play(env, 17)
    return env


ENVS = {
    "Rich": RichStateEnv,
    "Own": OwnStateEnv,
    "wrapped": lambda: gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.TimeLimit(RichStateEnv(), 13), 3),
    "normalized": lambda: gymnasium.wrappers.NormalizeReward(gymnasium.wrappers.NormalizeObservation(OwnStateEnv())),
    "CartPole": lambda: gymnasium.make("CartPole-v1"),
    "CartPole, drawn": lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array"),
    "Blackjack": lambda: gymnasium.make("Blackjack-v1"),
    "HalfCheetah": lambda: gymnasium.make("HalfCheetah-v5"),
    "Ant, drawn": lambda: gymnasium.make("Ant-v5", render_mode="rgb_array", width=32, height=32),
    "Hopper": lambda: gymnasium.make("Hopper-v5"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENVS)
def test_restored_environments_continue_equally(name):
    env = reset_env(ENVS[name])
    if env.render_mode:
        env.render()
    state = through_bytes(capture(env))
    complete = play(env)
    assert restore(env, state) is env
    assert play(env) == complete
    other = ENVS[name]()
    other.reset()
    restore(other, state)
    assert play(other) == complete
    if env.render_mode:
        assert other.render().shape == env.render().shape
    restore(other, state)
    assert play(other) == complete
    env.close()
    other.close()


def test_capturing_does_not_change_the_environment():
    item, other = reset_env(RichStateEnv), reset_env(RichStateEnv)
    capture(item)
    assert play(item) == play(other)
    item.close()
    other.close()


def test_states_share_no_memory_with_the_environment():
    env = reset_env(RichStateEnv)
    state = capture(env)
    before = dump(state)
    play(env)
    restore(env, state)
    play(env)
    assert dump(state) == before
    env.close()


def test_returned_observations_do_not_change():
    env = Thing(x=np.zeros(3))
    state = capture(env)
    handed_out = env.x
    env.x += 1
    restore(env, state)
    assert handed_out.tolist() == [1, 1, 1]
    assert env.x.tolist() == [0, 0, 0]


def test_aliases_and_cycles_are_restored():
    thing = Thing(a=[1], d={"k": 2})
    thing.b, thing.self, thing.a2 = (thing.a, thing), thing, thing.a
    thing.a.append(thing.d)
    state = through_bytes(capture(thing))
    thing.a, thing.b, thing.a2 = [0], None, []
    restore(thing, state)
    assert thing.a2 is thing.a
    assert thing.b[0] is thing.a
    assert thing.b[1] is thing.self is thing
    assert thing.a == [1, {"k": 2}]
    assert thing.a[1] is thing.d


def test_existing_objects_are_updated_in_place():
    thing = Thing(enemies=[Enemy(Place(1.0, 2.0))], law=Law(1.0))
    enemy, enemies = thing.enemies[0], thing.enemies
    state = capture(thing)
    enemy.place, enemy.mood, thing.extra = Place(0.0, 0.0), Mood.CROSS, 5
    restore(thing, state)
    assert thing.enemies is enemies
    assert thing.enemies[0] is enemy
    assert enemy == Enemy(Place(1.0, 2.0))
    assert not hasattr(thing, "extra")


def test_standard_library_values_are_restored():
    day = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
    values = [Decimal("1.10"), Fraction(1, 3), uuid.UUID(int=5), day, day.date(), day.time()]
    values += [datetime.timedelta(1, 2, 3)]
    values += [Path("/a/b"), PurePosixPath("c"), PureWindowsPath("d"), slice(1, None, 2), range(3), Counter("aab")]
    thing = Thing(values=[None] * len(values), spare=Counter())
    restore(thing, through_bytes(capture(Thing(values=values, spare=Counter()))))
    assert thing.values == values
    assert [type(value) for value in thing.values] == [type(value) for value in values]


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_generators_and_their_children_are_restored(name):
    def make():
        return Thing(rng=np.random.Generator(getattr(np.random, name)(np.random.SeedSequence(7, spawn_key=(1,)))))

    thing = make()
    thing.rng.spawn(2)
    thing.rng.random(3)
    thing.draw = thing.rng.normal
    state = through_bytes(capture(thing))
    expected = thing.rng.random(5).tolist(), thing.rng.spawn(1)[0].random(), thing.draw()
    for other in (thing, make()):
        other.draw = other.rng.normal
        restore(other, state)
        assert (other.rng.random(5).tolist(), other.rng.spawn(1)[0].random(), other.draw()) == expected


def test_torch_and_tensordict_objects_are_restored():
    def make():
        module = torch.nn.BatchNorm1d(2)
        data = TensorDict({"a": torch.ones(2), "b": {"c": torch.zeros(2, 3)}, "n": NonTensorData("x", [2])}, [2])
        stack = LazyStackedTensorDict(TensorDict({"s": torch.ones(1)}), TensorDict({"s": torch.ones(1)}), stack_dim=0)
        return Thing(
            t=torch.ones(3, dtype=torch.bfloat16), g=torch.Generator(), m=module, td=data, lazy=stack, e=torch.Size([2])
        )

    thing = make()
    thing.g.manual_seed(3)
    thing.td["b", "c"] += 1
    thing.m(torch.randn(8, 2))
    thing.t.requires_grad_()
    state = through_bytes(capture(thing))
    expected = torch.rand(3, generator=thing.g)
    weight, mean, t = thing.m.weight, thing.m.running_mean, thing.t
    saved = mean.clone()
    with torch.no_grad():
        thing.m.weight.zero_()
        thing.t.zero_()
    thing.m(torch.randn(8, 2))
    restore(thing, state)
    assert thing.m.weight is weight
    assert thing.m.running_mean is mean
    assert weight.tolist() == [1, 1]
    assert torch.equal(mean, saved)
    assert (thing.t.tolist(), t.tolist()) == ([1, 1, 1], [0, 0, 0])
    assert thing.t.requires_grad
    other = restore(make(), state)
    for item in (thing, other):
        assert torch.equal(torch.rand(3, generator=item.g), expected)
        assert item.td["b", "c"].sum() == 6
        assert item.td["n"] == "x"
        assert item.lazy["s"].tolist() == [[1], [1]]


def test_stateless_objects_are_kept():
    def make():
        locks = [threading.Lock(), multiprocessing.Lock(), multiprocessing.RLock(), multiprocessing.Condition()]
        return Thing(locks=locks, file=sys.stdout, module=random, function=len, cls=Enemy, window=Window(), n=1)

    thing, other = make(), make()
    other.n = 2
    stored = [*other.locks], other.window
    restore(other, capture(thing))
    assert (other.locks, other.window, other.n) == (*stored, 1)
    restore(other, capture(Thing(window=None, n=3)))
    assert (other.window, other.n) == (stored[1], 3)
    late = Thing(locks=None, n=5)
    restore(late, capture(thing))
    assert late.locks == [None] * 4


@pytest.mark.parametrize(
    "value", [iter([1]), subprocess.Popen, (x for x in ())], ids=["iterator", "process", "generator"]
)
def test_objects_with_hidden_state_raise(value):
    if isinstance(value, type):
        value = Thing.__new__(type("Popen", (Thing,), {"__module__": "subprocess"}))
    env = gymnasium.Wrapper(reset_env(OwnStateEnv))
    env.inner = Thing(odd=[0, {"k": value}])
    with pytest.raises(
        StateError,
        match=r"The state of Wrapper cannot be captured: at env\.inner\.odd\[1\]\['k'\] is a .*excluded_from_state",
    ):
        capture(env)


@dataclass(frozen=True)
class Settings:
    spec: Bounded
    number: int


def test_frozen_objects_keep_what_is_not_stored():
    """A spec has a dtype and a device, which states do not contain."""
    saved, restored = ({"settings": Settings(Bounded(0, high, (2,)), high)} for high in (1, 2))
    restore(restored, capture(saved))
    assert restored == saved
    assert restored["settings"].spec.rand().dtype is torch.float32


def test_excluded_attributes_are_kept():
    class Odd(Thing):
        excluded_from_state = ("socket",)

    class Odder(Odd):
        excluded_from_state = ("cache",)

    invalid = Odder(socket=iter([1]), cache=iter([2]), x=3)
    state = capture(invalid)
    other = Odder(socket=1, cache=2, x=4)
    restore(other, state)
    assert vars(other) == {"socket": 1, "cache": 2, "x": 3}


def test_environments_with_hidden_state_raise():
    with pytest.raises(StateError, match=r"at env\.hidden is a builtins\.tuple_iterator"):
        capture(reset_env(HiddenStateEnv))


# -- states that do not fit, or are malicious


def test_unknown_classes_raise_and_change_nothing():
    state = capture(Thing(first=1, enemies=[Enemy(Place(1.0, 2.0))]))
    thing = Thing(first=2, enemies=[])
    with pytest.raises(
        StateError, match=r"contains a tests.fixtures.state_envs.Enemy, but the object contains none.*allow=\['tests"
    ):
        restore(thing, state)
    assert vars(thing) == {"first": 2, "enemies": []}
    for allowed in (
        [Enemy, Place, Mood],
        [f"tests.fixtures.state_envs.{name}" for name in ("Enemy", "Place", "Mood")],
    ):
        thing = Thing(first=2, enemies=[])
        restore(thing, state, allow=allowed)
        assert (thing.first, thing.enemies) == (1, [Enemy(Place(1.0, 2.0))])
    thing = Thing(first=2, enemies=[], spare=Enemy(Place(0.0, 0.0)))
    restore(thing, state)
    assert thing.enemies == [Enemy(Place(1.0, 2.0))]


def test_restoring_imports_and_calls_no_classes(monkeypatch):
    @dataclass
    class Trap:
        x: int = 0

        def __post_init__(self):
            raise AssertionError("called")

        def __setstate__(self, state):
            raise AssertionError("called")

        __reduce__ = __setstate__

    trap = object.__new__(Trap)
    trap.x = 1
    state = capture(Thing(items=[trap]))
    thing = restore(Thing(items=[]), state, allow=[Trap])
    assert thing.items[0].x == 1
    for name in (
        "antigravity.Thing",
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "tests.fixtures.state_envs.Enemy",
    ):
        nodes = [{**node, "of": name} if node.get("of", "").endswith("Trap") else node for node in state["nodes"]]
        with pytest.raises(StateError):
            restore(Thing(items=[]), {**state, "nodes": nodes}, allow=[Trap])
    assert "antigravity" not in sys.modules


def test_states_of_other_objects_raise():
    state = capture(reset_env(OwnStateEnv))
    with pytest.raises(
        StateError, match=r"Expected a state with observation_space Box\(4,\) of float32, as CartPole-v1 has"
    ):
        restore(gymnasium.make("CartPole-v1"), state)
    with pytest.raises(StateError, match=r"Expected an object of the class in the state, .*Thing, got .*Enemy"):
        restore(Enemy(Place(0.0, 0.0)), capture(Thing(x=1)))
    with pytest.raises(StateError, match="Expected a result of get_state"):
        restore(Thing(), {"x": 1})
    with pytest.raises(StateError, match="Expected a state in format 3, got one in format 1"):
        restore(Thing(), {**capture(Thing()), "format": 1})
    hopper = reset_env(lambda: gymnasium.make("Hopper-v5"))
    state = capture(Thing(data=hopper.unwrapped.data))
    with pytest.raises(StateError, match="Expected MjData, as in the state"):
        restore(Thing(data=None), state)


def mangled(state, draw):
    """Returns the state with one random change."""
    nodes = [dict(node) for node in state["nodes"]]
    node = draw.choice(nodes)
    key = draw.choice(list(node))
    node[key] = draw.choice([None, -1, 10**9, "x", [], [10**6], {}, [[-1]], {"a": [0]}, 1.5, b"x"])
    return {**state, "nodes": nodes}


@pytest.mark.parametrize("seed", range(150))
def test_damaged_states_raise_or_are_harmless(seed):
    env = reset_env(RichStateEnv, 1)
    state = mangled(capture(env), random.Random(seed))
    with suppress(StateError):  # and no other exception
        assert restore(env, state) is env
    env.close()
