"""Exports a saved policy as one program for other runtimes: torch.export's format, or ONNX."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..imports import require_extra
from ..snapshot.atomic_write import atomic_file
from .saved_policy import SavedPolicy

EXPORT_SUFFIXES = (".pt2", ".onnx")


def export_policy(policy: SavedPolicy, path: str | os.PathLike[str]) -> None:
    """Writes the normalization and the network of a policy, with its parameters, as one program.

    Its input is `x` `[n, obs_length]` float32, flat observations in the order of the page on populations, and its
    output `[n, act_length]` float32. A network with a hidden state also takes and returns that: tensors of leading size
    n, zeros at the start of an episode. n may be any number.

    Args:
        policy: the policy, such as `SavedPolicy.load("RUN/best.pt")`.
        path: a file that ends in ".pt2", which `torch.export.load` reads, or in ".onnx". The complete file is written,
            or none.

    Raises:
        ValueError: the file has another suffix.
        ImportError: the extra "onnx" is not installed, which ".onnx" needs.
    """
    path = Path(path)
    if path.suffix not in EXPORT_SUFFIXES:
        raise ValueError(f"Expected a file name that ends in .pt2 or .onnx, got {str(path)!r}.")
    if path.suffix == ".onnx":
        require_extra("onnx", "the export to ONNX")
    module = _Stateless(policy.module()).eval().requires_grad_(False)
    x = torch.zeros(2, int(policy.constants["obs_length"]))
    with torch.no_grad():
        result = module(x)
    inputs: tuple[Any, ...] = (x,) if isinstance(result, Tensor) else (x, pytree.tree_map(torch.zeros_like, result[1]))
    batch = torch.export.Dim("n")
    shapes = pytree.tree_map(lambda _: {0: batch}, inputs)
    program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    with atomic_file(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's exporter calls functions that torch deprecates
        if path.suffix == ".pt2":
            torch.export.save(program, file)
        else:
            exported = torch.onnx.export(program, dynamo=True, verbose=False)
            assert exported is not None
            file.write(exported.model_proto.SerializeToString())


class _Stateless(nn.Module):
    """A module with the names of its inputs, `x` and `h`, for a program."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, h: Any = None) -> Any:
        return self.module(x) if h is None else self.module(x, h)
