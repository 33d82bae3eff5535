"""Entries of TensorDicts: their keys, masks of rows, copies, and the root of the next step."""
