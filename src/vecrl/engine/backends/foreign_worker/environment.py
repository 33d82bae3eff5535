"""Environments of the old gym, gymnasium and Safety-Gymnasium with one interface, that of gymnasium.

This module needs only the standard library and NumPy, and runs on Python 3.7 or newer.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any, Callable

from .plain_data import dumps


class StateError(ValueError):
    """A state cannot be saved. The caller raises vecrl's error of this name."""


class Environment:
    """An environment of any age with the interface of gymnasium.

    Args:
        description: "target" (see `_find_function`), "args" and "kwargs" of the call, and "modules" to import before.
    """

    def __init__(self, description: dict[str, Any]):
        for name in description["modules"]:
            importlib.import_module(name)
        function, kwargs = _find_function(description["target"]), dict(description["kwargs"])
        render_mode = kwargs.get("render_mode")
        if _is_old_make(function):
            for name in ("render_mode", "disable_env_checker"):
                kwargs.pop(name, None)
        self.env = env = function(*description["args"], **kwargs)
        self.unwrapped = getattr(env, "unwrapped", env)
        parameters = inspect.signature(self.unwrapped.reset).parameters
        self._takes_options = "options" in parameters
        self._old_seed = None if "seed" in parameters else getattr(env, "seed", None)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.spaces = dumps((env.observation_space, env.action_space))
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.metadata.setdefault("render_modes", self.metadata.get("render.modes", []))
        self.render_mode = getattr(env, "render_mode", None) or render_mode
        self._renders_by_mode = getattr(env, "render_mode", None) is None

    def reset(self, seed: int | None = None, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and returns the observation and the info."""
        if seed is not None:
            if callable(self._old_seed):
                self._old_seed(seed)
            else:
                keywords["seed"] = seed
        if not self._takes_options and not keywords.get("options"):
            keywords.pop("options", None)  # empty after a reset of some rows by a mask
        result = self.env.reset(**keywords)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment and returns gymnasium's five values; a cost is in the info."""
        result = self.env.step(action)
        if len(result) == 5:
            return result
        if len(result) == 6:  # Safety-Gymnasium
            obs, reward, cost, terminated, truncated, info = result
            return obs, reward, terminated, truncated, dict(info, cost=cost)
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def access(self, kind: str, name: str, value: Any) -> Any:
        """Renders, or gets, sets or calls an attribute."""
        if kind in ("get_state", "set_state"):
            raise StateError(
                "Expected an environment of this interpreter, got one of another. Its state cannot be saved."
            )
        if kind == "set":
            return setattr(self._layer_with(name), name, value)
        if kind == "is_wrapped":
            return self._is_wrapped(name)
        if kind == "render" or (name == "render" and kind == "call" and not any(value)):
            return self.env.render(mode=self.render_mode or "rgb_array") if self._renders_by_mode else self.env.render()
        found = getattr(self, name) if name in ("metadata", "render_mode") else self._get(name)
        if kind == "get" or not callable(found):
            return found
        args, kwargs = value
        result = found(*args, **kwargs)
        if name == "seed":
            return list(result if isinstance(result, (list, tuple)) else args)
        return result

    def _get(self, name: str) -> Any:
        try:
            get_attribute = getattr(self.env, "get_wrapper_attr", None)  # gymnasium's wrappers do not forward others
            return getattr(self.env, name) if get_attribute is None else get_attribute(name)
        except AttributeError:
            if name not in _MISSING_ATTRIBUTES:
                raise
            return _MISSING_ATTRIBUTES[name]

    def _is_wrapped(self, wrapper_name: str) -> bool:
        """Returns whether one of the wrappers is of the class of this name."""
        layer = self.env
        while layer is not self.unwrapped:
            if any(cls.__module__ + "." + cls.__qualname__ == wrapper_name for cls in type(layer).__mro__):
                return True
            layer = layer.env
        return False

    def _layer_with(self, name: str) -> Any:
        """Returns the outermost wrapper that has set this attribute, else the innermost environment."""
        layer = self.env
        while layer is not self.unwrapped and name not in vars(layer):
            layer = layer.env
        return layer

    def close(self) -> None:
        """Closes the environment."""
        close = getattr(self.env, "close", None)
        if callable(close):
            close()


_MISSING_ATTRIBUTES = {"spec": None, "seed": None, "reward_range": (-float("inf"), float("inf"))}


def _find_function(target: str) -> Callable[..., Any]:
    """Returns the function "MODULE:NAME" or "FILE.py:NAME". Of several, divided by "|", the first that is there."""
    choices = [choice.rpartition(":")[::2] for choice in target.split("|")]
    for module_name, name in choices:
        if module_name.endswith(".py"):
            module = _import_file(module_name)
        elif importlib.util.find_spec(module_name.partition(".")[0]) is None:
            continue
        else:
            module = importlib.import_module(module_name)
        for part in name.split("."):
            module = getattr(module, part)
        return module  # pyright: ignore[reportReturnType]
    names = " or ".join(module_name for module_name, _ in choices)
    raise ImportError(f"Expected {names} in the interpreter {sys.executable}, got none. Install it there.")


def _import_file(path: str) -> Any:
    name = os.path.splitext(os.path.basename(path))[0]
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) != path:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"Expected a file of Python code, got {path}.")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def _is_old_make(function: Callable[..., Any]) -> bool:
    """Whether this is the `make` of a gym without render modes and checkers."""
    library = sys.modules.get(function.__module__.partition(".")[0])
    version = getattr(library, "__version__", "").split(".")
    return getattr(library, "__name__", "") == "gym" and tuple(map(int, version[:2])) < (0, 25)
