"""The keys of an environment's entries, and other values derived from its specs.

The specs themselves are in `vecrl.envs.spec_store`. This module must not know how environments step.
"""

from __future__ import annotations

from typing import Self

import torch
from tensordict import TensorDict, TensorDictBase

from ..errors import LockedError
from .keys import Key, Prefix, is_overridden, join_key, key_depth, split_key
from .spec_store import SpecStore, derived


class SpecContainer(SpecStore):
    """Base class of environments that holds their five specs and the keys derived from them."""

    _batch_locked = True
    _supports_set_state = False

    @property
    def batch_locked(self) -> bool:
        """Whether only TensorDicts of the batch size are accepted. A subclass sets `_batch_locked`."""
        return self._batch_locked

    @batch_locked.setter
    def batch_locked(self, value: bool) -> None:
        raise LockedError(
            f"Expected no change of batch_locked, got {value!r}. It belongs to the class: set _batch_locked in it."
        )

    @property
    def supports_set_state(self) -> bool:
        """Whether `reset` can start from the state in its TensorDict. A subclass sets `_supports_set_state`."""
        return self._supports_set_state

    # -- values derived from the specs

    def fake_tensordict(self) -> TensorDictBase:
        """Returns a TensorDict with the entries of a step, "next" included, filled with zeros."""
        root = TensorDict({}, self.batch_size, device=self.device)
        next_td = root.copy()
        for spec in (self.full_observation_spec, self.full_done_spec, self.full_reward_spec):
            next_td.update(spec.zero())
        for spec in (self.full_state_spec, self.full_action_spec, self.full_observation_spec, self.full_done_spec):
            root.update(spec.zero())
        return root.set("next", next_td)

    def add_truncated_keys(self) -> Self:
        """Adds a "truncated" flag beside every "done" flag in the specs and returns the environment."""
        spec = self.full_done_spec.clone().unlock_(recurse=True)
        for prefix in self.done_prefixes:
            key = join_key(prefix, "truncated")
            if key not in spec.keys(include_nested=True):
                spec[key] = spec[join_key(prefix, "done")].clone()
        self.full_done_spec = spec
        return self

    def all_actions(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Returns every action that the spec allows, one per row, in a TensorDict `[number, *batch_size]`.

        Args:
            tensordict: the entries from which an environment with masked specs updates the masks; ignored here.
        """
        return self.full_action_spec.enumerate(use_mask=True)

    def cardinality(self, tensordict: TensorDictBase | None = None) -> int | float:
        """Returns the number of actions, masks ignored; infinity if the action spec is continuous."""
        return self.full_action_spec.cardinality()

    # -- the keys

    def _leaf_keys(self, name: str) -> list[Key]:
        full = self._full(name)
        keys = self._cache.get(name)
        return (
            self._cached(name, lambda: sorted(full.keys(include_nested=True, leaves_only=True), key=key_depth))
            if keys is None
            else keys
        )

    def _single_key(self, name: str) -> Key:
        keys = self._leaf_keys(name)
        if len(keys) != 1:
            raise KeyError(f"Expected one {name} key, got {keys}. Use {name}_keys.")
        return keys[0]

    @property
    def action_keys(self) -> list[Key]:
        """The keys of the action leaves, those at the root first."""
        return self._leaf_keys("action")

    @property
    def state_keys(self) -> list[Key]:
        """The keys of the leaves of the other inputs."""
        return self._leaf_keys("state")

    @property
    def observation_keys(self) -> list[Key]:
        """The keys of the observation leaves."""
        return self._leaf_keys("observation")

    @property
    def reward_keys(self) -> list[Key]:
        """The keys of the reward leaves."""
        return self._leaf_keys("reward")

    @property
    def done_keys(self) -> list[Key]:
        """The keys of the done flags of every group: "done", "terminated" and, if the spec has it, "truncated"."""
        return self._leaf_keys("done")

    @property
    def action_key(self) -> Key:
        """The only action key."""
        return self._single_key("action")

    @property
    def reward_key(self) -> Key:
        """The only reward key."""
        return self._single_key("reward")

    @property
    def done_key(self) -> Key:
        """The only key of a "done" flag."""
        keys = [join_key(prefix, "done") for prefix in self.done_prefixes]
        if len(keys) != 1:
            raise KeyError(f"Expected one done key, got {keys}. Use done_keys.")
        return keys[0]

    @property
    def done_prefixes(self) -> list[Prefix]:
        """The prefixes of done flags: `()` for the root, `("agents",)` for a group; the root comes first."""
        return self._cached("done_prefixes", lambda: list(dict.fromkeys(split_key(key)[0] for key in self.done_keys)))

    @derived
    def outer_done_prefixes(self) -> list[Prefix]:
        """The prefixes of the done flags that end episodes: flags at the root, or further up, override those below."""
        prefixes = self.done_prefixes
        return [prefix for prefix in prefixes if not is_overridden(prefix, prefixes)]

    @derived
    def _done_keys_by_prefix(self) -> dict[Prefix, Key]:
        """The key of each "done" flag, by its prefix."""
        return {prefix: join_key(prefix, "done") for prefix in self.done_prefixes}

    @derived
    def _flags(self) -> list[tuple[Key, torch.Size]]:
        """The keys of the done flags and their shapes after the batch dimensions."""
        return [(key, self._full("done")[key].shape[self.ndim :]) for key in self.done_keys]

    @property
    def done_keys_groups(self) -> list[list[Key]]:
        """The keys of the done flags, one list per prefix."""
        return [[key for key in self.done_keys if split_key(key)[0] == prefix] for prefix in self.done_prefixes]

    @derived
    def _flag_groups(self) -> list[tuple[Prefix, bool, torch.Size]]:
        """Every prefix, whether it has a "truncated" flag, and the shape of "done" after the batch size."""
        groups, spec = zip(self._done_keys_by_prefix.items(), self.done_keys_groups, strict=True), self.full_done_spec
        return [(prefix, len(group) > 2, spec[key].shape[self.ndim :]) for (prefix, key), group in groups]

    @derived
    def _done_shapes(self) -> dict[Prefix, torch.Size]:
        """The shape of "done" after the batch size, by its prefix."""
        return {prefix: shape for prefix, _, shape in self._flag_groups}

    @property
    def reset_keys(self) -> list[Key]:
        """The keys of the masks of a partial reset, which are beside the done flags."""
        return [join_key(prefix, "_reset") for prefix in self.done_prefixes]

    @derived
    def _reset_keys(self) -> list[Key]:
        return self.reset_keys

    @derived
    def _keys_not_in_reset(self) -> list[Key]:
        """The keys that the result of a reset does not have: masks, and rewards that are no state."""
        return [*self.reset_keys, *self._reward_keys_not_in_root]

    @derived
    def _rewards(self) -> list[tuple[Key, torch.Size]]:
        """The keys of the rewards and their shapes."""
        return [(key, self.full_reward_spec[key].shape) for key in self.reward_keys]

    @derived
    def _reward_keys_not_in_root(self) -> list[Key]:
        """The keys of the rewards that are no state, and so are only under "next"."""
        return [key for key in self.reward_keys if key not in self.state_keys]
