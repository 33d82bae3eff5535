"""Simulators of other libraries as TensorDict environments, a file each; none is imported before it is asked for."""
