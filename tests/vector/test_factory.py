"""The factories and their registry. Tests that need Brax are in `tests/simulators/test_brax*.py`."""

import re
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.engine.transition import autoreset_mode
from vecrl.errors import SpaceError
from vecrl.simulators import registry
from vecrl.simulators.availability import available
from vecrl.simulators.native import make_native
from vecrl.vector.factory import make_brax_env, make_gym_env, make_native_env, make_vector_env
from vecrl.vector.torch_wrapper import TorchWrapper

MAKERS = [make_gym_env, make_native_env]


@pytest.fixture
def user_prefix():
    """Registers a user's prefix and removes it after the test."""
    calls = []
    registry.register("mine", lambda name, **kwargs: calls.append((name, kwargs)) or name, "for a test")
    yield calls
    registry.unregister("mine")


@pytest.fixture
def no_brax(monkeypatch):
    """Hides Brax, whether it is installed or not."""
    for module in [m for m in sys.modules if m.partition(".")[0] == "brax"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "brax", None)


# ---------------------------------------------------------------- one environment


@pytest.mark.parametrize("make", MAKERS)
def test_without_num_envs_there_is_one_environment(make):
    """make_gym_env: num_envs=None gives one environment in a TorchWrapper."""
    with make("CartPole-v1") as env:
        assert isinstance(env, TorchWrapper)
        assert not hasattr(env, "num_envs")
        observation, info = env.reset(seed=5)
        assert (observation.shape, observation.dtype, info) == ((4,), torch.float32, {})
        observation, reward, terminated, truncated, _ = env.step(torch.tensor(1))
        assert observation.shape == (4,)
        assert reward.item() == 1.0
        assert terminated.dtype == truncated.dtype == torch.bool
        assert env.action_space == spaces.Discrete(2)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "argument", [{"empty_info": True}, {"num_episodes": 2}, {"device": "cpu"}], ids=lambda a: next(iter(a))
)
def test_vector_only_arguments_raise(make, argument):
    """make_gym_env: empty_info, num_episodes or device for a single environment is a ValueError."""
    name = next(iter(argument))
    if make is make_native_env and name == "device":
        with make("CartPole-v1", **argument) as env:  # one row can be on a device too
            assert env.reset()[0].device.type == "cpu"
        return
    with pytest.raises(ValueError, match=f"Expected num_envs.*{name}"):
        make("CartPole-v1", **argument)


def test_single_native_environment_equals_gymnasium():
    """make_native_env: one environment equals gymnasium's step for step from the same state."""
    with make_native_env("CartPole-v1", dtype=torch.float64) as actual:
        expected = gymnasium.make("CartPole-v1").unwrapped
        observation, _ = actual.reset(seed=1)
        expected.reset()
        expected.state = observation.numpy()
        for action in [0, 1, 1, 0]:
            np.testing.assert_allclose(actual.step(torch.tensor(action))[0], expected.step(action)[0], rtol=1e-5)


# ---------------------------------------------------------------- several


@pytest.mark.parametrize("make", MAKERS)
def test_num_envs_makes_a_vector(make):
    """make_gym_env: num_envs gives a SyncVectorEnv in a TorchWrapper; empty_info, num_episodes and device reach it."""
    with make("CartPole-v1", num_envs=3, empty_info=True, num_episodes=1, device="cpu") as env:
        assert env.num_envs == 3
        assert env.action_space == spaces.MultiDiscrete([2] * 3)
        observation, info = env.reset(seed=5)
        assert (observation.shape, info) == ((3, 4), {})
        for _ in range(40):
            observation, reward, terminated, truncated, info = env.step(torch.ones(3, dtype=torch.int64))
        assert info == {}
        assert terminated.all()  # with num_episodes, the row stays idle after its pole fell
        assert truncated.all()
        assert reward.isnan().all()
        assert observation.isnan().all()


def test_gym_environments_equal_gymnasium():
    """make_gym_env: kwargs reach gymnasium.make, which makes the sub-environments."""
    from vecrl.vector.sync_env import SyncVectorEnv

    with make_gym_env("CartPole-v1", num_envs=2, max_episode_steps=3) as env:
        assert isinstance(env.env, SyncVectorEnv)
        env.reset(seed=0)
        ends = [env.step(torch.tensor([t % 2] * 2))[3].tolist() for t in range(4)]
        assert ends == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    with make_gym_env("CartPole-v1", render_mode="rgb_array") as env:
        env.reset()
        assert env.render().shape == (400, 600, 3)


@pytest.mark.parametrize("prefix", ["", "gym::", "native::"])
def test_wrapper_options_reach_the_wrapper(prefix):
    """make_vector_env: force_classic_api, discrete_to_continuous_act and clip_actions reach the TorchWrapper."""
    with make_vector_env(
        prefix + "CartPole-v1", num_envs=2, force_classic_api=True, discrete_to_continuous_act=True
    ) as env:
        assert env.action_space == spaces.Box(-np.inf, np.inf, (2, 2))
        assert isinstance(env.reset(), torch.Tensor)
        assert len(env.step(torch.zeros(2, 2))) == 4
    rewards = {}
    for clip in (False, True):
        with make_vector_env(prefix + "MountainCarContinuous-v0", num_envs=1, clip_actions=clip) as env:
            env.reset(seed=0)
            rewards[clip] = env.step(torch.full((1, 1), 9.0))[1].item()
    assert rewards == pytest.approx({False: -8.1, True: -0.1})  # the cost is the square of the action before clipping


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "kind"),
    [("CartPole-v1", "sync_env"), ("gym::CartPole-v1", "sync_env"), ("native::CartPole-v1", "batched_vector_env")],
)
def test_the_prefix_chooses_the_simulator(name, kind):
    """make_vector_env: gym::NAME or a bare NAME selects gymnasium, native::NAME vecrl's native tasks."""
    with make_vector_env(name, num_envs=2) as env:
        assert type(env.env).__module__ == f"vecrl.vector.{kind}"


def test_names_must_be_strings():
    with pytest.raises(TypeError, match=r"name of an environment.*None"):
        make_vector_env(None)


def test_gymnasium_environments_over_workers():
    with make_vector_env("CartPole-v1", num_envs=4, backend="processes", num_workers=2) as env:
        assert env.reset(seed=1)[0].equal(make_vector_env("CartPole-v1", num_envs=4).reset(seed=1)[0])
        assert env.env._pool.backend_name == "processes"
    with pytest.raises(ValueError, match="backend can only be given"):
        make_vector_env("CartPole-v1", backend="processes")


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_the_way_to_wait_for_workers_reaches_the_pool(mode):
    options = {"backend": "processes", "num_workers": 1, "autoreset_mode": mode}
    with make_vector_env("CartPole-v1", num_envs=2, wait="sleep", **options) as env:
        assert env.env._pool._options.wait == "sleep"
    with pytest.raises(ValueError, match="Expected wait to be 'sleep', 'auto' or 'spin', got 'never'"):
        make_vector_env("CartPole-v1", num_envs=2, wait="never", **options)
    with pytest.raises(ValueError, match="wait can only be given"):
        make_vector_env("CartPole-v1", wait="sleep")


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("prefix", ["", "gym::", "native::"])
def test_every_simulator_has_all_autoreset_modes_and_episode_stats(prefix, mode):
    with make_vector_env(prefix + "CartPole-v1", num_envs=2, autoreset_mode=mode, episode_stats=True) as env:
        assert env.metadata["autoreset_mode"] is autoreset_mode(mode)
        env.reset(seed=3)
        returns, restarting = np.zeros(2), np.zeros(2, bool)
        counted, reported, restarts = [], [], 0
        for _ in range(40):
            _, reward, terminated, _, info = env.step(torch.tensor([0, 1]))
            done = terminated.numpy()
            restarts += (reward.numpy() == 0).sum()
            returns[restarting] = 0
            returns += reward.numpy()
            restarting = done
            counted += returns[done].tolist()
            if done.any():
                assert np.array_equal(info["_episode"], done)
                assert np.array_equal(info["episode"]["r"], info["episode"]["l"])
                reported += np.asarray(info["episode"]["r"])[done].tolist()
                if mode == "disabled":
                    env.reset(options={"reset_mask": done})
        assert reported == counted
        assert len(counted) > 3
        assert (restarts > 0) == (mode == "next_step")


def test_arguments_that_an_autoreset_mode_lacks_raise():
    with pytest.raises(ValueError, match=r"Omit empty_info, num_episodes, or the mode\.$"):
        make_vector_env("CartPole-v1", num_envs=2, autoreset_mode="next_step", num_episodes=1, empty_info=True)
    with pytest.raises(ValueError, match="autoreset_mode, episode_stats can only be given"):
        make_vector_env("CartPole-v1", autoreset_mode="next_step", episode_stats=True)
    with pytest.raises(ValueError, match="autoreset_mode to be one of"):
        make_vector_env("CartPole-v1", num_envs=2, autoreset_mode="never")


@pytest.mark.parametrize("name", ["nope::CartPole-v1", "::CartPole-v1", "gymnasium::x", "old::ant"])
def test_unknown_prefixes_raise(name):
    """make_vector_env: an unknown prefix is a ValueError that lists the known ones."""
    with pytest.raises(ValueError, match="gym::, brax::, brax::old::, native::"):
        make_vector_env(name)


def test_prefixes_can_be_registered(user_prefix):
    """make_vector_env: users can register prefixes; a registered factory gets the name and all arguments."""
    assert make_vector_env("mine::a::b", num_envs=3, clip_actions=True, device="cpu", gym_kwargs={"x": 1}) == "a::b"
    (call,) = user_prefix
    assert call == (
        "a::b",
        {
            "num_envs": 3,
            "clip_actions": True,
            "device": "cpu",
            "force_classic_api": False,
            "discrete_to_continuous_act": False,
        },
    )
    assert "mine" in registry.known_prefixes()


@pytest.mark.parametrize("prefix", ["", "mine::", "::mine"])
def test_empty_prefixes_and_separators_raise(prefix):
    """make_vector_env: an empty prefix or one with the separator raises."""
    with pytest.raises(ValueError, match="prefix"):
        registry.register(prefix, print, "")


def test_an_entry_needs_one_way_to_make_environments():
    for ways in ({}, {"env_fn": print, "make_batch": print}):
        with pytest.raises(ValueError, match="one of maker, env_fn and make_batch"):
            registry.register("mine", **ways)
    assert "mine" not in registry.known_prefixes()


def test_registered_prefixes_are_replaced_on_request_only(user_prefix):
    for prefix in ("gym", "mine"):
        with pytest.raises(ValueError, match=f"not registered, got '{prefix}'. .* replace=True"):
            registry.register(prefix, print)
    registry.register("mine", print, "another", replace=True)
    assert available("mine").summary == "another"


@pytest.mark.parametrize("ways", [{"make_batch": 3}, {"env_fn": "module:function"}, {"maker": print, "names": ["a"]}])
def test_entries_consist_of_functions(ways):
    with pytest.raises(TypeError, match="of the prefix 'mine' to be a function, got"):
        registry.register("mine", **ways)


@pytest.mark.parametrize(("prefix", "make"), [("native", make_native_env), ("gym", make_gym_env)])
def test_a_replaced_prefix_can_call_the_maker_of_vecrl(monkeypatch, prefix, make):
    """The maker of a user extends vecrl's own environments; it is not called again."""
    monkeypatch.setitem(registry._entries, prefix, registry._entries[prefix])  # restores it after the test
    registry.register(prefix, lambda name, **kwargs: make(name, **kwargs), replace=True)
    assert make_vector_env(f"{prefix}::CartPole-v1", num_envs=2).reset(seed=1)[0].shape == (2, 4)


def test_unknown_arguments_are_named_with_those_that_exist():
    expected = "device, dtype, render_mode, max_episode_steps, check_actions, compile, arrays, sutton_barto_reward"
    for num_envs in (None, 2):
        with pytest.raises(TypeError, match=rf"of CartPole-v1 \({expected}\), got 'gravity'\. "):
            make_vector_env("native::CartPole-v1", num_envs=num_envs, gravity=3)


@pytest.mark.parametrize(
    ("make_batch", "error", "message"),
    [
        (lambda name, num_envs, *, infos, length=1: None, TypeError, r"'mine::x' \(length\), got 'width'"),
        (lambda name, num_envs, *, infos: None, TypeError, r"'mine::x' \(none\), got 'width'"),
        (lambda name, num_envs, width: None, TypeError, r"of the prefix 'mine' to take infos, got a function without"),
        (lambda name, num_envs, **_: registry.Entry("", None, ""), TypeError, r"got Entry without num_envs, "),
        (
            lambda name, num_envs, **_: make_native("CartPole-v1", 3),
            ValueError,
            "to make 2 rows, got CartPole with num",
        ),
    ],
)
def test_simulators_that_cannot_be_made_say_why(make_batch, error, message):
    registry.register("mine", make_batch=make_batch)
    try:
        with pytest.raises(error, match=message):
            make_vector_env("mine::x", num_envs=2, width=3)
    finally:
        registry.unregister("mine")


def test_batched_environments_take_an_autoreset_mode():
    env = make_vector_env("native::CartPole-v1", num_envs=2, autoreset_mode="next_step", episode_stats=True)
    assert env.env.autoreset_mode.value == "NextStep"
    with pytest.raises(ValueError, match="num_envs"):
        make_vector_env("native::CartPole-v1", episode_stats=True)


def test_gym_kwargs_and_brax_kwargs(monkeypatch):
    """make_vector_env: gym_kwargs reach only gymnasium, brax_kwargs only Brax, and kwargs the selected one."""
    seen = {}
    for prefix in ("gym", "brax", "brax::old", "native"):
        entry = registry.Entry(prefix, lambda name, prefix=prefix, **kwargs: seen.update({prefix: kwargs}), "")
        monkeypatch.setitem(registry._entries, prefix, entry)
        make_vector_env(f"{prefix}::x", gym_kwargs={"g": 1, "c": 2}, brax_kwargs={"b": 1}, c=1)
    extra = {prefix: {k: v for k, v in kwargs.items() if len(k) == 1} for prefix, kwargs in seen.items()}
    assert extra == {
        "gym": {"g": 1, "c": 2},
        "brax": {"b": 1, "c": 1},
        "brax::old": {"b": 1, "c": 1},
        "native": {"c": 1},
    }


def test_available_and_missing_simulators(no_brax):
    """Registry: available names, and missing simulators with the extra to install."""
    assert registry.known_prefixes()[:4] == ("gym", "brax", "brax::old", "native")
    gym = available("gym")
    assert "CartPole-v1" in gym.names
    assert (gym.missing, gym.install) == (None, None)
    assert available("native").names == tuple(sorted(available("native").names))
    assert "Pendulum-v1" in available("native").names
    brax, old = available("brax"), available("brax::old")
    assert brax.names == old.names == ()
    assert brax.install == 'pip install "vecrl[brax]"'
    assert old.install == 'pip install "vecrl[brax-v1]"'
    assert "brax is not installed" in brax.missing
    with pytest.raises(ValueError, match="gym::"):
        available("nope")


def test_simulators_are_imported_on_use():
    """Factories: simulators are imported when they are requested."""
    code = (
        "import sys, vecrl.vector.factory;"
        "bad = {'brax', 'jax', 'ray', 'vecrl.simulators.native', 'vecrl.simulators.brax'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- Brax, as far as testable without it


@pytest.mark.parametrize(("name", "extra"), [("ant", "vecrl[brax]"), ("old::ant", "vecrl[brax-v1]")])
@pytest.mark.parametrize("num_envs", [None, 3])
def test_missing_brax_raises(no_brax, name, extra, num_envs):
    """make_brax_env: Brax (or brax.v1) missing is an ImportError that names the extra to install."""
    with pytest.raises(ImportError, match=re.escape(extra)):
        make_brax_env(name, num_envs=num_envs)
    with pytest.raises(ImportError, match=re.escape(extra)):
        make_vector_env("brax::" + name, num_envs=num_envs)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_envs": 2, "batch_size": 2},
        {"auto_reset": True, "autoreset": True},
        {"auto_reset": True, "autoreset": False},
    ],
    ids=str,
)
def test_brax_accepts_both_spellings(no_brax, arguments):
    """make_brax_env: accepts num_envs or batch_size, auto_reset or autoreset; both at once is a ValueError."""
    with pytest.raises(ValueError, match="one of them"):
        make_brax_env("ant", **arguments)


@pytest.mark.parametrize("name", ["auto_reset", "autoreset"])
def test_brax_without_autoreset_raises(no_brax, name):
    """make_brax_env: disabled auto-reset is a ValueError; enabled is the default."""
    with pytest.raises(ValueError, match="auto-reset"):
        make_brax_env("ant", num_envs=2, **{name: False})
    with pytest.raises(ImportError):
        make_brax_env("ant", num_envs=2, **{name: True})


@pytest.mark.parametrize(
    ("name", "options", "counts_up"),
    [
        ("gym::CartPole-v1", {}, False),
        ("gym::CartPole-v1", {"autoreset_mode": "next_step"}, True),
        ("native::CartPole-v1", {}, True),
    ],
)
def test_the_seeds_of_rows(name: str, options: dict[str, Any], counts_up: bool) -> None:
    """A list of seeds means the same everywhere; docs/vector.md says what a single one means."""
    with make_vector_env(name, num_envs=2, **options) as envs:
        from_one, from_list = (envs.reset(seed=seed)[0] for seed in (5, [5, 6]))
        assert torch.equal(from_one, from_list) == counts_up
    with make_vector_env("gym::CartPole-v1", num_envs=2, autoreset_mode="next_step") as envs:
        assert name != "gym::CartPole-v1" or torch.equal(from_list, envs.reset(seed=5)[0])


# ---------------------------------------------------------------- messages

BOTH = "CartPole-v1", "native::CartPole-v1"


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("count", [2.5, True, "2", 0])
def test_the_number_of_environments_is_an_int(name: str, count: Any) -> None:
    with pytest.raises(ValueError, match="Expected num_envs to be an int of 1 or more, or None, got"):
        make_vector_env(name, num_envs=count)


@pytest.mark.parametrize("name", BOTH)
def test_unavailable_devices_are_named_when_the_environment_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpaceError, match="Expected a device of this machine, got 'cuda'"):
        make_vector_env(name, num_envs=2, device="cuda")


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("action", [None, "left", [None, 1]])
def test_actions_are_numbers(name: str, action: Any) -> None:
    with make_vector_env(name, num_envs=2) as env:
        env.reset(seed=1)
        with pytest.raises(SpaceError, match=r"Expected numbers: a tensor, .* got .*(None|left)"):
            env.step(action)
        with pytest.raises(SpaceError, match=r"Expected (numbers|actions).* got .*(None|left|object)"):
            env.env.step(action)


@pytest.mark.parametrize("name", BOTH)
def test_seeds_are_ints(name: str) -> None:
    with make_vector_env(name, num_envs=2) as env:
        env.reset(seed=np.int64(3))
        with pytest.raises(SpaceError, match=r"Expected a seed to be an int of 0 or more, or None, got True"):
            env.reset(seed=True)
        with pytest.raises(TypeError, match=r"Expected a seed to be None, an integer or one per environment, got 2.0"):
            env.reset(seed=2.0)


@pytest.mark.parametrize("name", ["", None])
def test_names_are_texts(name: Any) -> None:
    with pytest.raises(SpaceError, match="Expected the name of an environment, such as 'CartPole-v1', got "):
        make_vector_env(name, num_envs=2)


def test_options_of_workers_are_not_those_of_an_environment() -> None:
    with pytest.raises(TypeError, match=r"'step_timeout'.*Give it to a VectorEnv or a ParallelEnv"):
        make_vector_env("CartPole-v1", num_envs=2, step_timeout=-1)
