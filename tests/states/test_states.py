"""`take` and `put`: everything comes back, what cannot be held stays or is named, nothing runs that a state names."""

import datetime
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
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict
from tests.states.zoo import Enemy, Hidden, Law, Mood, Own, Place, Rich, Window, play

from vecrl.errors import StateError
from vecrl.states import put, take
from vecrl.states.format import dump, parse


def through_bytes(state):
    return parse(b"".join(bytes(piece) for piece in dump(state)), "here")


class Thing:
    def __init__(self, **attributes: Any):
        self.__dict__.update(attributes)


def begun(make, seed=3):
    env = make()
    env.reset(seed=seed)
    env.action_space.seed(seed)
    play(env, 17)
    return env


ENVS = {
    "Rich": Rich,
    "Own": Own,
    "wrapped": lambda: gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.TimeLimit(Rich(), 13), 3),
    "normalised": lambda: gymnasium.wrappers.NormalizeReward(gymnasium.wrappers.NormalizeObservation(Own())),
    "CartPole": lambda: gymnasium.make("CartPole-v1"),
    "CartPole, drawn": lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array"),
    "Blackjack": lambda: gymnasium.make("Blackjack-v1"),
    "HalfCheetah": lambda: gymnasium.make("HalfCheetah-v5"),
    "Ant, drawn": lambda: gymnasium.make("Ant-v5", render_mode="rgb_array", width=32, height=32),
    "Hopper": lambda: gymnasium.make("Hopper-v5"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENVS)
def test_environments_go_on_as_they_would_have(name):
    env = begun(ENVS[name])
    if env.render_mode:
        env.render()
    state = through_bytes(take(env))
    whole = play(env)
    assert put(env, state) is env
    assert play(env) == whole
    other = ENVS[name]()
    other.reset()
    put(other, state)
    assert play(other) == whole
    if env.render_mode:
        assert other.render().shape == env.render().shape
    put(other, state)
    assert play(other) == whole
    env.close()
    other.close()


def test_taking_a_state_changes_nothing():
    one, other = begun(Rich), begun(Rich)
    take(one)
    assert play(one) == play(other)
    one.close()
    other.close()


def test_a_state_shares_nothing_with_what_it_is_of():
    env = begun(Rich)
    state = take(env)
    before = dump(state)
    play(env)
    put(env, state)
    play(env)
    assert dump(state) == before
    env.close()


def test_observations_that_were_handed_out_stay_what_they_were():
    env = Thing(x=np.zeros(3))
    state = take(env)
    handed_out = env.x
    env.x += 1
    put(env, state)
    assert handed_out.tolist() == [1, 1, 1]
    assert env.x.tolist() == [0, 0, 0]


def test_what_is_shared_or_goes_in_circles_does_so_again():
    thing = Thing(a=[1], d={"k": 2})
    thing.b, thing.self, thing.a2 = (thing.a, thing), thing, thing.a
    thing.a.append(thing.d)
    state = through_bytes(take(thing))
    thing.a, thing.b, thing.a2 = [0], None, []
    put(thing, state)
    assert thing.a2 is thing.a
    assert thing.b[0] is thing.a
    assert thing.b[1] is thing.self is thing
    assert thing.a == [1, {"k": 2}]
    assert thing.a[1] is thing.d


def test_objects_that_are_there_are_the_ones_that_are_changed():
    thing = Thing(enemies=[Enemy(Place(1.0, 2.0))], law=Law(1.0))
    enemy, enemies = thing.enemies[0], thing.enemies
    state = take(thing)
    enemy.place, enemy.mood, thing.extra = Place(0.0, 0.0), Mood.CROSS, 5
    put(thing, state)
    assert thing.enemies is enemies
    assert thing.enemies[0] is enemy
    assert enemy == Enemy(Place(1.0, 2.0))
    assert not hasattr(thing, "extra")


def test_values_of_the_standard_library():
    day = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
    values = [Decimal("1.10"), Fraction(1, 3), uuid.UUID(int=5), day, day.date(), day.time()]
    values += [datetime.timedelta(1, 2, 3)]
    values += [Path("/a/b"), PurePosixPath("c"), PureWindowsPath("d"), slice(1, None, 2), range(3), Counter("aab")]
    thing = Thing(values=[None] * len(values), spare=Counter())
    put(thing, through_bytes(take(Thing(values=values, spare=Counter()))))
    assert thing.values == values
    assert [type(value) for value in thing.values] == [type(value) for value in values]


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_generators_go_on_and_so_do_their_children(name):
    def make():
        return Thing(rng=np.random.Generator(getattr(np.random, name)(np.random.SeedSequence(7, spawn_key=(1,)))))

    thing = make()
    thing.rng.spawn(2)
    thing.rng.random(3)
    thing.draw = thing.rng.normal
    state = through_bytes(take(thing))
    expected = thing.rng.random(5).tolist(), thing.rng.spawn(1)[0].random(), thing.draw()
    for other in (thing, make()):
        other.draw = other.rng.normal
        put(other, state)
        assert (other.rng.random(5).tolist(), other.rng.spawn(1)[0].random(), other.draw()) == expected


def test_torch_and_tensordict():
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
    state = through_bytes(take(thing))
    expected = torch.rand(3, generator=thing.g)
    weight, mean, t = thing.m.weight, thing.m.running_mean, thing.t
    kept = mean.clone()
    with torch.no_grad():
        thing.m.weight.zero_()
        thing.t.zero_()
    thing.m(torch.randn(8, 2))
    put(thing, state)
    assert thing.m.weight is weight
    assert thing.m.running_mean is mean
    assert weight.tolist() == [1, 1]
    assert torch.equal(mean, kept)
    assert (thing.t.tolist(), t.tolist()) == ([1, 1, 1], [0, 0, 0])
    assert thing.t.requires_grad
    other = put(make(), state)
    for one in (thing, other):
        assert torch.equal(torch.rand(3, generator=one.g), expected)
        assert one.td["b", "c"].sum() == 6
        assert one.td["n"] == "x"
        assert one.lazy["s"].tolist() == [[1], [1]]


def test_what_cannot_be_held_stays_what_it_is():
    def make():
        return Thing(
            lock=threading.Lock(), file=sys.stdout, module=random, function=len, cls=Enemy, window=Window(), n=1
        )

    thing, other = make(), make()
    other.n = 2
    held = other.lock, other.window
    put(other, take(thing))
    assert (other.lock, other.window, other.n) == (*held, 1)
    put(other, take(Thing(window=None, n=3)))
    assert (other.window, other.n) == (held[1], 3)
    late = Thing(lock=None, n=5)
    put(late, take(thing))
    assert late.lock is None


@pytest.mark.parametrize(
    "value", [iter([1]), subprocess.Popen, (x for x in ())], ids=["iterator", "process", "generator"]
)
def test_what_keeps_its_state_to_itself_is_named(value):
    if isinstance(value, type):
        value = Thing.__new__(type("Popen", (Thing,), {"__module__": "subprocess"}))
    env = gymnasium.Wrapper(begun(Own))
    env.inner = Thing(odd=[0, {"k": value}])
    with pytest.raises(
        StateError, match=r"The state of Wrapper cannot be taken: at env\.inner\.odd\[1\]\['k'\] is a .*not_state"
    ):
        take(env)


def test_a_class_can_say_what_is_none_of_its_state():
    class Odd(Thing):
        not_state = ("socket",)

    class Odder(Odd):
        not_state = ("cache",)

    odd = Odder(socket=iter([1]), cache=iter([2]), x=3)
    state = take(odd)
    other = Odder(socket=1, cache=2, x=4)
    put(other, state)
    assert vars(other) == {"socket": 1, "cache": 2, "x": 3}


def test_an_environment_without_get_state_is_refused_where_it_hides_something():
    with pytest.raises(StateError, match=r"at env\.hidden is a builtins\.tuple_iterator"):
        take(begun(Hidden))


# -- states that do not fit, or mean harm


def test_an_object_of_an_unknown_class_is_refused_and_nothing_is_changed():
    state = take(Thing(first=1, enemies=[Enemy(Place(1.0, 2.0))]))
    thing = Thing(first=2, enemies=[])
    with pytest.raises(
        StateError, match=r"holds a tests.states.zoo.Enemy, of which there is none here now.*allow=\['tests"
    ):
        put(thing, state)
    assert vars(thing) == {"first": 2, "enemies": []}
    for allowed in ([Enemy, Place, Mood], [f"tests.states.zoo.{name}" for name in ("Enemy", "Place", "Mood")]):
        thing = Thing(first=2, enemies=[])
        put(thing, state, allow=allowed)
        assert (thing.first, thing.enemies) == (1, [Enemy(Place(1.0, 2.0))])
    thing = Thing(first=2, enemies=[], spare=Enemy(Place(0.0, 0.0)))
    put(thing, state)
    assert thing.enemies == [Enemy(Place(1.0, 2.0))]


def test_classes_are_neither_imported_nor_called(monkeypatch):
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
    state = take(Thing(items=[trap]))
    thing = put(Thing(items=[]), state, allow=[Trap])
    assert thing.items[0].x == 1
    for name in (
        "antigravity.Thing",
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "tests.states.zoo.Enemy",
    ):
        nodes = [{**node, "of": name} if node.get("of", "").endswith("Trap") else node for node in state["nodes"]]
        with pytest.raises(StateError):
            put(Thing(items=[]), {**state, "nodes": nodes}, allow=[Trap])
    assert "antigravity" not in sys.modules


def test_states_of_something_else_are_refused():
    state = take(begun(Own))
    with pytest.raises(
        StateError, match=r"Expected a state with observation_space Box\(4,\) of float32, as CartPole-v1 has"
    ):
        put(gymnasium.make("CartPole-v1"), state)
    with pytest.raises(
        StateError, match=r"Expected something made as the one was whose state it is, .*Thing, but this is .*Enemy"
    ):
        put(Enemy(Place(0.0, 0.0)), take(Thing(x=1)))
    with pytest.raises(StateError, match="Expected what get_state"):
        put(Thing(), {"x": 1})
    with pytest.raises(StateError, match="Expected a state in format 1, but one in format 2"):
        put(Thing(), {**take(Thing()), "format": 2})
    hopper = begun(lambda: gymnasium.make("Hopper-v5"))
    state = take(Thing(data=hopper.unwrapped.data))
    with pytest.raises(StateError, match="holds MuJoCo's data where this environment has none"):
        put(Thing(data=None), state)


def mangled(state, draw):
    """The state with one thing in it changed to something silly."""
    nodes = [dict(node) for node in state["nodes"]]
    node = draw.choice(nodes)
    key = draw.choice(list(node))
    node[key] = draw.choice([None, -1, 10**9, "x", [], [10**6], {}, [[-1]], {"a": [0]}, 1.5, b"x"])
    return {**state, "nodes": nodes}


@pytest.mark.parametrize("seed", range(150))
def test_a_mangled_state_is_an_error_or_harmless(seed):
    env = begun(Rich, 1)
    state = mangled(take(env), random.Random(seed))
    with suppress(StateError):  # and nothing else
        assert put(env, state) is env
    env.close()
