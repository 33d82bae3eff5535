"""`TransformedSpecs`: the specs of a `TransformedEnv`, from those of its base environment and its transform.

They are computed when they are first read, and again after every change. It must not know steps and resets.
"""

from __future__ import annotations

from typing import Any, Self

from ...specs import Composite
from ..base import EnvBase
from ..keys import INPUTS, OUTPUTS
from .base import Transform, owned
from .part import SubmoduleAttribute
from .row_shape_errors import heterogeneous_errors
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
            self._derive()
        return self._specs[name]

    def _derive(self) -> None:
        """Computes the specs from those of the base environment and the transform."""
        base = self.base_env
        base_specs = base.input_spec.clone().unlock_(recurse=True), base.output_spec.clone().unlock_(recurse=True)
        check_keys(self.transform, "in_keys_inv", base_specs[0])
        check_keys(self.transform, "in_keys", base_specs[1])
        with heterogeneous_errors(self.transform, base.specs):
            transformed = (
                self.transform.transform_input_spec(base_specs[0]),
                self.transform.transform_output_spec(base_specs[1]),
            )
        for names, specs in zip((INPUTS, OUTPUTS), transformed, strict=True):
            unlocked_specs = owned(specs)
            for name in names:
                spec = unlocked_specs[f"full_{name}_spec"]
                self._specs[name] = spec.lock_(recurse=True) if self._locked else spec
        base_actions = base.full_action_spec
        if not base.batch_locked and base_actions.shape != self.batch_size:
            base_actions = base_actions.expand(self.batch_size)
        self._same_actions = self._specs["action"] == base_actions  # before masks change specs

    def _set_full(self, name: str, spec: object) -> None:
        raise AttributeError(
            f"The {name} spec of a TransformedEnv is computed from its base environment and its transform. Set it on "
            "base_env, or append a transform that changes it."
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
