"""`make`: a vector environment of any simulator by name, with NumPy arrays, gymnasium's interface and its defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import gymnasium

from ..engine.backends.registry import BackendName
from ..engine.transition import AutoresetMode
from ..imports import require_extra
from ..simulators.faster import mention_faster_name
from ..simulators.registry import explained_arguments, find_entry
from ..validation import check_callables, parse_count
from .env_fns import AUTO
from .vector_env import VectorEnv

Wrapper = Callable[[Any], gymnasium.Env[Any, Any]]
_POOL_OPTIONS = {
    name
    for name, parameter in signature(VectorEnv).parameters.items()
    if parameter.kind is Parameter.KEYWORD_ONLY and name != "backend"
}


def make(
    name: str,
    num_envs: int = 1,
    *,
    backend: BackendName = AUTO,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    wrappers: Iterable[Wrapper] = (),
    **options: Any,
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Makes n environments of any simulator as one vector environment of gymnasium, with NumPy arrays.

    Python environments (`CartPole-v1`, `dmc::cheetah-run`, …) are in a `VectorEnv`, simulators of whole batches
    (`native::`, `mujoco::`, `brax::`, …) in a `BatchedVectorEnv`. Row i is seeded with s + i by `reset(seed=s)`.

    Args:
        name: a name as `make_vector_env` takes it.
        num_envs: n.
        backend: where Python environments are stepped: "serial", "threads", "processes", "ray"; "auto" measures one
            for up to 0.2 s and chooses. A batch steps in this process, so it must be "auto" there.
        autoreset_mode: "next_step", "same_step" or "disabled".
        wrappers: functions that wrap each single environment, such as `gymnasium.wrappers.FlattenObservation`; the
            last one is the outermost.
        options: further arguments of `VectorEnv` (`num_workers`, `on_failure`, `step_timeout`, …), for Python
            environments only; `empty_info`; and arguments of the simulator.

    Returns:
        The vector environment. Observations are arrays `[n, ...]`, or trees of them.

    Raises:
        ValueError: the name is unknown, or `backend`, `wrappers` or an option of `VectorEnv` is given for a batch.
        TypeError: the simulator does not take an argument.
        ImportError: the simulator is not installed; the message says how to install it.

    >>> with make("CartPole-v1", num_envs=3, wrappers=[gymnasium.wrappers.FlattenObservation]) as envs:
    ...     obs, info = envs.reset(seed=1)
    >>> obs.shape
    (3, 4)
    """
    entry, env_name = find_entry(name)
    num_envs = parse_count("num_envs", num_envs)
    wrappers = list(wrappers)
    check_callables("wrappers of an environment", wrappers, "Give functions, such as gymnasium's wrapper classes.")
    if entry.env_fn is None:
        return _make_batch(name, num_envs, backend, autoreset_mode, wrappers, options)
    pool_options = {key: options.pop(key) for key in _POOL_OPTIONS & set(options)}
    mention_faster_name(name)
    with explained_arguments(name, options):
        env_fn: Any = entry.env_fn(env_name, **options)
        make_one = _Wrapped(env_fn, tuple(wrappers)) if wrappers else env_fn
        return VectorEnv([make_one] * num_envs, autoreset_mode=autoreset_mode, backend=backend, **pool_options)


def _make_batch(
    name: str,
    num_envs: int,
    backend: BackendName,
    autoreset_mode: AutoresetMode | str,
    wrappers: list[Wrapper],
    options: dict[str, Any],
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    require_extra("torch", f"batches such as {name!r}")
    from .factory import make_vector_env  # they import torch
    from .torch_wrapper import TorchWrapper

    unused = [option for option in sorted(_POOL_OPTIONS - {"empty_info"}) if option in options]
    unused += ["backend"] * (backend != AUTO) + ["wrappers"] * bool(wrappers)
    if unused:
        raise ValueError(
            f"Expected no {unused[0]} for {name!r}, which steps as one batch in this process, got one. Omit it"
            + (", and wrap the vector environment by gymnasium.wrappers.vector." if unused[0] == "wrappers" else ".")
        )
    made: Any = make_vector_env(name, num_envs=num_envs, autoreset_mode=autoreset_mode, **options)
    return made.env if isinstance(made, TorchWrapper) else made


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """Makes an environment and wraps it; it can be sent to workers."""

    env_fn: Callable[[], Any]
    wrappers: tuple[Wrapper, ...]

    def __call__(self) -> Any:
        env = self.env_fn()
        for wrap in self.wrappers:
            env = wrap(env)
        return env
