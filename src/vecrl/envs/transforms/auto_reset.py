"""Transforms for simulators with auto-reset: the explicit form of `EnvBase(auto_reset=True)`.

The buffer that separates episodes is in `..self_reset`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from tensordict import TensorDictBase

from ...specs import Composite
from ..base import EnvBase
from ..entries.keys import Key
from ..self_reset import SelfResetBuffer
from .base import Transform
from .compose import Compose, TransformLike
from .transformed_env import TransformedEnv

__all__ = ["AutoResetEnv", "AutoResetTransform", "VecGymEnvTransform"]


class SelfResetTransform(Transform):
    """The base of transforms for which the observation of a done row is the first of the next episode.

    Args:
        self_reset_buffer: stores these observations until the next reset.
    """

    _env_only = "Remove it."

    def __init__(self, self_reset_buffer: SelfResetBuffer):
        super().__init__()
        self._self_reset = self_reset_buffer

    def _on_step(
        self, tensordict: TensorDictBase, next_td: TensorDictBase, keys: Sequence[Key], final: TensorDictBase | None
    ) -> None:
        done_masks = self._require_parent()._done_masks(next_td) or {}
        self._self_reset.on_step(next_td, done_masks, keys, tensordict.get("_step", None), final)

    def _on_reset(
        self, env: EnvBase, tensordict: TensorDictBase | None, reset_fn: Callable[[Any], TensorDictBase]
    ) -> TensorDictBase:
        return self._self_reset.on_reset(tensordict, env.done_prefixes, env.done_keys, reset_fn)


class AutoResetTransform(SelfResetTransform):
    """Moves the observation of a done row, the first of the next episode, to the root of the next step.

    It must be the first transform of an `AutoResetEnv`, which does not reset rows that the simulator has reset.

    Args:
        replace: whether to replace the final observations, which such simulators lose, by fill values; True by default.
        fill_float, fill_int, fill_bool: the fill values by kind of dtype; 0 if a dtype cannot represent `fill_int`.

    >>> from vecrl.envs import GymEnv
    >>> class Restarting(GymEnv):
    ...     def _step(self, tensordict):
    ...         next_td = super()._step(tensordict)
    ...         return next_td.update(self._reset()) if next_td["done"] else next_td
    >>> env = AutoResetEnv(Restarting("CartPole-v1"))
    >>> rollout = env.rollout(80, break_when_any_done=False)
    >>> bool(rollout["next", "observation"].isnan().all(-1).equal(rollout["next", "done"].squeeze(-1)))
    True
    """

    def __init__(
        self,
        *,
        replace: bool | None = None,
        fill_float: float | str = "nan",
        fill_int: int = -1,
        fill_bool: bool = False,
    ):
        super().__init__(SelfResetBuffer(replace is None or replace, (float(fill_float), fill_int, fill_bool)))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._on_step(tensordict, next_tensordict, self._require_parent().observation_keys, None)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self._self_reset.has_pending and not isinstance(self._env, AutoResetEnv):
            raise RuntimeError(
                f"Expected AutoResetTransform to be in an AutoResetEnv, got {type(self._env).__name__}. Use "
                "AutoResetEnv, which does not reset rows that the simulator has reset."
            )
        return tensordict_reset


class AutoResetEnv(TransformedEnv):
    """A `TransformedEnv` of a simulator with auto-reset.

    Args:
        env: the simulator.
        transform: an `AutoResetTransform`, alone or first in a `Compose`. A default one is put before other transforms.
        kwargs: keyword arguments of `TransformedEnv`.
    """

    def __init__(self, env: EnvBase | None = None, transform: TransformLike | None = None, **kwargs: Any):
        # an empty Compose is the parent of the first transform and gets none
        is_empty_compose = isinstance(transform, Compose) and not len(transform)
        if not is_empty_compose and not isinstance(_first_transform(transform), AutoResetTransform):
            transform = Compose(AutoResetTransform(), *([] if transform is None else [transform]))
        super().__init__(env, transform, **kwargs)

    def _reset_base(self, input_td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        auto_reset, base = _first_transform(self.transform), self.base_env
        if not isinstance(auto_reset, AutoResetTransform):
            return super()._reset_base(input_td, **kwargs)
        return base._complete_flags(auto_reset._on_reset(base, input_td, partial(base._reset_and_complete, **kwargs)))

    def _make_part(self, transform: Compose) -> TransformedEnv:
        return AutoResetEnv(self.base_env, transform)

    def insert_transform(self, index: int, transform: TransformLike) -> Self:
        """Inserts a transform before the one at `index`. Returns the environment.

        Raises:
            ValueError: the transform would be before the `AutoResetTransform`.
        """
        super().insert_transform(index, transform)
        if not isinstance(_first_transform(self.transform), AutoResetTransform):
            self._as_compose().pop(0)
            raise ValueError(f"Expected an index after the AutoResetTransform, which must be first, got {index}.")
        return self


def _first_transform(transform: TransformLike | None) -> TransformLike | None:
    while isinstance(transform, Compose) and len(transform):
        transform = transform[0]
    return transform


class VecGymEnvTransform(SelfResetTransform):
    """Moves the final observations of vector environments with auto-reset to the entries of the step that ended.

    It is for environments in which the step of an ended row returns the first observation of the next episode, and the
    final observation under `final_name`. Their resets do not change such rows. Environments wrapped by vecrl do not
    need this transform.

    Args:
        final_name: the key of final observations; the transform removes this entry.
        missing_obs_value: the value of missing final observations; 0 in dtypes that cannot represent it.
        native_autoreset: whether to use `missing_obs_value` for all final observations.
    """

    def __init__(
        self, final_name: str = "final", missing_obs_value: float = math.nan, *, native_autoreset: bool = False
    ):
        int_fill = int(missing_obs_value) if math.isfinite(missing_obs_value) else 0
        super().__init__(SelfResetBuffer(True, (float(missing_obs_value), int_fill, bool(int_fill))))
        self.final_name = final_name
        self.missing_obs_value = missing_obs_value
        self.native_autoreset = native_autoreset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        final: Any = next_tensordict.pop(self.final_name, None)
        keys = [key for key in self._require_parent().observation_keys if _root_name(key) != self.final_name]
        self._on_step(tensordict, next_tensordict, keys, None if self.native_autoreset else final)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        tensordict_reset.pop(self.final_name, None)
        if not self._self_reset.has_pending:
            return tensordict_reset
        reset_td = self._on_reset(self._require_parent(), tensordict, lambda _: tensordict_reset)
        return tensordict_reset.update(reset_td)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Removes the spec of the final observations."""
        observation_spec.pop(self.final_name, None)
        return observation_spec


def _root_name(key: Key) -> str:
    return key if isinstance(key, str) else key[0]
