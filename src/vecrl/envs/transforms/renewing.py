"""Simulators that begin anew by themselves, as transforms: the explicit form of `EnvBase(auto_reset=True)`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from tensordict import TensorDictBase

from ...specs import Composite
from ..autoreset import BegunThere
from ..base import EnvBase
from ..owner import Key
from .base import Transform
from .compose import Compose
from .env import TransformedEnv


class Renewing(Transform):
    """For transforms that take what is observed on a done row for the first observation of the next episode.

    Args:
        begun: what keeps it.
    """

    def __init__(self, begun: BegunThere):
        super().__init__()
        self._begun = begun

    def _take(self, tensordict: TensorDictBase, following: TensorDictBase, keys: Sequence[Key], final: Any) -> None:
        ended = self._require_parent()._done_masks(following) or {}
        self._begun.take(following, ended, keys, tensordict.get("_step", None), final)


class AutoResetTransform(Renewing):
    """Puts the observation that a simulator gives as an episode ends where it belongs: in the root of the next step.

    It stands next to the simulator, in an `AutoResetEnv`, which does not reset what began anew by itself.

    Args:
        replace: put fillers in the place of the final observations, which such simulators lose (the default).
        fill_float, fill_int, fill_bool: the fillers; a dtype that does not have `fill_int` gets 0.

    >>> from vecrl.envs import GymEnv
    >>> class Restarting(GymEnv):
    ...     def _step(self, tensordict):
    ...         following = super()._step(tensordict)
    ...         return following.update(self._reset()) if following["done"] else following
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
        super().__init__(BegunThere(replace is None or replace, (float(fill_float), fill_int, fill_bool)))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._take(tensordict, next_tensordict, self._require_parent().observation_keys, None)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self._begun.waiting and not isinstance(self._home, AutoResetEnv):
            raise RuntimeError("AutoResetTransform needs an AutoResetEnv, which does not reset what began by itself.")
        return tensordict_reset

    @property
    def _home(self) -> Any:
        """The environment that it is in."""
        home = self.container
        while isinstance(home, Transform):
            home = home.container
        return home


class AutoResetEnv(TransformedEnv):
    """A `TransformedEnv` of a simulator that begins anew by itself.

    Args:
        env: the simulator.
        transform: an `AutoResetTransform`, one is put before others: a default one.
        kwargs: see `TransformedEnv`.
    """

    def __init__(self, env: EnvBase, transform: Any = None, **kwargs: Any):
        bare = isinstance(transform, Compose) and not len(transform)  # as what comes before the first transform
        if not bare and not isinstance(_first(transform), AutoResetTransform):
            transform = Compose(AutoResetTransform(), *([] if transform is None else [transform]))
        super().__init__(env, transform, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        renewing = _first(self.transform)
        if tensordict is None or not isinstance(renewing, AutoResetTransform) or not renewing._begun.waiting:
            return super()._reset(tensordict, **kwargs)
        given = self.transform._reset_env_preprocess(tensordict)
        asked = tensordict if given is None else given
        base = self.base_env
        really = partial(base._begin_rows, **kwargs)
        first = renewing._begun.begin(self._for_base(asked), base.done_prefixes, base.done_keys, really)
        return self.transform._reset(asked, base._complete_flags(first))

    def _part(self, transform: Compose) -> TransformedEnv:
        return AutoResetEnv(self.base_env, transform)

    def insert_transform(self, index: int, transform: Any) -> Self:
        """Put a transform before the one at `index`, but none before the `AutoResetTransform`.

        Raises:
            ValueError: that is where it would be.
        """
        super().insert_transform(index, transform)
        if not isinstance(_first(self.transform), AutoResetTransform):
            self._composed().pop(0)
            raise ValueError("Expected an index behind that of the AutoResetTransform, which is next to the simulator.")
        return self


def _first(transform: Any) -> Any:
    while isinstance(transform, Compose) and len(transform):
        transform = transform[0]
    return transform


class VecGymEnvTransform(Renewing):
    """Puts the final observations of vector environments that begin anew by themselves in their places.

    For environments whose steps give, on rows that ended, the first observation of the next episode, and the final one
    below `final_name`; their resets leave such rows as they are. Environments that vecrl wraps need no such transform.

    Args:
        final_name: where final observations are; the entry goes.
        missing_obs_value: stands for final observations that are not there, and 0 in dtypes that do not have it.
        native_autoreset: take no final observations, but `missing_obs_value` for all of them.
    """

    def __init__(self, final_name: str = "final", missing_obs_value: Any = math.nan, *, native_autoreset: bool = False):
        whole = int(missing_obs_value) if math.isfinite(missing_obs_value) else 0
        super().__init__(BegunThere(True, (float(missing_obs_value), whole, bool(whole))))
        self.final_name = final_name
        self.missing_obs_value = missing_obs_value
        self.native_autoreset = native_autoreset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        final = next_tensordict.pop(self.final_name, None)
        keys = [key for key in self._require_parent().observation_keys if _root(key) != self.final_name]
        self._take(tensordict, next_tensordict, keys, None if self.native_autoreset else final)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        tensordict_reset.pop(self.final_name, None)
        parent = self._require_parent()
        if not self._begun.waiting:
            return tensordict_reset
        first = self._begun.begin(tensordict, parent.done_prefixes, parent.done_keys, lambda _: tensordict_reset)
        return tensordict_reset.update(first)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Without the final observations."""
        observation_spec.pop(self.final_name, None)
        return observation_spec


def _root(key: Key) -> str:
    return key if isinstance(key, str) else key[0]
