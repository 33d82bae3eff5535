"""The backbones of pretrained transforms: ResNets of torchvision and ViTs of timm, with weights from a checkpoint.

Both libraries are imported on first use. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from os import PathLike
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import StateError
from ...imports import import_library

Weights = Mapping[str, Any] | str | PathLike[str] | None
"""A checkpoint file, its contents, a state dictionary, or None."""

RESNETS = {"resnet18": 512, "resnet34": 512, "resnet50": 2048}
"""The numbers of features of ResNets without a last linear layer."""

VITS = {  # width, depth, heads; patches of 16 x 16 pixels of images of 224 x 224
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "default": (64, 2, 2),
}

_kept_libraries: list[torch.library.Library] = []  # torch forgets the operators of a library that is deleted


def make_resnet(name: str, num_features: int | None = None) -> nn.Module:
    """Returns a ResNet of torchvision with random weights.

    Args:
        name: the name of its function in `torchvision.models`.
        num_features: the size of a last linear layer; by default there is none.
    """
    resnet = getattr(import_vision("torchvision.models"), name)(weights=None)
    resnet.fc = nn.Identity() if num_features is None else nn.Linear(resnet.fc.in_features, num_features)
    return resnet


def make_vit(name: str) -> nn.Module:
    """Returns a ViT of timm with random weights. It returns the class token of an image.

    Args:
        name: a name of `VITS`.
    """
    width, depth, heads = VITS[name]
    vit = import_vision("timm.models.vision_transformer").VisionTransformer
    return vit(img_size=224, patch_size=16, embed_dim=width, depth=depth, num_heads=heads, num_classes=0)


def load_backbone(
    make: Callable[[], nn.Module], weights: Weights, entry: str, ignored: tuple[str, ...] = ()
) -> nn.Module:
    """Returns a backbone with the given weights.

    Args:
        make: makes the backbone. Its random weights are not computed.
        weights: the weights. Names may begin with "module.", which `nn.DataParallel` adds. If some names then begin
            with "convnet.", only these are used, without it.
        entry: the entry of checkpoints that has the weights.
        ignored: beginnings of names that the backbone does not have.

    Raises:
        StateError: the file does not contain tensors alone, or the weights do not fit the backbone.
    """
    contents: Any = _read(weights) if isinstance(weights, str | PathLike) else weights
    named: Mapping[str, Tensor] = contents.get(entry, contents)
    state = {key.removeprefix("module."): value for key, value in named.items()}
    convnet = {key.removeprefix("convnet."): value for key, value in state.items() if key.startswith("convnet.")}
    kept = {key: value for key, value in (convnet or state).items() if not key.startswith(ignored)}
    with torch.device("meta"):
        backbone = make()
    try:
        backbone.to_empty(device="cpu").load_state_dict(kept)
    except (RuntimeError, AttributeError) as error:
        raise StateError(
            f"Expected the weights of this {type(backbone).__name__} in the layout of the published checkpoints, or in "
            f"that of the plain model, got others: {error!s:.600}. Give the weights of this model."
        ) from error
    return backbone


def _read(path: str | PathLike[str]) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise StateError(
            f"Expected a checkpoint with tensors and plain values only, got {path} with other objects, which are not "
            "loaded, since they may run code. If you trust the file, load it with weights_only=False, and give its "
            "state dictionary as weights."
        ) from error


def import_vision(module: str) -> Any:
    """Imports and returns a module of torchvision or timm.

    torchvision is linked to the CUDA libraries of one build of torch. With another build, its compiled operators are
    not loaded, and its import fails when it registers its operator `nms`. The backbones do not need these operators. So
    only their schemas are declared in this case, and torchvision is imported a second time.

    Raises:
        VersionError: (an ImportError) the library is not installed; the message names the extra.
    """
    library = module.partition(".")[0]
    try:
        return import_library(
            module, f'Expected {library} for pretrained transforms, got none. Install it: pip install "vecrl[vision]"'
        )
    except RuntimeError as error:
        if _kept_libraries or "torchvision::nms" not in str(error):
            raise
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept_libraries.append(operators)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchvision", "timm")]:
        del sys.modules[name]
    return import_module(module)
