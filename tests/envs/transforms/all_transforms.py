"""One instance of every transform, for the tests of rules that hold for all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase

import vecrl.envs.transforms as transforms
from vecrl.envs.transforms import AutoResetEnv, Transform, TransformedEnv
from vecrl.specs import Unbounded


@dataclass(frozen=True)
class Case:
    """How to make a transform, and its exceptions from the common rules.

    Attributes:
        make: makes one, for `vecrl.testing.IndependentRowsEnv`.
        shared: why rows share state, so that a batch differs from single environments; "" otherwise.
        needs: why it cannot be inside a batched environment, or be appended to another environment than its own; ""
            otherwise.
        env: the kind of environment that it needs.
    """

    make: Callable[[], Transform]
    shared: str = ""
    needs: str = ""
    env: type[TransformedEnv] = TransformedEnv


def _stopped(timer: transforms.Timer) -> transforms.Timer:
    """Returns a timer with a constant clock, so that two of them give equal values."""
    timer._now = _zero
    return timer


def _zero() -> float:
    return 0.0


def _unflatten_action() -> transforms.Transform:
    """Returns a transform that gives the action of two numbers the shape (2, 1)."""
    return transforms.UnsqueezeTransform(-1, in_keys_inv=["action"])


def _constant_policy(td: TensorDictBase) -> TensorDictBase:
    """Writes the same actions into every row."""
    batch = td.batch_size
    return td.update({"action": torch.full((*batch, 2), 0.25), "choice": torch.ones(batch, dtype=torch.int64)})


CASES: dict[str, Case] = {
    "BinarizeReward": Case(transforms.BinarizeReward),
    "CatTensors": Case(lambda: transforms.CatTensors(["position", "observation"])),
    "CatTensors: after other observations": Case(
        lambda: transforms.Compose(transforms.StepCounter(), transforms.CatTensors(out_key="all", del_keys=False))
    ),
    "ActionMask": Case(lambda: transforms.ActionMask("choice"), needs="its mask is of the whole batch"),
    "ActionDiscretizer": Case(lambda: transforms.ActionDiscretizer(torch.tensor([2, 5]), out_action_key="interval")),
    "ActionDiscretizer: one-hot": Case(lambda: transforms.ActionDiscretizer(3, sampling=2, categorical=False)),
    "ActionScaling": Case(lambda: transforms.ActionScaling(standard_normal=False)),
    "ActionScaling: elsewhere": Case(
        lambda: transforms.ActionScaling(out_keys_inv="unit", loc=torch.tensor([0.1, 0.2]), scale=0.5)
    ),
    "AutoResetTransform": Case(transforms.AutoResetTransform, env=AutoResetEnv),
    "CatFrames": Case(lambda: transforms.CatFrames(3, -3, padding="constant", padding_value=7)),
    "CatFrames: vectors": Case(lambda: transforms.CatFrames(3, -1, in_keys=["observation"], out_keys=["last"])),
    "CenterCrop": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.CenterCrop(5, 10))),
    "ClipTransform": Case(lambda: transforms.ClipTransform(in_keys=["observation"], low=-1.0, high=2.0)),
    "ClipTransform: of actions": Case(lambda: transforms.ClipTransform(in_keys_inv=["action"], low=-0.5)),
    "Compose": Case(lambda: transforms.Compose(transforms.StepCounter(), transforms.RewardSum())),
    "Compose: within another": Case(
        lambda: transforms.Compose(
            transforms.StepCounter(max_steps=3),
            transforms.Compose(transforms.RewardSum(), transforms.RewardScaling(0.5, 2.0)),
            transforms.RewardSum(out_keys=["scaled"]),
        )
    ),
    "ConditionalPolicySwitch": Case(
        lambda: transforms.ConditionalPolicySwitch(_constant_policy, lambda td: td["ticks"] % 2 == 0)
    ),
    "ConditionalPolicySwitch: between counters": Case(
        lambda: transforms.Compose(
            transforms.StepCounter(step_count_key="both"),
            transforms.ConditionalPolicySwitch(_constant_policy, lambda td: td["observation"][..., 1] > 1),
            transforms.StepCounter(max_steps=3),
        )
    ),
    "ConditionalSkip": Case(lambda: transforms.ConditionalSkip(lambda td: td["choice"] == 0)),
    "ConditionalSkip: with a counter": Case(
        lambda: transforms.Compose(
            transforms.ConditionalSkip(lambda td: td["action"][..., :1] < 0), transforms.StepCounter(max_steps=3)
        )
    ),
    "DTypeCastTransform": Case(lambda: transforms.DTypeCastTransform(torch.uint8, torch.float32)),
    "DTypeCastTransform: of actions": Case(lambda: transforms.DTypeCastTransform(torch.float32, torch.float64)),
    "DeviceCastTransform": Case(lambda: transforms.DeviceCastTransform("cpu")),
    "DeviceCastTransform: of some": Case(
        lambda: transforms.DeviceCastTransform("cpu", in_keys=["observation"], in_keys_inv=["action"])
    ),
    "DoubleToFloat": Case(transforms.DoubleToFloat),
    "DiscreteActionProjection": Case(
        lambda: transforms.DiscreteActionProjection(4, 6, "choice"), shared="actions are drawn for all rows at once"
    ),
    "EndOfLifeTransform": Case(lambda: transforms.EndOfLifeTransform(eol_attribute="ticks.neg")),
    "ExcludeTransform": Case(lambda: transforms.ExcludeTransform("position", "reward")),
    "ExcludeTransform: inverse": Case(lambda: transforms.ExcludeTransform("position", inverse=True)),
    "FiniteTensorDictCheck": Case(transforms.FiniteTensorDictCheck),
    "FlattenAction": Case(lambda: transforms.Compose(_unflatten_action(), transforms.FlattenAction())),
    "FlattenObservation": Case(lambda: transforms.FlattenObservation(-3, -1)),
    "Crop": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.Crop(3, 4, 1, 2))),
    "FrameSkipTransform": Case(lambda: transforms.FrameSkipTransform(3)),
    "FunctionTransform": Case(lambda: transforms.FunctionTransform(lambda td: td.set("twice", td["observation"] * 2))),
    "GrayScale": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.GrayScale())),
    "InitTracker": Case(transforms.InitTracker),
    "MeanActionSelector": Case(lambda: transforms.Compose(transforms.MeanActionSelector())),
    "MultiAction": Case(transforms.MultiAction),
    "MultiAction: of stacked observations": Case(
        lambda: transforms.Compose(
            transforms.StepCounter(), transforms.MultiAction(stack_rewards=False, stack_observations=True)
        )
    ),
    "NextObservationDelta": Case(transforms.NextObservationDelta),
    "NoopResetEnv": Case(lambda: transforms.NoopResetEnv(3), shared="actions are drawn for all rows at once"),
    "ObservationNorm": Case(
        lambda: transforms.ObservationNorm(1.0, 2.0, in_keys=["observation"], standard_normal=True)
    ),
    "ObservationNorm: of all and of actions": Case(
        lambda: transforms.ObservationNorm(-0.5, 0.3, in_keys_inv=["action"], out_keys_inv=["given"])
    ),
    "PermuteTransform": Case(lambda: transforms.PermuteTransform((-1, -3, -2), in_keys=["pixels"])),
    "PinMemoryTransform": Case(transforms.PinMemoryTransform),
    "RandomTruncationTransform": Case(
        lambda: transforms.Compose(transforms.StepCounter(), transforms.RandomTruncationTransform(2, 4, prob=0.5)),
        shared="numbers are drawn for all rows at once",
    ),
    "RenameTransform": Case(
        lambda: transforms.RenameTransform(["observation", "reward"], ["seen", ("a", "pay")], ["action"], ["act"])
    ),
    "RenameTransform: copies": Case(
        lambda: transforms.RenameTransform(
            ["observation", "reward", "done"], ["seen", "pay", "over"], ["action"], ["act"], create_copy=True
        )
    ),
    "RewardClipping": Case(lambda: transforms.RewardClipping(-0.5, 1.5)),
    "RewardScaling": Case(lambda: transforms.RewardScaling(0.5, -3.0)),
    "RewardScaling: elsewhere": Case(lambda: transforms.RewardScaling(1, 2, ["reward"], ["pay"], standard_normal=True)),
    "Resize": Case(lambda: transforms.Resize(4, 5, out_keys=["small"])),
    "Resize: bicubic": Case(lambda: transforms.Compose(transforms.ToTensorImage(), transforms.Resize(4, 5, "bicubic"))),
    "RewardSum": Case(transforms.RewardSum),
    "RewardSum: as a reward": Case(lambda: transforms.RewardSum(reward_spec=True)),
    "SelectTransform": Case(lambda: transforms.SelectTransform("observation")),
    "SelectTransform: without rewards": Case(lambda: transforms.SelectTransform("ticks", keep_rewards=False)),
    "SignTransform": Case(lambda: transforms.SignTransform(["observation", "reward"], in_keys_inv=["action"])),
    "SqueezeTransform": Case(lambda: transforms.SqueezeTransform(-1, in_keys=["ticks"])),
    "StepCounter": Case(lambda: transforms.StepCounter(max_steps=3)),
    "UnaryTransform": Case(
        lambda: transforms.UnaryTransform(["pixels"], ["mean"], fn=lambda pixels: pixels.float().mean((-3, -2, -1)))
    ),
    "UnsqueezeTransform": Case(
        lambda: transforms.UnsqueezeTransform(-1, in_keys=["observation"], in_keys_inv=["action"])
    ),
    "UnsqueezeTransform: from the front": Case(
        lambda: transforms.UnsqueezeTransform(0, allow_positive_dim=True, in_keys=["pixels"], out_keys=["frames"])
    ),
    "VecNorm": Case(transforms.VecNorm, shared="statistics"),
    "VecNorm: elsewhere": Case(
        lambda: transforms.VecNorm(["position", "pixels"], ["place", "light"], decay=0.9), shared="statistics"
    ),
    "TensorDictPrimer": Case(
        lambda: transforms.TensorDictPrimer(hidden=Unbounded((2,), dtype=torch.float64), default_value=0.5)
    ),
    "TensorDictPrimer: before resets": Case(
        lambda: transforms.Compose(
            transforms.TensorDictPrimer(hidden=Unbounded((2,)), default_value=0.5, call_before_env_reset=True),
            transforms.StepCounter(max_steps=3),
        )
    ),
    "TerminateTransform": Case(lambda: transforms.TerminateTransform(lambda td: td["observation"][..., 1] > 1)),
    "TerminateTransform: without done": Case(
        lambda: transforms.TerminateTransform(lambda td: td["ticks"] == 2, write_done=False)
    ),
    "TargetReturn": Case(lambda: transforms.TargetReturn(10.0)),
    "TargetReturn: constant": Case(lambda: transforms.TargetReturn(3, "constant", ["reward"], [("a", "target")])),
    "TimeMaxPool": Case(lambda: transforms.TimeMaxPool(T=3)),
    "TimeMaxPool: of pixels": Case(lambda: transforms.TimeMaxPool(["pixels", "ticks"], ["highest", "last"], T=2)),
    "Timer": Case(lambda: _stopped(transforms.Timer())),
    "ToTensorImage": Case(transforms.ToTensorImage),
    "TrajCounter": Case(lambda: transforms.TrajCounter(repeats=2), shared="numbers are taken in turn"),
    "VecGymEnvTransform": Case(transforms.VecGymEnvTransform),
    "gSDENoise": Case(lambda: transforms.gSDENoise(3, 2), shared="noise is drawn for all rows at once"),
}
"""By the name of the class; more than one of a class as "Name: what is special"."""

BASES = {"Transform", "ObservationTransform"}
"""What others are made of, and does nothing by itself."""


def exported() -> set[str]:
    """The names of all transforms that `vecrl.envs.transforms` exports."""
    found = {name: getattr(transforms, name) for name in transforms.__all__}
    return {name for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Transform)}
