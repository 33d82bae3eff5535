"""Ways between tensor specs and what other libraries call spaces or specs.

`spec_from_gym` and `space_from_spec` for gymnasium (and the old gym), `spec_from_dm` for dm_env and what looks like it,
`spec_from_jax` for Jumanji's specs, gymnax's spaces and `jax.ShapeDtypeStruct`. None of these libraries is imported but
gymnasium: theirs are recognised by what they have.
"""

from .arrays import spec_from_dm, spec_from_jax
from .from_gym import spec_from_gym
from .to_gym import space_from_spec

__all__ = ["space_from_spec", "spec_from_dm", "spec_from_gym", "spec_from_jax"]
