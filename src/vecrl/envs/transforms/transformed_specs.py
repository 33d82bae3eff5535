"""`TransformedSpecs`: the specs of a `TransformedEnv`, from those of its base environment and its transform.

They are computed when they are first read, and again after every change. This module must not know how an environment
is stepped or reset. Of the results, it knows only the batch sizes of the groups that transforms add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from tensordict import TensorDictBase
from torch import Size

from ...specs import Composite
from ..base import EnvBase
from ..keys import INPUTS, OUTPUTS, Prefix
from ..spec_store import check_done_names
from .base import Transform, owned
from .part import SubmoduleAttribute
from .row_shape_errors import Hook, heterogeneous_errors
from .spec_hooks import check_keys


def _of_base(name: str, doc: str) -> Any:
    """Returns a property with the value of the base environment."""
    return property(lambda env: getattr(env.base_env, name), doc=doc)


class TransformedSpecs(EnvBase):
    """The base of `TransformedEnv`, which defines its attributes."""

    base_env = SubmoduleAttribute[EnvBase]()
    transform = SubmoduleAttribute[Transform]()
    _parents: dict[tuple[int, ...], Any]

    def empty_cache(self) -> None:
        """Clears cached specs, parents and other values, and updates the batch size and the device."""
        if "transform" in self._modules:
            self._batch_size = self.transform.transform_env_batch_size(self.base_env.batch_size)
            self._device = self.transform.transform_env_device(self.base_env.device)
            self._specs.clear()
            self._parents.clear()
            self.transform.empty_cache()
        super().empty_cache()

    def _full(self, name: str) -> Composite:
        if name not in self._specs:
            self._compute_specs()
        return self._specs[name]

    def _compute_specs(self) -> None:
        """Computes the specs from those of the base environment and the transform."""
        base = self.base_env
        input_spec = base.input_spec.clone().unlock_(recurse=True)
        output_spec = base.output_spec.clone().unlock_(recurse=True)
        check_keys(self.transform, "in_keys_inv", input_spec)
        check_keys(self.transform, "in_keys", output_spec)
        with heterogeneous_errors(self.transform, base.specs):
            input_spec = self.transform.transform_input_spec(input_spec)
            output_spec = self.transform.transform_output_spec(output_spec)
        for names, specs in ((INPUTS, input_spec), (OUTPUTS, output_spec)):
            unlocked_specs = owned(specs)
            self._specs.update({name: unlocked_specs[f"full_{name}_spec"] for name in names})
        check_done_names(self._specs["done"])
        self._set_group_shapes()
        if self._locked:
            for spec in self._specs.values():
                spec.lock_(recurse=True)
        base_actions = base.full_action_spec
        if not base.batch_locked and base_actions.shape != self.batch_size:
            base_actions = base_actions.expand(self.batch_size)
        self._same_actions = self._specs["action"] == base_actions  # here, since an `ActionMask` changes masks later

    def _set_group_shapes(self) -> None:
        """Sets the batch size of each group that the transform creates in a spec to that of the group in other specs.

        For instance, a tracker creates a group of agents in the state spec, while the base has it in other specs only.
        """
        base_groups = {name: groups_of(self.base_env._full(name)) for name in (*OUTPUTS, *INPUTS)}
        groups = {name: groups_of(self._specs[name]) for name in base_groups}
        shapes: dict[Prefix, Size] = {}
        for name, specs in groups.items():
            for prefix in specs.keys() & base_groups[name].keys():
                shapes.setdefault(prefix, specs[prefix].shape)
        for name, specs in groups.items():
            created = specs.keys() & (shapes.keys() - base_groups[name].keys())
            for prefix in sorted(created, key=len):  # outer groups before those in them
                specs[prefix].shape = shapes[prefix]

    def _added_groups(self, *names: str) -> dict[Prefix, Size]:
        """Returns the groups that only the transform writes, with their sizes after those of the environment.

        Args:
            names: the names of the specs that describe a result, such as "observation" and "done".
        """
        base_groups = {prefix for name in names for prefix in groups_of(self.base_env._full(name))}
        groups = {prefix: spec.shape for name in names for prefix, spec in groups_of(self._full(name)).items()}
        added = {prefix: shape[self.ndim :] for prefix, shape in groups.items() if prefix not in base_groups}
        return {prefix: shape for prefix, shape in added.items() if shape}

    def _set_full(self, name: str, spec: object) -> None:
        raise AttributeError(
            f"Expected no assignment to the {name} spec of a TransformedEnv, which is computed from those of its base "
            f"environment, got {spec!r:.80}. Set it on base_env, or append a transform that changes it."
        )

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Locks or unlocks the specs, also those of the base environment. Returns this environment."""
        self._locked = mode
        if self.base_env.is_spec_locked != mode:
            self.base_env.set_spec_lock_(mode)
        self.empty_cache()
        return self

    def _set_auto_reset(self, replace: bool | None) -> None:
        self.base_env._set_auto_reset(replace)

    def add_truncated_keys(self) -> Self:
        """Adds a "truncated" entry beside each "done" entry. Returns the environment."""
        self.base_env.add_truncated_keys()
        return self

    _batch_locked = _of_base("batch_locked", "Whether only TensorDicts of the batch size are accepted.")
    _supports_set_state = _of_base("supports_set_state", "Whether `reset` can start from the state in its TensorDict.")

    def configure_parallel(self, **settings: Any) -> Self:
        """Sets how the base environment runs in parallel; settings as in `ParallelEnv`. Returns this environment."""
        self.base_env.configure_parallel(**settings)
        return self


def groups_of(spec: Composite) -> dict[Prefix, Composite]:
    """Returns the nested Composites of a spec by their paths."""
    items = spec.items(include_nested=True)
    return {(key,) if isinstance(key, str) else key: group for key, group in items if type(group) is Composite}


def with_group_sizes(hook: Hook, groups: Mapping[Prefix, Size]) -> Hook:
    """Returns a hook of a transform that sets the batch sizes of groups in its result."""
    if not groups:
        return hook

    def sized_hook(tensordict: TensorDictBase, result_td: TensorDictBase) -> TensorDictBase:
        result_td = hook(tensordict, result_td)
        for prefix, shape in groups.items():
            group_td = result_td.get(prefix, None)
            if group_td is not None:
                group_td.batch_size = (*result_td.batch_size, *shape)
        return result_td

    return sized_hook
