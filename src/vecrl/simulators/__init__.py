"""Adapters of simulators, and the registry by which every dialect makes their environments."""

from . import entries  # noqa: F401 -- fills the registry
