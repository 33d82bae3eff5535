"""`Compose`: a sequence of transforms as one transform. `as_transform` finds what may be one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, wraps
from inspect import signature
from typing import Any, Self

from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ...specs import Composite
from ...validation import parse_int
from ..adapters import adapt_transform
from ..entries.keys import Key
from .base import Transform, owned
from .function_transform import FunctionTransform
from .keyed_module import SubmoduleAttribute
from .spec_hooks import check_keys

__all__ = ["Compose"]


TransformLike = Transform | Callable[[TensorDictBase], TensorDictBase | None]
"""A transform, or a function over TensorDicts that returns one or changes its argument."""


def _fold(name: str, *, from_last: bool = False) -> Any:
    """Returns a method that passes the last argument of a hook through this hook of each transform.

    Args:
        name: the name of a method of `Transform`. Each transform also gets the other arguments, unchanged.
        from_last: whether the last transform is the first to be called.
    """
    hook = getattr(Transform, name)
    bind = signature(hook).bind

    @wraps(hook)
    def folded(self: Compose, *args: Any, **kwargs: Any) -> Any:
        *others, value = bind(self, *args, **kwargs).args[1:] if kwargs else args
        for transform in reversed(self._parts) if from_last else self._parts:
            value = getattr(transform, name)(*others, value)
        return value

    return folded


def _for_each(name: str) -> Any:
    """Returns a method that calls the method `name` of each transform in order."""
    hook = getattr(Transform, name)

    @wraps(hook)
    def call_each(self: Compose, *args: Any, **kwargs: Any) -> None:
        hook(self, *args, **kwargs)
        for transform in self:
            getattr(transform, name)(*args, **kwargs)

    return call_each


def _union(name: str) -> Any:
    """Returns a method that returns the keys `name` of all transforms, each key once."""

    def union(self: Compose) -> list[Key]:
        return list(dict.fromkeys(key for transform in self for key in getattr(transform, name)))

    return union


class Compose(Transform):
    """A sequence of transforms. Outputs pass from the first transform to the last, inputs from the last to the first.

    `compose[i]` is the transform itself; `compose[a:b]` is a Compose of clones without a container.

    Args:
        trsfs: transforms, or functions from TensorDict to TensorDict; or one list of them.
        transforms: the list, instead of `trsfs`.

    Raises:
        TypeError: `trsfs` and `transforms` are given, or something else than a transform or a function.

    >>> from tensordict import TensorDict
    >>> double = Compose(lambda td: td.set("x", td["x"] + 1), lambda td: td.set("x", td["x"] * 2))
    >>> int(double(TensorDict({"x": 1}))["x"]), len(double[:1])
    (4, 1)
    """

    transforms = SubmoduleAttribute[nn.ModuleList]()
    excluded_from_state = (*Transform.excluded_from_state, "_inverted")
    _inverted: list[TensorDictBase] = []

    def __init__(
        self, *trsfs: TransformLike | Sequence[TransformLike], transforms: Sequence[TransformLike] | None = None
    ):
        if trsfs and transforms is not None:
            raise TypeError(
                f"Expected transforms=, or transforms as positional arguments, got both: {transforms!r:.80}. "
                "Omit one of them."
            )
        if len(trsfs) == 1 and isinstance(trsfs[0], list | tuple):
            transforms = trsfs[0]
        super().__init__()
        self.transforms = nn.ModuleList()
        given: Any = trsfs if transforms is None else transforms
        if not isinstance(given, Iterable):
            raise TypeError(f"Expected transforms to be a list of transforms, got {given!r:.80}.")
        for transform in given:
            self.append(transform)  # pyright: ignore[reportArgumentType]

    # -- parts

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)  # pyright: ignore[reportReturnType]

    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            return Compose(*[transform.clone() for transform in list(self)[item]])
        return self.transforms[item]

    def append(self, transform: TransformLike) -> None:
        """Appends a transform, or a function, after all others."""
        self.insert(len(self), transform)

    def insert(self, index: int, transform: TransformLike) -> None:
        """Inserts a transform, or a function, before the one at `index`. A negative index counts from the end.

        Raises:
            IndexError: the index is out of range.
            ValueError: the transform contains this Compose.
        """
        index = parse_int("index", index)
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Expected an index between {-len(self)} and {len(self)}, got {index}.")
        transform = as_transform(transform)
        if any(part is self for part in transform.modules()):
            raise ValueError("Expected a transform without this Compose in it, got one with it. Insert a clone().")
        transform.set_container(self)
        self.transforms.insert(index if index >= 0 else len(self) + index, transform)
        self._invalidate()

    def pop(self, index: int | None = None) -> Transform:
        """Removes the transform at `index`, the last one by default, and returns it."""
        transform = self.transforms[-1 if index is None else index]
        del self.transforms[-1 if index is None else index]
        assert isinstance(transform, Transform)
        transform.reset_parent()
        self._invalidate()
        return transform

    @cached_property
    def _parts(self) -> list[Transform]:
        return list(self)

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        raise AttributeError(f"Expected no {name} for a Compose, got {keys!r}. Set the {name} of its transforms.")

    _default_in_keys = _union("in_keys")
    _default_out_keys = _union("out_keys")
    _default_in_keys_inv = _union("in_keys_inv")
    _default_out_keys_inv = _union("out_keys_inv")

    def clone(self) -> Self:
        """Returns a `Compose` of clones of the transforms, without a container."""
        return type(self)(*[transform.clone() for transform in self])

    __copy__ = clone

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for transform in self:
            transform.reset_parent()
            transform.set_container(self)

    # -- properties of all transforms

    @property
    def preserves_done(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether no transform clears done flags."""
        return all(transform.preserves_done for transform in self)

    @property
    def supports_rollout(self) -> bool:
        return all(transform.supports_rollout for transform in self)

    @property
    def _accepts_records(self) -> bool:
        return all(transform._accepts_records for transform in self._parts)

    @property
    def rows_are_independent(self) -> bool:
        return all(transform.rows_are_independent for transform in self)

    @cached_property
    def _changes_layout(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return any(transform._changes_layout for transform in self)

    @cached_property
    def _converts_inputs(self) -> bool:
        """Whether some transforms get other inputs than the user gives."""
        return any(transform._has_inverse or transform._changes_layout for transform in self._parts[1:])

    @property
    def _has_inverse(self) -> bool:
        return any(transform._has_inverse for transform in self)

    # -- hooks, each by that of the transforms

    _call = _fold("_call")
    _to_parent_layout = _fold("_to_parent_layout", from_last=True)
    _from_parent_layout = _fold("_from_parent_layout")

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        if not self._converts_inputs:
            for transform in self._parts:
                next_tensordict = transform._step(tensordict, next_tensordict)
            return next_tensordict
        for transform, input_td in zip(self._parts, reversed(self._pop_inputs(tensordict)), strict=True):
            next_tensordict = transform._step(input_td, next_tensordict)
        return next_tensordict

    def _pop_inputs(self, tensordict: TensorDictBase) -> list[TensorDictBase]:
        """Returns the input of each transform, from the last to the first: what the inverses of later ones returned.

        Args:
            tensordict: the input that the user gave, which may have a mask "_step".
        """
        inverted, vars(self)["_inverted"] = self._inverted, []
        mask, inputs = tensordict.get("_step", None), [tensordict]
        for position, transform in enumerate(reversed(self._parts[1:])):
            if len(inverted) != len(self._parts) - 1:  # this is no step of the environment
                inputs.append(transform._to_parent_layout(inputs[-1]))
            elif mask is None:
                inputs.append(inverted[position])
            else:
                if transform._changes_layout:
                    mask = transform._to_parent_layout(TensorDict({"_step": mask}, inputs[-1].batch_size)).get("_step")
                inputs.append(inverted[position].copy().set("_step", mask))
        return inputs

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for transform in self._parts:  # the input has the layout of the parent
            tensordict_reset = transform._reset(tensordict, tensordict_reset)
            tensordict = transform._from_parent_layout(tensordict) if self._changes_layout else tensordict
        return tensordict_reset

    _reset_env_preprocess = _fold("_reset_env_preprocess", from_last=True)
    _inv_call = _fold("_inv_call", from_last=True)

    transform_observation_spec = _fold("transform_observation_spec")
    transform_reward_spec = _fold("transform_reward_spec")
    transform_done_spec = _fold("transform_done_spec")
    transform_action_spec = _fold("transform_action_spec")
    transform_state_spec = _fold("transform_state_spec")
    transform_env_batch_size = _fold("transform_env_batch_size")
    transform_env_device = _fold("transform_env_device")
    transform_fake_tensordict = _fold("transform_fake_tensordict")

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Changes the specs of all outputs by each transform in order, and returns them."""
        for transform in self:
            check_keys(transform, "in_keys", output_spec)
            output_spec = owned(transform.transform_output_spec(output_spec))
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Changes the specs of all inputs by each transform in order, and returns them."""
        for transform in self:
            check_keys(transform, "in_keys_inv", input_spec)
            input_spec = owned(transform.transform_input_spec(input_spec))
        return input_spec

    init = _for_each("init")
    close = _for_each("close")
    dump = _for_each("dump")
    empty_cache = _for_each("empty_cache")
    set_missing_tolerance = _for_each("set_missing_tolerance")

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        for transform in self:
            transform._apply_to_rollout(root, next_td, is_first)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes stored data by each transform in order."""
        for transform in self:
            tensordict = transform(tensordict)
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the input of the environment, or the data to store, by each transform from last to first."""
        tensordict = tensordict.copy()
        inverted: list[TensorDictBase] = []
        for transform in reversed(self._parts):
            tensordict = transform.inv(tensordict)
            if tensordict is None:  # there is no data to store yet
                break
            inverted.append(tensordict)
        vars(self)["_inverted"] = inverted[:-1] if self._converts_inputs else []
        return tensordict

    def __repr__(self) -> str:
        lines = ",\n".join(f"    {line}" for transform in self for line in repr(transform).splitlines())
        return f"{type(self).__name__}(\n{lines})" if len(self) else f"{type(self).__name__}()"


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
