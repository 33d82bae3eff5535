"""Functions of tensors that transforms use and that users may call too."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ..aliases import lazy_names

__all__ = ["rgb_to_grayscale"]

__getattr__ = lazy_names(__name__)

_GRAY_WEIGHTS = (0.2989, 0.587, 0.114)  # ITU-R BT.601, rounded as torchvision rounds it


def rgb_to_grayscale(img: Tensor, num_output_channels: int = 1) -> Tensor:
    """Converts images of three channels to gray: 0.2989 red + 0.587 green + 0.114 blue, in the same dtype.

    Args:
        img: `[..., 3, height, width]`.
        num_output_channels: 1, or 3 for three equal channels.

    Returns:
        `[..., num_output_channels, height, width]`. With three channels, it is an expanded tensor.

    Raises:
        ValueError: the images do not have three channels, or `num_output_channels` is neither 1 nor 3.

    >>> rgb_to_grayscale(torch.ones(3, 1, 2))
    tensor([[[0.9999, 0.9999]]])
    """
    if num_output_channels not in (1, 3):
        raise ValueError(f"Expected num_output_channels to be 1 or 3, got {num_output_channels}.")
    if img.ndim < 3 or img.shape[-3] != 3:
        raise ValueError(
            f"Expected images [..., 3, height, width] to convert to gray, got shape {tuple(img.shape)}. Give images of "
            "three channels, channels before rows, as ToTensorImage returns them."
        )
    gray = _weighted_sum(img)
    return gray if num_output_channels == 1 else gray.expand(img.shape)


def _weighted_sum(img: Tensor) -> Tensor:
    if (
        img.dtype == torch.float32 and img.stride(-3) == 1 and img.numel()
    ):  # channels are last in memory: a convolution is faster
        kernel = torch.tensor(_GRAY_WEIGHTS, device=img.device).view(1, 3, 1, 1)
        return conv2d(img.reshape(-1, *img.shape[-3:]), kernel).view(*img.shape[:-3], 1, *img.shape[-2:])
    (red, *others), (weight, *weights) = img.split(1, -3), _GRAY_WEIGHTS
    gray = red * weight
    for part, weight in zip(others, weights, strict=True):
        gray.add_(part.to(gray.dtype), alpha=weight)
    return gray.to(img.dtype)
