"""The implementations of the workloads: one module per library, imported only in that library's environment.

Every public function builds what it needs, yields `run`, and cleans up afterwards. `run(k)` does k units. It
returns a `Measurement` if only a part of the time counts or the units are not k.
"""
