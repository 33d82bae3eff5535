"""`MujocoTask`: a model and four functions over all rows at once. The tasks of gymnasium are of this class too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from ...engine.simulator import Array
from ...errors import SpaceError
from ...validation import check_names, parse_count
from ..array_library import namespace_of
from .libraries import mujoco_library
from .physics import Rows


@dataclass(slots=True)
class Start:
    """Rows that begin an episode.

    Attributes:
        rngs: the random generators of the m rows.
        qpos: `[m, nq]`, the positions of the model.
        qvel: `[m, nv]`, the velocities of the model, zeros.
    """

    rngs: Sequence[np.random.Generator]
    qpos: np.ndarray
    qvel: np.ndarray

    def uniform(self, low: float, high: float, size: int) -> np.ndarray:
        """Samples uniform numbers `[m, size]`, each row from its own generator."""
        return np.stack([rng.uniform(low, high, size) for rng in self.rngs])

    def normal(self, size: int) -> np.ndarray:
        """Samples standard normal numbers `[m, size]`, each row from its own generator."""
        return np.stack([rng.standard_normal(size) for rng in self.rngs])


@dataclass(slots=True)
class Move:
    """One step of n rows.

    Attributes:
        before, after: the fields of the rows before and after the step.
        action: `[n, nu]`, in the dtype that the caller gave: float32, or another float.
        home: `[n, nq]`, the positions of the model.
        terminated: `[n]` bool, for the reward: what `MujocoTask.terminated` returned.
    """

    before: Rows
    after: Rows
    action: Array
    home: Array
    terminated: Array


Reward = tuple[Array, Mapping[str, Array]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MujocoTask:
    """A model of MuJoCo, and the rules of a task over it.

    Attributes:
        xml: MJCF; or the path of a file, absolute or beginning with "." or "~"; or the name of a file of gymnasium.
        frame_skip: steps of the model per step of the task.
        start: `start(start)` computes positions `[m, nq]` and velocities `[m, nv]` of rows that begin an episode.
        observe: `observe(rows)` computes observations `[n, k]`.
        reward: `reward(move)` computes rewards `[n]` float64 and the infos of the step, arrays of leading size n.
        terminated: `terminated(move)` computes `[n]` bool; None for a task that only the time limit ends.
        reads: the fields of `mujoco.MjData` and `mujoco.MjModel` that these functions read.
        forces: whether they read forces between bodies (`cfrc_ext`, `cfrc_int`, `cacc`).
        max_episode_steps: truncates episodes of this length; -1 for no limit.
        camera: attributes of the camera of frames, as gymnasium's `default_camera_config`.

    Raises:
        ValueError: a value is of another kind, or out of range.
    """

    xml: str
    frame_skip: int
    start: Callable[[Start], tuple[Array, Array]]
    observe: Callable[[Rows], Array]
    reward: Callable[[Move], Reward]
    terminated: Callable[[Move], Array] | None = None
    reads: Sequence[str] = ("qpos", "qvel")
    forces: bool = False
    max_episode_steps: int = 1000
    camera: Mapping[str, Any] | None = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not isinstance(self.xml, str):
            raise ValueError(
                f"Expected xml to be MJCF as a string, or the path of a file as one, got {self.xml!r:.80}."
            )
        object.__setattr__(self, "frame_skip", parse_count("frame_skip", self.frame_skip))
        if self.max_episode_steps != -1:
            parse_count("max_episode_steps", self.max_episode_steps)
        check_names("reads", self.reads, "fields")
        object.__setattr__(self, "reads", tuple(self.reads))
        for name in ("start", "observe", "reward", "terminated"):
            function = getattr(self, name)
            if not callable(function) and (name, function) != ("terminated", None):
                raise ValueError(f"Expected {name} to be a function over rows, got {function!r:.80}.")

    def load_model(self) -> Any:
        """Loads the `mujoco.MjModel` of the task.

        Raises:
            OSError: there is no such file.
            ValueError: it is no valid model; the message is that of MuJoCo.
        """
        mujoco = mujoco_library()
        if "<" in self.xml:
            return mujoco.MjModel.from_xml_string(self.xml)
        path = Path(self.xml).expanduser()
        if not path.is_absolute() and not self.xml.startswith("."):
            path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / path
        if not path.exists():
            raise OSError(f"Expected the file of a model, got {path}, which does not exist.")
        return mujoco.MjModel.from_xml_path(str(path))


def lengths(vectors: np.ndarray) -> np.ndarray:
    """Computes the Euclidean lengths `[n]` of vectors `[n, k]`, with the bits of `np.linalg.norm` of one vector."""
    return np.sqrt((vectors[:, None, :] @ vectors[:, :, None])[:, 0, 0])


def columns(parts: Sequence[Array]) -> Array:
    """Joins arrays or tensors `[n, ...]` to one `[n, k]`."""
    return namespace_of(parts[0]).concatenate(parts, axis=1)


def sum_of_squares(values: Array) -> Array:
    """Computes the sum `[n]` of the squares of all elements of each row of `[n, ...]`, an array or a tensor."""
    return (values * values).reshape(len(values), -1).sum(1)


def flat(values: np.ndarray) -> np.ndarray:
    """Reshapes `[n, ...]` to `[n, k]`."""
    return values.reshape(len(values), -1)


# -- checks of what the functions of a task return


def checked_rows(name: str, values: Any, shape: tuple[int | None, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Returns a copy of an array that a function of the task returned.

    Args:
        name: the function's name, for messages.
        values: what it returned.
        shape: the expected shape; None for any size.
        dtype: of the copy.

    Raises:
        SpaceError: the array has another shape, or its dtype does not cast to `dtype`.
    """
    array = _as_array(values)
    if array is None or not _fits(array.shape, shape) or not np.can_cast(array.dtype, dtype, "same_kind"):
        sizes = ", ".join("k" if size is None else str(size) for size in shape)
        raise SpaceError(
            f"Expected `{name}` of the task to return an array of shape ({sizes}{',' * (len(shape) == 1)}) and dtype "
            f"{np.dtype(dtype)}, rows first, got {_described(values, array)}"
        )
    return array.astype(dtype)


def _fits(found: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return found == expected or (
        len(found) == len(expected) and all(size in (None, other) for size, other in zip(expected, found, strict=True))
    )


def _as_array(values: Any) -> np.ndarray | None:
    """Returns `values` as an array; None if its items have different shapes."""
    if type(values) is np.ndarray:
        return values
    try:
        return np.asarray(values)
    except ValueError:
        return None


def _described(values: Any, array: np.ndarray | None) -> str:
    if array is not None:
        return f"shape {array.shape} and dtype {array.dtype}."
    shapes = ", ".join(dict.fromkeys(map(_shape_of, values)))
    return f"{len(values)} items of different shapes: {shapes}. Make them equal."


def _shape_of(values: Any) -> str:
    array = _as_array(values)
    return "items of different shapes" if array is None else str(array.shape)


def checked_reward(result: Any, count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns copies of the rewards `[count]` float64 and of the infos that `reward` returned.

    Raises:
        SpaceError: it did not return a tuple of an array and a dict, or an array has other sizes or no numbers.
    """
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise SpaceError(
            f"Expected `reward` of the task to return rewards and a dict of infos, got {type(result).__name__}."
        )
    rewards, infos = result
    copies: dict[str, np.ndarray] = {}
    for name, values in infos.items():
        array = _as_array(values)
        if array is None or array.shape[:1] != (count,) or array.dtype.kind not in "biuf":
            raise SpaceError(
                f"Expected the info {name!r} of `reward` to have {count} rows of numbers, got "
                f"{_described(values, array)}"
            )
        copies[name] = array.copy()
    return checked_rows("reward", rewards, (count,), np.float64), copies


def checked_start(
    result: Any, positions: tuple[int, ...], velocities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns copies of the positions and velocities that `start` returned, of these shapes.

    Raises:
        SpaceError: it returned something else.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        kind = type(result).__name__
        raise SpaceError(f"Expected `start` of the task to return positions and velocities, got {kind}.")
    given_positions, given_velocities = result
    return (
        checked_rows("start", given_positions, positions, np.float64),
        checked_rows("start", given_velocities, velocities, np.float64),
    )
