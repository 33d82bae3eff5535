"""`MujocoSimulator`: a task of MuJoCo as a batch. Physics runs on threads, everything else on arrays of all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ...cores import num_cores
from ...engine.simulator import BatchStep, ResetOptions
from ...errors import ClosedError, PendingError, SpaceError, StateError
from ...validation import check_seed, parse_count
from ..array_library import on_host, step_in_tensors
from ..batch_adapter import as_tensors
from .libraries import mujoco_library
from .physics import Physics
from .task import Move, MujocoTask, Start, checked_reward, checked_rows, checked_start

NO_LIMIT = 2**62
FRAME_OPTIONS = "width", "height", "camera_id", "camera_name", "max_geom", "visual_options"
OPTIONS = ("num_threads", "wait", "render_mode", "max_episode_steps", "model_fn", "model_seed", *FRAME_OPTIONS)
FIELD = "field/"  # before the names of fields in states
WORDS = 6  # of 64 bits: the state and the increment of PCG64, twice two; a buffered number, and whether there is one
MASK = 2**64 - 1


class MujocoSimulator:
    """n environments of one task of MuJoCo in this process; a `vecrl.engine.simulator.BatchSimulator` on the CPU.

    Observations `[n, k]` and rewards `[n]` are float64 tensors, as gymnasium's are, actions `[n, nu]` float32 or
    float64.

    Args:
        task: the task.
        num_envs: n, at least 1.
        infos: return the infos of steps.
        num_threads: threads for the physics; None for one per core, at most n. Results do not depend on it.
        wait: what the other threads do between steps. "sleep" wakes them for each step, which takes some 50
            microseconds. With "auto" they poll for work for 100 microseconds before they sleep, with "spin" for 20
            milliseconds; after each poll, other programs that wait for the core run, and if one does, they do not poll
            for a second. With fewer cores than threads, they always sleep.
        render_mode: "rgb_array" or None.
        max_episode_steps: truncates episodes of this length; None for the task's limit, -1 for no limit.
        model_fn: `model_fn(row, rng)` returns the `mujoco.MjModel` of a row, with the sizes of the task's. It is called
            once for each row; `rng` is seeded with `model_seed` and the row. None for the task's model in all rows.
        model_seed: an integer of at least 0; None for entropy of the operating system.
        width, height, camera_id, camera_name, max_geom, visual_options: of frames, as in gymnasium.

    Attributes:
        task, num_threads, max_episode_steps: as given, or chosen.
        models: the model of each row.
        data: the `mujoco.MjData` of each row. Read it; changes of it are not part of results that are computed already.

    An error inside MuJoCo, such as a lack of memory, ends the process with MuJoCo's message.

    Raises:
        ImportError: MuJoCo or Numba is not installed; the message names the extra.
        ValueError: an argument is out of range, or the model is invalid.
        SpaceError: models of rows have different sizes.
        TypeError: `model_fn` returns no model.
    """

    device = "cpu"
    arrays = "numpy"  # see `SupportsArrays`
    checks_actions = True  # float64 is not rounded; see `BatchSimulator`

    def __init__(
        self,
        task: MujocoTask,
        num_envs: int,
        *,
        infos: bool = True,
        num_threads: int | None = None,
        wait: str = "auto",
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        model_fn: Callable[[int, np.random.Generator], Any] | None = None,
        model_seed: int | None = None,
        width: int = 480,
        height: int = 480,
        camera_id: int | None = None,
        camera_name: str | None = None,
        max_geom: int = 1000,
        visual_options: Mapping[int, bool] | None = None,
    ):
        self.num_envs = parse_count("num_envs", num_envs)
        count = num_cores() if num_threads is None else parse_count("num_threads", num_threads)
        self.num_threads = min(count, self.num_envs)
        self._closed = False
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"Expected render_mode 'rgb_array' or None, got {render_mode!r}.")
        limit = task.max_episode_steps if max_episode_steps is None else max_episode_steps
        self.max_episode_steps = limit if limit == -1 else parse_count("max_episode_steps", limit)
        self.task, self.render_mode = task, render_mode
        models = _models(task, self.num_envs, model_fn, model_seed)
        self._physics = Physics(models, task.frame_skip, task.reads, task.forces, self.num_threads, wait)
        self._rows = self._physics.read()
        low, high = models[0].actuator_ctrlrange.T.astype(np.float32)
        self.action_space = Box(low, high, dtype=np.float32)
        self._obs = self._observe(None)
        self.observation_space = Box(-np.inf, np.inf, self._obs.shape[1:], np.float64)
        fps = round(1 / self._rows.dt[0])
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self._limit = NO_LIMIT if limit == -1 else limit
        self._infos = infos
        self._random = RandomRows(self.num_envs)
        self._steps = np.full(self.num_envs, -1)  # since the start of the episode; -1 if a reset is necessary
        self._no_steps = self._steps.copy()
        self._no_steps.setflags(write=False)
        sizes = {"width": width, "height": height, "max_geom": max_geom}
        view = {"camera_id": camera_id, "camera_name": camera_name, "visual_options": visual_options}
        self._frames = Frames(task.camera, sizes | view)

    @property
    def models(self) -> list[Any]:
        return self._physics.models

    @property
    def data(self) -> list[Any]:
        return self._physics.data

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Tensor:
        """Starts an episode in every row and returns the observations `[n, k]`.

        Args:
            seeds: `seeds[i]` seeds row i as gymnasium's environment; None continues the row's random stream.
            options: ignored, as in gymnasium.
        """
        with _OneCall(self) as steps:
            self._random.seed(seeds)
            self._restart(range(self.num_envs), steps)
        return torch.from_numpy(self._obs.copy())

    def reset_where(self, mask: Tensor) -> Tensor:
        """Starts an episode in the rows of the bool `mask` `[n]` and returns the observations of all rows."""
        self._require_reset()
        return torch.from_numpy(self._reset_where(self._checked_mask(mask)))

    def step(self, actions: Tensor) -> BatchStep:
        """Steps every row.

        Args:
            actions: `[n, nu]` numbers, as a tensor or an array. Rewards are computed in the precision of floats, and of
                float64 for integers, as in gymnasium.

        Raises:
            SpaceError: they have another shape, or are no numbers.
        """
        return step_in_tensors(self._step(actions, None))

    def step_where(self, mask: Tensor, actions: Tensor) -> BatchStep:
        """Steps the rows of the bool `mask` `[n]`; rewards, flags and infos of others are of no step."""
        return step_in_tensors(self._step(actions, np.flatnonzero(self._checked_mask(mask)).tolist()))

    def step_and_reset(self, actions: Tensor) -> tuple[BatchStep, Tensor, Tensor]:
        """Steps every row, then starts an episode in rows that are done; see `SupportsStepAndReset`."""
        step, done, obs = self.step_and_reset_arrays(actions)
        return step_in_tensors(step), torch.from_numpy(done), torch.from_numpy(obs)

    def step_and_reset_arrays(
        self, actions: Tensor | np.ndarray, mask: np.ndarray | None = None
    ) -> tuple[BatchStep, np.ndarray, np.ndarray]:
        """Returns what `step_and_reset` does as NumPy arrays; see `SupportsArrays`."""
        step = self._step(actions, None)
        done: Any = step.terminated | step.truncated
        return step, done, self._reset_where(done if mask is None else mask)

    def render(self, row: int) -> np.ndarray | None:
        """Renders a frame `[height, width, 3]` uint8 of one row, as gymnasium does; None without a render mode."""
        if self.render_mode is None:
            return None
        self._require_reset()
        return self._frames.draw(row, self.models[row], self.data[row])

    def get_state(self) -> dict[str, Tensor]:
        """Returns copies of the complete state: of MuJoCo, of the random generators, and what the task has read."""
        read = [name for name in self.task.reads if name not in self._physics.constants]
        arrays = {
            "models": self._physics.model_digests(),
            "physics": self._physics.get_state(),
            "random": self._random.get_state(),
            "steps": self._steps,
            "obs": self._obs,
            **{FIELD + name: getattr(self._rows, name) for name in read},
        }
        return {name: torch.from_numpy(values.copy()) for name, values in arrays.items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores a state that `get_state` returned, of this simulator or of another with the same models of rows.

        Raises:
            SpaceError: it is a state of another task or number of rows, or of other models; nothing is changed.
        """
        arrays = {name: values.numpy().copy() for name, values in as_tensors("MuJoCo", state).items()}
        found = {name: (values.shape, str(values.dtype)) for name, values in arrays.items()}
        expected = {name: (tuple(values.shape), str(values.numpy().dtype)) for name, values in self.get_state().items()}
        if found != expected:
            wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            raise SpaceError(
                f"Expected a state of {self.num_envs} rows of this task, got another: it differs in {wrong} (expected "
                f"{[expected.get(name) for name in wrong]}, got {[found.get(name) for name in wrong]})."
            )
        others = np.flatnonzero((arrays["models"] != self._physics.model_digests()).any(1)).tolist()
        if others:
            raise SpaceError(
                f"Expected a state of the models of this simulator, got one of other models in the rows {others}. Make "
                f"the simulator with the task, `model_fn` and `model_seed` of the one that was saved."
            )
        self._random.set_state(arrays["random"])
        self._physics.set_state(arrays["physics"])
        self._steps, self._obs = arrays["steps"], arrays["obs"]
        fields = {name.removeprefix(FIELD): values for name, values in arrays.items() if name.startswith(FIELD)}
        self._rows = self._physics.rows_of(fields)

    def close(self) -> None:
        """Ends the threads and closes the renderers. Further calls have no effect."""
        self._closed = True
        try:
            self._frames.close()
        finally:
            self._physics.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"Expected an object that can be copied or pickled, got a {type(self).__name__}, which has threads and "
            "memory of MuJoCo. Take its get_state(), construct another with the same arguments, and call its "
            "set_state(state)."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_envs} x {self.task.xml:.40}, {self.num_threads} threads)"

    # -- private methods -------------------------------------------------------------------------------

    def _step(self, actions: Tensor | np.ndarray, rows: Sequence[int] | None) -> BatchStep:
        """Returns the results of a step of `rows` (None: all) as arrays."""
        array = self._action_array(actions)
        with _OneCall(self, in_episode=True) as steps:
            return self._step_alone(array, rows, steps)

    def _action_array(self, actions: Tensor | np.ndarray) -> np.ndarray:
        array = on_host(actions) if isinstance(actions, Tensor) else np.asarray(actions)
        expected = (self.num_envs, *self.action_space.shape)
        if array.shape != expected or array.dtype.kind not in "fiub":
            raise SpaceError(
                f"Expected actions of shape {expected}, got numbers of shape {array.shape} and dtype {array.dtype}. "
                "Give one row of real numbers per environment."
            )
        return array if array.dtype.kind == "f" else array.astype(np.float64)

    def _step_alone(self, actions: np.ndarray, rows: Sequence[int] | None, steps: np.ndarray) -> BatchStep:
        physics, task, before = self._physics, self.task, self._rows
        after = self._rows = physics.step(actions, before, rows)
        count = self.num_envs
        move = Move(before, after, actions, physics.home[0], np.zeros(count, bool))
        if task.terminated is not None:
            move.terminated = checked_rows("terminated", task.terminated(move), (count,), np.bool_)
        rewards, infos = checked_reward(task.reward(move), count)
        obs = self._observe(*self.observation_space.shape)
        if rows is None:
            steps, self._obs = steps + 1, obs
        else:
            steps, self._obs = steps.copy(), self._obs.copy()
            steps[rows] += 1
            self._obs[rows] = obs[rows]
        truncated = steps >= self._limit
        step = BatchStep(self._obs.copy(), rewards, move.terminated, truncated, infos if self._infos else {})
        self._steps = steps
        return step

    def _checked_mask(self, mask: Tensor) -> np.ndarray:
        if mask.shape != (self.num_envs,):
            raise SpaceError(f"Expected a mask of shape {(self.num_envs,)}, got {tuple(mask.shape)}.")
        return mask.numpy()

    def _observe(self, size: int | None) -> np.ndarray:
        """Returns the observations `[n, k]` of all rows, where k is `size`; None for any."""
        return checked_rows("observe", self.task.observe(self._rows), (self.num_envs, size), np.float64)

    def _reset_where(self, mask: np.ndarray) -> np.ndarray:
        if b"\1" in mask.tobytes():  # faster than `any`
            with _OneCall(self, in_episode=True) as steps:
                self._restart(np.flatnonzero(mask).tolist(), steps)
        return self._obs.copy()

    def _restart(self, rows: Sequence[int], steps: np.ndarray) -> None:
        """Starts an episode in `rows`. All rows had made `steps`."""
        physics, index = self._physics, list(rows)
        positions, velocities = (values[index] for values in physics.home)
        start = Start([self._random.generators[row] for row in rows], positions, velocities)
        places = checked_start(self.task.start(start), positions.shape, velocities.shape)
        self._rows = physics.reset(rows, *places, self._rows)
        steps, self._obs = steps.copy(), self._obs.copy()
        steps[index] = 0
        self._obs[index] = self._observe(*self.observation_space.shape)[index]
        self._steps = steps

    def _require_reset(self) -> None:
        if self._steps[0] < 0:
            raise PendingError(
                "Expected an episode in every row, got none: there was no reset, or an error or Ctrl-C interrupted the "
                "last call. Call reset first."
            )


class _OneCall:
    """A context of a call, which gives the numbers of steps `[n]`.

    An error or Ctrl-C before the call sets new ones makes a reset necessary.

    Args:
        simulator: the simulator.
        in_episode: whether the call needs episodes.

    Raises:
        PendingError: another thread is in such a call; or, with `in_episode`, a reset is necessary.
        ClosedError: another thread closes the simulator.
    """

    __slots__ = ("_in_episode", "_simulator")

    def __init__(self, simulator: MujocoSimulator, in_episode: bool = False):
        self._simulator, self._in_episode = simulator, in_episode

    def __enter__(self) -> np.ndarray:
        simulator = self._simulator
        if not simulator._physics.lock.acquire(blocking=False):
            if simulator._closed:
                raise ClosedError("Expected an open simulator, got one that another thread closes. Make a new one.")
            raise PendingError("Expected one call of this simulator at a time, got a second. Use a lock.")
        try:
            if self._in_episode:
                simulator._require_reset()
            steps, simulator._steps = simulator._steps, simulator._no_steps
        except BaseException:
            simulator._physics.lock.release()
            raise
        return steps

    def __exit__(self, *_: object) -> None:
        self._simulator._physics.lock.release()


def _models(
    task: MujocoTask, num_envs: int, model_fn: Callable[[int, np.random.Generator], Any] | None, seed: int | None
) -> list[Any]:
    if model_fn is None:
        return [task.load_model()] * num_envs
    check_seed(seed)
    streams = np.random.SeedSequence(seed).spawn(num_envs)
    models = [model_fn(row, np.random.default_rng(stream)) for row, stream in enumerate(streams)]
    for row, model in enumerate(models):
        if not hasattr(model, "nq"):
            raise TypeError(f"Expected model_fn to return a mujoco.MjModel for row {row}, got {model!r:.80}.")
    return models


class RandomRows:
    """The `numpy.random.Generator` of each of n rows.

    A row with a seed draws what a gymnasium environment draws after `reset(seed=...)`. A row without one begins with
    entropy of the operating system.

    Args:
        count: n.
    """

    def __init__(self, count: int):
        self.generators = [np.random.Generator(np.random.PCG64()) for _ in range(count)]

    def seed(self, seeds: Sequence[int | None] | None) -> None:
        """Seeds the rows; a seed of None continues the row's stream.

        Raises:
            SpaceError: there is not one seed per row, or one is no integer of 0 or more.
        """
        if seeds is None:
            return
        if len(seeds) != len(self.generators):
            raise SpaceError(f"Expected {len(self.generators)} seeds, one per environment, got {len(seeds)}.")
        for row, seed in enumerate(seeds):
            if seed is None:
                continue
            check_seed(seed)
            if not isinstance(seed, int | np.integer):
                raise SpaceError(f"Expected seeds to be integers or None, got {seed!r}.")
            self.generators[row] = np.random.Generator(np.random.PCG64(int(seed)))

    def get_state(self) -> np.ndarray:
        """Returns the states of the generators, `[n, 6]` int64."""
        rows = np.empty((len(self.generators), WORDS), np.uint64)
        for row, generator in zip(rows, self.generators, strict=True):
            state = generator.bit_generator.state
            counter, increment = state["state"]["state"], state["state"]["inc"]
            words = counter >> 64, counter & MASK, increment >> 64, increment & MASK
            row[:] = *words, state["uinteger"], state["has_uint32"]
        return rows.view(np.int64)

    def set_state(self, rows: np.ndarray) -> None:
        """Restores what `get_state` returned; raises a StateError for words of no generator, and changes nothing."""
        words = np.ascontiguousarray(rows).view(np.uint64)
        if (words[:, 4:] >= 2**32).any():
            raise StateError("Expected the states of random generators, got numbers that are none.")
        for generator, row in zip(self.generators, words.tolist(), strict=True):
            high, low, increment_high, increment_low, number, has_number = row
            generator.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
                "has_uint32": has_number,
                "uinteger": number,
            }


class Frames:
    """Renders rows by gymnasium's renderer. Each row has its own, because its camera depends on earlier frames.

    Args:
        camera: attributes of the camera, as gymnasium's `default_camera_config`.
        options: further arguments of gymnasium's `MujocoRenderer` (`width`, `height`, `camera_id`, `camera_name`,
            `max_geom`, `visual_options`).
    """

    def __init__(self, camera: Mapping[str, Any] | None, options: Mapping[str, Any]):
        self._camera, self._options = None if camera is None else dict(camera), dict(options)
        self._renderers: dict[int, tuple[Any, Any]] = {}  # by the row: the renderer, and what it renders

    def draw(self, row: int, model: Any, data: Any) -> np.ndarray:
        """Returns a frame `[height, width, 3]` uint8 of a row, which has this model and these data."""
        mujoco = mujoco_library()
        if row not in self._renderers:
            self._renderers[row] = self._make(mujoco, model)
        renderer, copy = self._renderers[row]
        mujoco.mj_copyData(copy, model, data)
        return renderer.render("rgb_array")

    def _make(self, mujoco: Any, model: Any) -> tuple[Any, Any]:
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        copy, size = mujoco.MjData(model), self._options
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, size["width"])
        model.vis.global_.offheight = max(model.vis.global_.offheight, size["height"])
        return MujocoRenderer(model, copy, self._camera, **self._options), copy

    def close(self) -> None:
        """Closes the renderers. Further calls have no effect."""
        while self._renderers:
            self._renderers.popitem()[1][0].close()
