"""Methods of `EnvBase` other than resets, steps and rollouts: transforms, parallel copies, checks, registrations.

Modules that import `EnvBase` are imported inside the methods, which avoids import cycles.
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

# Not an attribute of the environment, since that would be pickled with it
_COLLECTORS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class EnvExtras:
    """Mixin with the additional methods of `EnvBase`, which is its only user."""

    register_gym = classmethod(register_gym)

    def register_collector(self, collector: Any) -> None:
        """Registers a collector as `env.collector`, by a weak reference."""
        _COLLECTORS[self] = weakref.ref(collector)

    @property
    def collector(self) -> Any:
        """The registered collector; None if there is none or it was deleted."""
        return _COLLECTORS[self]() if self in _COLLECTORS else None

    def auto_specs_(self: Any, policy: Callable[[Any], Any], **keys: Any) -> Any:
        """Infers the specs from steps with `policy` and sets them; `vecrl.envs.spec_inference.auto_specs` has the same
        arguments."""
        return auto_specs(self, policy, **keys)

    def check_env_specs(self: Any, *args: Any, **kwargs: Any) -> None:
        """Checks that the environment returns what its specs say; see `vecrl.envs.utils.check_env_specs`."""
        check_env_specs(self, *args, **kwargs)

    def append_transform(self: Any, transform: Any) -> TransformedEnv:
        """Returns this environment with a transform applied, or a function from TensorDict to TensorDict."""
        from .transforms.transformed_env import TransformedEnv  # which imports this module

        return TransformedEnv(self, transform)

    @staticmethod
    def make_parallel(create_env_fn: Any, *, num_envs: int = 1, **kwargs: Any) -> EnvBase:
        """Returns a `ParallelEnv` of `num_envs` environments; `kwargs` are passed to it."""
        from .batched import ParallelEnv  # which imports this module

        return ParallelEnv(num_envs, create_env_fn, **kwargs)

    def configure_parallel(self, **settings: Any) -> Self:
        """Returns the environment unchanged; `ParallelEnv` overrides this method."""
        return self

    def forward(self: Any, tensordict: Any) -> Any:
        """Calls `step`, so that the environment can be used as a module."""
        return self.step(tensordict)
