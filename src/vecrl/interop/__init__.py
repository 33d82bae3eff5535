"""Parts that let vecrl's classes be used by other libraries, its *peers*. vecrl depends on none of them.

This package never imports a peer by itself: what it does about a peer happens when a program has imported that peer.
`import vecrl` imports this module, which waits for packages of vecrl and of a peer. When a program has imported both,
in any order, it registers the classes of one with the other.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from .peer_imports import after_import

# Function of `vecrl.interop.torchrl`, and the two modules of which it needs both
_REGISTRATIONS = {
    "register_specs": ("vecrl.specs", "torchrl.data"),
    "register_envs": ("vecrl.envs", "torchrl.envs"),
    "register_adapters": ("vecrl.envs", "torchrl.envs"),
}


def _register(function: str) -> None:
    getattr(import_module(".torchrl", __name__), function)()


for _function, (_own, _peer) in _REGISTRATIONS.items():
    after_import(_own, partial(after_import, _peer, partial(_register, _function)))
