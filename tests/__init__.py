"""The tests: a package, so that no package of this name in the environment is imported instead."""
