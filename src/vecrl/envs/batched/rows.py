"""Steps TensorDict environments one after another, each from a root of its own, and writes what they give into rows.

Knows the paths of entries and the engine's rows, not workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from ...engine.layout import Layout
from ...engine.simulator import Notes, Rows
from ...errors import SpaceError
from ...simulators.gymnasium import RAISED
from ..base import EnvBase
from ..owner import Key
from .graphs import Graphs
from .metadata import EnvMetaData
from .wiring import PARCEL, STEP, Path, key_of, outputs_of, paths_of

Options = Mapping[str, Any]
"""For a reset: "kwargs", the keywords for `reset`, and "data", by the number of an environment, a TensorDict with masks
of what is to begin anew, and states to begin from."""


class EnvRows:
    """k environments; `reset` and `step` are those of `engine.simulator.Simulator`.

    Args:
        envs: the environments.
        start: the number of the first of them.
        outputs, inputs: spaces by path, see `wiring`.
        graphs: where tensors with a graph pass; None where they cannot, so that values alone are handed on.

    Attributes:
        roots: what each environment's next step goes on from.
    """

    def __init__(
        self,
        envs: Sequence[EnvBase],
        start: int,
        outputs: spaces.Space[Any],
        inputs: spaces.Space[Any],
        graphs: Graphs | None = None,
    ):
        self._envs = envs
        self._start = start
        self._graphs = graphs
        self._all = range(len(envs))
        self.roots: list[TensorDictBase] = [TensorDict({}, env.batch_size, device=env.device) for env in envs]
        layout, paths = Layout(outputs), paths_of(outputs)
        self._parcel = layout.opaque[0] if layout.opaque else None
        self._ports = [
            _Port(index, path, torch.Size(leaf.shape), leaf.dtype)
            for index, (path, leaf) in enumerate(zip(paths, layout.leaves, strict=True))
            if leaf.dtype is not None
        ]
        sheets = [outputs_of(EnvMetaData.metadata_from_env(env, fake=False)) for env in envs]
        self._odd = [[key_of(path) for path in sheet if path not in paths] for sheet in sheets]
        self._inputs = paths_of(inputs)

    def reset(
        self, rows: Sequence[int] | None, seeds: Sequence[int | None] | None, options: Options | None, out: Rows
    ) -> Notes:
        """See `Simulator.reset`."""
        notes = Notes()
        kwargs, given = {}, {}
        if options:
            kwargs, given = options["kwargs"], options["data"]
        for place, row in enumerate(self._all if rows is None else rows):
            try:
                if seeds is not None and seeds[place] is not None:
                    self._envs[row].set_seed(seeds[place])
                root = self._begin(row, given.get(self._start + row), kwargs)
                self._write(row, root, out, notes, but=self._envs[row].reward_keys)
                self.roots[row] = root
            except RAISED as error:
                self._failed(row, error, notes)
        return notes

    def _begin(self, row: int, given: TensorDictBase | None, kwargs: Mapping[str, Any]) -> TensorDictBase:
        env = self._envs[row]
        if given is None:
            return env.reset(**kwargs)
        if any(given.get(key, None) is not None for key in env.reset_keys):  # the rest of it stays what it is
            given = self.roots[row].copy().update(given)
        return env.reset(given, **kwargs)

    def step(self, rows: Sequence[int] | None, actions: Sequence[Any], out: Rows, renew: bool) -> Notes:
        """See `Simulator.step`."""
        notes = Notes()
        for row, action in zip(self._all if rows is None else rows, actions, strict=True):
            try:
                self._step(row, action, out, renew, notes)
            except RAISED as error:
                self._failed(row, error, notes)
        return notes

    def _step(self, row: int, action: Mapping[Path, Any], out: Rows, renew: bool, notes: Notes) -> None:
        env = self._envs[row]
        data = self._with_inputs(row, action)
        if renew:
            stepped, root = env.step_and_maybe_reset(data)
        else:
            stepped = env.step(data)
            root = env.step_mdp(stepped)
        following = stepped.get("next")
        ended = env.any_done(following)
        if ended and renew:
            self._write(row, following, out, notes, final=True)
            self._write(row, root, out, notes, but=env.reward_keys)
        else:
            self._write(row, following, out, notes)
        self.roots[row] = root
        if ended:
            out.terminated[row] = True
            notes.ended.append(row)

    def _with_inputs(self, row: int, action: Mapping[Path, Any]) -> TensorDictBase:
        data, graphs = self.roots[row], self._graphs
        for path in () if graphs is None else graphs.cut:
            if (before := data.get(key_of(path), None)) is not None:
                data.set(key_of(path), before.detach())
        for path in self._inputs:
            value = action[path]
            if path == PARCEL:
                for key, thing in value.items():
                    data.set(key, thing)
            elif path == STEP:
                if not value.all():
                    data.set("_step", torch.from_numpy(value))
            else:
                tensor = torch.from_numpy(np.asarray(value))
                if graphs is not None and path in graphs.inputs:
                    tensor = graphs.inputs[path][self._start + row].to(tensor)
                data.set(key_of(path), tensor)
        return data

    def _failed(self, row: int, error: BaseException, notes: Notes) -> None:
        env = self._envs[row]
        self.roots[row] = TensorDict({}, env.batch_size, device=env.device)
        if self._graphs is not None:
            self._graphs.obs.pop(self._start + row, None)
        notes.failures.append((row, error))

    def _write(
        self, row: int, data: TensorDictBase, out: Rows, notes: Notes, *, final: bool = False, but: Sequence[Key] = ()
    ) -> None:
        """Write an environment's entries into its row; those of `but` need not be there."""
        leaves, graphs = out.final_obs if final else out.obs, self._graphs
        kept: dict[Path, Tensor] = {}
        for port in self._ports:
            value = data.get(port.key, None)
            if value is not None:
                leaves[port.index][row] = port.checked(value)
                if graphs is not None and value.requires_grad:
                    kept[port.path] = value
            elif port.key not in but:
                raise SpaceError(f"Expected {port.key!r}, as the specs say, but there are only {_names(data)}.")
        if graphs is not None:
            graphs.keep(self._start + row, kept, final)
        if self._parcel is not None:
            parcel = {key: self._copied(value) for key in self._odd[row] if (value := data.get(key, None)) is not None}
            objects = notes.final_objects if final else notes.objects
            objects.setdefault(self._parcel, []).append((row, parcel))

    def _copied(self, value: Any) -> Any:
        """A copy: an environment may go on with its own."""
        if isinstance(value, Tensor):
            return value.detach().clone() if self._graphs is None else value.clone()
        if isinstance(value, NonTensorData):
            return NonTensorData(deepcopy(value.data), batch_size=value.batch_size)
        if is_non_tensor(value):
            return torch.stack([self._copied(part) for part in value.unbind(0)], 0)
        return value.clone()


class _Port:
    """Where an entry comes out: a leaf of the arena, and what it takes."""

    __slots__ = ("dtype", "index", "key", "path", "shape")

    def __init__(self, index: int, path: Path, shape: torch.Size, dtype: Any):
        self.index, self.path, self.key, self.shape, self.dtype = index, path, key_of(path), shape, dtype

    def checked(self, value: Any) -> np.ndarray:
        """A tensor as an array that the leaf can take."""
        if not isinstance(value, Tensor) or value.shape != self.shape:
            came = tuple(value.shape) if isinstance(value, Tensor) else repr(value)[:80]
            raise SpaceError(
                f"Expected shape {tuple(self.shape)} at {self.key!r}, as the specs say, but {came} came. "
                "check_env_specs(env) finds all that differs; a size that varies is -1 in its spec."
            )
        array = value.detach().cpu().numpy()
        if array.dtype != self.dtype and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise SpaceError(
                f"Expected {self.dtype} at {self.key!r}, as the specs say, but {array.dtype} came, which does not cast "
                "safely."
            )
        return array


def _names(data: TensorDictBase) -> list[str]:
    return sorted(map(str, data.keys(include_nested=True, leaves_only=True)))
