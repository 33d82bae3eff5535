"""gymnasium's interface: its types, repeated steps, and errors for environments that do not follow it.

All dialects use these messages, which are made when something has failed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, SupportsFloat

import gymnasium
from gymnasium import spaces

from .engine.space_layout import Tree, describe
from .errors import SpaceError

Env = gymnasium.Env[Tree, Tree]
EnvReset = tuple[Tree, dict[str, Any]]
EnvStep = tuple[Tree, SupportsFloat, bool, bool, dict[str, Any]]

_ADAPTER_ADVICE = "wrap it if it is of the old gym: vecrl.simulators.legacy_gym.LegacyGymAdapter(env)"
_SIGNATURE = "def reset(self, *, seed=None, options=None)"
_FORWARDING_MODULES = ("gymnasium.wrappers.", "gymnasium.core", "gymnasium.utils.", "vecrl.")
_UNPACKING = re.compile(
    r"not enough values to unpack \(expected (?P<expected>\d), got (?P<got>\d)\)"
    r"|too many values to unpack \(expected (?P<limit>\d)(?:, got (?P<more>\d+))?\)"
    r"|cannot unpack non-iterable (?P<kind>\S+) object"
)


def step_ends_episode(result: tuple[Any, ...]) -> bool:
    """Returns whether an episode ends with the step that returned `result`."""
    _, _, terminated, truncated, _ = result
    return terminated or truncated


def repeat_step(
    step: Callable[[Any], tuple[Any, ...]],
    action: object,
    count: int,
    ends_episode: Callable[[tuple[Any, ...]], bool] = step_ends_episode,
) -> tuple[Any, ...]:
    """Takes up to `count` steps with one action, until the episode ends, and sums the rewards.

    Args:
        step: takes the action; returns a tuple, in which the reward is the second element.
        action: the action.
        count: the number of steps, 1 or more.
        ends_episode: returns whether the episode ends with the step that returned a tuple.

    Returns:
        The last tuple, with the sum of the rewards.

    >>> rewards = iter([1.0, 2.0, 4.0])
    >>> repeat_step(lambda action: (action, next(rewards), False, False, {}), "left", 3)
    ('left', 7.0, False, False, {})
    """
    result = step(action)
    for _ in range(count - 1):
        if ends_episode(result):
            break
        total = result[1]
        result = step(action)
        result = (result[0], total + result[1], *result[2:])
    return result


def check_interface(env: Any) -> None:
    """Raises a `SpaceError` unless `env` is a single environment, of any gym, with `reset`, `step` and two spaces."""
    if isinstance(env, type):
        raise SpaceError(f"Expected an environment, got the class {env.__name__}. Give an instance: {env.__name__}().")
    if not all(callable(getattr(env, method, None)) for method in ("step", "reset")):
        advice = {
            str: f"Give gymnasium.make({env!r:.80}).",
            type(None): "Give an environment, or `return` it from the function that makes it.",
        }.get(type(env), "Define both, as gymnasium.Env says.")
        raise SpaceError(f"Expected an environment with reset and step, got {env!r:.80}. {advice}")
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise SpaceError(f"Expected a single environment, got the vector environment {_name(env)}. Give its env_fns.")
    name = _name(env)
    missing = [space for space in ("observation_space", "action_space") if getattr(env, space, None) is None]
    if missing:
        raise SpaceError(
            f"Expected an environment with observation_space and action_space, got {name} without "
            f"{' and '.join(missing)}. Set self.{missing[0]} in its __init__, for example to "
            "gymnasium.spaces.Box(-1, 1, (3,))."
        )


def check_gymnasium_env(env: Any) -> None:
    """Raises a `SpaceError` unless `env` is a single environment with gymnasium's methods, spaces and attributes."""
    check_interface(env)
    name = _name(env)
    for attribute in ("observation_space", "action_space"):
        if not isinstance(space := getattr(env, attribute), spaces.Space):
            raise SpaceError(
                f"Expected the {attribute} of {name} to be a space of gymnasium, got {space!r:.80}. Declare one, such "
                f"as gymnasium.spaces.Box(-1, 1, (3,)), or {_ADAPTER_ADVICE}."
            )
    lacking = [attribute for attribute in ("metadata", "render_mode", "spec") if not hasattr(env, attribute)]
    if lacking:
        raise SpaceError(
            f"Expected an environment of gymnasium, got {name}, which has no {', '.join(lacking)}. Derive its "
            f"class from gymnasium.Env, or {_ADAPTER_ADVICE}."
        )


def is_wrapped(env: object, wrapper_name: str) -> bool:
    """Returns whether one of an environment's wrappers is of a class, or of a subclass of it.

    The class is given by name, since a class of the caller's script is another object in a worker process.

    >>> is_wrapped(gymnasium.make("CartPole-v1"), "gymnasium.wrappers.common.TimeLimit")
    True
    """
    while isinstance(env, gymnasium.Wrapper):
        if any(f"{cls.__module__}.{cls.__qualname__}" == wrapper_name for cls in type(env).__mro__):
            return True
        env = env.env
    return False


def step_error(result: object, env: object = None) -> SpaceError:
    """Returns the error for a `step` of an environment that did not return a tuple of five."""
    return _step_error(_describe_result(result), _length(result), env)


def reset_error(result: object, env: object = None) -> SpaceError:
    """Returns the error for a `reset` of an environment that did not return a tuple of two."""
    return _reset_error(_describe_result(result), env)


def read_reset(result: Any, env: object = None) -> tuple[Any, Any]:
    """Returns the observation and the info that a `reset` returned.

    Raises:
        SpaceError: it did not return both.
    """
    if isinstance(result, tuple) and len(result) == 2:
        return result
    if isinstance(result, list) and len(result) == 2 and isinstance(result[1], dict):
        return result[0], result[1]
    raise reset_error(result, env)


def explain(error: BaseException, env: object) -> BaseException:
    """Returns an error that says what the environment lacks of gymnasium's interface; all other errors unchanged.

    What counts is the frame that raised. A failed unpacking is the fault of the interface only in this library or in
    gymnasium, which unpack the results of `reset` and `step`; elsewhere it is a bug in the environment's own code. An
    unexpected keyword counts in any frame, since the signature of `reset` shows whether it is missing.

    Args:
        error: what `reset` or `step` raised, or what was raised when their results were unpacked, in this library or in
            a wrapper of gymnasium.
        env: the environment.
    """
    if not isinstance(error, TypeError | ValueError):
        return error
    text, (module, code) = str(error), _innermost(error.__traceback__)
    if module == __name__:  # `read_reset` raised it
        return error.with_traceback(None)
    if isinstance(error, TypeError) and (found := re.search(r"unexpected keyword argument '(seed|options)'", text)):
        return _keyword_error(found[1], env) or error
    match = _UNPACKING.search(text)
    if match is None or not module.startswith(_FORWARDING_MODULES):
        return error
    expected = match["expected"] or match["limit"]
    count = match["got"] or match["more"] or f"more than {expected}"
    got = f"a value of type {match['kind']}" if match["kind"] else f"{count} values"
    if "step" in code and expected in ("4", "5", None):
        return _step_error(got, int(match["got"] or 0), env)
    return _reset_error(got, env) if code == "reset" and expected in ("2", None) else error


def raise_explained(error: BaseException, env: object) -> None:
    """Raises what `explain` returns, if it is another error."""
    explained = explain(error, env)
    if explained is not error:
        raise explained from None


def _step_error(got: str, length: int, env: object) -> SpaceError:
    advice = "Return these five."
    if length == 4:
        advice = (
            "It is (obs, reward, done, info) in the old gym. Return terminated and truncated instead of done, or "
            f"{_ADAPTER_ADVICE}."
        )
    expected = "(obs, reward, terminated, truncated, info)"
    return SpaceError(f"Expected step(){_of(env)} to return {expected}, got {got}. {advice}")


def _reset_error(got: str, env: object) -> SpaceError:
    return SpaceError(
        f"Expected reset(){_of(env)} to return (obs, info), got {got}. Return (obs, {{}}) if there is no info, or "
        f"{_ADAPTER_ADVICE}."
    )


def _keyword_error(keyword: str, env: object) -> SpaceError | None:
    """Returns the error for a `reset` that does not take a keyword of gymnasium; None if it takes it."""
    inner = getattr(env, "unwrapped", env)
    inner = getattr(inner, "legacy_env", inner)
    parameters = inspect.signature(inner.reset).parameters  # pyright: ignore[reportAttributeAccessIssue]
    if keyword in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    seeding = ", which calls super().reset(seed=seed)," if isinstance(inner, gymnasium.Env) else ""
    return SpaceError(
        f"Expected reset(){_of(env)} to take seed and options, got reset({', '.join(parameters)}). "
        f"Define `{_SIGNATURE}`{seeding} and return (obs, info)."
    )


def _innermost(trace: TracebackType | None) -> tuple[str, str]:
    """Returns the names of the module and of the function that raised."""
    if trace is None:
        return "", ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals.get("__name__", ""), trace.tb_frame.f_code.co_name


def _of(env: object) -> str:
    return "" if env is None else f" of {_name(env)}"


def _name(env: object) -> str:
    inner = getattr(env, "unwrapped", env)
    return type(getattr(inner, "legacy_env", inner)).__name__


def _length(result: object) -> int:
    return len(result) if isinstance(result, tuple) else 0  # pyright: ignore[reportUnknownArgumentType]


def _describe_result(result: object) -> str:
    return f"{_length(result)} values" if isinstance(result, tuple) else describe(result)
