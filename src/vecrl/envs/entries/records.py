"""`Record`: the entries of a step as a plain dict, and `RecordSteps`, which step an environment over records.

A TensorDict costs microseconds for each entry that is read or written. So an environment that is stepped many times,
and the transforms around it, pass records; only a policy and a user get a TensorDict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

import torch
from tensordict import TensorDict
from torch import Tensor

from ..fast_paths import overrides_bypassed
from .keys import FLAGS, INPUTS, OUTPUTS


class Record(dict[str, Any]):
    """Entries by key without groups, with the methods of a TensorDict that transforms call.

    Args:
        entries: the entries.
        batch_size, device: of the TensorDict with these entries.
    """

    __slots__ = ("batch_size", "device")

    def __init__(
        self,
        entries: Mapping[str, Any] | Iterable[tuple[Any, Any]],
        batch_size: torch.Size,
        device: torch.device | None = None,
    ):
        super().__init__(entries)
        self.batch_size, self.device = batch_size, device

    def set(self, key: str, value: Any) -> Self:
        """Sets an entry and returns the record."""
        self[key] = value if isinstance(value, Tensor) else torch.as_tensor(value, device=self.device)
        return self

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the keys, all of which are those of leaves."""
        return super().keys()

    def copy(self) -> Record:
        """Returns a record of the same values."""
        return Record(self, self.batch_size, self.device)

    def to_tensordict(self) -> TensorDict:
        """Returns a TensorDict of the same values."""
        return TensorDict(self, self.batch_size, device=self.device)


class RecordSteps(NamedTuple):
    """Steps all rows of an environment over records.

    Attributes:
        step: takes the root, which it does not change, and whether rows that are done may be reset in the same command.
            Returns the result of the step, and the entries that replace it in the next root; None if no row was reset.
        reset: takes the mask of the rows to reset, `[*batch, 1]`, and the root that they are in. Returns the entries
            that replace those of the root.
    """

    step: Callable[[Record, bool], tuple[Record, Record | None]]
    reset: Callable[[Tensor, Record], Record]


def record_steps(env: Any) -> RecordSteps | None:
    """Returns what steps an environment over records; None where the results could differ from single steps.

    They could if a subclass overrides a method that records bypass, if types are checked, or if some entries are in
    groups or no tensors.
    """
    if env.run_type_checks or overrides_bypassed(type(env), "_rollout_at_once"):  # which bypasses the same methods
        return None
    on_cpu = env.device is None or env.device.type == "cpu"
    has_one_action = len(env.action_keys) == 1 and env.done_prefixes == [()]
    if not on_cpu or not has_one_action:
        return None
    leaves = [(key, env._full(name)[key]) for name in (*INPUTS, *OUTPUTS) for key in env._leaf_keys(name)]
    are_tensors = all(type(key) is str and spec.dtype is not None for key, spec in leaves)
    return env._record_steps() if are_tensors else None


def no_flags(entries: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the flags in `entries`, all False."""
    return {flag: torch.zeros_like(entries[flag]) for flag in FLAGS if flag in entries}
