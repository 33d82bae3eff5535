"""Plain functions over TensorDicts as transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...specs import Composite, TensorSpec, Unbounded
from ..owner import Key
from .base import Transform
from .foreign import refuse_foreign
from .trying import between, enlarged


class FunctionTransform(Transform):
    """A plain function over TensorDicts as a transform; it is called on what steps and resets give.

    Args:
        function: takes a TensorDict, and returns it (or None, having changed it).
    """

    def __init__(self, function: Callable[[TensorDictBase], Any]):
        super().__init__()
        self._function = function

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = self._function(next_tensordict)
        return next_tensordict if result is None else result

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The specs as they are, with those of entries that the function adds, changes or drops."""
        shape, device = output_spec.shape, output_spec.device
        parts = {name: output_spec[f"full_{name}_spec"] for name in ("observation", "reward", "done")}
        zeros = TensorDict({}, shape, device=device)
        for part in parts.values():
            zeros.update(part.zero())
        before = dict(_leaves(zeros))
        made = {key: (value, tuple(value.shape)) for key, value in _leaves(self._call(zeros.copy()))}
        if any(-1 in leaf.shape for part in parts.values() for leaf in part.values(True, True)):
            for part in parts.values():
                enlarged(part, zeros)
            larger = dict(_leaves(self._call(zeros)))
            made = {key: (value, between(shape, larger[key].shape)) for key, (value, shape) in made.items()}
        for name, part in parts.items():
            for key in list(part.keys(include_nested=True, leaves_only=True)):
                if key not in made:
                    del part[key]
                elif made[key][0] is not before[key]:
                    part[key] = _spec(part[key], *made[key])
            output_spec[f"full_{name}_spec"] = part
        seen = output_spec["full_observation_spec"]
        for key, (value, dims) in made.items():
            if key not in before:
                seen[key] = Unbounded(dims, dtype=value.dtype, device=device)
        assert seen.shape == shape
        return output_spec


def as_transform(transform: Any) -> Transform:
    """A transform as it is, a function as one.

    Raises:
        TypeError: it is neither, or it is a transform of TorchRL.
    """
    if isinstance(transform, Transform):
        return transform
    refuse_foreign(transform)
    if isinstance(transform, type):
        raise TypeError(f"Expected a transform, but the class {transform.__name__} came: make one of it.")
    if callable(transform):
        return FunctionTransform(transform)
    raise TypeError(f"Expected a Transform, or a function from TensorDict to TensorDict, but {transform!r} came.")


def _spec(spec: TensorSpec, value: Any, shape: tuple[int, ...]) -> TensorSpec:
    """The spec of an entry of which `value` was made, and values of `shape` are."""
    fits = tuple(spec.shape) == shape and spec.is_in(value)
    return spec if fits or not isinstance(value, Tensor) else Unbounded(shape, dtype=value.dtype, device=spec.device)


def _leaves(td: TensorDictBase) -> Iterator[tuple[Key, Any]]:
    return iter(td.items(include_nested=True, leaves_only=True))
