"""Environments that lack a part of gymnasium's interface, in every dialect: what is wrong, and what to do."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit

from vecrl.classic import GymEnv as ClassicGymEnv
from vecrl.envs import GymEnv, GymWrapper, SerialEnv
from vecrl.errors import SpaceError, WorkerError
from vecrl.gym_interface import explain
from vecrl.simulators.legacy_gym import LegacyGymAdapter
from vecrl.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, make_vector_env
from vecrl.venv import DummyVectorEnv, SubprocVectorEnv

OBS = np.zeros(2, np.float32)


class Env(gymnasium.Env):
    """An environment with the return values that it is given."""

    def __init__(self, reset: Any = (OBS, {}), step: Any = (OBS, 0.0, False, False, {}), **spaces: Any):
        self.reset_result, self.step_result = reset, step
        self.observation_space = Box(-1, 1, (2,))
        self.action_space = Discrete(2)
        for name, space in spaces.items():
            setattr(self, name, space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.reset_result

    def step(self, action: Any) -> Any:
        return self.step_result


class OldEnv(Env):
    """An environment of the old gym: without keywords of reset, an info of a reset, and truncated."""

    def __init__(self):
        super().__init__(OBS, (OBS, 1.0, True, {"TimeLimit.truncated": True}))

    def reset(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.reset_result


class OwnClass:
    """An object with an environment's methods and spaces, of a class of its own."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)
    reset, step = Env.reset, Env.step


@pytest.fixture
def registered() -> Iterator[str]:
    """The name under which environments are registered."""
    yield "MistakenEnv-v0"
    gymnasium.registry.pop("MistakenEnv-v0", None)


def _run_vector(cls: Any, make: Callable[[], Any], **options: Any) -> None:
    envs = cls([make] * 2, **options)
    try:
        envs.reset(seed=1)
        envs.step(np.zeros(2, np.int64))
    finally:
        envs.close()


def _run_classic(make: Callable[[], Any]) -> None:
    env = ClassicGymEnv("CartPole-v1", wrappers=[lambda _: make()], seed=1)
    env.reset()
    env.step(0)


DIALECTS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "VectorEnv": partial(_run_vector, VectorEnv),
    "processes": partial(_run_vector, VectorEnv, backend="processes", num_workers=1),
    "AsyncVectorEnv": partial(_run_vector, AsyncVectorEnv, num_workers=1),
    "SyncVectorEnv": partial(_run_vector, SyncVectorEnv),
    "DummyVectorEnv": partial(_run_vector, DummyVectorEnv),
    "SubprocVectorEnv": partial(_run_vector, SubprocVectorEnv, num_workers=1),
    "GymWrapper": lambda make: GymWrapper(make()).rollout(2),
    "SerialEnv": lambda make: SerialEnv(2, lambda: GymWrapper(make())).rollout(2),
    "classic": _run_classic,
}
FIVE = r"step\(\) of Env to return \(obs, reward, terminated, truncated, info\), got"
PAIR = r"reset\(\) of Env to return \(obs, info\), got"
ADAPTER = r"vecrl\.simulators\.legacy_gym\.LegacyGymAdapter\(env\)"
RESULTS = {
    "four": ({"step": (OBS, 0.0, False, {})}, rf"{FIVE} 4 values.*instead of done, or wrap.*{ADAPTER}"),
    "three": ({"step": (OBS, 0.0, False)}, rf"{FIVE} 3 values"),
    "six": ({"step": (OBS, 0.0, False, False, {}, 1)}, rf"{FIVE} more than 5 values"),
    "no step result": ({"step": None}, rf"{FIVE} a value of type NoneType"),
    "obs only": ({"reset": OBS}, rf"{PAIR} an array of shape \(2,\).*{ADAPTER}"),
    "no reset result": ({"reset": None}, rf"{PAIR} NoneType"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", RESULTS)
def test_results_of_another_form_are_explained(dialect: str, case: str) -> None:
    results, message = RESULTS[case]
    with pytest.raises(SpaceError, match=message) as error:
        DIALECTS[dialect](partial(Env, **results))
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_reset_without_the_keyword_is_explained(dialect: str) -> None:
    with pytest.raises(SpaceError, match=r"reset\(\) of OldEnv to take seed and options, got reset\(\)\. Define `def"):
        DIALECTS[dialect](OldEnv)


NO_ENVIRONMENTS = {
    "a class": (lambda: Env, r"Expected an environment, got the class Env\. Give an instance: Env\(\)"),
    "a vector environment": (lambda: gymnasium.vector.SyncVectorEnv([Env]), "got the vector environment SyncVectorEnv"),
}


@pytest.mark.parametrize("dialect", sorted({*DIALECTS} - {"GymWrapper", "SerialEnv"}))
@pytest.mark.parametrize("case", NO_ENVIRONMENTS)
def test_objects_that_are_no_environment_are_explained(dialect: str, case: str) -> None:
    make, message = NO_ENVIRONMENTS[case]
    with pytest.raises(SpaceError, match=message):
        DIALECTS[dialect](make)


@pytest.mark.parametrize("dialect", sorted({*DIALECTS} - {"classic"}))
def test_texts_and_none_are_explained(dialect: str) -> None:
    with pytest.raises(SpaceError, match=r"Expected an environment.*got.*'CartPole-v1'.*gymnasium\.make"):
        DIALECTS[dialect](lambda: "CartPole-v1")
    with pytest.raises(SpaceError, match=r"Expected an environment with reset and step, got None.*`return`"):
        DIALECTS[dialect](lambda: None)


@pytest.mark.parametrize("dialect", sorted({*DIALECTS} - {"DummyVectorEnv", "SubprocVectorEnv"}))
def test_missing_spaces_are_named(dialect: str) -> None:
    with pytest.raises(SpaceError, match=r"got Env without action_space\. Set self\.action_space in its __init__"):
        DIALECTS[dialect](partial(Env, action_space=None))


def test_environments_with_ids_need_no_spaces() -> None:
    for spaces in ({"action_space": None}, {"observation_space": (2,)}):
        DIALECTS["DummyVectorEnv"](partial(Env, **spaces))


def test_spaces_and_classes_that_are_not_gymnasiums_are_explained() -> None:
    with pytest.raises(
        SpaceError, match=rf"observation_space of Env to be a space of gymnasium, got \(2,\).*{ADAPTER}"
    ):
        VectorEnv([partial(Env, observation_space=(2,))])
    with pytest.raises(SpaceError, match=r"got OwnClass, which has no metadata, render_mode, spec\. Derive its class"):
        VectorEnv([OwnClass])


def test_equal_mistakes_of_many_environments_are_one_line() -> None:
    with pytest.raises(SpaceError) as error:
        VectorEnv([Env] * 3 + [lambda: None] * 64)
    assert str(error.value).startswith("environments 3 to 66: Expected an environment")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("dialect", ["VectorEnv", "processes", "DummyVectorEnv", "GymWrapper", "classic"])
def test_the_adapter_that_the_messages_name_solves_it(dialect: str) -> None:
    class SeededEnv(OldEnv):
        def seed(self, seed: int) -> None:
            pass

    DIALECTS[dialect](lambda: LegacyGymAdapter(SeededEnv()))


def test_old_environments_without_seed_and_close_are_explained_under_the_adapter() -> None:
    class Bare:
        observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

        def reset(self) -> Any:
            return OBS

        def step(self, action: Any) -> Any:
            return OBS, 1.0, False, {}

    env = GymWrapper(Bare())
    with pytest.raises(SpaceError, match=r"reset\(\) of Bare to take seed and options, got reset\(\)\. Define"):
        env.set_seed(0)
    env.reset()
    env.close()
    with pytest.raises(WorkerError, match=r"reset\(\) of Bare to take seed and options, got reset\(\)\. Define"):
        DummyVectorEnv([Bare]).reset(seed=0)


def test_the_adapter_divides_done() -> None:
    env = LegacyGymAdapter(OldEnv())
    assert env.reset()[1] == {}
    assert env.step(0)[1:4] == (1.0, False, True)


def test_mistakes_under_wrappers_of_gymnasium_are_explained(registered: str) -> None:
    make = partial(Env, step=(OBS, 0.0, False, {}))
    gymnasium.register(registered, make, max_episode_steps=5, disable_env_checker=True)
    for run in (
        lambda: DIALECTS["VectorEnv"](lambda: gymnasium.make(registered)),
        lambda: _run_vector(lambda _: make_vector_env(registered, num_envs=2), make),
        lambda: GymEnv(registered).rollout(2),
        lambda: DIALECTS["classic"](lambda: TimeLimit(make(), 5)),
    ):
        with pytest.raises(SpaceError, match=rf"{FIVE} 4 values"):
            run()


def test_a_single_environment_without_seeds_is_explained(registered: str) -> None:
    gymnasium.register(registered, OldEnv, disable_env_checker=True, order_enforce=False)
    with pytest.raises(SpaceError, match=r"reset\(\) of OldEnv to take seed and options, got reset\(\)\. Define"):
        make_vector_env(registered).reset(seed=0)


def test_only_classes_of_gymnasium_are_advised_to_call_its_reset() -> None:
    class Seedless(OwnClass):
        reset: Any = OldEnv.reset

    mistake = TypeError("reset() got an unexpected keyword argument 'seed'")
    assert "options=None)` and return (obs, info)" in str(explain(mistake, Seedless()))
    assert "which calls super().reset(seed=seed), and return" in str(explain(mistake, OldEnv()))


def test_errors_of_environments_stay_unchanged() -> None:
    class Unpacking(Env):
        def step(self, action: Any) -> Any:
            return sum(x + y for x, y in [(1, 2, 3)])  # a mistake of its own

    with pytest.raises(ValueError, match=r"too many values to unpack \(expected 2\)") as error:
        DIALECTS["VectorEnv"](Unpacking)
    assert "for x, y in [(1, 2, 3)]" in str(error.value)
    other = TypeError("step() got an unexpected keyword argument 'seed'")
    assert explain(other, Env()) is other


def test_functions_are_given_to_vector_environments() -> None:
    with pytest.raises(TypeError, match=r"name of an environment.*VectorEnv"):
        make_vector_env(Env)  # pyright: ignore[reportArgumentType]
