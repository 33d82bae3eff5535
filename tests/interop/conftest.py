"""Settings for the libraries next to which vecrl is tested."""

import os
from importlib.util import find_spec

if find_spec("tianshou") is not None:  # the compilation of its numerical functions takes longer than the tests
    os.environ["NUMBA_DISABLE_JIT"] = "1"
