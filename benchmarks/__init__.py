"""The same work on vecrl, on the libraries people use today, and on floors written by hand, in one run.

    python -m benchmarks                      every workload, about twenty minutes
    python -m benchmarks --quick              one size of each, about three minutes
    python -m benchmarks --only burn          the workloads whose name contains "burn"
    python -m benchmarks --only acting --against ../before     vecrl here and vecrl in another checkout, in turn

A *workload* is a piece of work with targets, a *contestant* is one library doing it, in a process and a Python
environment of its own. The harness takes the contestants of a workload in turn, round after round, so that all
of them see the same machine; those that wait are stopped, so that none burns a core that another is timed on.
"""
