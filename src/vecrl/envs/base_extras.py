"""What environments offer beside resets, steps and rollouts: ways to others of their kind, checks, registrations.

What these stand on stands on `EnvBase` itself, and is imported when it is asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from .check_specs import check_env_specs
from .register_gym import register_gym
from .spec_inference import auto_specs

if TYPE_CHECKING:
    from .base import EnvBase
    from .transforms.transformed_env import TransformedEnv

_COLLECTORS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # an attribute would be pickled


class EnvExtras:
    """For `EnvBase` alone."""

    register_gym = classmethod(register_gym)

    def register_collector(self, collector: Any) -> None:
        """Let `env.collector` be `collector`, which is not kept alive by that."""
        _COLLECTORS[self] = weakref.ref(collector)

    @property
    def collector(self) -> Any:
        """Who collects from this environment, where that was registered and is still there; otherwise None."""
        return _COLLECTORS[self]() if self in _COLLECTORS else None

    def auto_specs_(self: Any, policy: Callable[[Any], Any], **keys: Any) -> Any:
        """Set the specs by what comes when `policy` acts; `vecrl.envs.spec_inference.auto_specs` has the same
        arguments."""
        return auto_specs(self, policy, **keys)

    def check_env_specs(self: Any, *args: Any, **kwargs: Any) -> None:
        """See that what comes is what the specs say; see `vecrl.envs.utils.check_env_specs`."""
        check_env_specs(self, *args, **kwargs)

    def append_transform(self: Any, transform: Any) -> TransformedEnv:
        """This environment seen through a transform, or a function from TensorDict to TensorDict."""
        from .transforms.transformed_env import TransformedEnv  # which stands on this module

        return TransformedEnv(self, transform)

    @staticmethod
    def make_parallel(create_env_fn: Any, *, num_envs: int = 1, **kwargs: Any) -> EnvBase:
        """`num_envs` environments in a `ParallelEnv`, whose arguments `kwargs` are."""
        from .batched import ParallelEnv  # which stands on this module

        return ParallelEnv(num_envs, create_env_fn, **kwargs)

    def configure_parallel(self, **settings: Any) -> Self:
        """Nothing for what does not run in parallel, see `ParallelEnv`; returns the environment."""
        return self

    def forward(self: Any, tensordict: Any) -> Any:
        """The same as `step`."""
        return self.step(tensordict)
