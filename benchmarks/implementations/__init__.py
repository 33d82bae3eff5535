"""What each library does for each workload: one module a library, imported only in that library's environment.

Every public function here builds what it needs, yields `run`, and tidies up afterwards. `run(k)` does k units of
the work; it may return a `Lap` where only a part of the time counts or the units are not k.
"""
