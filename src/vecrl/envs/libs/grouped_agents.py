"""Agents in groups: which agents are in which group, and their entries stacked in one dimension."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from ...simulators.agents import group_by_name
from ...specs import Composite
from ...specs.choices import CategoricalSpec
from ...specs.dtypes import numpy_dtype
from ...specs.stacked import stack_specs
from ..gym_like import fast_encoder
from ..marl_groups import MarlGroupMapType, check_marl_grouping

Groups = Mapping[str, Sequence[str]]
GroupMap = MarlGroupMapType | Groups | Callable[[Sequence[str]], Groups] | None


def make_group_map(
    group_map: GroupMap, agents: Sequence[str], default: Callable[[Sequence[str]], Groups] = group_by_name
) -> dict[str, list[str]]:
    """Returns the agents of each group.

    Args:
        group_map: a dict of the agents of each group, a `MarlGroupMapType`, or a function of the agents' names that
            returns a dict; None for `default`.
        agents: the names of all agents.
        default: such a function.

    Raises:
        ValueError: an agent is not in exactly one group.
        TypeError: `group_map` has none of these forms.
    """
    if isinstance(group_map, MarlGroupMapType):
        group_map = group_map.get_group_map
    make: Any = default if group_map is None else group_map
    groups = make(agents) if callable(make) else make
    if not isinstance(groups, Mapping):
        raise TypeError(f"Expected a dict of groups, a MarlGroupMapType or a function, got {groups!r:.80}.")
    check_marl_grouping(groups, agents)
    return {name: list(group) for name, group in groups.items()}


def to_choices(spec: Any, value: Any) -> Any:
    """Converts one-hot rows to indices; other values are unchanged."""
    return spec.to_categorical(value) if isinstance(spec, CategoricalSpec) else value


def to_arrays(spec: Any, value: Any) -> Any:
    """Converts an entry to the NumPy form that libraries take; several entries to a nested dict."""
    if isinstance(spec, Composite):
        return {name: to_arrays(part, value.get(name)) for name, part in spec.items()}
    return spec.to_numpy(value)


class GroupedEntries:
    """The entries of all agents, stacked in each group, in the dimension behind those of the batch.

    Agents of unlike specs are stacked lazily.

    Args:
        group_map: the agents of each group.
        specs: the entries of each agent, without the dimensions of the batch.
        batch_size: of the environment.
        lazy: groups that are stacked lazily although the specs are equal.

    Attributes:
        spec: the stacked entries of all groups.
    """

    def __init__(
        self,
        group_map: Groups,
        specs: Mapping[str, Composite],
        batch_size: Sequence[int] = (),
        lazy: Sequence[str] = (),
    ):
        self._group_map = group_map
        self._stacks = {
            group: _Stack([specs[agent] for agent in agents], batch_size, group in lazy)
            for group, agents in group_map.items()
        }
        self.spec = Composite({group: stack.spec for group, stack in self._stacks.items()}, shape=batch_size)

    def encode(self, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, TensorDictBase]:
        """Returns the TensorDict of each group, from the values of each agent: arrays, numbers or tensors."""
        groups = self._group_map.items()
        return {group: self._stacks[group].encode([entries[agent] for agent in agents]) for group, agents in groups}

    def decode(
        self,
        data: TensorDictBase,
        key: str,
        convert: Callable[[Any, Any], Any] = to_arrays,
        agents: Container[str] | None = None,
    ) -> dict[str, Any]:
        """Returns the value of one entry of each agent.

        Args:
            data: has the groups.
            key: the name of the entry.
            convert: a function of a spec and a value, which may have more dimensions than the spec in front.
            agents: the agents to return values of; None for all.
        """
        values: dict[str, Any] = {}
        for group, members in self._group_map.items():
            selected = [agents is None or agent in agents for agent in members]
            if any(selected):
                group_values = self._stacks[group].decode(data.get(group), key, convert)
                values.update(compress(zip(members, group_values, strict=True), selected))
        return values


class _Stack:
    """The entries of the agents of one group."""

    def __init__(self, specs: Sequence[Composite], batch_size: Sequence[int], is_lazy: bool):
        self._specs: Any = specs
        self._batch_size, self._dim = batch_size, len(batch_size)
        self._is_lazy = is_lazy or any(spec != specs[0] for spec in specs)
        rows = [spec.expand(*batch_size) if batch_size else spec for spec in specs]
        self.spec: Any = stack_specs(rows, self._dim)
        self._encoders = [_encoders(spec) for spec in (rows if self._is_lazy else [self.spec])]

    def encode(self, entries: Sequence[Mapping[str, Any]]) -> TensorDictBase:
        if not self._is_lazy:
            return TensorDict(_encode(self._encoders[0], entries, self._dim), [*self._batch_size, len(entries)])
        parts = zip(self._encoders, entries, strict=True)
        return lazy_stack([TensorDict(_encode(spec, [row], None), self._batch_size) for spec, row in parts], self._dim)

    def decode(self, data: Any, key: str, convert: Callable[[Any, Any], Any]) -> list[Any]:
        if self._is_lazy:
            rows = zip(self._specs, data.unbind(self._dim), strict=True)
            return [convert(spec[key], row.get(key)) for spec, row in rows]
        values, batch = convert(self._specs[0][key], data.get(key)), (slice(None),) * self._dim
        return [_part(values, (*batch, i)) for i in range(len(self._specs))]


def _encoders(spec: Any) -> Any:
    """Returns a function for each leaf of a spec, nested as the spec."""
    if isinstance(spec, Composite):
        return {name: _encoders(part) for name, part in spec.items()}
    return fast_encoder(spec, numpy_dtype(spec.dtype), copy=False)


def _encode(encoders: Any, rows: Sequence[Any], dim: int | None) -> Any:
    """Stacks the values of agents and encodes them; the value of a single agent with `dim` None. Tensors are kept."""
    if isinstance(encoders, dict):
        return {name: _encode(part, [_item(row, name) for row in rows], dim) for name, part in encoders.items()}
    if isinstance(rows[0], Tensor):
        return rows[0] if dim is None else torch.stack(list(rows), dim)
    return encoders(np.array(rows[0]) if dim is None else np.stack(rows, dim))


def _item(row: Any, name: str) -> Any:
    return row[int(name)] if isinstance(row, tuple) else row[name]


def _part(values: Any, index: tuple[Any, ...]) -> Any:
    if isinstance(values, dict):
        return {name: _part(value, index) for name, value in values.items()}
    return values[index]
