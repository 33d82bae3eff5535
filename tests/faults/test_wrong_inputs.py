"""Wrong inputs of every public call, from tables: each raises an error that names what is wrong."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import NonTensorData, TensorDict
from tests.fixtures.counting_env import Counting

from vecrl import vector
from vecrl.classic import BaseEnv, Config, RoboschoolEnv, from_classic, to_classic
from vecrl.classic import GymEnv as ClassicGymEnv
from vecrl.convert import to_tensordict, to_vector, to_venv
from vecrl.envs import (
    ActionDiscretizer,
    ActionMask,
    AsyncEnvPool,
    BinarizeReward,
    CatFrames,
    CatTensors,
    ClipTransform,
    Compose,
    ConditionalSkip,
    DoubleToFloat,
    DTypeCastTransform,
    FlattenObservation,
    FrameSkipTransform,
    FunctionTransform,
    GymEnv,
    GymWrapper,
    Hash,
    InitTracker,
    MultiStepTransform,
    NativeEnv,
    NoopResetEnv,
    ObservationNorm,
    ParallelEnv,
    PermuteTransform,
    RandomTruncationTransform,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SerialEnv,
    SimulatorEnv,
    SqueezeTransform,
    Stack,
    StepCounter,
    TargetReturn,
    TensorDictPrimer,
    TerminateTransform,
    TimeMaxPool,
    Timer,
    ToTensorImage,
    TrajCounter,
    TransformedEnv,
    UnsqueezeTransform,
    VecNorm,
    check_env_specs,
    env_maker,
    make_env,
)
from vecrl.errors import PendingError, VecrlError
from vecrl.specs import (
    Binary,
    Bounded,
    Categorical,
    Choice,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)
from vecrl.vector import AsyncVectorEnv, RolloutWorkers, SyncVectorEnv, TorchWrapper, VectorEnv, make_vector_env
from vecrl.venv import BaseVectorEnv as BaseVenv
from vecrl.venv import (
    DummyVectorEnv,
    RunningMeanStd,
    ShmemVectorEnv,
    SubprocVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
)

pytestmark = pytest.mark.usefixtures("nothing_left")

ALLOWED = (VecrlError, ValueError, TypeError, KeyError, IndexError, NotImplementedError, AttributeError)
ALLOWED += (gymnasium.error.Error, FileNotFoundError, IsADirectoryError)
FOREIGN = re.compile(
    r"could not broadcast|could not convert|unhashable|'NoneType' object|\w+\(\) argument must|"
    r"not subscriptable|out of bounds for axis|"
    r"object is not iterable|object is not callable|has no len\(\)|has no attribute|not supported between|"
    r"invalid literal|cannot be interpreted as an integer|must be an integer|inhomogeneous|setting an array element|"
    r"unsupported operand|list index out of range|truth value|too many indices|only integer|invalid index|"
    r"cannot convert float|shape mismatch|not enough values|too many values|index-sized|Could not infer dtype|"
    r"Expected all tensors|The size of tensor|The expanded size|doesn't match|must match|unpack"
)


OWN = re.compile(
    r"[Ee]xpected|missing \d required|doesn't exist|Malformed environment ID|"
    r"attribute name must be string|Expect the|has no attribute|have 'nowhere'|got multiple values|"
    r"Seed must be|The value is|"
    r"Cannot expand|closed|pending|Too many indices for a spec|No such file|Is a directory"
)
WORDS: dict[str, tuple[str, ...]] = {
    "env_fns": ("function", "environment 0"),
    "env_makers": ("function", "environment 0"),
    "create_env_fn": ("function", "environment 0", "environments 0"),
    "env_name": ("name of an environment", "Expected one of", "Environment `", "environment ID"),
    "simulator": ("name of an environment", "Expected one of"),
    "name": ("name of an environment", "Expected one of", "Environment `", "attribute"),
    "observation_space": ("a Box, Discrete",),
    "action_space": ("a Box, Discrete",),
    "action": ("'step'", "one-hot", "an element of"),
    "ray_options": ("backend='ray'",),
    "unknown": ("unknown",),
    "gym_kwargs": ("arguments of 'gym::",),
    "batch_size": ("batch size",),
    "num_sub_threads": ("threads_per_worker",),
    "tensordict": ("TensorDict", "'action'", "_reset", "one-hot"),
    "seed": ("seed",),
    "low": ("bounds",),
    "high": ("bounds",),
    "clamp_min": ("bounds",),
    "clamp_max": ("bounds",),
    "in_keys": ("a key",),
    "out_keys": ("a key",),
    "dim": ("dimension",),
    "data_array": ("shape",),
    "env_id": ("ids",),
    "id": ("ids",),
    "key": ("attribute", "indices"),
    "actions": ("'step'", "'action'", "key of the space"),
    "state": ("'mean'",),
    "primers": ("a spec",),
    "choices": ("choice", "choose"),
    "x": ("at 'x'",),
    "shape": ("shape", "Cannot expand"),
    "value": ("The value", "to consist of"),
    "val": ("indices",),
    "transforms": ("a Transform", "a transform"),
    "wrappers": ("the wrapper",),
    "info": ("dtype",),
    "values": ("name of a setting", "values"),
    "path": ("/nowhere/x.yaml", "/proc", "path"),
    "first_dim": ("dimension",),
    "last_dim": ("dimension",),
}


class Case(NamedTuple):
    """A wrong call.

    Attributes:
        name: the function, the argument and the value.
        call: the call; its argument is the environment.
        words: the message contains one of these.
    """

    name: str
    call: Callable[[Any], object]
    words: tuple[str, ...]


class Says(NamedTuple):
    """A wrong value, and the words of which its message contains one."""

    value: Any
    words: tuple[str, ...]


def says(value: object, *words: str) -> Says:
    """Returns a wrong value, and the words of which its message contains one."""
    return Says(value, words)


def table(
    function: str, call: Callable[..., object], base: Mapping[str, Any], wrong: Mapping[str, Iterable[Any]]
) -> list[Case]:
    """Returns a case for each wrong value of each argument; the other arguments are those of `base`.

    The message contains the argument's name, the value or other words for the argument (`WORDS`), unless words are
    given with the value.
    """
    cases: dict[str, Case] = {}
    for name, values in wrong.items():
        for item in values:
            value, words = item if isinstance(item, Says) else (item, ())
            text = repr(value)
            words = words or (name, f"got {text[:24]}", *([text[:24]] if len(text) > 2 else []), *WORDS.get(name, ()))
            label = f"{function}({name}={re.sub(r' at 0x[0-9a-f]+|[^!-~ ]', '', ' '.join(text.split()))[:50]})"
            while label in cases:
                label += "'"
            cases[label] = Case(label, partial(_call_with, call, {**base, name: value}), words)
    return list(cases.values())


def _call_with(call: Callable[..., object], arguments: Mapping[str, Any], env: object) -> object:
    return call(env, **arguments)


def problem_of(case: Case, env: object) -> str:
    """Returns what is wrong with the error of a wrong call; "" if nothing is."""
    try:
        result = case.call(env)
    except ALLOWED as error:
        text = str(error)
        foreign = None if isinstance(error, VecrlError | gymnasium.error.Error) else FOREIGN.search(text)
        if foreign is None and OWN.search(text) and any(word.lower() in text.lower() for word in case.words):
            return ""
        return f"{case.name}: {type(error).__name__}: {text[:200]!r}"
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {str(error)[:200]!r}"
    with suppress(Exception):
        result.close()  # type: ignore[attr-defined]
    return f"{case.name}: accepted, returned {str(result)[:60]!r}"


class Liar(list):
    """A list with another length than it says."""

    def __len__(self) -> int:
        return 3


class Spaceless:
    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, action: object) -> Any:
        return 0, 0.0, False, False, {}


COUNTS = [0, -1, 1.5, float("nan"), float("inf"), "2", [2], True, {}, np.ones(2)]
HUGE = [*COUNTS, 10**30]
SECONDS = [0, -1, -0.5, float("nan"), "3", True, [1], {}]
NAMES = ["nowhere", 3, "", [], {}, object(), b"serial", 1.5]
FLAGS = ["yes", [], {}, 3]
SEEDS = [-1, 1.5, "a", True, [1], [1, 2, 3, 4], [1.5, 2, 3], [-1, 2, 3], {}, object(), [], [[1, 2, 3]], ["1", "2", "3"]]
SEEDS += [float("nan"), np.zeros((3, 1), int), np.ones(3), (1, 2), [True, 1, 2], Liar([1, 2])]
MASKS = [
    [True],
    [True] * 4,
    [1, 0, 1],
    "yes",
    np.zeros(3, bool),
    np.ones(3),
    np.ones((3, 1), bool),
    1,
    [[True], [], []],
]
OPTIONS = [3, "level", [1], True, object(), 1.5]
FNS = [
    None,
    [],
    3,
    "abc",
    [None],
    [3],
    [Counting, 7],
    [lambda: None],
    [lambda: 3],
    [Counting()],
    Counting,
    {},
    [Spaceless],
]
FNS += [(lambda: "CartPole-v1",), ["CartPole-v1"], [lambda: Counting], object(), iter([]), [[Counting]], np.ones(3)]
IDS = [
    3,
    -1,
    [0, 0],
    [0, 3],
    [-1],
    1.5,
    "a",
    [1.5],
    [[0, 1]],
    {},
    object(),
    True,
    [True, False, True],
    float("nan"),
    ["0"],
]
DISCRETE = [
    None,
    [0],
    [0] * 4,
    0,
    "abc",
    [0.5, 0, 0],
    [float("nan")] * 3,
    [0, 0, 3],
    [0, -1, 0],
    [[0, 0, 0]],
    {},
    [None] * 3,
]
DISCRETE += [
    object(),
    [],
    np.zeros((3, 2), int),
    ["a", "b", "c"],
    {"a": [0] * 3},
    np.zeros(0),
    [[0], [0, 1], []],
    [1j] * 3,
]
DISCRETE += [torch.zeros(4), torch.zeros(3, 1), [0, 0, 10**12], [2**70] * 3, Liar([0, 0]), np.zeros(3, "U1"), b"abc"]
BOX = [
    None,
    [0.0] * 3,
    np.zeros((4, 2)),
    np.zeros((3, 3)),
    0.5,
    "abc",
    {},
    np.zeros(6),
    np.zeros((3, 2, 1)),
    object(),
    [],
]
BOX += [[[0, 0], [0, 0], [0]], np.full((3, 2), "a"), [[None] * 2] * 3, torch.zeros(3, 1), np.zeros((3, 2), complex)]
BOX += [Liar([[0, 0]] * 2), np.full((3, 2), 7.0), {"a": np.zeros((3, 2))}, np.zeros((0, 2))]
NESTED = [
    None,
    {},
    {"a": [0] * 3},
    {"a": [0] * 3, "c": np.zeros((3, 2))},
    {"a": [0] * 4, "b": np.zeros((3, 2))},
    [0] * 3,
]
NESTED += [{"a": [0] * 3, "b": np.zeros((3, 3))}, np.zeros((3, 3)), {"a": None, "b": None}, [{}] * 3, "abc", 7]
DEVICES = ["nowhere", [], 1.5, {}, "", object(), "cuda:-7"]
NESTED_SPACE = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,))})


POOL_OPTIONS: dict[str, Iterable[Any]] = {
    "step_timeout": SECONDS,
    "on_failure": [None, *NAMES],
    "restarts_per_hour": [None, *COUNTS],
    "start_method": [None, *NAMES],
    "threads_per_worker": [None, *COUNTS],
    "preload": ["numpy", 3, [3], None, [None], {1: 2}],
    "wait": [None, *NAMES],
    "pin_workers": FLAGS,
    "check_nan": FLAGS,
}


def vector_cases() -> list[Case]:
    """Returns the constructors, functions and methods of `vecrl.vector` with wrong arguments; `env` is a VectorEnv."""
    pool: dict[str, Iterable[Any]] = {
        "backend": [None, *NAMES],
        "num_workers": COUNTS,
        **POOL_OPTIONS,
        "python": [3, "/nowhere/python", "", []],
        "ray_options": [3, "auto", {}, []],
        "unknown": [3],
    }
    fns = [Counting] * 3
    cases = table(
        "VectorEnv",
        lambda _, **k: VectorEnv(**k),
        {"env_fns": fns},
        {
            "env_fns": FNS,
            "observation_mode": [None, "other", 3, (), (spaces.Discrete(2),), [1, 2], (3, 4)],
            "autoreset_mode": [None, *NAMES],
            **pool,
        },
    )
    cases += table(
        "AsyncVectorEnv",
        lambda _, **k: AsyncVectorEnv(**k),
        {"env_fns": fns, "backend": "serial"},
        {
            "env_fns": FNS[:8],
            "observation_mode": [None, "other", 3],
            "autoreset_mode": [None, "other", 3],
            "context": [3, "nowhere", []],
            "worker": [print, 3],
            "max_concurrency": [0, -1, "a"],
            "backend": NAMES[:3],
            "num_workers": COUNTS[:4],
            "unknown": [3],
        },
    )
    cases += table(
        "SyncVectorEnv",
        lambda _, **k: SyncVectorEnv(**k),
        {"env_makers": fns},
        {
            "env_makers": FNS,
            "autoreset_mode": [None, "next_step", "other", 3],
            "observation_mode": [None, "other", 3],
            "num_episodes": COUNTS,
            "device": DEVICES,
            "backend": [None, *NAMES],
            "num_workers": COUNTS[:4],
            "step_timeout": SECONDS[:3],
            "unknown": [3],
        },
    )
    make_arguments: dict[str, Iterable[Any]] = {
        "env_name": [
            None,
            3,
            "",
            [],
            "Nowhere-v0",
            "nowhere::x",
            "native::",
            "native::Nowhere-v1",
            "gym::",
            "::",
            b"a",
        ],
        "num_envs": HUGE,
        "num_episodes": COUNTS,
        "device": DEVICES,
        "autoreset_mode": [None, *NAMES],
        "gym_kwargs": [3, "abc", [1], {"unknown": 3}, {3: 4}],
        "backend": [None, *NAMES],
        "num_workers": COUNTS,
        "wait": NAMES,
        "ray_options": [3, "auto", {}],
        "unknown": [3],
        "max_episode_steps": [0, "a", 1.5],
    }
    base = {"env_name": "CartPole-v1", "num_envs": 3}
    cases += table("make_vector_env", lambda _, **k: make_vector_env(k.pop("env_name"), **k), base, make_arguments)
    native = {
        name: make_arguments[name] for name in ("num_envs", "num_episodes", "device", "autoreset_mode", "unknown")
    }
    native |= {
        "max_episode_steps": [0, "a", 1.5],
        "auto_reset": [False],
        "batch_size": [*COUNTS, 4],
        "backend": ["serial"],
    }
    base = {"env_name": "native::CartPole-v1", "num_envs": 3}
    cases += table("make_vector_env native", lambda _, **k: make_vector_env(k.pop("env_name"), **k), base, native)
    single = {
        "num_episodes": [1],
        "num_workers": [2],
        "backend": ["processes"],
        "device": ["cpu"],
        "empty_info": [True],
    }
    cases += table("single", lambda _, **k: make_vector_env("CartPole-v1", **k), {}, single)
    cases += table(
        "make_native_env",
        lambda _, **k: vector.make_native_env(k.pop("env_name"), **k),
        {"env_name": "CartPole-v1"},
        {"env_name": [None, 3, "", "nowhere"]},
    )
    cases += table(
        "make_gym_env",
        lambda _, **k: vector.make_gym_env(k.pop("env_name"), **k),
        {"env_name": "CartPole-v1"},
        {"env_name": [None, 3, "", "nowhere"]},
    )
    cases += table(
        "TorchWrapper",
        lambda _, **k: TorchWrapper(**k),
        {"env": Counting()},
        {
            "env": [None, 3, "CartPole-v1", Counting, [], Spaceless()],
            "unknown": [3],
        },
    )
    policy = lambda obs: np.zeros(len(obs), int)  # noqa: E731
    cases += table(
        "RolloutWorkers",
        lambda _, **k: RolloutWorkers(**k),
        {"env_fns": fns, "policy": policy, "backend": "serial"},
        {
            "env_fns": FNS,
            "policy": [None, 3, "abc", []],
            "seed": SEEDS,
            "backend": NAMES,
            "num_workers": COUNTS,
            "on_failure": NAMES,
            "unknown": [3],
        },
    )
    cases += table(
        "BatchedVectorEnv",
        lambda _, **k: vector.BatchedVectorEnv(**k),
        {},
        {"simulator": [None, 3, "native::CartPole-v1", [], Counting()]},
    )
    cases += table(
        "BaseVectorEnv",
        lambda _, **k: vector.BaseVectorEnv(**k),
        {"num_envs": 3, "observation_space": spaces.Discrete(2), "action_space": spaces.Discrete(2)},
        {
            "num_envs": [None, *COUNTS],
            "observation_space": [
                None,
                3,
                "Box",
                spaces.Text(3),
                spaces.Sequence(spaces.Discrete(2)),
                [],
                spaces.Dict({"a": spaces.Text(2)}),
            ],
            "action_space": [None, 3, "Box", spaces.Text(3), []],
        },
    )
    cases += table(
        "find_entry", lambda _, **k: vector.find_entry(**k), {}, {"env_name": [None, 3, "nowhere::x", [], "::"]}
    )
    cases += table("unregister", lambda _, **k: vector.unregister(**k), {}, {"prefix": [None, 3, "nowhere", [], ""]})
    cases += table("available", lambda _, **k: vector.available(**k), {}, {"prefix": [None, 3, "nowhere", [], ""]})
    cases += table(
        "register",
        lambda _, **k: vector.register(**k),
        {"prefix": "new", "make_batch": print},
        {
            "prefix": [None, 3, "gym", "", []],
            "make_batch": [None, 3, "abc"],
            "maker": [3, "abc"],
            "env_fn": [3, "abc", print],
            "names": [3, "abc", ["a"]],
            "requires": [3],
        },
    )
    cases += table("array_type", lambda _, **k: vector.array_type(**k), {}, {"x": [None, "abc", object(), {}]})
    cases += table(
        "convert_to_torch",
        lambda _, **k: vector.convert_to_torch(**k),
        {},
        {"x": [None, "abc", object(), [[1], [1, 2]]]},
    )
    cases += table(
        "convert_from_torch",
        lambda _, **k: vector.convert_from_torch(**k),
        {"x": torch.zeros(2), "array_type": "numpy"},
        {"x": [None, "abc", [1]], "array_type": [None, "nowhere", 3]},
    )
    cases += table(
        "reset_tensors",
        lambda _, **k: vector.reset_tensors(**k),
        {"x": torch.zeros(3), "indices": [1]},
        {"indices": [[7], "abc", object()]},
    )
    # methods
    cases += table("reset", lambda env, **k: env.reset(**k), {}, {"seed": SEEDS, "options": OPTIONS, "unknown": [3]})
    cases += table("reset mask", lambda env, mask: env.reset(options={"reset_mask": mask}), {}, {"mask": MASKS})
    cases += table("step", lambda env, **k: env.step(**k), {}, {"actions": DISCRETE})
    box = partial(_step_once, spaces.Box(-1, 1, (2,)))
    cases += table("step box", lambda _, **k: box(**k), {}, {"actions": BOX})
    nested = partial(_step_once, NESTED_SPACE)
    cases += table("step nested", lambda _, **k: nested(**k), {}, {"actions": NESTED})
    cases += table("call", lambda env, **k: env.call(**k), {}, {"name": [None, 3, "", "nowhere", [], b"count"]})
    cases += table("call reset", lambda env, **k: env.call("reset", **k), {}, {"unknown": [3]})
    cases += table("get_attr", lambda env, **k: env.get_attr(**k), {}, {"name": [None, 3, "", "nowhere", [], b"count"]})
    cases += table(
        "set_attr",
        lambda env, **k: env.set_attr(**k),
        {"name": "extra", "values": 1},
        {"name": [None, 3, [], b"count"], "values": [[], [1, 2], (1, 2, 3, 4), Liar([1])]},
    )
    cases += table(
        "cancel", lambda env, **k: env.cancel(**k), {}, {"ids": [None, *[ids for ids in IDS if ids != [0, 0]]]}
    )
    cases += table("close", lambda env, **k: env.close(**k), {}, {"timeout": []})
    cases += table("set_state", lambda env, **k: env.set_state(**k), {}, {"state": [None, 3, {}, "abc", {"a": 1}, []]})
    cases += table("from_pool", lambda env, **k: VectorEnv.from_pool(**k), {}, {"pool": [None, 3, "abc", Counting()]})
    cases += table(
        "info_of",
        lambda env, **k: vector.info_of(**k),
        {"info": {"x": np.ones(2), "_x": np.ones(2, bool)}, "env_id": 1},
        {"info": [None, 3, []], "env_id": [7, -7, "a", None, 1.5]},
    )
    return cases


def _step_once(space: spaces.Space, actions: object) -> object:
    with VectorEnv([lambda: Counting(space)] * 3) as env:
        env.reset()
        return env.step(actions)


def venv_cases() -> list[Case]:
    """Returns the constructors and methods of `vecrl.venv` with wrong arguments; `env` is a DummyVectorEnv."""
    fns = [Counting] * 3
    waiting: dict[str, Iterable[Any]] = {
        "wait_num": [0, -1, 4, 1.5, float("nan"), "2", [2], {}, True, 10**30, object()],
        "timeout": SECONDS,
    }
    pool: dict[str, Iterable[Any]] = {
        **POOL_OPTIONS,
        "num_workers": COUNTS,
        "unknown": [3],
    }
    cases = table(
        "DummyVectorEnv",
        lambda _, **k: DummyVectorEnv(**k),
        {"env_fns": fns},
        {
            "env_fns": [f for f in FNS if not isinstance(f, list) or f != [Spaceless]],
            **waiting,
            **pool,
            "backend": NAMES,
        },
    )
    cases += table(
        "BaseVectorEnv",
        lambda _, **k: BaseVenv(**k),
        {"env_fns": fns, "backend": "serial"},
        {"env_fns": FNS[:6], "backend": [None, *NAMES], "wait_num": [0, 4]},
    )
    cases += table(
        "SubprocVectorEnv",
        lambda _, **k: SubprocVectorEnv(**k),
        {"env_fns": fns},
        {
            "env_fns": FNS[:4],
            "wait_num": [0, 4],
            "timeout": [0, "a"],
            "context": [3, "nowhere", []],
            "num_workers": COUNTS[:3],
            "unknown": [3],
        },
    )
    cases += table(
        "ShmemVectorEnv",
        lambda _, **k: ShmemVectorEnv(**k),
        {"env_fns": fns},
        {"env_fns": FNS[:4], "wait_num": [0, 4], "timeout": [0, "a"], "unknown": [3]},
    )
    cases += table("VectorEnvWrapper", lambda _, **k: VectorEnvWrapper(**k), {}, {"venv": [None, 3, "abc"]})
    cases += table("set_obs_rms", lambda env, **k: VectorEnvNormObs(env).set_obs_rms(**k), {}, {"obs_rms": [None, 3]})
    cases += table(
        "RunningMeanStd",
        lambda _, **k: RunningMeanStd(**k),
        {},
        {"mean": ["a"], "std": ["a", None], "clip_max": ["a", -1], "epsilon": ["a"], "unknown": [3]},
    )
    stats = RunningMeanStd()
    stats.update(np.zeros((2, 3)))
    cases += table(
        "update",
        lambda _, **k: stats.update(**k),
        {},
        {"data_array": [np.zeros((2, 4)), np.zeros((2, 3, 1)), "abc", None, 3, [["a"] * 3], [[1, 2], [3]]]},
    )
    cases += table("norm", lambda _, **k: stats.norm(**k), {}, {"data_array": [np.zeros(4), "abc", None, {}]})
    cases += table(
        "load_state_dict",
        lambda _, **k: RunningMeanStd().load_state_dict(**k),
        {},
        {"state": [None, {}, 3, {"count": 1}, {"count": 1, "mean": [0], "m2": [0, 1]}, []]},
    )
    # methods
    cases += table(
        "reset",
        lambda env, **k: env.reset(**k),
        {},
        {"env_id": [*IDS, []], "seed": [s for s in SEEDS if not isinstance(s, Liar)], "unknown": [3]},
    )
    cases += table("step", lambda env, **k: env.step(**k), {}, {"action": DISCRETE})
    cases += table("step id", lambda env, **k: env.step([0], **k), {}, {"id": [*IDS, []]})
    cases += table(
        "step two",
        lambda env, **k: env.step(k["action"], [2, 0]),
        {},
        {"action": [a for a in DISCRETE if not isinstance(a, Liar)]},
    )
    cases += table("seed", lambda env, **k: env.seed(**k), {}, {"seed": [s for s in SEEDS if not isinstance(s, Liar)]})
    cases += table(
        "get_env_attr",
        lambda env, **k: env.get_env_attr(**k),
        {"key": "count"},
        {"key": [None, 3, "", "nowhere", [], b"count"], "id": [*IDS]},
    )
    cases += table(
        "set_env_attr",
        lambda env, **k: env.set_env_attr(**k),
        {"key": "extra", "value": 1},
        {"key": [None, 3, [], b"count"], "id": [*IDS]},
    )
    cases += table("cancel", lambda env, **k: env.cancel(**k), {}, {"id": [ids for ids in IDS if ids != [0, 0]]})
    cases += table("set_state", lambda env, **k: env.set_state(**k), {}, {"state": [None, 3, {}, "abc", {"a": 1}, []]})
    cases += table("render", lambda env, **k: env.render(**k), {}, {"unknown": [3]})
    for function in (to_venv, to_vector, to_tensordict):
        cases += table(
            function.__name__,
            lambda _, function=function, **k: function(**k),
            {},
            {"env": [None, 3, "CartPole-v1", [], Spaceless]},
        )
    cases += table(
        "to_venv",
        lambda _, **k: to_venv(SerialEnv(2, partial(GymEnv, "CartPole-v1")), **k),
        {},
        {"observation": ["nowhere", 3, [], ("a", "b")]},
    )
    return cases


def envs_cases() -> list[Case]:
    """Returns constructors and methods of `vecrl.envs` and `vecrl.specs`; `env` is a SerialEnv of three."""
    make = lambda **k: GymWrapper(Counting(), **k)  # noqa: E731
    name = "CartPole-v1"
    names = [None, 3, "", [], "Nowhere-v0", b"a"]
    cases = table(
        "GymEnv",
        lambda _, **k: GymEnv(k.pop("env_name"), **k).close(),
        {"env_name": name},
        {
            "env_name": names,
            "num_envs": [*COUNTS[1:8], np.ones(2), 10**30],
            "frame_skip": COUNTS,
            "device": DEVICES,
            "batch_size": [[2], 3, "a", -1, [None]],
            "unknown": [3],
            "backend": ["nowhere"],
        },
    )
    cases += table(
        "GymEnv of a batch",
        lambda _, **k: GymEnv(name, **k).close(),
        {"num_envs": 2},
        {"num_workers": COUNTS[1:8], "backend": NAMES, "wait": NAMES},
    )
    cases += table(
        "GymWrapper",
        lambda _, **k: GymWrapper(**k),
        {"env": Counting()},
        {
            "env": [None, 3, "abc", Counting, Spaceless(), []],
            "device": DEVICES,
            "frame_skip": [0, -1],
            "batch_size": [[2], "a"],
            "unknown": [3],
        },
    )
    cases += table(
        "make_env",
        lambda _, **k: make_env(**k).close(),
        {"name": name},
        {"name": [*names, "nowhere::x", "native::x"], "num_envs": HUGE, "unknown": [3]},
    )
    cases += table(
        "env_maker",
        lambda _, **k: env_maker(**k)().close(),
        {"name": name},
        {"name": [*names, "nowhere::x", "native::x"], "num_envs": COUNTS},
    )
    cases += table(
        "NativeEnv",
        lambda _, **k: NativeEnv(k.pop("env_name"), **k).close(),
        {"env_name": name},
        {
            "env_name": names,
            "num_envs": HUGE,
            "batch_size": ["a", -1, [-2], [1.5], [None]],
            "device": DEVICES,
            "max_episode_steps": [0, 1.5, "a"],
            "unknown": [3],
            "dtype": [3, "nowhere", []],
        },
    )
    cases += table(
        "SimulatorEnv",
        lambda _, **k: SimulatorEnv(k.pop("simulator"), **k).close(),
        {"simulator": "native::CartPole-v1", "num_envs": 2},
        {
            "simulator": [None, 3, "", [], "nowhere::x", "gym::CartPole-v1"],
            "num_envs": COUNTS,
            "device": DEVICES,
            "batch_size": ["a", -1, [3], [1.5], {}],
            "unknown": [3],
        },
    )
    batch: dict[str, Iterable[Any]] = {
        "num_workers": [None, *HUGE],
        "create_env_fn": [
            None,
            3,
            "abc",
            [],
            [None],
            [make],
            [make] * 4,
            [3, make, make],
            lambda: None,
            lambda: 3,
            make(),
            {},
            lambda: Counting(),
        ],
        "create_env_kwargs": [3, "abc", [{}], [{}] * 4, says({"unknown": 3}, "unknown"), [3, 3, 3]],
        "device": DEVICES,
        "envs_per_worker": COUNTS,
        "backend": [n for n in NAMES if n or n == ""],
        "step_timeout": SECONDS,
        "on_failure": NAMES,
        "restarts_per_hour": COUNTS,
        "wait": NAMES,
        "num_threads": COUNTS,
        "num_sub_threads": COUNTS,
        "mp_start_method": ["nowhere", 3],
        "unknown": [3],
        "ray_options": [3, {}],
    }
    cases += table("SerialEnv", lambda _, **k: SerialEnv(**k).close(), {"num_workers": 3, "create_env_fn": make}, batch)
    few = {key: list(values)[:4] for key, values in batch.items() if key not in ("wait", "device", "backend")}
    cases += table(
        "ParallelEnv", lambda _, **k: ParallelEnv(**k).close(), {"num_workers": 3, "create_env_fn": make}, few
    )
    cases += table(
        "AsyncEnvPool",
        lambda _, **k: AsyncEnvPool(**k).close(),
        {"env_makers": [make], "backend": "threading"},
        {
            "env_makers": [None, 3, "abc", [], [None], [3]],
            "backend": [n for n in NAMES if n],
            "stack": ["nowhere", 3, None],
            "create_env_kwargs": [3, [{}, {}]],
            "unknown": [3],
        },
    )
    cases += table(
        "TransformedEnv",
        lambda _, **k: TransformedEnv(**k),
        {"env": make(), "transform": None},
        {
            "env": [None, 3, "abc", Counting(), GymEnv, []],
            "transform": [3, "abc", [3], StepCounter, [None], object(), {}],
            "device": DEVICES,
            "unknown": [3],
        },
    )
    # methods
    cases += table(
        "reset",
        lambda env, **k: env.reset(**k),
        {},
        {
            "tensordict": [
                3,
                "abc",
                {},
                [],
                TensorDict({}, [2]),
                TensorDict({}, []),
                TensorDict({"_reset": torch.zeros(3, 2, dtype=torch.bool)}, [3]),
                TensorDict({"_reset": torch.zeros(3)}, [3]),
                TensorDict({"x": {"_reset": torch.ones(3, 1, dtype=torch.bool)}}, [3]),
            ],
            "seed": SEEDS[:14],
        },
    )
    one = torch.zeros(3, 3, dtype=torch.int64)
    actions = [
        one[:, :2],
        one[:, 0],
        torch.zeros(3, 3, 1),
        torch.full((3, 3), float("nan")),
        torch.full((3, 3), 7),
        one - 1,
    ]
    wrong_data = [
        None,
        3,
        "abc",
        {},
        [],
        TensorDict({}, [3]),
        TensorDict({}, []),
        TensorDict({"action": one[:2]}, [2]),
        TensorDict({"actions": one}, [3]),
    ]
    wrong_data += [TensorDict({"action": value}, [3]) for value in actions] + [
        TensorDict({"action": {"x": one}}, [3]),
        TensorDict({"action": NonTensorData("abc", batch_size=[3])}, [3]),
    ]
    for method in ("step", "step_and_maybe_reset"):
        cases += table(
            method, lambda env, method=method, **k: getattr(env, method)(**k), {}, {"tensordict": wrong_data}
        )
    cases += table(
        "step_mdp", lambda env, **k: env.step_mdp(**k), {}, {"tensordict": [None, 3, "abc", {}, TensorDict({}, [3])]}
    )
    cases += table(
        "rollout",
        lambda env, **k: env.rollout(**k),
        {"max_steps": 2},
        {
            "max_steps": [None, *[n for n in COUNTS if n is not True]],
            "policy": [
                3,
                "abc",
                lambda td: None,
                lambda td: 3,
                lambda td: TensorDict({}, [3]),
                lambda td: td,
                lambda td: {},
            ],
            "callback": [3, "abc"],
            "actions": [3, "abc", [3], torch.zeros(2), [torch.zeros(3, 2)] * 2],
            "tensordict": [3, "abc", TensorDict({}, [2]), {}],
            "unknown": [3],
            "storing_device": DEVICES[:4],
        },
    )
    cases += table(
        "set_seed",
        lambda env, **k: env.set_seed(**k),
        {},
        {"seed": [-1, 1.5, "a", [1, 2, 3], {}, object(), True, float("nan"), [-1] * 3]},
    )
    cases += table("to", lambda env, **k: make().to(**k), {}, {"device": [*DEVICES, None, "cpu:x"]})
    cases += table(
        "rand_action", lambda env, **k: env.rand_action(**k), {}, {"tensordict": [3, "abc", TensorDict({}, [2])]}
    )
    cases += table(
        "rand_step", lambda env, **k: env.rand_step(**k), {}, {"tensordict": [3, "abc", TensorDict({}, [2]), {}]}
    )
    cases += table(
        "maybe_reset",
        lambda env, **k: env.maybe_reset(**k),
        {},
        {"tensordict": [None, 3, "abc", TensorDict({}, [2]), {}]},
    )
    cases += table("any_done", lambda env, **k: env.any_done(**k), {}, {"tensordict": [None, 3, "abc", {}]})
    cases += table("set_state", lambda env, **k: env.set_state(**k), {}, {"state": [None, 3, {}, "abc", {"a": 1}, []]})
    cases += table(
        "load_state_dict", lambda env, **k: env.load_state_dict(**k), {}, {"state_dict": [None, 3, "abc", []]}
    )
    cases += table(
        "append_transform",
        lambda env, **k: TransformedEnv(make()).append_transform(**k),
        {},
        {"transform": [None, 3, "abc", StepCounter, []]},
    )
    cases += table(
        "insert_transform",
        lambda env, **k: TransformedEnv(make(), StepCounter()).insert_transform(**k),
        {"index": 0, "transform": StepCounter()},
        {"index": [None, "a", 1.5, 7, -7], "transform": [None, 3, "abc"]},
    )
    cases += table("getattr", lambda env, name: getattr(env, name), {}, {"name": ["nowhere"]})
    cases += table("check_env_specs", lambda _, **k: check_env_specs(**k), {}, {"env": [None, 3, "abc", Counting()]})
    keys = [[3], "nowhere", ["nowhere"]]
    apply = lambda transform: TransformedEnv(make(), transform).rollout(2)  # noqa: E731
    transforms: dict[Any, tuple[dict[str, Any], dict[str, Iterable[Any]]]] = {
        StepCounter: ({}, {"max_steps": [0, -1, 1.5, "a", []], "truncated_key": [3], "step_count_key": [3]}),
        RewardSum: (
            {},
            {"in_keys": ["nowhere", ["nowhere"], 3, [3]], "out_keys": [["a", "b"], 3, [3]], "reset_keys": [3]},
        ),
        RewardScaling: ({"loc": 0.0, "scale": 1.0}, {"loc": ["a", None], "scale": ["a", None], "in_keys": keys}),
        RewardClipping: ({}, {"clamp_min": ["a", []], "clamp_max": ["a", []], "in_keys": keys}),
        ObservationNorm: (
            {"loc": 0.0, "scale": 1.0, "in_keys": ["observation"]},
            {"loc": ["a", torch.zeros(2)], "scale": ["a", torch.zeros(2)], "in_keys": keys, "eps": ["a"]},
        ),
        CatFrames: (
            {"N": 2, "dim": -1, "in_keys": ["observation"]},
            {"N": [*COUNTS, None], "dim": [0, 3, "a", None, 1.5, -5], "padding": [None, 3, "nowhere"], "in_keys": keys},
        ),
        CatTensors: ({"in_keys": ["observation"]}, {"in_keys": keys, "dim": ["a", None, 1.5, -7], "out_key": [3, []]}),
        ClipTransform: (
            {"in_keys": ["observation"], "low": 0.0},
            {"low": ["a", []], "high": ["a", -1.0], "in_keys": keys},
        ),
        DTypeCastTransform: ({"dtype_in": torch.float32, "dtype_out": torch.float64}, {"dtype_out": [None, "a", 3]}),
        DoubleToFloat: ({}, {"in_keys": keys}),
        FlattenObservation: (
            {"first_dim": -2, "last_dim": -1, "in_keys": ["observation"]},
            {"first_dim": ["a", None, 1, -7, 1.5], "last_dim": ["a", None, 1]},
        ),
        FrameSkipTransform: ({}, {"frame_skip": COUNTS}),
        NoopResetEnv: ({}, {"noops": ["a", -1, 1.5, None, []]}),
        SqueezeTransform: ({"dim": -1, "in_keys": ["observation"]}, {"dim": ["a", 1, 1.5, -7]}),
        UnsqueezeTransform: ({"dim": -1, "in_keys": ["observation"]}, {"dim": ["a", 1, 1.5, -7]}),
        PermuteTransform: (
            {"dims": [-1], "in_keys": ["observation"]},
            {"dims": ["a", None, [0], [-1, -1], [-1, -3], 3]},
        ),
        RenameTransform: (
            {"in_keys": ["observation"], "out_keys": ["x"]},
            {"in_keys": keys, "out_keys": [3, [3], ["a", "b"], []]},
        ),
        TargetReturn: ({"target_return": 1.0}, {"target_return": ["a", None, []], "mode": [None, 3, "nowhere"]}),
        TimeMaxPool: ({"in_keys": ["observation"], "T": 2}, {"T": COUNTS, "in_keys": keys}),
        InitTracker: ({}, {"init_key": [3, [], None]}),
        VecNorm: ({"in_keys": ["observation"]}, {"decay": ["a", -1, 2.0], "eps": ["a", -1], "in_keys": keys}),
        TensorDictPrimer: (
            {"primers": {"x": Unbounded((3,))}},
            {"primers": [3, {"x": 3}, "abc"], "default_value": ["abc", {"y": 1.0}]},
        ),
        ActionMask: ({}, {"mask_key": ["nowhere", 3], "action_key": ["nowhere", 3]}),
        ActionDiscretizer: ({"num_intervals": 3}, {"num_intervals": [0, -1, "a", None, 1.5]}),
        RandomTruncationTransform: (
            {"min_horizon": 1, "max_horizon": 3},
            {"min_horizon": [0, -1, 7, "a", None], "max_horizon": ["a", None, 0], "prob": [-1, 2.0, "a"]},
        ),
        Resize: ({"w": 8, "in_keys": ["observation"]}, {"w": [0, -1, "a", None], "interpolation": ["nowhere", 3]}),
        Hash: (
            {"in_keys": ["observation"], "out_keys": ["h"]},
            {"in_keys": [3, [3], ["nowhere"]], "out_keys": [3, [], ["a", "b"]], "hash_fn": [3]},
        ),
        TrajCounter: ({}, {"repeats": [0, "a", 1.5], "out_key": [3, []]}),
        Stack: (
            {"in_keys": ["observation"], "out_key": "x"},
            {"in_keys": keys, "out_key": [3, [], None], "dim": ["a", 1.5, 7, -7]},
        ),
        BinarizeReward: ({}, {"in_keys": keys}),
        MultiStepTransform: ({"n_steps": 2, "gamma": 0.9}, {"n_steps": COUNTS, "gamma": ["a", None, -1.0, 2.0]}),
        ToTensorImage: ({}, {"in_keys": keys}),
        Timer: ({}, {"time_key": [3]}),
        FunctionTransform: ({}, {"function": [None, 3, "abc"]}),
        ConditionalSkip: ({}, {"cond": [None, 3, "abc"]}),
        TerminateTransform: ({}, {"stop": [None, 3, "abc"]}),
        Compose: ({}, {"transforms": [3, "abc", [3], [StepCounter]]}),
    }
    for cls, (base, wrong) in transforms.items():
        cases += table(cls.__name__, lambda _, cls=cls, **k: apply(cls(**k)), base, wrong)
    # specs
    shapes = ["a", -3, [1.5], [None], ["a"], object(), float("nan")]
    dtypes = [3, "nowhere", [], object()]
    specs_table: dict[Any, tuple[dict[str, Any], dict[str, Iterable[Any]]]] = {
        Bounded: (
            {"low": 0, "high": 1, "shape": (3,)},
            {
                "low": ["a", None, 2, float("nan"), torch.zeros(2), []],
                "high": ["a", None, -1, torch.zeros(2), []],
                "shape": shapes,
                "device": DEVICES,
                "dtype": dtypes,
                "domain": ["nowhere", 3],
            },
        ),
        Unbounded: ({}, {"shape": shapes, "device": DEVICES, "dtype": dtypes}),
        Categorical: (
            {"n": 3},
            {
                "n": [None, 0, *COUNTS[2:7], *COUNTS[8:]],  # -1 is a number that is not known
                "shape": shapes,
                "device": DEVICES,
                "dtype": dtypes,
                "mask": ["a", torch.zeros(2), torch.ones(4, dtype=torch.bool)],
                "min": ["a", 1.5, None],
            },
        ),
        OneHot: (
            {"n": 3},
            {
                "n": [None, *[n for n in COUNTS if n is not True]],
                "shape": [*shapes, (2,), ()],
                "mask": ["a", torch.ones(4, dtype=torch.bool)],
                "dtype": dtypes,
            },
        ),
        MultiCategorical: (
            {"nvec": [2, 3]},
            {"nvec": [None, 0, "a", [0, 2], [-1], [1.5], [[1], [1, 2]], {}], "shape": [*shapes, (3,)], "dtype": dtypes},
        ),
        MultiOneHot: ({"nvec": [2, 3]}, {"nvec": [None, 0, "a", [], [0, 2], [-1], {}], "shape": [*shapes, (3,)]}),
        Binary: ({"n": 3}, {"n": [-2, *COUNTS[2:7], *COUNTS[8:]], "shape": [*shapes, (2,)], "dtype": dtypes}),
        Choice: ({}, {"choices": [None, 3, [], "abc", [1]]}),
        NonTensor: ({}, {"shape": shapes, "device": DEVICES}),
        Composite: (
            {"x": Unbounded((3,)), "shape": (3,)},
            {
                "x": [3, "abc", Unbounded((2,)), Unbounded(()), object()],
                "shape": ["a", -3, (2,), [1.5]],
                "device": DEVICES,
            },
        ),
    }
    for cls, (base, wrong) in specs_table.items():
        cases += table(cls.__name__, lambda _, cls=cls, **k: cls(**k), base, wrong)
    bounded, composite = Bounded(0, 1, (3,)), Composite(x=Unbounded((3,)), y=Categorical(3))
    for spec in (bounded, Categorical(3, (3,)), OneHot(3), MultiCategorical([2, 3])):
        kind = type(spec).__name__
        cases += table(f"{kind}.rand", lambda _, spec=spec, **k: spec.rand(**k), {}, {"shape": shapes})
        cases += table(
            f"{kind}.encode",
            lambda _, spec=spec, **k: spec.encode(**k),
            {},
            {"val": [None, "abc", object(), [1, 2, 3, 4], {}]},
        )
        cases += table(
            f"{kind}.assert_is_in",
            lambda _, spec=spec, **k: spec.assert_is_in(**k),
            {},
            {"value": [None, "abc", 3, torch.zeros(2), torch.full((3,), 7.0), {}]},
        )
        cases += table(
            f"{kind}.expand", lambda _, spec=spec, **k: spec.expand(k["shape"]), {}, {"shape": [*shapes[:5], (2, 7, 5)]}
        )
        cases += table(f"{kind}.to", lambda _, spec=spec, **k: spec.to(k["device"]), {}, {"device": DEVICES})
    cases += table("Composite.rand", lambda _, **k: composite.rand(**k), {}, {"shape": shapes})
    cases += table("Composite[]", lambda _, key: composite[key], {}, {"key": ["nowhere", 3, ("x", "z"), []]})
    cases += table(
        "Composite[]=",
        lambda _, key, value: composite.clone().__setitem__(key, value),
        {"key": "z", "value": Unbounded(())},
        {"key": [3, [], ()], "value": [3, "abc", object()]},
    )
    cases += table(
        "Composite.del", lambda _, key: composite.clone().__delitem__(key), {}, {"key": ["nowhere", 3, ("x", "z")]}
    )
    cases += table(
        "Composite.encode",
        lambda _, **k: composite.encode(**k),
        {},
        {"vals": [None, "abc", 3, {"x": 3}, {"x": torch.zeros(2)}, {"z": torch.zeros(3)}]},
    )
    cases += table(
        "Composite.assert_is_in",
        lambda _, **k: composite.assert_is_in(**k),
        {},
        {"value": [None, "abc", 3, {}, TensorDict({}), TensorDict({"x": torch.zeros(2), "y": torch.zeros(())})]},
    )
    cases += table(
        "Composite.set",
        lambda _, **k: composite.clone().set(**k),
        {"name": "z", "spec": Unbounded(())},
        {"name": [3, []], "spec": [3, "abc"]},
    )
    return cases


def classic_cases() -> list[Case]:
    """Returns constructors and methods of `vecrl.classic`; `env` is a list of classic environments."""
    name = "CartPole-v1"
    options: dict[str, Iterable[Any]] = {
        "gamma": [-0.1, 1.1, "a", None, float("nan"), float("inf"), 10**30, [0.5]],
    }
    seeds = [-1, 1.5, "a", True, [1], {}, object(), [], float("nan"), np.zeros(2), b"a", (1,)]
    cases = table(
        "GymEnv",
        lambda _, **k: ClassicGymEnv(**k),
        {"env_name": name},
        {
            "env_name": [
                None,
                3,
                "",
                [],
                "Nowhere-v0",
                "nowhere::x",
                "native::Nowhere-v1",
                "native::",
                "::",
                b"a",
                object(),
                {},
                1.5,
                "gym::Nowhere-v0",
                "CartPole-v99",
                "a b c-v0",
            ],
            "wrappers": [3, None, [3], [None], ["abc"], says([lambda env: None], "the wrapper"), "abc", object()],
            "seed": seeds,
            "library": [None, "nowhere", 3, "", []],
            "unknown": [3],
            "max_episode_steps": [] if gymnasium.__version__.startswith("1.3") else [0, "a", 1.5],  # gymnasium's errors
            **options,
        },
    )
    cases += table(
        "GymEnv native",
        lambda _, **k: ClassicGymEnv("native::CartPole-v1", **k),
        {},
        {"unknown": [3], "max_episode_steps": [0, "a", 1.5], "seed": seeds[:2], "device": DEVICES, "num_envs": [2]},
    )
    cases += table(
        "RoboschoolEnv",
        lambda _, **k: RoboschoolEnv(**k),
        {"env_name": "RoboschoolHopper-v1", "simulator": "mujoco"},
        {
            "env_name": [None, 3, "", "CartPole-v1", "RoboschoolNowhere-v1", [], b"a"],
            "simulator": [*NAMES],
            "unknown": [3],
        },
    )
    for index, kind in enumerate(("discrete", "box", "multi", "dict", "normalized")):
        wrong: list[Any] = [
            None,
            "abc",
            {},
            object(),
            [],
            [0] * 9,
            np.zeros((2, 9)),
            [[1], [1, 2]],
            1j,
            ["a"],
            [None],
            b"a",
            (),
            torch.zeros(9),
        ]
        if kind in ("discrete", "multi", "normalized"):
            wrong += [0.5, float("nan"), float("inf"), 2**70, [0.5], np.full(1, np.nan)]
        if kind in ("discrete", "multi"):
            wrong += [-1, 7, 10**12] if kind == "discrete" else [[-1, 0], [0, 7]]
        if kind == "box":
            wrong += [np.full(2, "a"), np.zeros((3, 2)), np.zeros(3), [0, None], np.zeros(2, complex), 0.5]
        if kind == "dict":
            wrong += [np.zeros(4), {"a": 0}, {"a": 0, "b": np.zeros(2)}, [float("nan")] * 5, 3]
        cases += table(f"step {kind}", lambda envs, index=index, **k: envs[index].step(**k), {}, {"action": wrong})
    cases += table("seed", lambda envs, **k: envs[1].seed(**k), {}, {"seed": seeds})
    cases += table("reset", lambda envs, **k: envs[0].reset(**k), {}, {"unknown": [3]})
    cases += table(
        "get_space_info",
        lambda envs, **k: envs[0].get_space_info(**k),
        {},
        {
            "space": [
                None,
                3,
                "Box",
                [],
                spaces.Text(3),
                spaces.Dict({"a": spaces.Discrete(2)}),
                spaces.Sequence(spaces.Discrete(2)),
                spaces.Graph(spaces.Discrete(2), None),
            ]
        },
    )
    cases += table(
        "set_state", lambda envs, **k: envs[0].set_state(**k), {}, {"state": [None, 3, {}, "abc", {"a": 1}, []]}
    )
    cases += table("update_config", lambda envs, **k: envs[0].update_config(**k), {}, {"config": [None, 3, "abc", {}]})
    cases += table(
        "from_classic",
        lambda _, **k: from_classic(**k),
        {"env": ClassicGymEnv(name)},
        {
            "env": [None, 3, "abc", Counting(), name, ClassicGymEnv, []],
            "device": DEVICES,
            "batch_size": [[2], 3, "a"],
            "unknown": [3],
            "frame_skip": [0, -1],
        },
    )
    cases += table(
        "to_classic",
        lambda _, **k: to_classic(**k),
        {"env": GymEnv(name)},
        {
            "env": [None, 3, "abc", Counting(), name, GymEnv, [], SerialEnv(2, lambda: GymWrapper(Counting()))],
            "observation": ["nowhere", 3, [], ("a", "b"), "action", "reward", 1.5],
            "unknown": [3],
            **options,
        },
    )
    space_info = {"shape": (2,), "dtype": "continuous", "low_bound": -1, "high_bound": 1}
    infos = [
        None,
        3,
        {},
        {"shape": (2,)},
        {"dtype": "int"},
        {**space_info, "dtype": "nowhere"},
        {**space_info, "shape": "a"},
        {**space_info, "shape": (-1,)},
        {**space_info, "shape": None},
    ]
    infos += [
        {**space_info, "low_bound": "a"},
        {**space_info, "low_bound": np.zeros(3)},
        {**space_info, "low_bound": 2},
        {**space_info, "shape": (1.5,)},
    ]
    for what in ("state", "action"):
        cases += table(
            f"own env {what}", lambda _, info, what=what: from_classic(own_env(what, info)), {}, {"info": infos}
        )
    cases += table("Config()", lambda _, values: Config(values), {}, {"values": [3, "abc", {3: 4}, [1], {"save": 1}]})
    cases += table(
        "new_section", lambda _, **k: Config(lr=1).new_section(k["name"]), {}, {"name": [None, 3, "lr", [], "save", {}]}
    )
    cases += table("Config.x", lambda _, name: getattr(Config(rate=1), name), {}, {"name": ["rat", "nowhere"]})
    cases += table("Config[]", lambda _, name: Config(rate=1)[name], {}, {"name": ["rat", "nowhere", 3, None]})
    cases += table("del Config", lambda _, name: Config(rate=1).__delitem__(name), {}, {"name": ["rat", "nowhere", 3]})
    cases += table(
        "Config.set", lambda _, name: Config(rate=1).__setitem__(name, 1), {}, {"name": [3, None, "save", "load"]}
    )
    cases += table(
        "Config.save",
        lambda _, path: Config(rate=1).save(path),
        {},
        {"path": [None, 3.5, "/nowhere/x.yaml", "/proc", []]},
    )
    cases += table(
        "Config.load", lambda _, path: Config.load(path), {}, {"path": [None, 3.5, "/nowhere/x.yaml", "/proc", []]}
    )
    cases += table(
        "Config.save value",
        lambda _, value: Config(x=value).save("/nowhere/x"),
        {},
        {"value": [object(), Counting, print, {"a": object()}, [Counting()], {1j}]},
    )
    return cases


def own_env(what: str, info: Any) -> Any:
    """Returns a classic environment that describes its states or its actions by `info`."""
    good = {"shape": (2,), "dtype": "continuous", "low_bound": -1, "high_bound": 1}

    class Own(BaseEnv):
        simulator = "none"

        def _create_env(self) -> None:
            return None

        def reset(self) -> np.ndarray:
            return np.zeros(2)

        def step(self, action: Any) -> Any:
            return np.zeros(2), 0.0, False, {}

        def get_state_info(self) -> Any:
            return info if what == "state" else good

        def get_action_info(self) -> Any:
            return info if what == "action" else good

    return Own("own")


def order_cases() -> list[Case]:
    """Returns calls in the wrong order, and calls of closed environments; each makes its own environment."""
    fns = [Counting] * 3

    def order(name: str, make: Callable[[], Any], calls: Sequence[Callable[[Any], object]], *words: str) -> Case:
        def call(_: Any) -> object:
            env = make()
            try:
                for before in calls[:-1]:
                    before(env)
                return calls[-1](env)
            finally:
                env.close()

        return Case(name, call, words)

    def waits() -> AsyncVectorEnv:
        env = AsyncVectorEnv(fns, backend="serial")
        env.reset()
        return env

    zeros, close = np.zeros(3, int), lambda env: env.close()
    start = lambda env: env.step_async(zeros)  # noqa: E731
    cases = [
        order("step_wait first", waits, [lambda env: env.step_wait()], "pending", "step_async"),
        order("reset_wait first", waits, [lambda env: env.reset_wait()], "pending", "reset_async"),
        order("call_wait first", waits, [lambda env: env.call_wait()], "pending", "call_async"),
        order("two step_async", waits, [start, start], "pending"),
        order("reset_async, step_async", waits, [lambda env: env.reset_async(), start], "pending"),
        order("step_async, call_async", waits, [start, lambda env: env.call_async("count")], "pending"),
        order("step_async, call_wait", waits, [start, lambda env: env.call_wait()], "pending"),
        order("step_async, reset_wait", waits, [start, lambda env: env.reset_wait()], "pending"),
        order("step_async, get_attr", waits, [start, lambda env: env.get_attr("count")], "pending"),
        order("step_async, set_attr", waits, [start, lambda env: env.set_attr("count", 1)], "pending"),
        order("wait without actions", partial(DummyVectorEnv, fns), [lambda env: env.step(None)], "actions"),
        order("classic step first", lambda: to_classic(GymEnv("CartPole-v1")), [lambda env: env.step(0)], "reset"),
    ]
    partly: Any = partial(DummyVectorEnv, fns, wait_num=1)
    send = lambda env: (env.reset(), env.step(zeros))  # noqa: E731
    for name, last in {
        "step": lambda env: env.step([0], env.waiting_id[:1]),
        "reset": lambda env: env.reset(env.waiting_id[:1]),
        "get": lambda env: env.get_env_attr("count", env.waiting_id[:1]),
    }.items():
        cases.append(order(f"pending {name}", partly, [send, last], "pending"))
    closed: dict[str, tuple[Callable[[], Any], dict[str, Callable[[Any], object]]]] = {
        "VectorEnv": (
            partial(VectorEnv, fns),
            {
                "reset": lambda env: env.reset(),
                "step": lambda env: env.step(zeros),
                "call": lambda env: env.call("count"),
                "get_attr": lambda env: env.get_attr("count"),
                "set_attr": lambda env: env.set_attr("count", 1),
                "cancel": lambda env: env.cancel([0]),
            },
        ),
        "AsyncVectorEnv": (
            waits,
            {
                "step_async": start,
                "step_wait": lambda env: env.step_wait(),
                "reset_async": lambda env: env.reset_async(),
                "call_async": lambda env: env.call_async("count"),
            },
        ),
        "SyncVectorEnv": (
            partial(SyncVectorEnv, fns),
            {"reset": lambda env: env.reset(), "step": lambda env: env.step(zeros)},
        ),
        "DummyVectorEnv": (
            partial(DummyVectorEnv, fns),
            {
                "reset": lambda env: env.reset(),
                "step": lambda env: env.step(zeros),
                "step none": lambda env: env.step(None),
                "get": lambda env: env.get_env_attr("count"),
                "set": lambda env: env.set_env_attr("count", 1),
                "seed": lambda env: env.seed(1),
                "render": lambda env: env.render(),
            },
        ),
        "SerialEnv": (
            lambda: SerialEnv(2, lambda: GymWrapper(Counting())),
            {"step": lambda env: env.step(TensorDict({"action": torch.zeros(2, 3)}, [2]))},
        ),
        "RolloutWorkers": (
            partial(RolloutWorkers, fns, lambda obs: np.zeros(len(obs), int), backend="serial"),
            {"rollout": lambda env: env.rollout(2), "reset": lambda env: env.reset()},
        ),
    }
    for kind, (make, calls) in closed.items():
        cases += [order(f"closed {kind}.{name}", make, [close, call], "closed") for name, call in calls.items()]
    return cases


CASES: dict[str, Callable[[], list[Case]]] = {
    "vector": vector_cases,
    "venv": venv_cases,
    "envs": envs_cases,
    "classic": classic_cases,
    "order": order_cases,
}


class Vector:
    """A `VectorEnv` of three environments, which each wrong call must leave usable."""

    cases = "vector"

    def __init__(self, backend: Any = "serial"):
        self.env: Any = self.make(backend)
        self.reset()

    def make(self, backend: Any) -> Any:
        return VectorEnv([Counting] * 3, backend=backend)

    def reset(self) -> None:
        self.env.reset()

    def step(self) -> None:
        self.env.step(np.zeros(3, int))

    def close(self) -> None:
        self.env.close()

    def fault(self) -> str:
        """Returns the error of a step that follows a wrong call, or of a reset if an environment has raised; or ""."""
        try:
            self.step()
        except PendingError as error:
            if "failed before" not in str(error):
                self.reset()
                return str(error)
            self.reset()
        except Exception as error:
            self.reset()
            return f"{type(error).__name__}: {error}"
        return ""


class Venv(Vector):
    """A `DummyVectorEnv`, or a `SubprocVectorEnv`."""

    cases = "venv"

    def make(self, backend: Any) -> Any:
        return (DummyVectorEnv if backend == "serial" else SubprocVectorEnv)([Counting] * 3, num_workers=1)


class Envs(Vector):
    """A `SerialEnv`, or a `ParallelEnv`."""

    cases = "envs"

    def make(self, backend: Any) -> Any:
        cls = SerialEnv if backend == "serial" else ParallelEnv
        return cls(3, lambda: GymWrapper(Counting()), backend=backend)

    def step(self) -> None:
        self.env.step(TensorDict({"action": torch.eye(3, dtype=torch.int64)}, [3]))


class Classic(Vector):
    """A classic environment for each kind of actions, and a normalized one."""

    cases = "classic"

    def make(self, backend: Any) -> Any:
        kinds = [spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 3]), NESTED_SPACE]
        envs = [ClassicGymEnv("CartPole-v1", [lambda _, space=space: Counting(space)]) for space in kinds]
        return [*envs, ClassicGymEnv("CartPole-v1", running_normalize_states=True)]

    def reset(self) -> None:
        for env in self.env:
            env.reset()

    def step(self) -> None:
        for env, action in zip(self.env, (0, np.zeros(2), [0, 0], np.zeros(5), 0), strict=True):
            if env.step(action)[2]:
                env.reset()

    def close(self) -> None:
        for env in self.env:
            env.close()


class Order(Vector):
    """The environment beside those of the calls in a wrong order."""

    cases = "order"


DIALECTS = [Vector, Venv, Envs, Classic, Order]


@pytest.fixture(autouse=True)
def _registered_prefixes() -> Iterator[None]:
    yield
    if "new" in vector.known_prefixes():
        vector.unregister("new")


def problems_of(dialect: Vector, cases: Iterable[Case]) -> list[str]:
    """Returns what is wrong with the errors of the cases, and with a step after each."""
    problems = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            problem = problem_of(case, dialect.env)
            if problem:
                problems.append(problem)
            fault = dialect.fault()
            if fault:
                problems.append(f"{case.name}: the step after it: {fault[:200]}")
    dialect.close()
    return problems


@pytest.mark.parametrize("make", DIALECTS, ids=lambda make: make.cases)
def test_wrong_inputs(make: type[Vector]) -> None:
    cases = CASES[make.cases]()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), sorted(name for name in set(names) if names.count(name) > 1)
    problems = problems_of(make(), cases)
    assert not problems, "\n".join(problems)


METHODS = {
    "vector": ("reset(", "reset mask(", "step(", "call(", "get_attr(", "set_attr("),
    "venv": ("reset(", "step(", "step id(", "step two(", "get_env_attr(", "set_env_attr("),
    "envs": ("reset(", "step(", "step_and_maybe_reset(", "set_seed("),
}


@pytest.mark.parametrize("make", DIALECTS[:3], ids=lambda make: make.cases)
def test_wrong_inputs_of_worker_processes(make: type[Vector]) -> None:
    cases = [case for case in CASES[make.cases]() if case.name.startswith(METHODS[make.cases])]
    sample = cases[:: max(1, len(cases) // 20)]
    assert len(sample) >= 20
    problems = problems_of(make("processes"), sample)
    assert not problems, "\n".join(problems)
