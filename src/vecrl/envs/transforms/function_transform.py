"""`FunctionTransform`: uses plain functions over TensorDicts as transforms. `as_transform` finds what else may be one.

It must not know environments, and it must not import TorchRL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ...specs import Composite, TensorSpec, Unbounded
from ..adapters import adapt_transform
from ..keys import Key
from .base import Transform
from .spec_probe import common_shape, resize_dynamic

__all__ = ["FunctionTransform"]

TransformLike = Transform | Callable[[TensorDictBase], TensorDictBase | None]
"""A transform, or a function over TensorDicts that returns one or changes its argument."""


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
        self._function = function

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = self._function(next_tensordict)
        return next_tensordict if result is None else result


def as_transform(transform: TransformLike) -> Transform:
    """Returns a transform unchanged, one of another library by its adapter, and a function as a `FunctionTransform`.

    An `nn.Sequential` with transforms in it becomes a `Compose`.

    Raises:
        TypeError: `transform` is neither, or it is a module that contains a transform of TorchRL.
    """
    if not isinstance(transform, Transform):
        transform = adapt_transform(transform)
    if isinstance(transform, Transform):
        if "_modules" not in vars(transform):  # a module of torch has it after its own constructor
            raise TypeError(
                f"Expected {type(transform).__name__}.__init__ to call super().__init__(in_keys=...), got no call. Add "
                "it as the first line."
            )
        return transform
    if isinstance(transform, nn.Sequential) and any(map(_is_transform, transform)):
        from .compose import Compose  # which imports this module

        return Compose(*transform)
    if isinstance(transform, nn.Module) and any(map(_is_transform, transform.modules())):
        raise torchrl_transform_error(transform.modules())
    if isinstance(transform, type):
        raise TypeError(f"Expected a transform, got the class {transform.__name__}. Create an instance of it.")
    if callable(transform):
        return FunctionTransform(transform)
    raise TypeError(f"Expected a Transform, or a function from TensorDict to TensorDict, got {transform!r}.")


def torchrl_transform_error(parts: Iterable[object]) -> TypeError:
    """Returns the error for transforms of TorchRL among `parts` that vecrl cannot call as TorchRL does.

    The message names the transforms of vecrl with equal names.
    """
    names = list(dict.fromkeys(name for name in map(_torchrl_name, parts) if name is not None))
    own_names = _names_of_subclasses(Transform)
    available = ", ".join(f"vecrl.envs.{name}" for name in names if name in own_names)
    missing = ", ".join(name for name in names if name not in own_names)
    return TypeError(
        f"Expected transforms of vecrl, got TorchRL's {', '.join(names)}. "
        + (f"Use {available}." if available else "")
        + (" " if available and missing else "")
        + (f"vecrl has no {missing} yet: derive one from vecrl.envs.Transform." if missing else "")
    )


def _is_transform(part: object) -> bool:
    return isinstance(part, Transform) or _torchrl_name(part) is not None


def _torchrl_name(part: object) -> str | None:
    """Returns the class name of a transform of TorchRL, None for anything else."""
    kinds = [kind for kind in type(part).__mro__ if kind.__module__.startswith("torchrl.")]
    return kinds[0].__name__ if any(kind.__name__ == "Transform" for kind in kinds) else None


def _names_of_subclasses(kind: type) -> set[str]:
    """Returns the names of a class and its subclasses that vecrl defines."""
    names = {kind.__name__}.union(*map(_names_of_subclasses, kind.__subclasses__()))
    return names if kind.__module__.startswith("vecrl.") else set()


def _spec(spec: TensorSpec, value: Any, shape: tuple[int, ...]) -> TensorSpec:
    """Returns the spec for `value` of `shape`: `spec` if the value still belongs to it, else one without bounds."""
    unchanged = tuple(spec.shape) == shape and spec.is_in(value)
    return (
        spec if unchanged or not isinstance(value, Tensor) else Unbounded(shape, dtype=value.dtype, device=spec.device)
    )


def _leaves(td: TensorDictBase) -> Iterator[tuple[Key, Any]]:
    return iter(td.items(include_nested=True, leaves_only=True))
