"""Imports of libraries that may be missing: the error says how to install them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import VersionError

# what each of these extras installs
_MODULES = {"torch": "torch", "tensordict": "tensordict", "cli": "typer", "onnx": "onnxscript"}


def import_library(module: str, hint: str) -> Any:
    """Imports and returns a module.

    Args:
        module: its name.
        hint: the message of the error if it is missing, to which its cause is added; says how to install it.

    Raises:
        VersionError: (an ImportError) it cannot be imported.
    """
    try:
        return import_module(module)
    except (ImportError, TypeError) as error:  # protobuf raises a TypeError if generated code is too old for it
        raise VersionError(f"{hint} ({error})", name=module) from error


def require_extra(extra: str, user: str) -> None:
    """Imports what an extra of vecrl installs: "torch", "tensordict", "cli" or "onnx".

    Args:
        extra: the extra.
        user: what needs it, for the message.

    Raises:
        VersionError: (an ImportError) it is not installed.
    """
    import_library(_MODULES[extra], install_hint(extra, user))


def install_hint(extra: str, user: str) -> str:
    """Returns the message of the error if an extra of vecrl that `user` needs is not installed.

    >>> install_hint("torch", "policies")
    'Expected the extra "torch" for policies, got none. Install it: pip install "vecrl[torch]"'
    """
    return f'Expected the extra "{extra}" for {user}, got none. Install it: pip install "vecrl[{extra}]"'
