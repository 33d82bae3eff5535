"""Single transforms of vecrl and TorchRL: the same code for both, since the names are equal.

The environment costs next to nothing, and is the same for both. What counts is the time that a step takes longer under
the transform, the `TransformedEnv` included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from benchmarks.implementation import Measurement, RunFactory
from benchmarks.implementations.on_tensordict import define_torchvision_operators

torch.set_num_threads(1)

VECTOR = {"observation": (torch.float32, (8,))}
PAIR = {"observation": (torch.float32, (8,)), "other": (torch.float32, (8,))}
IMAGE = {"pixels": (torch.uint8, (96, 96, 3))}
TENSOR_IMAGE = {"pixels": (torch.float32, (3, 96, 96))}
DOUBLES = {"observation": (torch.float64, (8,))}
INTEGERS = {"observation": (torch.int64, (8,))}
MATRIX = {"observation": (torch.float32, (4, 8))}
COLUMN = {"observation": (torch.float32, (1, 8))}
MASKED = {"action_mask": (torch.bool, (4,))}
RECURRENT = {"observation": (torch.float32, (8,)), "hidden": (torch.float32, (8,))}
Entries = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
T = 32
"""The steps of stored trajectories."""
BLOCK = 20
"""The units that are timed at once."""


@dataclass(frozen=True)
class Row:
    """The work of one row: how to make the transform of a library, and in what it is used.

    Attributes:
        make: returns the transform, given the names of a library's `envs.transforms`.
        entries: dtypes and shapes of the observations.
        action: "continuous", two numbers in [-1, 1]; "discrete" and "one-hot", one of four; "matrix", two by two
            numbers; "several", two numbers of which two are given at once.
        work: "step" and "reset" of an environment; "forward" and "inverse" on stored data.
        shape: the shape of the data, after the dimension of the batch.
        is_flat: whether the data have a single dimension of all steps.
    """

    make: Callable[[Any], Any]
    entries: Entries
    action: str = "continuous"
    work: str = "step"
    shape: tuple[int, ...] = ()
    is_flat: bool = False


def _halved(td: Any) -> Any:
    return td.set("observation", td["observation"] / 2)


def _same(td: Any) -> Any:
    return td


def _never(td: Any) -> Any:
    return torch.zeros(td.batch_size, dtype=torch.bool)


def _half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def _push(td: Any) -> Any:
    return td.set("action", torch.zeros(*td.batch_size, 2))


def _module() -> Any:
    return TensorDictModule(_half, ["observation"], ["observation"])


class Memory(torch.nn.Module):
    """Adds up its inputs over time."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + (self.scale * x).cumsum(-2)


def _memory() -> Any:
    return TensorDictModule(Memory(), ["observation", "hidden"], [("next", "hidden")])


OBS: dict[str, Any] = {"in_keys": ["observation"]}
PIXELS: dict[str, Any] = {"in_keys": ["pixels"]}
REWARD: dict[str, Any] = {"in_keys": ["reward"]}

ROWS: dict[str, Row] = {
    "ActionDiscretizer": Row(lambda t: t.ActionDiscretizer(5, out_action_key="index"), VECTOR),
    "ActionMask": Row(lambda t: t.ActionMask(), MASKED, "discrete"),
    "ActionScaling": Row(lambda t: t.ActionScaling(), VECTOR),
    "BatchSizeTransform": Row(lambda t: t.BatchSizeTransform(reshape_fn=_same), VECTOR),
    "BinarizeReward": Row(lambda t: t.BinarizeReward(), VECTOR),
    "BurnInTransform": Row(lambda t: t.BurnInTransform([_memory()], 8), RECURRENT, work="forward", shape=(2, T)),
    "CatFrames": Row(lambda t: t.CatFrames(N=4, dim=-1, **OBS), VECTOR),
    "CatTensors": Row(lambda t: t.CatTensors(in_keys=["observation", "other"], out_key="both", del_keys=False), PAIR),
    "CenterCrop": Row(lambda t: t.CenterCrop(84, **PIXELS), TENSOR_IMAGE),
    "ClipTransform": Row(lambda t: t.ClipTransform(low=-1.0, high=1.0, **OBS), VECTOR),
    "ConditionalPolicySwitch": Row(lambda t: t.ConditionalPolicySwitch(_push, _never), VECTOR),
    "ConditionalSkip": Row(lambda t: t.ConditionalSkip(_never), VECTOR),
    "Crop": Row(lambda t: t.Crop(84, **PIXELS), TENSOR_IMAGE),
    "DeviceCastTransform": Row(lambda t: t.DeviceCastTransform("cpu"), VECTOR),
    "DiscreteActionProjection": Row(lambda t: t.DiscreteActionProjection(4, 6), VECTOR, "one-hot"),
    "DoubleToFloat": Row(lambda t: t.DoubleToFloat(**OBS), DOUBLES),
    "DTypeCastTransform": Row(lambda t: t.DTypeCastTransform(torch.float64, torch.float32, **OBS), DOUBLES),
    "ExcludeTransform": Row(lambda t: t.ExcludeTransform("other"), PAIR),
    "ExpandAs": Row(lambda t: t.ExpandAs("observation", "other", "wide"), PAIR),
    "FiniteTensorDictCheck": Row(lambda t: t.FiniteTensorDictCheck(), VECTOR),
    "FlattenAction": Row(lambda t: t.FlattenAction(in_keys_inv=["action"]), VECTOR, "matrix"),
    "FlattenObservation": Row(lambda t: t.FlattenObservation(-2, -1, **OBS), MATRIX),
    "FrameSkipTransform": Row(lambda t: t.FrameSkipTransform(2), VECTOR),
    "GrayScale": Row(lambda t: t.GrayScale(**PIXELS), TENSOR_IMAGE),
    "gSDENoise": Row(lambda t: t.gSDENoise(state_dim=8, action_dim=2), VECTOR, work="reset"),
    "Hash": Row(lambda t: t.Hash(["observation"], ["hash"]), VECTOR),
    "InitTracker": Row(lambda t: t.InitTracker(), VECTOR),
    "LineariseRewards": Row(lambda t: t.LineariseRewards(["reward"], weights=[2.0]), VECTOR),
    "ModuleTransform": Row(lambda t: t.ModuleTransform(module=_module(), no_grad=True), VECTOR),
    "MultiAction": Row(lambda t: t.MultiAction(), VECTOR, "several"),
    "MultiStepTransform": Row(lambda t: t.MultiStepTransform(3, 0.99), VECTOR, work="inverse", shape=(T,)),
    "NextObservationDelta": Row(lambda t: t.NextObservationDelta(**OBS), VECTOR, work="inverse", shape=(T,)),
    "NextStateReconstructor": Row(
        lambda t: t.NextStateReconstructor(traj_key=None), VECTOR, work="forward", shape=(T,), is_flat=True
    ),
    "NoopResetEnv": Row(lambda t: t.NoopResetEnv(2, random=False), VECTOR, work="reset"),
    "ObservationNorm": Row(lambda t: t.ObservationNorm(0.0, 2.0, **OBS), VECTOR),
    "PermuteTransform": Row(lambda t: t.PermuteTransform((-1, -2), **OBS), MATRIX),
    "RandomCropTensorDict": Row(lambda t: t.RandomCropTensorDict(8), VECTOR, work="forward", shape=(T,)),
    "RandomTruncationTransform": Row(
        lambda t: t.Compose(t.StepCounter(), t.RandomTruncationTransform(10**6, 2 * 10**6)), VECTOR
    ),
    "RemoveEmptySpecs": Row(lambda t: t.RemoveEmptySpecs(), VECTOR),
    "RenameTransform": Row(lambda t: t.RenameTransform(in_keys=["other"], out_keys=["second"]), PAIR),
    "Resize": Row(lambda t: t.Resize(84, 84, **PIXELS), TENSOR_IMAGE),
    "Reward2GoTransform": Row(lambda t: t.Reward2GoTransform(0.99), VECTOR, work="inverse", shape=(T,)),
    "RewardClipping": Row(lambda t: t.RewardClipping(-1.0, 1.0), VECTOR),
    "RewardScaling": Row(lambda t: t.RewardScaling(0.0, 2.0), VECTOR),
    "RewardSum": Row(lambda t: t.RewardSum(), VECTOR),
    "SelectTransform": Row(lambda t: t.SelectTransform("observation"), PAIR),
    "SignTransform": Row(lambda t: t.SignTransform(**REWARD), VECTOR),
    "SqueezeTransform": Row(lambda t: t.SqueezeTransform(-2, **OBS), COLUMN),
    "Stack": Row(lambda t: t.Stack(["observation", "other"], "both", del_keys=False), PAIR),
    "StepCounter": Row(lambda t: t.StepCounter(), VECTOR),
    "TargetReturn": Row(lambda t: t.TargetReturn(100.0), VECTOR),
    "TensorDictPrimer": Row(lambda t: t.TensorDictPrimer(hidden=t.unbounded((8,)), expand_specs=True), VECTOR),
    "TerminateTransform": Row(lambda t: t.TerminateTransform(_never), VECTOR),
    "TimeMaxPool": Row(lambda t: t.TimeMaxPool(T=3, **OBS), VECTOR),
    "Timer": Row(lambda t: t.Timer(), VECTOR),
    "ToTensorImage": Row(lambda t: t.ToTensorImage(**PIXELS), IMAGE),
    "TrajCounter": Row(lambda t: t.TrajCounter(), VECTOR),
    "UnaryTransform": Row(lambda t: t.UnaryTransform(out_keys=["half"], fn=_half, **OBS), VECTOR),
    "UnsqueezeTransform": Row(lambda t: t.UnsqueezeTransform(-1, **OBS), VECTOR),
    "VecNorm": Row(lambda t: t.VecNorm(**OBS), VECTOR),
    "VecNormV2": Row(lambda t: t.VecNormV2(**OBS), VECTOR),
}


def transformed(library: str, transform: str, num_envs: int) -> RunFactory:
    """Units of the row `transform`; a unit is one step, one reset or one call. `num_envs` 1 means no batch."""
    row = ROWS[transform]
    if library == "torchrl":
        define_torchvision_operators()
    batch = () if num_envs == 1 else (num_envs,)
    names = _names(library)
    if row.work in ("forward", "inverse"):
        yield _on_data(row, names, batch)
        return
    bare = _units(_env(names, row, batch), row.work, False)
    full = _units(names.TransformedEnv(_env(names, row, batch), row.make(names)), row.work, row.action == "several")

    def run(units: int) -> Measurement:
        """Times blocks of both in turn; the difference of the fastest blocks hardly depends on other programs."""
        blocks = [(_seconds(full, BLOCK), _seconds(bare, BLOCK)) for _ in range(0, units, BLOCK)]
        fastest_full, fastest_bare = map(min, zip(*blocks, strict=True))
        return Measurement(fastest_full - fastest_bare, BLOCK)

    yield run


def _names(library: str) -> Any:
    """Returns the names that rows and environments use."""
    specs = import_module("vecrl.specs" if library == "vecrl" else "torchrl.data")
    envs, transforms = import_module(f"{library}.envs"), import_module(f"{library}.envs.transforms")
    return SimpleNamespace(
        **{name: getattr(transforms, name) for name in dir(transforms) if name[0].isupper() or name == "gSDENoise"},
        EnvBase=envs.EnvBase,
        Composite=specs.Composite,
        Bounded=specs.Bounded,
        Categorical=specs.Categorical,
        OneHot=specs.OneHot,
        Unbounded=specs.Unbounded,
        unbounded=lambda shape: specs.Unbounded(shape=shape, dtype=torch.float32),
    )


def _values(entries: Entries, batch: tuple[int, ...]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        key: torch.ones(batch + shape, dtype=dtype)
        if dtype is torch.bool
        else torch.randint(0, 200, batch + shape).to(dtype)
        for key, (dtype, shape) in entries.items()
    }


def _env(names: Any, row: Row, batch: tuple[int, ...]) -> Any:
    values = _values(row.entries, batch)
    actions = {
        "continuous": lambda: names.Bounded(-1.0, 1.0, shape=(*batch, 2)),
        "discrete": lambda: names.Categorical(4, shape=batch),
        "matrix": lambda: names.Bounded(-1.0, 1.0, shape=(*batch, 2, 2)),
        "one-hot": lambda: names.OneHot(4, shape=(*batch, 4)),
        "several": lambda: names.Bounded(-1.0, 1.0, shape=(*batch, 2)),
    }
    flags = {key: torch.zeros(*batch, 1, dtype=torch.bool) for key in ("done", "terminated")}
    reward = torch.full((*batch, 1), 0.5)

    class Constant(names.EnvBase):
        """Returns the same values at every step, and never ends."""

        def __init__(self) -> None:
            super().__init__(batch_size=torch.Size(batch))
            leaves = {k: names.Unbounded(shape=v.shape, dtype=v.dtype) for k, v in values.items() if k != "action_mask"}
            if "action_mask" in values:
                leaves["action_mask"] = names.Categorical(2, shape=values["action_mask"].shape, dtype=torch.bool)
            self.observation_spec = names.Composite(leaves, shape=batch)
            self.action_spec = actions[row.action]()
            self.reward_spec = names.Unbounded(shape=(*batch, 1))

        def _reset(self, tensordict: Any, **kwargs: Any) -> Any:
            return TensorDict({**values, **flags}, batch)

        def _step(self, tensordict: Any) -> Any:
            return TensorDict({**values, **flags, "reward": reward}, batch)

        def _set_seed(self, seed: int | None) -> None:
            pass

    return Constant()


def _units(env: Any, work: str, several: bool) -> Callable[[int], None]:
    if work == "reset":

        def resets(units: int) -> None:
            for _ in range(units):
                env.reset()

        return resets
    root = env.reset()
    if several:
        action = TensorDict({"action": torch.rand(*env.batch_size, 2, 2)}, env.batch_size)
    else:
        action = env.rand_action(root.clone()).select(*env.action_keys)

    def steps(units: int) -> None:
        nonlocal root
        for _ in range(units):
            root.update(action)
            _, root = env.step_and_maybe_reset(root)

    return steps


def _on_data(row: Row, names: Any, batch: tuple[int, ...]) -> Callable[[int], None]:
    transform = row.make(names)
    shape = batch + row.shape
    leaves = _values(row.entries, shape)
    flags = {key: torch.zeros(*shape, 1, dtype=torch.bool) for key in ("done", "terminated", "truncated")}
    ends = {**leaves, **flags, "reward": torch.full((*shape, 1), 0.5)}
    ends["done"] = flags["done"].clone()
    ends["done"][..., -1, :] = True
    data = TensorDict({**leaves, **flags, "action": torch.rand(*shape, 2), "next": TensorDict(ends, shape)}, shape)
    data = data.reshape(-1) if row.is_flat else data
    call = transform if row.work == "forward" else transform.inv

    def run(units: int) -> None:
        for _ in range(units):
            call(data.copy())

    return run


def _seconds(run: Callable[[int], None], units: int) -> float:
    start = time.perf_counter()
    run(units)
    return time.perf_counter() - start
