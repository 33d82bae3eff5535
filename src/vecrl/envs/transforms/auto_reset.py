"""Simulators that begin anew by themselves, as transforms: the explicit form of `EnvBase(auto_reset=True)`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from tensordict import TensorDictBase

from ...specs import Composite
from ..base import EnvBase
from ..self_reset import SelfResetBuffer
from ..spec_container import Key
from .base import Transform
from .compose import Compose
from .transformed_env import TransformedEnv


class SelfResetTransform(Transform):
    """For transforms that take what is observed on a done row for the first observation of the next episode.

    Args:
        self_reset_buffer: what keeps it.
    """

    def __init__(self, self_reset_buffer: SelfResetBuffer):
        super().__init__()
        self._self_reset = self_reset_buffer

    def _on_step(self, tensordict: TensorDictBase, next_td: TensorDictBase, keys: Sequence[Key], final: Any) -> None:
        done_masks = self._require_parent()._done_masks(next_td) or {}
        self._self_reset.on_step(next_td, done_masks, keys, tensordict.get("_step", None), final)


class AutoResetTransform(SelfResetTransform):
    """Puts the observation that a simulator gives as an episode ends where it belongs: in the root of the next step.

    It stands next to the simulator, in an `AutoResetEnv`, which does not reset what began anew by itself.

    Args:
        replace: put fillers in the place of the final observations, which such simulators lose (the default).
        fill_float, fill_int, fill_bool: the fillers; a dtype that does not have `fill_int` gets 0.

    >>> from vecrl.envs import GymEnv
    >>> class Restarting(GymEnv):
    ...     def _step(self, tensordict):
    ...         next_td = super()._step(tensordict)
    ...         return next_td.update(self._reset()) if next_td["done"] else next_td
    >>> env = AutoResetEnv(Restarting("CartPole-v1"))
    >>> played = env.rollout(80, break_when_any_done=False)
    >>> bool(played["next", "observation"].isnan().all(-1).equal(played["next", "done"].squeeze(-1)))
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
        if self._self_reset.has_pending and not isinstance(self._owning_env, AutoResetEnv):
            raise RuntimeError("AutoResetTransform needs an AutoResetEnv, which does not reset what began by itself.")
        return tensordict_reset

    @property
    def _owning_env(self) -> Any:
        """The environment that it is in."""
        env = self.container
        while isinstance(env, Transform):
            env = env.container
        return env


class AutoResetEnv(TransformedEnv):
    """A `TransformedEnv` of a simulator that begins anew by itself.

    Args:
        env: the simulator.
        transform: an `AutoResetTransform`, one is put before others: a default one.
        kwargs: see `TransformedEnv`.
    """

    def __init__(self, env: EnvBase, transform: Any = None, **kwargs: Any):
        # as what comes before the first transform
        is_empty_compose = isinstance(transform, Compose) and not len(transform)
        if not is_empty_compose and not isinstance(_first_transform(transform), AutoResetTransform):
            transform = Compose(AutoResetTransform(), *([] if transform is None else [transform]))
        super().__init__(env, transform, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        auto_reset = _first_transform(self.transform)
        if (
            tensordict is None
            or not isinstance(auto_reset, AutoResetTransform)
            or not auto_reset._self_reset.has_pending
        ):
            return super()._reset(tensordict, **kwargs)
        preprocessed = self.transform._reset_env_preprocess(tensordict)
        reset_request = tensordict if preprocessed is None else preprocessed
        base = self.base_env
        reset_fn = partial(base._reset_and_complete, **kwargs)
        reset_td = auto_reset._self_reset.on_reset(
            self._drop_changed_keys(reset_request), base.done_prefixes, base.done_keys, reset_fn
        )
        return self.transform._reset(reset_request, base._complete_flags(reset_td))

    def _make_part(self, transform: Compose) -> TransformedEnv:
        return AutoResetEnv(self.base_env, transform)

    def insert_transform(self, index: int, transform: Any) -> Self:
        """Put a transform before the one at `index`, but none before the `AutoResetTransform`.

        Raises:
            ValueError: that is where it would be.
        """
        super().insert_transform(index, transform)
        if not isinstance(_first_transform(self.transform), AutoResetTransform):
            self._as_compose().pop(0)
            raise ValueError("Expected an index behind that of the AutoResetTransform, which is next to the simulator.")
        return self


def _first_transform(transform: Any) -> Any:
    while isinstance(transform, Compose) and len(transform):
        transform = transform[0]
    return transform


class VecGymEnvTransform(SelfResetTransform):
    """Puts the final observations of vector environments that begin anew by themselves in their places.

    For environments whose steps give, on rows that ended, the first observation of the next episode, and the final one
    below `final_name`; their resets leave such rows as they are. Environments that vecrl wraps need no such transform.

    Args:
        final_name: where final observations are; the entry goes.
        missing_obs_value: stands for final observations that are not there, and 0 in dtypes that do not have it.
        native_autoreset: take no final observations, but `missing_obs_value` for all of them.
    """

    def __init__(self, final_name: str = "final", missing_obs_value: Any = math.nan, *, native_autoreset: bool = False):
        int_fill = int(missing_obs_value) if math.isfinite(missing_obs_value) else 0
        super().__init__(SelfResetBuffer(True, (float(missing_obs_value), int_fill, bool(int_fill))))
        self.final_name = final_name
        self.missing_obs_value = missing_obs_value
        self.native_autoreset = native_autoreset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        final = next_tensordict.pop(self.final_name, None)
        keys = [key for key in self._require_parent().observation_keys if _root_name(key) != self.final_name]
        self._on_step(tensordict, next_tensordict, keys, None if self.native_autoreset else final)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        tensordict_reset.pop(self.final_name, None)
        parent = self._require_parent()
        if not self._self_reset.has_pending:
            return tensordict_reset
        reset_td = self._self_reset.on_reset(
            tensordict, parent.done_prefixes, parent.done_keys, lambda _: tensordict_reset
        )
        return tensordict_reset.update(reset_td)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Without the final observations."""
        observation_spec.pop(self.final_name, None)
        return observation_spec


def _root_name(key: Key) -> str:
    return key if isinstance(key, str) else key[0]
