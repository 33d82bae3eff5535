"""What every test stands on: one thread for numerical libraries, here and in the processes that tests start."""

import os

from hypothesis import HealthCheck, settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# How quick a shared machine happens to be is not what examples are to find out.
settings.register_profile("vecrl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vecrl")
