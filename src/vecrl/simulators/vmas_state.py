"""The state of a VMAS environment as tensors with one row per environment.

VMAS has no method for it: positions and velocities are attributes of entities, and scenarios add attributes of their
own. So the objects of the scenario and its world are walked, and what they hold is copied. This module must not know
any scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from ..errors import StateError
from .batch_adapter import check_entries

NUMBERS, REFERENCES = "numbers", "references"
_LEAVES = (type, FunctionType, MethodType, ModuleType, Tensor, Enum, torch.device, torch.dtype, torch.nn.Module)


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """An attribute or an element: a place that holds a value."""

    path: str
    container: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.container[self.key]


def get_rows(env: Any) -> dict[str, Tensor]:
    """Returns copies of all tensors of a VMAS environment by their paths, each of leading size n.

    What all rows share is in n equal rows: tensors that have no row per environment, and in "numbers" `[n, k]` float64
    and "references" `[n, m]` int64 the numbers, and the objects that attributes refer to.
    """
    return _read(env, *_walk(env))


def _read(env: Any, slots: list[_Slot], objects: list[object]) -> dict[str, Tensor]:
    index = {id(item): number for number, item in enumerate(objects)}
    state: dict[str, Tensor] = {}
    for slot in slots:
        if isinstance(slot.value, Tensor):
            dim = _row_dim(slot.value, env.num_envs)
            value = slot.value.detach().clone()
            state[slot.path] = value.expand(env.num_envs, *value.shape) if dim is None else value.movedim(dim, 0)
    numbers = [float(slot.value) for slot in slots if _is_number(slot.value)]
    references = [index[id(slot.value)] for slot in slots if id(slot.value) in index]
    shared = {NUMBERS: torch.tensor(numbers, dtype=torch.float64), REFERENCES: torch.tensor(references)}
    return state | {name: value.to(env.device).expand(env.num_envs, -1) for name, value in shared.items()}


def set_rows(env: Any, state: Mapping[str, Tensor]) -> None:
    """Restores what `get_rows` returned; of what all rows share, the values of row 0.

    Raises:
        KeyError: numbers or references are missing.
        StateError: the environment has another structure, or an entry another shape or dtype; nothing is changed.
    """
    slots, objects = _walk(env)
    own = _read(env, slots, objects)
    shared = {name: own[name] for name in (NUMBERS, REFERENCES)}
    for name, tensor in shared.items():
        if state[name].ndim != tensor.ndim or state[name].dtype != tensor.dtype:
            raise StateError(f"Expected {name!r} to be {tensor.dtype} [n, k], got {state[name]!r:.80}.")
    check_entries("VMAS", state, {name: tensor for name, tensor in own.items() if name in state.keys() - shared.keys()})
    numbers, references = (state[name][0].tolist() for name in (NUMBERS, REFERENCES))
    number_slots = [slot for slot in slots if _is_number(slot.value)]
    ids = set(map(id, objects))
    reference_slots = [slot for slot in slots if id(slot.value) in ids]
    if (len(numbers), len(references)) != (len(number_slots), len(reference_slots)):
        raise StateError(
            f"Expected a state with {len(number_slots)} numbers and {len(reference_slots)} references, got "
            f"{len(numbers)} and {len(references)}. Restore it in a simulator that was made with the same arguments."
        )
    try:
        values = [type(slot.value)(number) for slot, number in zip(number_slots, numbers, strict=True)]
    except (ValueError, OverflowError) as error:
        raise StateError(f"Expected finite numbers for integers in {NUMBERS!r}, got {numbers!r:.80}.") from error
    if not all(0 <= reference < len(objects) for reference in references):
        raise StateError(f"Expected numbers of objects, from 0 to {len(objects) - 1}, got {references!r:.80}.")
    _set_tensors(env, slots, state)
    for slot, value in zip(number_slots, values, strict=True):
        slot.container[slot.key] = value
    for slot, reference in zip(reference_slots, references, strict=True):
        slot.container[slot.key] = objects[reference]


def set_tensors(env: Any, state: Mapping[str, Tensor]) -> None:
    """Restores the tensors of a state that `get_rows` returned, without numbers and references."""
    _set_tensors(env, _walk(env)[0], state)


def _set_tensors(env: Any, slots: Iterable[_Slot], state: Mapping[str, Tensor]) -> None:
    for slot in slots:
        if isinstance(slot.value, Tensor) and slot.path in state:
            dim, value = _row_dim(slot.value, env.num_envs), state[slot.path].to(env.device)
            slot.container[slot.key] = (value[0] if dim is None else value.movedim(0, dim)).clone()


def _walk(env: Any) -> tuple[list[_Slot], list[object]]:
    """Returns all places that can be reached from the scenario, and all objects, each once and always in one order."""
    slots = [_Slot("steps", vars(env), "steps")]
    objects: list[object] = [env.scenario]
    paths, seen = ["scenario"], {id(env.scenario)}
    for path, item in zip(paths, objects, strict=True):  # both lists grow in the loop
        container = item if isinstance(item, dict | list | tuple) else vars(item)
        for name, key, value in _items(container):
            if not isinstance(container, tuple):
                slots.append(_Slot(f"{path}.{name}", container, key))
            if _is_container(value) and id(value) not in seen:
                seen.add(id(value))
                paths.append(f"{path}.{name}")
                objects.append(value)
    return slots, objects


def _items(container: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the name, the key and the value of each element; keys that are no text are named by their places."""
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    for place, (key, value) in enumerate(pairs):
        yield key if isinstance(key, str) else str(place), key, value


def _is_container(value: object) -> bool:
    return isinstance(value, dict | list | tuple) or (hasattr(value, "__dict__") and not isinstance(value, _LEAVES))


def _row_dim(value: Tensor, num_envs: int) -> int | None:
    """Returns the dimension of the rows, which is not the first in buffers of earlier steps; None without rows."""
    return value.shape.index(num_envs) if num_envs in value.shape else None


def _is_number(value: object) -> bool:
    return type(value) in (bool, int, float)
