"""`EnvMeta`: completes the construction of an environment after the `__init__` of its class has returned.

Only then are its specs final, so only then are they locked. The keywords in `_KEYWORDS` are accepted by every class,
because they are removed before `__init__` is called. This module must not know environments.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from typing import TYPE_CHECKING, Any

_KEYWORDS = ("spec_locked", "auto_reset", "auto_reset_replace", "compile", "policy")


class EnvMeta(ABCMeta):
    """The metaclass of environments.

    A class needs two methods. `_complete_init` takes the keywords of `_KEYWORDS` that were given and that the class's
    `__init__` does not name, except "policy". `_with_policy` takes this one, and its result is returned instead.
    """

    if not TYPE_CHECKING:  # type checkers read the arguments from `__init__`

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            named = inspect.signature(cls.__init__).parameters if kwargs.keys() & set(_KEYWORDS) else ()
            options = {name: kwargs.pop(name) for name in _KEYWORDS if name in kwargs and name not in named}
            env = super().__call__(*args, **kwargs)
            policy = options.pop("policy", None)
            env._complete_init(**options)
            return env if policy is None else env._with_policy(policy)

        @property
        def __signature__(cls) -> inspect.Signature:
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=list(signature.parameters.values())[1:])
