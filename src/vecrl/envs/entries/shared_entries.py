"""Copies the entries that an environment could still write into.

An environment may return its own buffers, or views of them, and update them in place in its next step. Results of
`EnvBase` must not change afterwards, so all entries are copied, unless the environment's class declares that it returns
new tensors. Whether something else refers to a tensor is not looked up, because such counts depend on the interpreter.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

DECLARATION = "returns_new_tensors"


@cache
def declares_new_tensors(cls: type, methods: tuple[str, ...]) -> bool:
    """Returns whether a class declares with `returns_new_tensors` that its `methods` return new tensors.

    A declaration holds for the methods of its class and of the bases. It does not hold for a method that a subclass
    overrides, which may return other tensors.

    Args:
        cls: a class of environments.
        methods: the names of the methods.
    """
    if not getattr(cls, DECLARATION):
        return False
    mro = cls.__mro__
    declared_at = next(i for i, base in enumerate(mro) if DECLARATION in vars(base))
    return not any(name in vars(base) for base in mro[:declared_at] for name in methods)


def copy_entries(data: TensorDictBase, inputs: TensorDictBase | None) -> TensorDictBase:
    """Returns a TensorDict with copies of all entries of `data`, through which gradients flow.

    Entries that are unchanged entries of `inputs`, and data that are no tensors, are not copied. Lazy stacks and
    tensorclasses are cloned whole.
    """
    if type(data) is not TensorDict:  # such as a lazy stack or a tensorclass
        return data.clone()
    before: dict[Any, Any] = {} if inputs is None else dict(inputs.items())
    entries: dict[Any, Any] = {}
    value: Any
    for name, value in data.items():
        known = before.get(name)
        if value is known:
            entries[name] = value
        elif isinstance(value, Tensor):
            entries[name] = value.clone()
        elif is_non_tensor(value):
            entries[name] = value
        else:
            entries[name] = copy_entries(value, known if isinstance(known, TensorDictBase) else None)
    names: Any = data.names if data.batch_dims and any(data.names) else None
    return TensorDict(entries, data.batch_size, device=data.device, names=names)
