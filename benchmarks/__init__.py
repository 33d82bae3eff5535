"""Times the same work on vecrl, on other libraries, and on minimal loops written by hand, in one run.

    python -m benchmarks                      every workload, about twenty minutes
    python -m benchmarks --quick              one size of each, about three minutes
    python -m benchmarks --only burn          the workloads with "burn" in their name
    python -m benchmarks --only acting --against ../before     vecrl here and vecrl in another checkout, in turn

A *workload* is a piece of work with targets. An *implementation* does it with one library, in its own process and
Python environment. The harness runs the implementations of a workload in turns, for several rounds, so that machine
load affects all of them alike. The others are stopped during a turn, so that they use no core.
"""
