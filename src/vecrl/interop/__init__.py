"""Parts that let vecrl's classes be used by other libraries, its *peers*. vecrl depends on none of them.

This package never imports a peer by itself: what it does about a peer happens when a program has imported that peer.
`import vecrl` imports this module, which waits for packages of vecrl and of a peer. When a program has imported both,
in any order, it registers the classes of one with the other. So `gymnasium.make_vec` finds `vecrl.make` by an id.
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


def _register_id() -> None:
    """Registers the id of `gymnasium.make_vec("vecrl/make", num_envs=8, name="dmc::cheetah-run")`."""
    from gymnasium.envs.registration import register, registry

    if "vecrl/make" not in registry:
        register("vecrl/make", vector_entry_point="vecrl.vector.make:make")


after_import("gymnasium", _register_id)
for _function, (_own, _peer) in _REGISTRATIONS.items():
    after_import(_own, partial(after_import, _peer, partial(_register, _function)))
