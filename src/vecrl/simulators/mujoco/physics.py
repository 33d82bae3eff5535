"""The physics of n rows: one `MjData` a row, stepped and reset by threads, and read as arrays `[n, ...]`.

Rows keep what MuJoCo carries from step to step, the first guess of its solver included, so their results are those of
MuJoCo alone to the bit. `mujoco.rollout` keeps one `MjData` a thread, and returns no such guess.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from ...engine.simulator import Array
from ...errors import SpaceError
from .libraries import mujoco_library
from .threads import RowThreads

_MOVING = (  # the beginnings of names of fields that are in memory of the solver
    *("efc_", "iefc_", "efm_", "island_", "map_", "iacc", "ifrc_"),
    *("dof_island", "tree_island", "tendon_efcadr"),
)
_KINDS = "body", "jnt", "geom", "site", "cam", "light", "tendon", "sensordata", "userdata", "eq", "mocap"
SIZES = "nq", "nv", "nu", "na", *(f"n{kind}" for kind in _KINDS)  # equal in the models of all rows


class Rows:
    """What a task reads of n rows: an array `[n, ...]` for each of the fields that it names.

    Attributes:
        model: the `mujoco.MjModel` of the first row.
        dt: `[n]`, the seconds of one step of the task.
        FIELD: `[n, ...]`, a field of `mujoco.MjData` ("qpos", "xpos", ...) or of `mujoco.MjModel` ("body_mass", ...).
    """

    model: Any
    dt: np.ndarray

    def __init__(self, fields: dict[str, Any]):
        self.__dict__ = fields

    def __setattr__(self, name: str, value: object) -> None:
        if name == "__dict__":
            return super().__setattr__(name, value)
        raise AttributeError(f"Expected a task to read fields only, got a new value of {name!r}. Use a local variable.")

    def __getattr__(self, name: str) -> Array:  # only for fields that are missing
        raise AttributeError(f"Expected a field that the task reads, got {name!r}. Add it to the task's `reads`.")

    def __len__(self) -> int:
        return len(self.dt)

    def body(self, name: str | int) -> int:
        """Returns the index of a body, for fields such as `xpos` `[n, nbody, 3]`."""
        return self.model.body(name).id


class Physics:
    """n rows of MuJoCo.

    Args:
        models: the `mujoco.MjModel` of each row; they may be one object.
        frame_skip: steps of MuJoCo per step.
        reads: the fields of `mujoco.MjData` and `mujoco.MjModel` that `read` returns.
        forces: whether to compute the forces between bodies (`cfrc_ext`, `cfrc_int`, `cacc`) after each step.
        num_threads, wait: the number of threads, and what they do between steps, see `MujocoSimulator`.

    Attributes:
        models: the models.
        data: the `mujoco.MjData` of each row.
        home: the positions `[n, nq]` and velocities `[n, nv]` of the models.

    Raises:
        SpaceError: the models differ in their sizes.
        ValueError: a name in `reads` is none of an array, or `wait` is unknown.
    """

    def __init__(
        self,
        models: Sequence[Any],
        frame_skip: int,
        reads: Sequence[str],
        forces: bool,
        num_threads: int,
        wait: str = "auto",
    ):
        self._mujoco = mujoco = mujoco_library()
        self.models = list(models)
        _check_sizes(self.models)
        self.data = [mujoco.MjData(model) for model in self.models]
        self.home = np.stack([data.qpos for data in self.data]), np.stack([data.qvel for data in self.data])
        first = self.data[0]
        for name in reads:
            owner = first if hasattr(first, name) else self.models[0]
            if name.startswith(_MOVING) or not isinstance(getattr(owner, name, None), np.ndarray):
                fields = "arrays of mujoco.MjData and mujoco.MjModel, such as 'qpos' or 'body_mass'"
                moving = " MuJoCo moves this one in each step." * name.startswith(_MOVING)
                raise ValueError(f"Expected the task's `reads` to name {fields}, got {name!r}.{moving}")
        self._views = {name: [getattr(data, name) for data in self.data] for name in reads if hasattr(first, name)}
        constants = {name: np.stack([getattr(m, name) for m in self.models]) for name in {*reads} - {*self._views}}
        self._constants = {"dt": np.array([frame_skip * model.opt.timestep for model in self.models]), **constants}
        self._state_spec = mujoco.mjtState.mjSTATE_INTEGRATION
        fields = list(self._views.values())
        self._threads = RowThreads(self.models, self.data, fields, frame_skip, forces, num_threads, wait)
        self._all = np.arange(len(self.models))
        self._forms = {  # shape and dtype
            name: ((len(self.models), *views[0].shape), views[0].dtype) for name, views in self._views.items()
        }

    @property
    def lock(self) -> Lock:
        """The caller holds it during `step` and `reset`, of which there must be one at a time."""
        return self._threads.lock

    def step(self, controls: np.ndarray, before: Rows, rows: Sequence[int] | None = None) -> Rows:
        """Steps rows and returns the fields of all rows; those of rows that are not stepped are `before`'s.

        Args:
            controls: `[n, nu]`.
            before: the fields before the step.
            rows: None for all.
        """
        stepped, fields = self._new_fields(before, rows)
        self._threads.step(stepped, controls if rows is None else controls[stepped], list(fields.values()))
        return self.rows_of(fields)

    def reset(self, rows: Sequence[int], positions: np.ndarray, velocities: np.ndarray, before: Rows) -> Rows:
        """Resets the m `rows` to positions `[m, nq]` and velocities `[m, nv]`; returns what `step` does."""
        index, fields = self._new_fields(before, rows)
        self._threads.reset(index, positions, velocities, list(fields.values()))
        return self.rows_of(fields)

    def _new_fields(self, before: Rows, rows: Sequence[int] | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the indices of `rows`, and arrays for the fields of all rows, with `before`'s in the other rows."""
        fields = {name: np.empty(*form) for name, form in self._forms.items()}
        if rows is None:
            return self._all, fields
        for name, values in fields.items():
            values[:] = getattr(before, name)
        return np.array(rows, np.intp), fields

    def read(self) -> Rows:
        """Returns copies of the fields of all rows."""
        return self.rows_of({name: np.stack(views) for name, views in self._views.items()})

    def rows_of(self, fields: Mapping[str, np.ndarray]) -> Rows:
        """Returns `Rows` of all rows with these fields, and those of the models."""
        return Rows({"model": self.models[0], **self._constants, **fields})

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """The fields of the models, and "dt"."""
        return self._constants

    def model_digests(self) -> np.ndarray:
        """Returns a hash of the model of each row, `[n, 4]` int64. It depends on all values but the size of frames."""
        by_model: dict[int, np.ndarray] = {}
        for row_model in self.models:
            if id(row_model) not in by_model:
                model = copy.copy(row_model)
                model.vis.global_.offwidth = model.vis.global_.offheight = 0
                values = np.empty(self._mujoco.mj_sizeModel(model), np.uint8)
                self._mujoco.mj_saveModel(model, None, values)
                by_model[id(row_model)] = np.frombuffer(hashlib.sha256(values.tobytes()).digest(), np.int64)
        return np.stack([by_model[id(model)] for model in self.models])

    def get_state(self) -> np.ndarray:
        """Returns what MuJoCo needs to continue every row, `[n, size]`."""
        mujoco, spec = self._mujoco, self._state_spec
        state = np.empty((len(self.models), mujoco.mj_stateSize(self.models[0], spec)))
        for model, data, values in zip(self.models, self.data, state, strict=True):
            mujoco.mj_getState(model, data, values, spec)
        return state

    def set_state(self, state: np.ndarray) -> None:
        """Restores what `get_state` returned. Places of bodies are those of the restored positions."""
        mujoco, spec = self._mujoco, self._state_spec
        for model, data, values in zip(self.models, self.data, np.ascontiguousarray(state), strict=True):
            mujoco.mj_setState(model, data, values, spec)
            mujoco.mj_forward(model, data)  # for frames; it changes the first guess of the solver
            mujoco.mj_setState(model, data, values, spec)

    def close(self) -> None:
        """Ends the threads. Further calls have no effect."""
        self._threads.close()


def _check_sizes(models: Sequence[Any]) -> None:
    for row, model in enumerate(models):
        for name in SIZES:
            if getattr(model, name) != getattr(models[0], name):
                raise SpaceError(
                    f"Expected models with equal sizes in all rows, got {name} {getattr(models[0], name)} in row 0 and "
                    f"{getattr(model, name)} in row {row}. Change values of the model, but add or remove nothing."
                )
