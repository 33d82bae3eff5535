"""What every test stands on, here and in the processes that tests start: one thread for numerical libraries, and an
ear for Ctrl-C, to which a shell makes deaf whatever it runs in the background."""

import os
import signal

from hypothesis import HealthCheck, settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How quick a shared machine happens to be is not what examples are to find out.
settings.register_profile("vecrl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vecrl")
