"""`CompiledSteps`: compiles `step_and_maybe_reset` of an environment by torch on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch

_METHOD = "step_and_maybe_reset"


class CompiledSteps:
    """A base of environments. The compiled function is an attribute of the object, which hides the method."""

    excluded_from_state = (_METHOD, "_compile_options")
    _compile_options: dict[str, Any] | None = None

    def _complete_init(self, *, compile: bool | Mapping[str, Any] | None = None, **options: Any) -> None:  # noqa: A002
        super()._complete_init(**options)  # pyright: ignore[reportAttributeAccessIssue] (it is that of EnvSpecs)
        self._compile_steps(compile)

    def _compile_steps(self, options: bool | Mapping[str, Any] | None) -> None:
        """Compiles `step_and_maybe_reset`.

        Args:
            options: the arguments of `torch.compile`; True for none. Nothing is compiled if it is False or None.
        """
        if options is None or options is False:
            return
        self._compile_options = dict(options) if isinstance(options, Mapping) else {}
        vars(self)[_METHOD] = torch.compile(getattr(self, _METHOD), **self._compile_options)

    def eager(self) -> Self:
        """Undoes `compile=True` of the constructor and returns the environment."""
        self._compile_options = None
        vars(self).pop(_METHOD, None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != _METHOD}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # pyright: ignore[reportAttributeAccessIssue] (it is that of nn.Module)
        self._compile_steps(self._compile_options)
