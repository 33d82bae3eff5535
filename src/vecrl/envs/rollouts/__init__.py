"""Rollouts: step by step over TensorDicts, at once over arrays, and the memory for their steps."""
