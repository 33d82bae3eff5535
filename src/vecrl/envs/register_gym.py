"""`EnvBase.register_gym`, which imports its implementation, `vecrl.envs.libs.to_gymnasium`, when it is called."""

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
    """Registers the environment class with gymnasium, so that `gymnasium.make(id)` makes an environment.

    Its observations are dicts with the environment's keys.

    Args:
        id: the name, such as "Mine-v0".
        entry_point: a function that makes the environment; by default the class itself.
        transform: a transform or a list of transforms to apply; `make` accepts it too.
        info_keys: observation keys to return in the info instead; `make` accepts it too.
        backend: "gymnasium", "gym", or any other argument of `set_gym_backend`; by default the current backend.
        to_numpy: return arrays, numbers and bools instead of tensors; `make` accepts it too.
        reward_threshold, nondeterministic, max_episode_steps, order_enforce, autoreset, disable_env_checker,
            apply_api_compatibility: passed to the backend's `register`, if its version has them.
        kwargs: passed to the environment.
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
