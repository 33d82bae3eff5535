"""`TransformedEnv`: an environment seen through a transform.

Its specs are those of the environment, changed by the transform, and are derived again after every edit. Knows
environments and transforms; which engine steps the environment is nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from ..base import EnvBase
from ..owner import INPUTS, OUTPUTS, joined
from ..partial import Masks, overlaid
from ..rollout import played
from .base import Part, Transform, owned
from .compose import Compose
from .counting import beginnings
from .functions import as_transform
from .unlike import told


class TransformedEnv(EnvBase):
    """An environment seen through transforms.

    Attributes that it does not have are those of the environment.

    Args:
        env: the environment; it is closed with this one.
        transform: what lies between, a function over TensorDicts too; nothing by default.

    Attributes:
        base_env: the environment.
        transform: the transform.

    Raises:
        AttributeError: the transform belongs to another environment; `transform.clone()` does not.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import RewardSum, StepCounter
    >>> env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))
    >>> played = env.rollout(3)
    >>> played["next", "step_count"].squeeze(-1), played["next", "episode_reward"].squeeze(-1)
    (tensor([1, 2, 3]), tensor([1., 2., 3.]))
    """

    base_env: EnvBase = Part()  # pyright: ignore[reportAssignmentType]
    transform: Transform = Part()  # pyright: ignore[reportAssignmentType]
    not_state = ("_parents", "_same_actions")

    def __init__(self, env: EnvBase, transform: Any = None, *, device: Any = None):
        if not isinstance(env, EnvBase):
            raise TypeError(f"Expected an environment of vecrl.envs, but {env!r} came.")
        super().__init__(
            device=env.device, batch_size=env.batch_size, allow_done_after_reset=env._allow_done_after_reset
        )
        self._parents: dict[Any, TransformedEnv] = {}
        self._locked = env.is_spec_locked
        transform = Compose() if transform is None else as_transform(transform)
        transform.set_container(self)
        self.base_env = env
        self.transform = transform
        env._dependents.add(self)
        if device is not None:
            env.to(device)
        self._changed()

    # -- what it is made of

    def append_transform(self, transform: Any) -> Self:
        """Put a transform, or a function, between this environment and the user; returns the environment."""
        return self.insert_transform(len(self._composed()), transform)

    def insert_transform(self, index: int, transform: Any) -> Self:
        """Put a transform, or a function, before the one at `index`; returns the environment."""
        self._composed().insert(index, transform)
        return self

    def set_state(self, state: Mapping[str, Any], **kwargs: Any) -> None:
        """See `EnvBase.set_state`."""
        super().set_state(state, **kwargs)
        self._parents.clear()  # which are of clones of the transforms that were

    def _composed(self) -> Compose:
        """The transform as a `Compose`."""
        if not isinstance(self.transform, Compose):
            only = self.transform
            only.reset_parent()
            self.transform = Compose(only)
        return self.transform

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("base_env", "transform") or name not in self.__dict__.get("_modules", ()):
            super().__setattr__(name, value)
            return
        before: Any = self._modules[name]
        if name == "base_env":
            before._dependents.discard(self)
            value._dependents.add(self)
        elif value is not before:
            value = as_transform(value)
            value.set_container(self)
            if before.container is self:
                before.reset_parent()
        super().__setattr__(name, value)
        self._changed()

    def _up_to(self, transform: Transform, within: Sequence[Transform] = ()) -> TransformedEnv:
        """The environment up to `transform`, and those `within` it that come before the one that asks."""
        key = tuple(map(id, within))
        if key not in self._parents:
            self._parents[key] = self._part(Compose(*[other.clone() for other in within]))
        return self._parents[key]

    def _part(self, transform: Compose) -> TransformedEnv:
        """The environment with another transform, which begins as its own does; for transforms that ask."""
        return TransformedEnv(self.base_env, transform)

    def _forget_parents(self) -> None:
        """Make those of the transforms anew, with clones of what these are now."""
        self._parents.clear()

    def _changed(self) -> None:
        """Derive anew what follows from the environment and the transform."""
        self._batch_size = self.transform.transform_env_batch_size(self.base_env.batch_size)
        self._device = self.transform.transform_env_device(self.base_env.device)
        self._specs.clear()
        self._parents.clear()
        self.transform.empty_cache()
        super().empty_cache()

    def empty_cache(self) -> None:
        """Forget what was derived from the environment and the transform."""
        if "transform" in self._modules:
            self._changed()
        else:
            super().empty_cache()

    def _full(self, name: str) -> Any:
        if name not in self._specs:
            self._derive()
        return self._specs[name]

    def _derive(self) -> None:
        """The specs of the environment, seen through the transform."""
        base = self.base_env
        given = base.input_spec.clone().unlock_(recurse=True), base.output_spec.clone().unlock_(recurse=True)
        with told(self.transform, base.specs):
            seen = self.transform.transform_input_spec(given[0]), self.transform.transform_output_spec(given[1])
        for names, specs in zip((INPUTS, OUTPUTS), seen, strict=True):
            mine = owned(specs)
            for name in names:
                part = mine[f"full_{name}_spec"]
                self._specs[name] = part.lock_(recurse=True) if self._locked else part
        self._same_actions = self._specs["action"] == base.full_action_spec  # now, before masks are updated

    def _set_full(self, name: str, spec: Any) -> None:
        raise AttributeError(
            f"The {name} spec of a TransformedEnv follows from its environment and its transform: set it on base_env, "
            "or append a transform that changes it."
        )

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Lock or unlock the specs, the environment's too; returns this one."""
        self._locked = mode
        self.base_env.set_spec_lock_(mode)
        self._changed()
        return self

    def add_truncated_keys(self) -> Self:
        """Have a "truncated" flag wherever there is a "done"; returns the environment."""
        self.base_env.add_truncated_keys()
        self._changed()
        return self

    @property
    def batch_locked(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether only TensorDicts of the batch size are taken."""
        return self.base_env.batch_locked

    @property
    def supports_set_state(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether `reset` can be told to begin where its TensorDict says."""
        return self.base_env.supports_set_state

    def configure_parallel(self, **settings: Any) -> Self:
        """Say how the environment runs in parallel, see `ParallelEnv`; returns this one."""
        self.base_env.configure_parallel(**settings)
        return self

    # -- what happens

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """See `EnvBase.reset`. Where the environment was closed and can start anew, it does."""
        if self.is_closed:
            base: Any = self.base_env
            while isinstance(base, TransformedEnv):
                base = base.base_env
            if hasattr(type(base), "start"):
                base.start()
        return super().reset(tensordict, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        given = self.transform._reset_env_preprocess(tensordict)
        first = self.base_env._begin_rows(given if given is None else self._for_base(given), **kwargs)
        asked = TensorDict({}, first.batch_size, device=self.device) if given is None else given
        if type(first) is not LazyStackedTensorDict:
            return self.transform._reset(asked, first)
        with told(self.transform, self.base_env.specs):
            return self.transform._reset(asked, first)

    def _for_base(self, given: TensorDictBase) -> TensorDictBase:
        """What the environment's reset is given: without its observations in the shape or dtype that users see."""
        changed = self._cached("changed", self._changed_keys)
        return given.exclude(*changed) if changed else given

    def _changed_keys(self) -> list[Any]:
        base, seen = self.base_env, self.full_observation_spec
        keys = [key for key in base.observation_keys if key in seen and key not in base.state_keys]
        pairs = [(key, base.full_observation_spec[key], seen[key]) for key in keys]
        return [key for key, a, b in pairs if (a.shape, a.dtype) != (b.shape, b.dtype)]

    def _advance(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._advance_from(tensordict, *self._on_the_way_in(tensordict))

    def _advance_from(self, tensordict: TensorDictBase, inner: TensorDictBase, mask: Tensor | None) -> TensorDictBase:
        """What follows from `tensordict`, of which `_on_the_way_in` has made the others."""
        if mask is not None:
            return self._skipping(tensordict, inner, mask)
        following = self.base_env._advance(inner)
        if type(following) is not LazyStackedTensorDict:
            return self.transform._step(tensordict, following)
        with told(self.transform, self.base_env.specs):
            return self.transform._step(tensordict, following)

    def _on_the_way_in(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, Tensor | None]:
        """What the environment gets, and the rows that a transform asks to step, where one does."""
        if not self._cached("inverts", lambda: self.transform._inverts):
            return tensordict, None
        inner: Any = self.transform.inv(tensordict)
        return inner, inner.pop("_step", None)

    def _skipping(self, tensordict: TensorDictBase, inner: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """A step of the rows of `mask` alone, because a transform says so."""
        masks = Masks({(): mask}, [()])
        if masks.nobody:
            return self._standing_still(tensordict)
        following = self._seen(tensordict, self.base_env._step_some(inner, mask), mask)
        return masks.merge(following, tensordict)

    def _step_some(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        inner, more = self._on_the_way_in(tensordict)
        chosen = mask if more is None else mask & more.reshape(mask.shape)
        following = self._seen(tensordict, self.base_env._step_some(inner, chosen), chosen)
        return following if more is None else Masks({(): chosen}, [()]).merge(following, tensordict)

    def _seen(self, tensordict: TensorDictBase, following: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """A partial step through the transform, which finds the mask in the TensorDict that it gets."""
        return self.transform._step(tensordict.copy().set("_step", mask), following)

    def _step_and_renew(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        inner, mask = self._on_the_way_in(tensordict)
        if mask is not None or not self._cached("keeps_done", lambda: self.transform.keeps_done):
            return self._advance_from(tensordict, inner, mask), None
        following, renewed = self.base_env._step_and_renew(inner)
        begun = self.base_env._done_masks(following) if renewed is not None else None
        following = self.transform._step(tensordict, following)
        if begun is None:
            return following, None
        masks = self._done_masks(following)
        assert masks is not None
        root = _marked(self.step_mdp(tensordict.copy().set("next", following)), masks)
        given = self.transform._reset_env_preprocess(root)
        asked = root if given is None else given
        more = {prefix: mask & ~begun[prefix] for prefix, mask in masks.items()}
        if any(bool(rows.any()) for rows in more.values()):  # those that the transform ended
            extra = self.base_env._begin_rows(self._for_base(_marked(asked, more)))
            renewed = Masks(more, self.base_env.done_prefixes).merge(extra, renewed)
            asked = _marked(asked, masks)
        return following, self._without_masks(self.transform._reset(asked, renewed))

    def _play(self, steps: int, actions: Any, stop: bool) -> TensorDictBase | None:
        if self._cached("inverts", lambda: self.transform._inverts) or not self.transform._unrolls:
            return None
        result = played(self.base_env, steps, actions, stop)
        if result is None:
            return None
        following = result.get("next")
        roots = result.exclude("next")
        self.transform._unroll(roots, following, beginnings(following))
        return roots.set("next", following)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A random action for every row, written into `tensordict` (a new one by default), which is returned."""
        base, specs = self.base_env, self.full_action_spec
        if tensordict is not None and self._cached("restricts", lambda: self.transform._restricts):
            return overlaid(tensordict, self.transform._allowed(specs, tensordict).rand())
        if self._same_actions and base._draws:
            return base.rand_action(tensordict)
        return super().rand_action(tensordict)

    @property
    def _draws(self) -> bool:
        if type(self).rand_action is not TransformedEnv.rand_action or self.transform._restricts:
            return True
        self._full("action")  # which also says whether they are the same
        return self.base_env._draws and self._same_actions

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the environment; returns the seed for the next one."""
        return self.base_env.set_seed(seed, static_seed)

    def _set_seed(self, seed: int | None) -> None:
        self.base_env._set_seed(seed)

    def fake_tensordict(self) -> TensorDictBase:
        """A TensorDict that looks like one of a step, filled with zeros."""
        return self.transform.transform_fake_tensordict(super().fake_tensordict())

    # -- the rest

    def to(self, device: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Have inputs and outputs on another device; returns the environment."""
        self.base_env.to(device)
        self.transform.to(device)
        self._changed()
        return self

    @property
    def is_closed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the environment is closed."""
        return self.base_env.is_closed if "base_env" in self._modules else False

    @is_closed.setter
    def is_closed(self, value: bool) -> None: ...

    def _check_open(self) -> None:
        self.base_env._check_open()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the environment; twice is harmless unless `raise_if_closed`."""
        self.base_env.close(raise_if_closed=raise_if_closed)
        self.transform.close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "base_env" not in self._modules:
                raise
        return getattr(self._modules["base_env"], name)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_parents": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.transform.reset_parent()
        self.transform.set_container(self)
        self.base_env._dependents.add(self)

    def __copy__(self) -> Self:
        modules = {**self._modules, "transform": self.transform.clone()}
        new = type(self).__new__(type(self))
        new.__setstate__({**self.__getstate__(), "_modules": modules, "_specs": {}})
        return new

    def __repr__(self) -> str:
        lines = [f"env={self.base_env!r}", f"transform={self.transform!r}"]
        inside = ",\n".join(f"    {line}" for text in lines for line in [text.replace("\n", "\n    ")])
        return f"{type(self).__name__}(\n{inside})"


def _marked(root: TensorDictBase, masks: Mapping[tuple[str, ...], Tensor]) -> TensorDictBase:
    """`root` with the masks of those that begin anew."""
    for prefix, rows in masks.items():
        root.set(joined(prefix, "_reset"), rows)
    return root
