"""Simulators of other libraries as TensorDict environments, one file per library, imported on first use."""
