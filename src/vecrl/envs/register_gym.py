"""`EnvBase.register_gym`: its arguments. What it does is in `vecrl.envs.libs.to_gymnasium`, imported by the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .spec_container import Key


def register_gym(
    cls: Callable[..., Any],
    id: str,  # noqa: A002 - its public name
    *,
    entry_point: Callable[..., Any] | None = None,
    transform: Any = None,
    info_keys: Sequence[Key] | None = None,
    backend: Any = None,
    to_numpy: bool = False,
    reward_threshold: float | None = None,
    nondeterministic: bool = False,
    max_episode_steps: int | None = None,
    order_enforce: bool = True,
    autoreset: bool | None = None,
    disable_env_checker: bool = False,
    apply_api_compatibility: bool = False,
    **kwargs: Any,
) -> None:
    """Register the environment with gymnasium, so that `gymnasium.make(id)` makes one.

    Its observations are dicts by the environment's keys.

    Args:
        id: the name, such as "Mine-v0".
        entry_point: what makes the environment; the class itself by default.
        transform: to put on the environment, one or a list; may be given to `make` as well.
        info_keys: observations that go into the info instead; may be given to `make` as well.
        backend: "gymnasium" (as by default), "gym", or what else `set_gym_backend` takes.
        to_numpy: give arrays, numbers and bools instead of tensors; may be given to `make` as well.
        reward_threshold, nondeterministic, max_episode_steps, order_enforce, autoreset, disable_env_checker,
            apply_api_compatibility: for the backend's `register`, as far as its version has them.
        kwargs: for the environment.
    """
    from .libs import to_gymnasium

    to_gymnasium.register_gym(
        id,
        cls if entry_point is None else entry_point,
        backend=backend,
        transform=transform,
        info_keys=info_keys,
        to_numpy=to_numpy,
        registration={
            "reward_threshold": reward_threshold,
            "nondeterministic": nondeterministic,
            "max_episode_steps": max_episode_steps,
            "order_enforce": order_enforce,
            "autoreset": autoreset,
            "disable_env_checker": disable_env_checker,
            "apply_api_compatibility": apply_api_compatibility,
        },
        arguments=kwargs,
    )
