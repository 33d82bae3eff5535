"""Adapts environments of JAX libraries to a `BatchSimulator` of torch tensors.

A `JaxTask` is an environment as pure functions over one row: a library's module derives one. `JaxSimulator` maps these
functions over rows, compiles them, and transfers arrays by DLPack. A step of all rows is one compiled call, and so is a
reset of some rows. The auto-reset of libraries is not used, because most of them lose final observations with it. This
module knows no library, no auto-reset modes and no dialects.

The first `reset` and the first `step` compile, which takes seconds each, once for each task and number of rows. So step
once before a measurement of time. JAX keeps compiled code between runs if `jax_compilation_cache_dir` is set.
"""

from __future__ import annotations

from ..imports import require_extra

require_extra("torch", __name__)

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from ..engine.simulator import Array, BatchStep, ResetOptions
from ..engine.space_layout import AnySpace, Layout, Leaf, Tree
from ..engine.trees import leaf_spaces
from ..errors import SpaceError
from ..seeding import random_seeds
from ..validation import check_discrete
from .array_library import on_host
from .batch_adapter import BatchDriver, Seeds, check_entries

NEXT_EPISODE = 0x7FFFFFFF  # folded into a row's key to derive the next one; larger than indices of splits in an episode
RESET_PARTS = 8  # on a CPU, an eighth of the rows is reset at a time


class JaxStep(NamedTuple):
    """The result of one step of one row.

    Attributes:
        state: the next state, any tree of arrays.
        obs: the observation, nested as the observation space.
        reward: a number.
        terminated, truncated: flags.
        info: arrays, keyed by name.
    """

    state: Tree
    obs: Tree
    reward: Array
    terminated: Array
    truncated: Array
    info: dict[str, Array]


class JaxTask(ABC):
    """An environment as functions over one row, which JAX can map and compile.

    Attributes:
        name: the name of the environment, for messages.
        observation_space, action_space: the spaces of one row, which may be nested in `Dict` and `Tuple`.
        render_fps: frames per second of a video in real time.
        can_render: whether `draw` can be called.
        frames: the `MujocoFrames` of a model of MuJoCo, which `close` closes; None for other tasks.
    """

    name: str
    observation_space: AnySpace
    action_space: AnySpace
    render_fps: float = 30.0
    can_render: bool = False
    frames: Any = None

    @abstractmethod
    def start(self, key: Array) -> tuple[Tree, Tree]:
        """Returns the state and the observation at the start of an episode; `key` is a JAX key `[2]` uint32."""

    @abstractmethod
    def step(self, state: Tree, action: Tree) -> JaxStep:
        """Steps without a reset. An observation may be what the space declares, or of another dtype."""

    def draw(self, state: Tree) -> np.ndarray:
        """Returns a frame `[height, width, 3]` uint8 of one row."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define draw(state).")

    def close(self) -> None:
        """Frees what `draw` made. Further calls have no effect."""
        if self.frames is not None:
            self.frames.close()

    @cached_property
    def start_shapes(self) -> tuple[Tree, Tree]:
        """The state and the observation of one row, with a `jax.ShapeDtypeStruct` for each array."""
        import jax

        return jax.eval_shape(self.start, jax.random.PRNGKey(0))

    @cached_property
    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """`start(keys)` and `step(states, actions)` over rows, which return what `start` and `step` do over one.

        States are lists of their arrays, since JAX reads and makes objects of a library's classes in Python. A step
        gives states and observations of the dtypes of the start, so that it is not compiled twice.
        """
        import jax

        tree = jax.tree_util

        def start(keys: Array) -> tuple[Tree, Tree]:
            state, obs = jax.vmap(self.start)(keys)
            return tree.tree_leaves(state), obs

        def step(states: Tree, actions: Tree) -> JaxStep:
            step = jax.vmap(self.step)(self.state_of(states), actions)
            state, obs = tree.tree_map(
                lambda value, start: value.astype(start.dtype), (step.state, step.obs), self.start_shapes
            )
            flags = step.terminated.astype(bool), step.truncated.astype(bool)
            return JaxStep(tree.tree_leaves(state), obs, step.reward.astype(float), *flags, step.info)

        return start, step

    def state_of(self, leaves: Sequence[Array]) -> Tree:
        """Returns the library's state, from the list of its arrays."""
        import jax

        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(self.start_shapes[0]), leaves)

    @cached_property
    def compiled(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        """Functions of all rows, which are compiled on their first calls, once for each device and number of rows.

        They are `start` and `step` of `functions`, `reset_where(keys, rows, mask)`, and the last two in one:
        `step_and_reset(keys, states, actions)`, which returns the step, its flags `terminated`, `truncated` and `done`
        `[3, n]`, and the keys and rows after the reset. Rows are states and observations.
        """
        import jax

        start, step = self.functions

        def reset_where(keys: Array, rows: Tree, mask: Array) -> Tree:
            return jax.lax.platform_dependent(keys, rows, mask, cpu=reset_parts, default=reset_all)

        def restarted(keys: Array) -> Tree:
            return jax.vmap(jax.random.fold_in, (0, None))(keys, NEXT_EPISODE), start(keys)

        def reset_all(keys: Array, rows: Tree, mask: Array) -> Tree:
            """Computes the start of an episode for all rows, and takes it where `mask` is set. Waits for no flag."""

            def chosen(old: Array, new: Array) -> Array:
                return jax.numpy.where(mask.reshape(-1, *[1] * (old.ndim - 1)), new.astype(old.dtype), old)

            return jax.tree_util.tree_map(chosen, (keys, rows), restarted(keys))

        def reset_parts(keys: Array, rows: Tree, mask: Array) -> Tree:
            """Starts an episode in each row of `mask`, an eighth of the rows at a time: most steps end few episodes."""
            n = len(mask)
            size = -(-n // RESET_PARTS)
            ids, count = jax.numpy.nonzero(mask, size=n + size, fill_value=n)[0], mask.sum()

            def restart(loop: Tree) -> Tree:
                first, keys_and_rows = loop
                part = jax.lax.dynamic_slice_in_dim(ids, first, size)  # the id n belongs to no row, and is dropped
                started = restarted(keys_and_rows[0].at[part].get(mode="clip"))
                return first + size, jax.tree_util.tree_map(
                    lambda old, new: old.at[part].set(new.astype(old.dtype), mode="drop"), keys_and_rows, started
                )

            return jax.lax.while_loop(lambda loop: loop[0] < count, restart, (0, (keys, rows)))[1]

        def step_and_reset(keys: Array, states: Tree, actions: Tree) -> tuple[JaxStep, Array, Tree]:
            result = step(states, actions)
            done = result.terminated | result.truncated
            flags = jax.numpy.stack([result.terminated, result.truncated, done])  # to read one array is faster
            rows = reset_where(keys, (result.state, result.obs), done)
            return result._replace(state=None, terminated=None, truncated=None), flags, rows

        return jax.jit(start), jax.jit(step), jax.jit(reset_where), jax.jit(step_and_reset)


class JaxSimulator(BatchDriver):
    """`num_envs` rows of a `JaxTask`; a `vecrl.engine.simulator.BatchSimulator`.

    Observations and actions are tensors `[num_envs, ...]` on `device`, nested as the spaces. A row with seed s starts
    its first episode from `jax.random.PRNGKey(s)`, and every later one from a key derived from that one. The caller may
    write to returned tensors. Simulators of one task share its compiled functions.

    Args:
        task: the environment.
        num_envs: the number of rows.
        device: "cpu", "cuda" or "cuda:1"; None is JAX's default device.
        render_mode: None or "rgb_array".
        infos: whether to return the infos of steps.

    Raises:
        ValueError: there is no such device, or the task cannot be rendered.
        SpaceError: observations do not have the structure and the shapes of the observation space.
    """

    checks_actions = True  # see `BatchSimulator`

    def __init__(
        self,
        task: JaxTask,
        num_envs: int,
        *,
        device: str | torch.device | int | None = None,
        render_mode: str | None = None,
        infos: bool = True,
    ):
        self.task, self.label, self._infos = task, task.name, infos
        self._jax_device = jax_device(device)
        super().__init__(
            num_envs,
            task.observation_space,
            task.action_space,
            device=torch_name(self._jax_device),
            render_mode=render_mode,
            render_fps=task.render_fps if task.can_render else None,
        )
        _, self._step_compiled, self._reset_where, self._step_and_reset = task.compiled
        self._action_layout = Layout(task.action_space)
        self._action_leaves = [
            (leaf, space, _jax_dtype(leaf.dtype))
            for leaf, space in zip(self._action_layout.leaves, leaf_spaces(task.action_space), strict=True)
        ]
        self._allocate()

    def _reset_all(self, seeds: Seeds, options: ResetOptions) -> Tree:
        return self._reset_rows(torch.ones(self.num_envs, dtype=torch.bool))

    def _reset_rows(self, mask: torch.Tensor) -> Tree:
        mask = mask.to(self.device, copy=True)
        self._keys, self._rows = self._reset_where(self._keys, self._rows, as_argument(mask))
        return to_torch(self._rows[1])

    def step(self, actions: Tree) -> BatchStep:
        """Steps all rows with `actions` `[n, ...]`, nested as the action space."""
        self._require_reset()
        step: JaxStep = self._step_compiled(self._rows[0], self._jax_actions(actions))
        self._rows = step.state, step.obs
        return self._batch_step(step, to_torch(step.terminated), to_torch(step.truncated))

    def step_and_reset(self, actions: Tree) -> tuple[BatchStep, torch.Tensor, Tree]:
        """Steps all rows, then starts an episode in rows that are done; see `SupportsStepAndReset`."""
        self._require_reset()
        step, flags, rows = self._step_and_reset(self._keys, self._rows[0], self._jax_actions(actions))
        self._keys, self._rows = rows
        terminated, truncated, done = to_torch(flags).unbind()
        return self._batch_step(step, terminated, truncated), done, to_torch(self._rows[1])

    def _batch_step(self, step: JaxStep, terminated: torch.Tensor, truncated: torch.Tensor) -> BatchStep:
        info = to_torch(step.info) if self._infos else {}
        return BatchStep(to_torch(step.obs), to_torch(step.reward), terminated, truncated, info)

    def _draw(self, row: int) -> np.ndarray:
        import jax

        return self.task.draw(jax.tree_util.tree_map(lambda leaf: leaf[row], self.task.state_of(self._rows[0])))

    def get_state(self) -> dict[str, torch.Tensor]:
        """Returns the full state: every array of the library's state, observations, and the random keys of the rows."""
        return {name: to_torch(leaf) for name, leaf in self._named_leaves()}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        import jax

        own = self.get_state()
        check_entries(self.label, state, own)
        values = [from_torch(state[name].to(self.device, leaf.dtype, copy=True)) for name, leaf in own.items()]
        tree = jax.tree_util.tree_structure((self._keys, self._rows))
        self._keys, self._rows = jax.tree_util.tree_unflatten(tree, values)

    def close(self) -> None:
        """Closes the renderer. Further calls have no effect."""
        self.task.close()

    # -- keys, states and conversions ----------------------------------------------------------------

    def _named_leaves(self) -> list[tuple[str, Array]]:
        """Returns all arrays, with names from the library's classes, in the order of the leaves of keys and rows."""
        import jax

        state, obs = self._rows
        leaves, _ = jax.tree_util.tree_flatten_with_path((self._keys, (self.task.state_of(state), obs)))
        return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]

    def _allocate(self) -> None:
        """Draws keys from the operating system's entropy, and allocates rows for the first `reset`."""
        import jax

        self._check_obs(self.task.start_shapes[1])
        keys = jax.vmap(jax.random.PRNGKey)(random_seeds(self.num_envs).astype(np.uint32))
        state, obs = jax.tree_util.tree_map(
            lambda leaf: np.zeros((self.num_envs, *leaf.shape), leaf.dtype), self.task.start_shapes
        )
        rows = jax.tree_util.tree_leaves(state), obs
        self._keys, self._rows = jax.device_put((keys, rows), self._jax_device)

    def _check_obs(self, shapes: Tree) -> None:
        layout = Layout(self.observation_space)
        for leaf, value in zip(layout.leaves, layout.split(shapes), strict=True):
            if value.shape != leaf.shape or value.dtype != leaf.dtype:
                raise SpaceError(
                    f"Expected observations of {self.task.name} at {leaf.name} to be {leaf.dtype} {list(leaf.shape)} "
                    f"as in its space, got {value.dtype} {list(value.shape)}. Declare what the environment returns."
                )

    def _seed(self, seeds: Sequence[int | None]) -> None:
        import jax

        values = np.array([int(seed or 0) % 2**32 for seed in seeds], np.uint32)
        is_given = np.array([[seed is not None] for seed in seeds])
        keys = np.where(is_given, jax.vmap(jax.random.PRNGKey)(values), self._keys)
        self._keys = jax.device_put(keys, self._jax_device)

    def _jax_actions(self, actions: Tree) -> Tree:
        """Checks actions, and converts them to arrays of the dtypes of the action space in JAX."""
        values, leaves = self._action_layout.split(actions), self._action_leaves
        return self._action_layout.build([self._jax_action(*leaf, x) for leaf, x in zip(leaves, values, strict=True)])

    def _jax_action(self, leaf: Leaf, space: AnySpace, dtype: np.dtype[Any], values: torch.Tensor) -> Array:
        shape = (self.num_envs, *leaf.shape)
        if values.shape != shape:
            raise SpaceError(
                f"Expected actions of shape {list(shape)} at {leaf.name} for {self.task.name}, got "
                f"{list(values.shape)}. Give one element of action_space per row."
            )
        if not values.is_cpu:
            return from_torch(values.detach().to(self.device, getattr(torch, dtype.name), copy=True))
        array = on_host(values)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):  # JAX would take any number
            check_discrete(array, space, self.task.name, place=f" at {leaf.name}")
        return array.astype(dtype)  # a copy: the state may keep the action, and the caller may write to it


def make_jax_batch(
    make_task: Callable[..., JaxTask],
    name: str,
    num_envs: int,
    *,
    device: str | torch.device | None = None,
    render_mode: str | None = None,
    infos: bool = True,
    **kwargs: Any,
) -> JaxSimulator:
    """Makes an environment of a library by its name and returns a simulator of `num_envs` rows.

    Args:
        make_task: the library's function of `name` and `kwargs`, which raises its errors.
        name: of the environment.
        num_envs, device, render_mode, infos: as in `JaxSimulator`.
        kwargs: further arguments of `make_task`. Simulators of equal arguments share what is compiled.
    """
    task = shared_task(make_task, name, **kwargs)
    return JaxSimulator(task, num_envs, device=device, render_mode=render_mode, infos=infos)


def shared_task(make_task: Callable[..., JaxTask], *args: Any, **kwargs: Any) -> JaxTask:
    """Returns `make_task(*args, **kwargs)`, the same task for equal arguments, so that it is compiled once.

    Arguments without a hash make a task of their own.
    """
    try:
        return _shared_task(make_task, args, tuple(sorted(kwargs.items())))
    except TypeError:
        return make_task(*args, **kwargs)


@lru_cache(maxsize=16)
def _shared_task(make_task: Callable[..., JaxTask], args: Any, kwargs: Any) -> JaxTask:
    return make_task(*args, **dict(kwargs))


def _jax_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the dtype of arrays of JAX: int32 for int64, unless JAX has 64 bits enabled."""
    import jax

    return jax.dtypes.canonicalize_dtype(dtype)


def from_torch(x: torch.Tensor) -> Array:
    """Returns an array of JAX that shares the memory of a tensor, if possible. So the tensor must not change."""
    import jax

    return jax.dlpack.from_dlpack(x.contiguous())


def as_argument(x: torch.Tensor) -> Array:
    """Returns a tensor as an argument of a compiled function: on the CPU a NumPy array, which is faster than DLPack.

    It may share the memory of the tensor, which must not change until the function has returned and never if it returns
    its arguments.
    """
    import jax

    x = x.detach()
    return x.numpy() if x.device.type == "cpu" == jax.default_backend() else from_torch(x)


def to_torch(tree: Tree) -> Tree:
    """Copies a tree of arrays to tensors: the caller may write to tensors, and arrays of JAX are immutable."""
    if isinstance(tree, dict):
        return {key: to_torch(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(to_torch, tree))
    if isinstance(tree, np.ndarray) or tree.platform() == "cpu":
        return torch.from_numpy(np.array(tree))  # takes half of the time of DLPack
    return torch.from_dlpack(tree).clone()


def differentiable(function: Callable[..., Sequence[Array]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Returns a function of arrays as one of tensors, with gradients from floats to floats.

    Gradients compute `function` a second time, in one compiled call, so that no intermediate results are kept.
    """
    import jax

    def is_float(value: Array) -> bool:
        return jax.numpy.issubdtype(value.dtype, jax.numpy.floating)

    def gradients_of(inputs: list[Array], gradients: list[Array]) -> list[Array]:
        def of_floats(floats: list[Array]) -> list[Array]:
            remaining = iter(floats)
            results = function(*(next(remaining) if is_float(value) else value for value in inputs))
            return list(filter(is_float, results))

        return jax.vjp(of_floats, list(filter(is_float, inputs)))[1](gradients)[0]

    return partial(_Differentiable.apply, function, jax.jit(gradients_of))


class _Differentiable(torch.autograd.Function):
    """A call of a function of JAX, see `differentiable`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, function: Callable[..., Any], gradients_of: Callable[..., Any], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        results = tuple(map(to_torch, function(*map(as_argument, inputs))))
        ctx.gradients_of, ctx.is_float = gradients_of, [value.is_floating_point() for value in results]
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*(value for value in results if not value.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = [as_argument(value) for value, is_float in zip(gradients, ctx.is_float, strict=True) if is_float]
        found = iter(ctx.gradients_of(list(map(as_argument, ctx.saved_tensors)), given))
        return None, None, *(to_torch(next(found)) if x.is_floating_point() else None for x in ctx.saved_tensors)


def jax_device(device: str | torch.device | int | None) -> Any:
    """Returns the device of JAX for a device of torch, or JAX's default device for None."""
    import jax

    if device is None:
        return jax.devices()[0]
    requested = torch.device(device)
    try:
        return jax.devices(requested.type)[requested.index or 0]
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"Expected a device of JAX, {jax.devices()}, got {device}.") from error


def torch_name(device: Any) -> str:
    return "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"
