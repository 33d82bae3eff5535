"""Plain functions and modules over TensorDicts as transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.types import Device

from ...specs import Composite, TensorSpec, Unbounded
from ...validation import check_callable, parse_device
from ..entries.keys import FLAGS, Key, split_key
from .base import Transform
from .spec_hooks import common_shape, resize_dynamic

__all__ = ["FunctionTransform", "ModuleTransform"]


class OutputTransform(Transform):
    """The base of transforms that may change all entries of outputs, of resets too, by their `_call`.

    The specs follow from a call with zeros.
    """

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Returns the specs with those of entries that the function adds, changes or removes."""
        shape, device = output_spec.shape, output_spec.device
        specs = {name: output_spec[f"full_{name}_spec"] for name in ("observation", "reward", "done")}
        zeros = TensorDict({}, shape, device=device)
        for spec in specs.values():
            zeros.update(spec.zero())
        inputs = dict(_leaves(zeros))
        outputs = {key: (value, tuple(value.shape)) for key, value in _leaves(self._call(zeros.copy()))}
        if any(-1 in leaf.shape for spec in specs.values() for leaf in spec.values(True, True)):
            for spec in specs.values():
                resize_dynamic(spec, zeros)
            resized_outputs = dict(_leaves(self._call(zeros)))
            outputs = {
                key: (value, common_shape(shape, resized_outputs[key].shape)) for key, (value, shape) in outputs.items()
            }
        for name, spec in specs.items():
            for key in list(spec.keys(include_nested=True, leaves_only=True)):
                if key not in outputs:
                    del spec[key]
                elif outputs[key][0] is not inputs[key]:
                    spec[key] = _spec(spec[key], *outputs[key])
            output_spec[f"full_{name}_spec"] = spec
        observation_spec = output_spec["full_observation_spec"]
        for key, (value, dims) in outputs.items():
            if key not in inputs:
                observation_spec[key] = Unbounded(dims, dtype=value.dtype, device=device)
        assert observation_spec.shape == shape
        return output_spec


class FunctionTransform(OutputTransform):
    """A plain function over TensorDicts as a transform. It is called on the output of steps and resets.

    Args:
        function: takes a TensorDict and returns a TensorDict, or changes it in place and returns None.
    """

    def __init__(self, function: Callable[[TensorDictBase], TensorDictBase | None]):
        super().__init__()
        check_callable("function", function)
        self._function = function

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = self._function(next_tensordict)
        return next_tensordict if result is None else result


def _spec(spec: TensorSpec, value: Any, shape: tuple[int, ...]) -> TensorSpec:
    """Returns the spec for `value` of `shape`: `spec` if the value still belongs to it, else one without bounds."""
    unchanged = tuple(spec.shape) == shape and spec.is_in(value)
    return (
        spec if unchanged or not isinstance(value, Tensor) else Unbounded(shape, dtype=value.dtype, device=spec.device)
    )


def _leaves(td: TensorDictBase) -> Iterator[tuple[Key, Any]]:
    return iter(td.items(include_nested=True, leaves_only=True))


SpecChange = TensorSpec | Callable[[Composite], Any] | None
"""A new spec, a function that changes the specs and may return them, or None for no change."""


class ModuleTransform(OutputTransform):
    """Runs a module over TensorDicts on the outputs of resets and steps, or with `inverse` on inputs.

    Without any `..._spec_transform`, the specs of outputs follow from a call with zeros. The parameters of the module
    are those of the transform.

    Args:
        module: the module, for example a `TensorDictModule`. Its `in_keys` and `out_keys` are those of the transform.
        module_factory: makes the module, instead of `module`. It is called once, by the constructor.
        no_grad: whether to compute no gradients.
        inverse: whether the module is run on inputs, before they reach the environment.
        device: the device to which the module and its inputs are moved. Its outputs are moved back.
        observation_spec_transform, action_spec_transform, reward_spec_transform, done_spec_transform,
            state_spec_transform: the specs of observations and so on for the user: a `Composite`, or a function that
            takes those of the environment and changes or returns them.

    Raises:
        ValueError: both or neither of `module` and `module_factory` are given.

    >>> from tensordict.nn import TensorDictModule
    >>> from vecrl.envs import GymEnv
    >>> features = TensorDictModule(torch.nn.Linear(3, 2), in_keys=["observation"], out_keys=["features"])
    >>> env = GymEnv("Pendulum-v1").append_transform(ModuleTransform(module=features, no_grad=True))
    >>> env.rollout(4)["features"].shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        *,
        module: Any = None,
        module_factory: Callable[[], Any] | None = None,
        no_grad: bool = False,
        inverse: bool = False,
        device: Device = None,
        observation_spec_transform: SpecChange = None,
        action_spec_transform: SpecChange = None,
        reward_spec_transform: SpecChange = None,
        done_spec_transform: SpecChange = None,
        state_spec_transform: SpecChange = None,
    ):
        if (module is None) == (module_factory is None):
            raise ValueError(
                f"Expected either module or module_factory, got {'neither' if module is None else 'both'}. Give one."
            )
        super().__init__()
        self.module: Any = module_factory() if module_factory is not None else module
        self.no_grad = no_grad
        self.inverse = inverse
        self.device = None if device is None else parse_device(device)
        if self.device is not None:
            self.module.to(self.device)
        self._spec_changes: dict[str, SpecChange] = {
            "observation": observation_spec_transform,
            "action": action_spec_transform,
            "reward": reward_spec_transform,
            "done": done_spec_transform,
            "state": state_spec_transform,
        }
        keys = [list(getattr(self.module, name, ())) for name in ("in_keys", "out_keys")]
        if inverse:
            self.out_keys_inv, self.in_keys_inv = keys
        else:
            self.in_keys, self.out_keys = keys

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        return keys

    @property
    def preserves_done(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the module is known to write no done flags."""
        return self.inverse or (bool(self.out_keys) and not any(split_key(key)[1] in FLAGS for key in self.out_keys))

    def _run(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns `tensordict` with the outputs of the module."""
        input_td = tensordict if self.device is None else tensordict.to(self.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.no_grad):
            result = self.module(input_td)
        if self.device is None:
            return tensordict if result is None else result
        return tensordict.update((input_td if result is None else result).to(tensordict.device or "cpu"))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict if self.inverse else self._run(next_tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._run(tensordict) if self.inverse else tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        return tensordict  # the input of a reset has no actions

    @property
    def _has_inverse(self) -> bool:
        return self.inverse

    # -- specs

    def _changed(self, name: str, specs: Composite) -> Composite:
        change = self._spec_changes[name]
        if change is None:
            return specs
        if isinstance(change, Composite):
            return change.clone()
        if isinstance(change, TensorSpec):
            return Composite({name: change.clone()}, shape=specs.shape, device=specs.device)
        changed = change(specs)
        return specs if changed is None else changed

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Returns the specs by the given changes, or those that follow from a call with zeros."""
        if self.inverse or any(self._spec_changes[name] is not None for name in ("observation", "reward", "done")):
            return Transform.transform_output_spec(self, output_spec)
        return super().transform_output_spec(output_spec)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Changes the specs by `observation_spec_transform`."""
        return self._changed("observation", observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Changes the specs by `reward_spec_transform`."""
        return self._changed("reward", reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Changes the specs by `done_spec_transform`."""
        return self._changed("done", done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Changes the specs by `action_spec_transform`."""
        return self._changed("action", action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Changes the specs by `state_spec_transform`."""
        return self._changed("state", state_spec)
