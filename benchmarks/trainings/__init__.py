"""The training programs that `python -m benchmarks.training` times, each on the environments of several libraries.

Each module has `train(way, seed, log, **options)`: `way` names where the environments come from, and everything else is
equal.
"""
