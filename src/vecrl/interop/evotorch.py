"""Lets EvoTorch make environments by vecrl's names. EvoTorch is imported only by `activate`."""

from __future__ import annotations

from importlib import import_module

from ..errors import VersionError
from ..vector.factory import make_vector_env

_MODULE = "evotorch.neuroevolution.vecgymne"


def activate() -> None:
    """Lets EvoTorch's `VecGymNE` take every name that `vecrl.vector.make_vector_env` takes, in this process.

    After that, `VecGymNE("native::CartPole-v1", ...)` runs on a native task, and `VecGymNE("CartPole-v1", ...)` on a
    `SyncVectorEnv` of vecrl. Actors (`num_actors`) are other processes: give them `partial(make_vector_env, name)`.

    Raises:
        ImportError: EvoTorch is not installed.
        VersionError: this version of EvoTorch makes its environments in another way.
    """
    module = import_module(_MODULE)
    if not callable(getattr(module, "make_vector_env", None)):
        raise VersionError(
            f"Expected {_MODULE}.make_vector_env, got an EvoTorch without it. Give VecGymNE a function instead of a "
            "name: functools.partial(vecrl.vector.make_vector_env, name)."
        )
    module.make_vector_env = make_vector_env  # pyright: ignore[reportAttributeAccessIssue]
