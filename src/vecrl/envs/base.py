"""`EnvBase`: the base class of environments over TensorDicts. A subclass defines `_reset`, `_step` and `_set_seed`.

Resets and steps are in `vecrl.envs.stepping`; this module adds rollouts, checks and registrations. It must not import
modules that import it: `vecrl.envs` puts what it needs of them into `upper_modules`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tensordict import TensorDictBase

from . import rollout as rollouts
from .check_specs import check_env_specs
from .env_specs import Device
from .keys import Key
from .spec_inference import auto_specs
from .stepping import SteppedEnv

Policy = Callable[[TensorDictBase], TensorDictBase]

upper_modules: dict[str, Callable[..., Any]] = {}
"""Classes and functions that are defined in modules which import this one."""

# Not an attribute of the environment, since that would be pickled with it
_COLLECTORS: weakref.WeakKeyDictionary[EnvBase, weakref.ref[object]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class UnwrappedGymEnv:
    """The gymnasium environment under an `EnvBase`.

    Attributes:
        env: the `gymnasium.Env`. `reset` and `step` of the `EnvBase` only call it and apply the specs.
        keys: the keys of its observation leaves, in the order of `engine.space_layout.Layout`.
    """

    env: Any
    keys: tuple[Key, ...]


class EnvBase(SteppedEnv):
    """An environment, or a batch of environments, with TensorDicts as inputs and outputs.

    A subclass sets its specs and defines

    - `_reset(tensordict, **kwargs)`: returns the first entries of an episode. If `tensordict` has a "_reset" mask, only
      the rows of the mask need a reset; `reset` restores the entries of the other rows.
    - `_step(tensordict)`: applies the action in `tensordict` and returns observations, reward and done flags.
    - `_set_seed(seed)`: seeds the simulator.

    It may set specs before or after `super().__init__()`, and edit those that its parent declared: they are locked when
    the `__init__` of the environment's class has returned. Without a reward spec, there is no reward. `spec_locked`,
    `auto_reset`, `auto_reset_replace`, `compile` and `policy` are keywords of every subclass, whatever its `__init__`
    takes. `compile=True`, or a dict of arguments of `torch.compile`, compiles `step_and_maybe_reset`. With a
    `policy` that is a module, the result is a `TransformedEnv` with an `InitTracker` and the primers that parts of the
    policy make by `make_tensordict_primer`; transforms that the environment has already are not added.

    "done" is the union of "terminated" and "truncated". A spec with "done" alone gets "terminated" too, with the same
    values.

    A subclass may return its own buffers and update them in place later: entries that it still holds are copied, so
    the results of `reset`, `step` and `rollout` never change afterwards. It must not write into its input tensors.

    Args:
        device: the device of inputs and outputs; None if it is not fixed.
        batch_size: the batch size of the environment; the shape of every spec starts with it.
        run_type_checks: check the outputs of every step against the specs.
        allow_done_after_reset: allow a reset to return rows that are done.
        spec_locked: lock the specs after the construction, so that values derived from them stay valid.
        auto_reset: the simulator resets itself: on a done row, `_step` returns the next episode's first observation.
        auto_reset_replace: with `auto_reset`, write NaN (or zeros) in place of the final observations, which are lost.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from vecrl.specs import Composite, Unbounded
    >>> class Count(EnvBase):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
    ...         self.action_spec = self.reward_spec = Unbounded((1,))
    ...     def _reset(self, tensordict=None):
    ...         return TensorDict({"count": torch.zeros(1, dtype=torch.int64)})
    ...     def _step(self, tensordict):
    ...         count = tensordict["count"] + 1
    ...         return TensorDict({"count": count, "reward": torch.ones(1), "done": count >= 3})
    ...     def _set_seed(self, seed): ...
    >>> Count().rollout(10)["next", "count"].squeeze(-1)
    tensor([1, 2, 3])
    """

    _methods_without_transforms: tuple[str, ...] = ()
    """Methods that transforms around the environment cannot apply to; a `TransformedEnv` does not have them."""

    def _unwrapped_gym(self) -> UnwrappedGymEnv | None:
        """Returns the gymnasium environment that a batch may step in place of this one; None if it must not."""
        return None

    # -- rollouts, checks, transforms

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Steps with random actions, from `tensordict` or, by default, from a TensorDict that holds only these."""
        return self.step(self.rand_action(tensordict))

    def rollout(
        self,
        max_steps: int,
        policy: Policy | None = None,
        callback: Callable[[EnvBase, TensorDictBase], object] | None = None,
        *,
        actions: Iterable[object] | None = None,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool | None = None,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        out: TensorDictBase | None = None,
        trust_policy: bool = False,
        storing_device: Device = None,
    ) -> TensorDictBase:
        """Steps the environment up to `max_steps` times; see `vecrl.envs.rollout.rollout` for the arguments."""
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        return rollouts.rollout(self, **arguments)

    def register_collector(self, collector: object) -> None:
        """Registers a collector as `env.collector`, by a weak reference."""
        _COLLECTORS[self] = weakref.ref(collector)

    @property
    def collector(self) -> Any:
        """The registered collector; None if there is none or it was deleted."""
        return _COLLECTORS[self]() if self in _COLLECTORS else None

    def auto_specs_(self, policy: Policy, **keys: Any) -> Self:
        """Infers the specs from steps with `policy` and sets them; `vecrl.envs.spec_inference.auto_specs` has the same
        arguments."""
        return auto_specs(self, (self._reset, self._step), policy, **keys)

    def check_env_specs(self, *args: Any, **kwargs: Any) -> None:
        """Checks that the environment returns what its specs say; see `vecrl.envs.utils.check_env_specs`."""
        check_env_specs(self, *args, **kwargs)

    def append_transform(self, transform: Any) -> EnvBase:
        """Returns a `TransformedEnv` with this environment and a transform, or a function over TensorDicts."""
        return upper_modules["TransformedEnv"](self, transform)

    def _with_policy(self, policy: object) -> EnvBase:
        return upper_modules["add_policy_transforms"](self, policy)

    @staticmethod
    def make_parallel(create_env_fn: object, *, num_envs: int = 1, **kwargs: object) -> EnvBase:
        """Returns a `ParallelEnv` of `num_envs` environments; `kwargs` are passed to it."""
        return upper_modules["ParallelEnv"](num_envs, create_env_fn, **kwargs)

    def configure_parallel(self, **settings: object) -> Self:
        """Returns the environment unchanged; `ParallelEnv` overrides this method."""
        return self

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Calls `step`, so that the environment can be used as a module."""
        return self.step(tensordict)

    @classmethod
    def register_gym(
        cls,
        id: str,  # noqa: A002 - its public name
        *,
        entry_point: Callable[..., object] | None = None,
        transform: object = None,
        info_keys: Sequence[Key] | None = None,
        backend: object = None,
        to_numpy: bool = False,
        reward_threshold: float | None = None,
        nondeterministic: bool = False,
        max_episode_steps: int | None = None,
        order_enforce: bool = True,
        autoreset: bool | None = None,
        disable_env_checker: bool = False,
        apply_api_compatibility: bool = False,
        **kwargs: object,
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
            reward_threshold, nondeterministic, max_episode_steps: passed to the backend's `register`.
            order_enforce, autoreset, disable_env_checker, apply_api_compatibility: the same, if its version has them.
            kwargs: passed to the environment.
        """
        upper_modules["register_gym"](
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
