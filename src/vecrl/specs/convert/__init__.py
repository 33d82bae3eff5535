"""Converts between tensor specs and the spaces or specs of other libraries.

`spec_from_gym` and `space_from_spec` are for gymnasium (and the old gym), `spec_from_dm` for dm_env and specs with the
same attributes, `spec_from_jax` for Jumanji's specs, gymnax's spaces and `jax.ShapeDtypeStruct`. Only gymnasium is
imported: the specs of the other libraries are recognized by their attributes.
"""

from .arrays import spec_from_dm, spec_from_jax
from .from_gym import spec_from_gym
from .to_gym import space_from_spec

__all__ = ["space_from_spec", "spec_from_dm", "spec_from_gym", "spec_from_jax"]
