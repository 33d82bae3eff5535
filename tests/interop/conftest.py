"""Settings for the libraries next to which vecrl is tested."""

from importlib.util import find_spec

if find_spec("tianshou") is not None:  # to compile its numerical functions takes longer than the tests
    import numba

    numba.config.DISABLE_JIT = 1
    import tianshou.data  # noqa: F401

    numba.config.DISABLE_JIT = 0  # `mujoco::` cannot run without
