"""vecrl's specs and environments for TorchRL, active as soon as a program has imported both libraries."""

from .registration import register_adapters, register_envs, register_specs

__all__ = ["register_adapters", "register_envs", "register_specs"]
