"""`NativeSimulator`: what native tasks have in common besides being tasks over rows."""

from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from ...engine.simulator import ResetOptions
from ...errors import SpaceError
from ..array_library import ArrayLibrary
from ..row_task import RowTaskSimulator


class NativeSimulator(RowTaskSimulator):
    """n environments of one task, see `RowTaskSimulator`. `register_native` makes an own one available by its name.

    Args:
        num_envs, device, dtype, render_mode, max_episode_steps, check_actions, compile, arrays: as in
            `RowTaskSimulator`.
        physics: physical constants of the task, those that its attribute `physics` names; of gymnasium's tasks by
            gymnasium's names, such as `g` of "Pendulum-v1". They become attributes.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the task has no such physical constant, or it is of another type.
    """

    physics: ClassVar[tuple[str, ...]] = ()  # the attributes of the task that its constructor may set

    def __init__(
        self,
        num_envs: int,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        check_actions: bool | None = None,
        compile: bool = False,  # noqa: A002 -- torch's name for it
        arrays: ArrayLibrary | None = None,
        **physics: float | bool,
    ):
        super().__init__(
            num_envs,
            device=device,
            dtype=dtype,
            render_mode=render_mode,
            max_episode_steps=max_episode_steps,
            check_actions=check_actions,
            compile=compile,
            arrays=arrays,
        )
        for name, value in physics.items():
            setattr(self, name, self._parse_physics(name, value))
        self._renderer: Any = None

    def draw(self, state: np.ndarray) -> np.ndarray:
        """Returns a picture `[height, width, 3]`, uint8, of a state `[d]`, float64: that of gymnasium's renderer."""
        if self._renderer is None:
            self._renderer = gymnasium.make(self.id, render_mode="rgb_array", disable_env_checker=True).unwrapped
            self._renderer.reset()
        self._renderer.state = state
        return self._renderer.render()

    def _draw(self, row: int) -> np.ndarray:
        return self.draw(self.rows.state[:, row].double().cpu().numpy())

    def close(self) -> None:
        """Closes the renderer. Further calls have no effect."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _details(self) -> str:
        constants = "".join(f", {name}={getattr(self, name)!r}" for name in self.physics if name in vars(self))
        return super()._details() + constants

    def _parse_physics(self, name: str, value: Any) -> float | bool:
        if name not in self.physics:
            options = signature(NativeSimulator).parameters.values()
            known = [option.name for option in options if option.kind is option.KEYWORD_ONLY]
            raise TypeError(
                f"Expected arguments of {self.id} ({', '.join([*known, *self.physics])}), got {name!r}. "
                "Correct the name, or omit the argument."
            )
        kind = bool if isinstance(getattr(self, name), bool) else float
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, int | float):
            raise TypeError(f"Expected {name} of {self.id} to be a {kind.__name__}, got {value!r}.")
        return kind(value)


def start_bounds(options: ResetOptions, low: float, high: float) -> tuple[float, float]:
    """Returns gymnasium's reset options "low" and "high", or the defaults.

    Raises:
        SpaceError: an option is not a number, or the first is greater than the second.
    """
    low, high = option_number(options, "low", low), option_number(options, "high", high)
    if low > high:
        raise SpaceError(f"Expected options['low'] to be at most options['high'], got {low} and {high}.")
    return low, high


def option_number(options: ResetOptions, name: str, default: float) -> float:
    """Returns `options[name]` as a float, or `default`.

    Raises:
        SpaceError: it is not a number.
    """
    try:
        return float(options.get(name, default))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"Expected options[{name!r}] to be a number, got {options[name]!r}.") from error
