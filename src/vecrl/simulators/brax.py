"""Adapts Brax, with batched environments on a device of JAX, to a `BatchSimulator` of torch tensors.

A step of all rows is one compiled call, and so is a reset of some rows. Arrays are transferred by DLPack. Brax's own
auto-reset is not used: it loses final observations, and starts every episode of a row in the same state. This module
knows no auto-reset modes or dialects.

The first `reset` and the first `step` compile, which takes seconds each, once for each environment and number of rows.
So step once before a measurement of time. JAX keeps compiled code between runs if `jax_compilation_cache_dir` is set.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from ..engine.simulator import Array, BatchStep, ResetOptions
from ..engine.space_layout import Tree
from ..errors import SpaceError

FRAME = (240, 320)  # height and width of a rendered frame in pixels
NEXT_EPISODE = 0x7FFFFFFF  # folded into a row's key to derive the next one; larger than indices of splits in an episode
INSTALL_HINTS = {
    False: 'Brax is not installed: pip install "vecrl[brax]"',
    True: "brax.v1 (requested by `old::`) is not installed. Brax 0.12.3 is the last release that contains it, and "
    'needs an older JAX than newer releases: pip install "vecrl[brax-v1]" in a separate environment',
}


def brax_envs(old: bool = False) -> ModuleType:
    """Imports the module `brax.envs`, or `brax.v1.envs` if `old`.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    try:
        return importlib.import_module("brax.v1.envs" if old else "brax.envs")
    except ImportError as error:
        raise ImportError(INSTALL_HINTS[old]) from error


def names(old: bool = False) -> list[str]:
    """Returns the names of the environments that are available to `BraxSimulator`.

    Raises:
        ImportError: as `brax_envs`.
    """
    return sorted(brax_envs(old)._envs)  # Brax has no public list


def make_batch(name: str, num_envs: int, *, infos: bool = True, **kwargs: Any) -> BraxSimulator:
    """Constructs a `BraxSimulator`, as `vecrl.simulators.registry` needs it."""
    return BraxSimulator(name, num_envs, metrics=infos, **kwargs)


class BraxSimulator:
    """`num_envs` rows of a Brax environment; a `vecrl.engine.simulator.BatchSimulator`.

    Observations and actions are float32 tensors `[num_envs, size]` on `device`, and so are rewards `[num_envs]`.
    A row with seed s starts as Brax does from `jax.random.PRNGKey(s)`. Every later episode of the row starts from a key
    derived from that one. The caller may write to returned tensors.

    Args:
        name: of the environment ("ant", "inverted_pendulum", …).
        num_envs: the number of rows.
        old: take the environment from `brax.v1`.
        device: "cpu", "cuda" or "cuda:1"; None is JAX's default device.
        render_mode: None or "rgb_array". The newest Brax renders with MuJoCo, which without a display needs the
            environment variable MUJOCO_GL=egl; brax.v1 renders in software.
        metrics: return the environment's metrics as the info of steps.
        episode_length: steps until an episode is truncated; None for no limit.
        action_repeat: the number of physics steps of Brax per step.
        kwargs: further arguments of the environment's constructor (`backend=...`).

    Raises:
        ImportError: Brax (or brax.v1) is not installed; the message names the extra.
        ValueError: there is no environment of this name, no such device, or no geometry to render.
        SpaceError: observations are not one vector.
    """

    checks_actions = True  # see `BatchSimulator`

    def __init__(
        self,
        name: str,
        num_envs: int,
        *,
        old: bool = False,
        device: str | torch.device | None = None,
        render_mode: str | None = None,
        metrics: bool = True,
        episode_length: int | None = 1000,
        action_repeat: int = 1,
        **kwargs: Any,
    ):
        envs = brax_envs(old)
        if name not in envs._envs:
            raise ValueError(f"Expected the name of a Brax environment, {', '.join(names(old))}, got {name!r}.")
        self._env = envs.create(
            name, episode_length=episode_length, action_repeat=action_repeat, auto_reset=False, **kwargs
        )
        self._system = getattr(self._env.unwrapped, "sys", None)  # the test environment "fast" has none
        self._jax_device = _jax_device(device)
        self.device = _torch_name(self._jax_device)
        self.num_envs = num_envs
        self.name = name
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": self._frames_per_second()}
        if render_mode is not None and (
            render_mode != "rgb_array" or not hasattr(self._system, _geometry_attribute(old))
        ):
            raise ValueError(
                f"Expected render_mode 'rgb_array' and an environment with geometry, got {render_mode!r} for Brax's "
                f"{name}. Use render_mode=None."
            )
        self._brax_v1, self._metrics = old, metrics
        self._renderer: Any = None
        self._compile_and_init()
        self.action_space = self._action_space()

    # -- BatchSimulator ------------------------------------------------------------------------------

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> torch.Tensor:
        """Starts an episode in every row and returns the observations `[n, size]`.

        Args:
            seeds: `seeds[i]` reseeds row i, unless it is None.
            options: must be empty, since Brax has none.
        """
        if options:
            raise SpaceError(f"Expected no reset options for Brax, got {sorted(options)}.")
        if seeds is not None:
            self._reseed(seeds)
        return self.reset_where(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))

    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        """Starts an episode in the rows of the bool `mask` `[n]` and returns the observations of all rows."""
        self._keys, self._state = self._reset_where(self._keys, self._state, self._to_jax(mask, torch.bool))
        return _to_torch(self._state.obs)

    def step(self, actions: torch.Tensor) -> BatchStep:
        """Steps all rows with `actions` `[n, size]`."""
        if tuple(actions.shape) != (self.num_envs, *(self.action_space.shape or ())):
            expected = [self.num_envs, *(self.action_space.shape or ())]
            raise SpaceError(f"Expected actions of shape {expected}, got {list(actions.shape)}.")
        self._state, terminated, truncated = self._step_compiled(self._state, self._to_jax(actions, torch.float32))
        metrics = self._state.metrics if self._metrics else {}
        return BatchStep(
            _to_torch(self._state.obs),
            _to_torch(self._state.reward),
            _to_torch(terminated),
            _to_torch(truncated),
            {name: _to_torch(value) for name, value in metrics.items()},
        )

    def render(self, row: int) -> np.ndarray | None:
        """Renders a frame `[240, 320, 3]` uint8 of one row; returns None without a render mode."""
        if self.render_mode is None:
            return None
        return self._draw_old(row) if self._brax_v1 else self._draw(row)

    def get_state(self) -> dict[str, torch.Tensor]:
        """Returns the full state: every array of Brax's state, and the random keys of the rows."""
        import jax

        leaves, _ = jax.tree_util.tree_flatten_with_path((self._keys, self._state))
        return {jax.tree_util.keystr(path): _to_torch(leaf) for path, leaf in leaves}

    def set_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores a state that `get_state` returned."""
        import jax

        leaves, tree = jax.tree_util.tree_flatten_with_path((self._keys, self._state))
        values = [self._to_jax(state[jax.tree_util.keystr(path)]) for path, _ in leaves]
        self._keys, self._state = jax.tree_util.tree_unflatten(tree, values)

    def close(self) -> None:
        """Closes the renderer. Further calls have no effect."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    # -- compiled functions and conversions ----------------------------------------------------------

    def _compile_and_init(self) -> None:
        """Compiles, draws keys from the operating system's entropy, and allocates the state for the first `reset`."""
        import jax

        self._reset_where, self._step_compiled = _compile(self._env)
        entropy = np.random.SeedSequence().generate_state(self.num_envs)
        keys = jax.vmap(jax.random.PRNGKey)(entropy)
        shapes = jax.eval_shape(jax.vmap(self._env.reset), keys)
        if not hasattr(shapes.obs, "shape") or len(shapes.obs.shape) != 2:
            raise SpaceError(f"Expected observations of Brax's {self.name} to be one vector, got {shapes.obs}.")
        zeros = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        self._keys, self._state = jax.device_put((keys, zeros), self._jax_device)
        self.observation_space = Box(-np.inf, np.inf, shapes.obs.shape[1:], np.float32)

    def _reseed(self, seeds: Sequence[int | None]) -> None:
        import jax

        keys = np.array(self._keys)
        seeded_rows = [row for row, seed in enumerate(seeds) if seed is not None]
        if seeded_rows:
            values = np.array([int(seeds[row] or 0) % 2**32 for row in seeded_rows], np.uint32)
            keys[seeded_rows] = jax.vmap(jax.random.PRNGKey)(values)
        self._keys = jax.device_put(keys, self._jax_device)

    def _to_jax(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> Array:
        """Copies `x` to JAX: JAX computes later and keeps the array in its state, and the caller may write to `x`."""
        import jax

        x = x.detach().to(self.device, dtype, copy=True).contiguous()
        return jax.dlpack.from_dlpack(x)

    # -- properties of the environment, and rendering --------------------------------------------------

    def _action_space(self) -> Box:
        actuator = getattr(self._system, "actuator", None)
        if actuator is None:
            return Box(-1.0, 1.0, (self._env.action_size,), np.float32)
        low, high = np.asarray(actuator.ctrl_range, np.float32).T
        return Box(low.copy(), high.copy(), dtype=np.float32)

    def _frames_per_second(self) -> float:
        if self._system is None:
            return 50.0
        dt = self._system.config.dt if hasattr(self._system, "config") else float(self._env.unwrapped.dt)
        return round(1 / dt, 3)

    def _draw(self, row: int) -> np.ndarray:
        mujoco: Any = importlib.import_module("mujoco")  # its stubs do not have its functions
        model = self._system.mj_model  # type: ignore[union-attr]
        if self._renderer is None:
            self._renderer = mujoco.Renderer(model, *FRAME)
        data = mujoco.MjData(model)
        data.qpos[:] = np.asarray(self._state.pipeline_state.q[row])
        data.qvel[:] = np.asarray(self._state.pipeline_state.qd[row])
        mujoco.mj_forward(model, data)
        self._renderer.update_scene(data)
        return self._renderer.render()

    def _draw_old(self, row: int) -> np.ndarray:
        import jax
        from brax.v1.io import image

        body = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf[row]), self._state.qp)
        return image.render_array(self._system, body, width=FRAME[1], height=FRAME[0])


def _compile(env: Any) -> tuple[Callable[..., Tree], Callable[..., Tree]]:
    """Returns `reset_where(keys, state, mask)` and `step(state, actions)` over rows of `env`, compiled on first call.

    The dtypes of inputs and outputs are equal, so that neither function is compiled twice.
    """
    import jax
    import jax.numpy as jnp

    def select_rows(mask: Array, new: Tree, current: Tree) -> Tree:
        def select(a: Array, b: Array) -> Array:
            return jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - 1)), a.astype(b.dtype), b)

        return jax.tree_util.tree_map(select, new, current)

    def reset_where(keys: Array, state: Tree, mask: Array) -> Tree:
        def restart() -> Tree:
            next_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, NEXT_EPISODE)
            return select_rows(mask, (next_keys, jax.vmap(env.reset)(keys)), (keys, state))

        return jax.lax.cond(mask.any(), restart, lambda: (keys, state))

    def step(state: Tree, actions: Array) -> Tree:
        next_state = jax.vmap(env.step)(state, actions)
        truncated = next_state.info.get("truncation", jnp.zeros_like(next_state.done)) > 0.5
        terminated = (next_state.done > 0.5) & ~truncated
        return jax.tree_util.tree_map(lambda new, old: new.astype(old.dtype), next_state, state), terminated, truncated

    return jax.jit(reset_where), jax.jit(step)


def _geometry_attribute(old: bool) -> str:
    return "config" if old else "mj_model"


def _to_torch(x: Array) -> torch.Tensor:
    return torch.from_dlpack(x).clone()  # a copy, since the caller may write to it and arrays of JAX are immutable


def _jax_device(device: str | torch.device | None) -> Any:
    import jax

    if device is None:
        return jax.devices()[0]
    requested = torch.device(device)
    try:
        return jax.devices(requested.type)[requested.index or 0]
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"Expected a device of JAX, {jax.devices()}, got {device}.") from error


def _torch_name(device: Any) -> str:
    return "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"
