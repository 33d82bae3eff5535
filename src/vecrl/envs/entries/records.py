"""`RecordSteps` step an environment over records: the entries of a step in a plain dict by key, without groups.

A TensorDict costs microseconds for each entry that is read or written. So an environment that is stepped many times,
and the transforms around it, pass records; only a policy and a user get a TensorDict. Hooks of transforms get a
`Record`, a dict with the methods of a TensorDict that they call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ..fast_paths import overrides_bypassed
from .keys import INPUTS, OUTPUTS
from .row_masks import RowMasks, any_true, broadcast_mask, check_not_done

_NOT_IN_ROOTS = "_step", "_reset", "next"
_BYPASSED = frozenset(("step", "reset", "step_mdp", "maybe_reset", "step_and_maybe_reset", "_step", "_reset"))


Entries = dict[Any, Any]
"""The entries of all rows, by key."""


class Record(dict[Any, Any]):
    """Entries by key without groups, with the methods of a TensorDict that transforms call.

    Args:
        entries: the entries.
        batch_size, device: of the TensorDict with these entries.
    """

    __slots__ = ("batch_size", "device")

    def __init__(
        self,
        entries: Mapping[str, Any],
        batch_size: torch.Size,
        device: torch.device | None = None,
    ):
        super().__init__(entries)
        self.batch_size, self.device = batch_size, device

    def set(self, key: str, value: Any) -> Self:
        """Sets an entry, a copy if it is no tensor, and returns the record."""
        self[key] = value if isinstance(value, Tensor) else torch.tensor(value, device=self.device)
        return self

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the keys, all of which are those of leaves."""
        return super().keys()

    @property
    def batch_dims(self) -> int:
        """The number of batch dimensions."""
        return len(self.batch_size)

    def exclude(self, *keys: str, inplace: bool = False) -> Record:
        """Returns a record without these keys, by default a new one."""
        record = self if inplace else self.copy()
        for key in keys:
            record.pop(key, None)
        return record

    def select(self, *keys: str, inplace: bool = False, strict: bool = True) -> Record:
        """Returns a record with these keys only, by default a new one. Missing ones raise a KeyError if `strict`."""
        if strict and (missing := [key for key in keys if key not in self]):
            raise KeyError(missing[0])
        return self.exclude(*(self.keys() - keys), inplace=inplace)

    def update(self, entries: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sets the entries of another record or TensorDict, and returns the record."""
        super().update(entries.items())
        return self

    def copy(self) -> Record:
        """Returns a record of the same values."""
        return Record(self, self.batch_size, self.device)


class RecordSteps(NamedTuple):
    """Steps all rows of an environment over records.

    Attributes:
        step: takes the root, which it does not change, and whether rows that are done may be reset in the same command.
            Returns the result of the step; and observations and flags of the next root, of all rows, or None if no row
            was reset.
        reset: takes the mask of the rows to reset, `[*batch, 1]`, and the root that they are in. Returns the entries
            that replace those of the root, valid in the rows of the mask at least. The root may have changed entries,
            with transforms around these steps: only states in it may be read.
    """

    step: Callable[[Entries, bool], tuple[Entries, Entries | None]]
    reset: Callable[[Tensor, Entries], Entries]


class RecordKeys(NamedTuple):
    """Which entries of a step are passed to the next root.

    Attributes:
        only_in_step: actions and rewards, which are not.
        kept: the entries of a result that always are. Other entries of a result are if the root has them already.
    """

    only_in_step: frozenset[Any]
    kept: frozenset[Any]


def record_keys(env: Any) -> RecordKeys | None:
    """Returns which entries are in roots; None if an environment cannot be stepped over records.

    It cannot with a GPU, several actions, groups, entries that are no tensors, sizes of -1, or several flags a row.
    """
    on_cpu = env.device is None or env.device.type == "cpu"
    if not on_cpu or len(env.action_keys) != 1 or env.done_prefixes != [()]:
        return None
    leaves = [(key, env._full(name)[key]) for name in (*INPUTS, *OUTPUTS) for key in env._leaf_keys(name)]
    if not all(type(key) is str and spec.dtype is not None and -1 not in spec.shape for key, spec in leaves):
        return None
    if any(env.full_done_spec[key].shape != (*env.batch_size, 1) for key in env.done_keys):
        return None
    only_in_step = frozenset((*env.action_keys, *env._reward_keys_not_in_root))
    return RecordKeys(only_in_step, frozenset((*env.observation_keys, *env.done_keys, *env.state_keys)))


def record_steps(env: Any) -> RecordSteps | None:
    """Returns what steps an environment over records; None where the results could differ from those over TensorDicts.

    They could if types are checked, or if a subclass or the environment itself overrides a method that records bypass:
    the same that `_rollout_at_once` bypasses.
    """
    if env.run_type_checks or overrides_bypassed(type(env), "_rollout_at_once"):
        return None
    if not _BYPASSED.isdisjoint(vars(env)):
        return None
    return None if env._record_keys is None else env._record_steps()


def next_root(keys: RecordKeys, root: Entries, next_record: Entries) -> Entries:
    """Returns the root after a step, as `EnvBase.step_mdp` does. Changes `root`."""
    only_in_step, kept = keys
    for key in only_in_step & root.keys():
        del root[key]
    for key, value in next_record.items():
        if key not in only_in_step and (key in kept or key in root):
            root[key] = value
    return root


def merge_rows(mask: Tensor, new: Entries, old: Entries) -> Entries:
    """Sets the entries of `old` in the rows of `new` that the mask `[*batch, 1]` does not select, and returns `new`.

    Raises:
        SpaceError: an entry of both has another shape in `new`.
    """
    if mask.numel() == 1:  # the only row is selected
        return new
    for key, value in new.items():
        if (previous := old.get(key)) is not None:
            if value.shape != previous.shape:
                raise SpaceError(
                    f"Expected rows of equal shapes at {key!r}, got {tuple(value.shape)} from a reset and "
                    f"{tuple(previous.shape)} from a step."
                )
            rows = mask if value.ndim == mask.ndim else broadcast_mask(mask, value)
            new[key] = torch.where(rows, value, previous)
    return new


class RecordLoop:
    """Steps an environment over records, so that only the policy gets a TensorDict.

    Args:
        env: the environment.
        steps: its `record_steps`.

    Attributes:
        next: the result of the last step.
        is_done: whether an episode ended in it.
    """

    __slots__ = ("_env", "_first", "_root", "_steps", "is_done", "next")

    def __init__(self, env: Any, steps: RecordSteps):
        self._env, self._steps = env, steps
        self.next: Entries
        self.is_done = False
        self._root: Entries
        self._first: Entries | None = None  # the first entries of the episodes that the last step started

    def set_root(self, data: TensorDictBase) -> bool:
        """Sets the root of the next step. Returns whether this step can be over records."""
        if type(data) is not TensorDict or self._env.is_closed:
            return False
        self._root = dict(data.items())
        return self._root.keys().isdisjoint(_NOT_IN_ROOTS)

    def step(self, reset_done: bool) -> None:
        """Steps all rows."""
        self.next, self._first = self._steps.step(self._root, reset_done)
        self.is_done = any_true(self.next["done"])

    def entries(self) -> dict[str, Any]:
        """Returns the entries of the last step, "next" included; before `next_root`, which changes them."""
        return {**self._root, "next": self.next}

    def next_root(self) -> TensorDict:
        """Returns the root after the last step, as `EnvBase.step_mdp` and `EnvBase.maybe_reset` do."""
        root = next_root(self._env._record_keys, self._root, self.next)
        if self.is_done:
            done, first = self.next["done"], self._first
            root |= merge_rows(done, self._steps.reset(done, root), root) if first is None else first
            if not self._env._allow_done_after_reset and any_true(root["done"]):
                check_not_done(self._to_tensordict(root), RowMasks({(): done}, [()]), ["done"])
        return self._to_tensordict(root)

    def next_tensordict(self) -> TensorDict:
        """Returns the result of the last step."""
        return self._to_tensordict(self.next)

    def _to_tensordict(self, entries: Entries) -> TensorDict:
        if type(entries) is not dict:  # a `Record`, from which it takes longer
            entries = dict(entries)
        return TensorDict(entries, self._env.batch_size, device=self._env.device)


def record_loop(env: Any) -> RecordLoop | None:
    """Returns a loop over the steps of an environment; None if `record_steps` returns None."""
    steps = record_steps(env)
    return None if steps is None else RecordLoop(env, steps)
