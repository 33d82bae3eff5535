"""Transforms of images: conversion to floats, gray scale, resize and crop, by torch and NumPy alone.

Images are `[..., channels, height, width]`. Only the input of `ToTensorImage` is `[..., height, width, channels]`, the
layout of cameras and screens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from torch._C._functorch import peek_interpreter_stack
from torch.nn import functional

from ...errors import SpaceError
from ...specs import Bounded, TensorSpec, Unbounded
from ...validation import parse_count
from .base import ObservationTransform
from .functional import rgb_to_grayscale
from .keyed_module import Keys
from .spec_hooks import probe_output

__all__ = ["CenterCrop", "Crop", "GrayScale", "Resize", "ToTensorImage"]

_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
_ANTIALIASED = ("bilinear", "bicubic")


class ImageTransform(ObservationTransform):
    """The base of transforms of images. The default of `in_keys` is "pixels".

    Args:
        in_keys, out_keys: as in `Transform`.
    """

    elementwise = True
    _min_dims = 3  # the number of dimensions of an image
    _monotonic = True  # if larger inputs never give smaller outputs, bounds are mapped like values

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None):
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)

    @property
    def supports_rollout(self) -> bool:
        return False  # it would need memory for all frames of a rollout in their original size

    @property
    def rows_are_independent(self) -> bool:
        return False  # torch rounds differently if it resizes several images together

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        if spec.ndim - self._batch_dims < self._min_dims:
            raise SpaceError(
                f"Expected images of {self._min_dims} dimensions or more after the batch dimensions as input of "
                f"{type(self).__name__}, got shape {tuple(spec.shape)}. Give other in_keys."
            )
        value, shape = probe_output(self._apply_transform, spec)
        if not (isinstance(spec, Bounded) and self._monotonic):
            return Unbounded(shape, dtype=value.dtype, device=spec.device)
        low, high = self._apply_transform(spec.low), self._apply_transform(spec.high)
        return Bounded(low, high, shape, dtype=value.dtype, device=spec.device)


class ToTensorImage(ImageTransform):
    """Converts images `[..., height, width, channels]` to floats in [0, 1] `[..., channels, height, width]`.

    Args:
        from_int: whether to divide values by 255; by default only values of integer or bool dtypes are divided.
        unsqueeze: whether to add a first dimension of size 1 to an image without batch dimensions.
        dtype: the dtype of the result; torch's default dtype by default.
        in_keys, out_keys: the keys of the images, "pixels" by default.
        shape_tolerant: whether to keep the order of dimensions if the last one does not have size 3.

    >>> from tensordict import TensorDict
    >>> td = TensorDict({"pixels": torch.full((8, 6, 3), 255, dtype=torch.uint8)})
    >>> ToTensorImage()(td)["pixels"].shape, td["pixels"].max()
    (torch.Size([3, 8, 6]), tensor(1.))
    """

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        *,
        in_keys: Keys = None,
        out_keys: Keys = None,
        shape_tolerant: bool = False,
    ):
        super().__init__(in_keys, out_keys)
        self.from_int = from_int
        self.unsqueeze = unsqueeze
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.shape_tolerant = shape_tolerant

    def _apply_transform(self, value: Tensor) -> Tensor:
        scaled = not value.is_floating_point() if self.from_int is None else self.from_int
        if not self.shape_tolerant or value.shape[-1] == 3:
            value = value.movedim(-1, -3)
        image = _divided_by_255(value, self.dtype) if scaled else value.to(self.dtype)
        return image.unsqueeze(0) if self.unsqueeze and image.ndim == 3 else image


def _divided_by_255(value: Tensor, dtype: torch.dtype) -> Tensor:
    if value.dtype == torch.uint8 and dtype == torch.float32 and _is_plain(value):
        # NumPy needs only one pass through the memory, and has the same results
        return torch.from_numpy(np.divide(value.numpy(), 255, dtype=np.float32))
    image = value.to(dtype)
    return image / 255 if image is value else image.div_(255)


def _is_plain(value: Tensor) -> bool:
    """Returns whether a tensor is on the CPU, and no compiler, tracer or `torch.vmap` records what is computed."""
    is_recorded = torch.compiler.is_compiling() or torch._C._is_tracing() or _len_torch_dispatch_stack() > 0
    return type(value) is Tensor and value.is_cpu and not is_recorded and peek_interpreter_stack() is None


class GrayScale(ImageTransform):
    """Converts three channels to one: 0.2989 red + 0.587 green + 0.114 blue, in the same dtype.

    Images of one channel are not changed.

    Args:
        in_keys, out_keys: the keys of the images, "pixels" by default.

    Raises:
        ValueError: on use, if images have neither one nor three channels.

    >>> from tensordict import TensorDict
    >>> GrayScale()(TensorDict({"pixels": torch.ones(3, 8, 6)}))["pixels"].shape
    torch.Size([1, 8, 6])
    """

    def _apply_transform(self, value: Tensor) -> Tensor:
        is_gray = value.ndim >= self._min_dims and value.shape[-3] == 1
        return value if is_gray else rgb_to_grayscale(value)


class Resize(ImageTransform):
    """Resizes the last two dimensions of images.

    As in TorchRL, `w` is the size of the second last dimension, and `h` the size of the last one.

    Args:
        w, h: the sizes, 1 or more; `h` is `w` by default.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic". Results in integer dtypes are rounded.
        antialias: whether "bilinear" and "bicubic" average over all pixels that a new one covers, as in TorchRL;
            otherwise they use the nearest pixels only, which is faster and coarser.
        in_keys, out_keys: the keys of the images, "pixels" by default.

    Raises:
        ValueError: a size is less than 1, or the interpolation is unknown.
        SpaceError: on use, if images are bools, or have no pixels.

    >>> from tensordict import TensorDict
    >>> Resize(84)(TensorDict({"pixels": torch.ones(3, 210, 160)}))["pixels"].shape
    torch.Size([3, 84, 84])
    """

    _min_dims = 2

    def __init__(
        self,
        w: int,
        h: int | None = None,
        interpolation: str = "bilinear",
        in_keys: Keys = None,
        out_keys: Keys = None,
        *,
        antialias: bool = True,
    ):
        mode = str(getattr(interpolation, "value", interpolation))
        if mode not in _MODES:
            raise ValueError(f"Expected an interpolation of {_MODES}, got {interpolation!r}.")
        super().__init__(in_keys, out_keys)
        self.w, self.h = _validate_sizes(w, h)
        self.interpolation = mode
        self.antialias = antialias and mode in _ANTIALIASED
        self._monotonic = mode != "bicubic"  # bicubic overshoots at edges

    def _apply_transform(self, value: Tensor) -> Tensor:
        if value.shape[-2:] == (self.w, self.h):
            return value
        self._check(value)
        if not value.numel():  # no images
            return value.new_empty(*value.shape[:-2], self.w, self.h)
        flat = value.reshape(-1, *value.shape[-3:]) if value.ndim > 2 else value[None, None]
        images = flat if flat.is_floating_point() else flat.float()
        images = self._resize_antialiased(images) if self.antialias else self._interpolate(images)
        if not value.is_floating_point():
            limits = torch.iinfo(value.dtype)
            images = images.round().clamp(limits.min, limits.max).to(value.dtype)
        return images.reshape(*value.shape[:-2], self.w, self.h)

    def _check(self, value: Tensor) -> None:
        if value.dtype == torch.bool:
            raise SpaceError(
                "Expected images of integers or floats as input of Resize, got torch.bool. Convert them first, for "
                "example by DTypeCastTransform(torch.bool, torch.uint8)."
            )
        if 0 in value.shape[-2:]:
            raise SpaceError(
                f"Expected images [..., height, width] of one pixel or more as input of Resize, got shape "
                f"{tuple(value.shape)}. Give other in_keys, or correct the spec of the environment."
            )

    def _interpolate(self, images: Tensor) -> Tensor:
        return functional.interpolate(images, (self.w, self.h), mode=self.interpolation, antialias=self.antialias)

    def _resize_antialiased(self, images: Tensor) -> Tensor:
        """Resizes as `_interpolate`. On the CPU it sums weighted rows and then weighted columns.

        This is three times as fast there, and the results differ in the last bit.
        """
        if images.device.type != "cpu" or images.dtype not in (torch.float32, torch.float64):
            return self._interpolate(images)
        channels_last = images.stride(1) == 1  # in memory
        images = images.movedim(1, -1) if channels_last else images.reshape(-1, *images.shape[2:], 1)
        num_images, height, width, channels = images.shape
        rows, columns = self._cached_taps(num_images, height, width, images.dtype)
        row_resized = _weighted_sum(images.reshape(num_images * height, -1), *rows).view(
            num_images, self.w, width, channels
        )
        resized = _weighted_sum(row_resized.permute(0, 2, 3, 1).reshape(num_images * width, -1), *columns)
        return resized.view(num_images, self.h, channels, self.w).permute(0, 2, 3, 1)

    def _cached_taps(self, num_images: int, height: int, width: int, dtype: torch.dtype) -> Any:
        """Returns `_interpolation_taps` of the rows and of the columns of `num_images` images, cached."""
        cache_key, taps = self._cache.get("taps", (None, None))
        if cache_key != (num_images, height, width, dtype):
            rows = _interpolation_taps(height, self.w, self.interpolation, dtype, num_images)
            taps = rows, _interpolation_taps(width, self.h, self.interpolation, dtype, num_images)
            self._cache["taps"] = (num_images, height, width, dtype), taps
        return taps


def _interpolation_taps(
    size: int, out_size: int, mode: str, dtype: torch.dtype, num_images: int
) -> tuple[Tensor, Tensor]:
    """Returns which elements contribute to each element of interpolated vectors, and their weights in torch.

    Args:
        size: the size of each vector.
        out_size: the size of each interpolated vector.
        mode: the interpolation.
        dtype: the dtype of the weights.
        num_images: the number of vectors, which are concatenated.

    Returns:
        Indices, int64, and weights, both `[num_images * out_size, taps]`.
    """
    identity = torch.eye(size, dtype=dtype)[None, None]
    weights = functional.interpolate(identity, (out_size, size), mode=mode, antialias=True)[0, 0]
    is_used = weights != 0
    num_taps = int((size - is_used.flip(1).int().argmax(1) - is_used.int().argmax(1)).max())
    tap_indices = is_used.int().argmax(1).clamp(max=size - num_taps).unsqueeze(1) + torch.arange(num_taps)
    flat_indices = (tap_indices + size * torch.arange(num_images)[:, None, None]).reshape(-1, num_taps)
    return flat_indices, weights.gather(1, tap_indices).repeat(num_images, 1)


def _weighted_sum(vectors: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Returns the sum of weighted `vectors` for each row of `indices`."""
    return functional.embedding_bag(indices, vectors, per_sample_weights=weights, mode="sum")


class Crop(ImageTransform):
    """Crops images. Pixels outside the image are zeros.

    As in TorchRL, `w` is the size of the second last dimension, and `h` the size of the last one.

    Args:
        w, h: the sizes of the result, 1 or more; `h` is `w` by default.
        top, left: the position of its first pixel in the second last and the last dimension.
        in_keys, out_keys: the keys of the images, "pixels" by default.

    Raises:
        ValueError: a size is less than 1.

    >>> from tensordict import TensorDict
    >>> Crop(4, 2, top=1)(TensorDict({"pixels": torch.ones(3, 8, 6)}))["pixels"].shape
    torch.Size([3, 4, 2])
    """

    _min_dims = 2

    def __init__(
        self,
        w: int,
        h: int | None = None,
        top: int = 0,
        left: int = 0,
        in_keys: Keys = None,
        out_keys: Keys = None,
    ):
        super().__init__(in_keys, out_keys)
        self.w, self.h = _validate_sizes(w, h)
        self.top, self.left = int(top), int(left)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        if -1 in spec.shape:  # a crop may contain padding zeros outside the bounds
            spec = Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)
        return super()._spec(spec)

    def _top_left(self, height: int, width: int) -> tuple[int, int]:
        return self.top, self.left

    def _apply_transform(self, value: Tensor) -> Tensor:
        height, width = value.shape[-2:]
        top, left = self._top_left(height, width)
        bottom, right = top + self.w, left + self.h
        cropped = value[..., max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
        if top >= 0 and left >= 0 and bottom <= height and right <= width:
            return cropped
        horizontal_padding = min(max(-left, 0), self.h), max(right - max(width, left), 0)
        vertical_padding = min(max(-top, 0), self.w), max(bottom - max(height, top), 0)
        return functional.pad(cropped, (*horizontal_padding, *vertical_padding))


class CenterCrop(Crop):
    """Crops images to their center. Smaller images are padded with zeros.

    As in TorchRL, `w` is the size of the second last dimension, and `h` the size of the last one.

    Args:
        w, h: the sizes of the result, 1 or more; `h` is `w` by default.
        in_keys, out_keys: the keys of the images, "pixels" by default.

    Raises:
        ValueError: a size is less than 1.

    >>> from tensordict import TensorDict
    >>> CenterCrop(4)(TensorDict({"pixels": torch.ones(3, 8, 6)}))["pixels"].shape
    torch.Size([3, 4, 4])
    """

    def __init__(self, w: int, h: int | None = None, in_keys: Keys = None, out_keys: Keys = None):
        super().__init__(w, h, in_keys=in_keys, out_keys=out_keys)

    def _top_left(self, height: int, width: int) -> tuple[int, int]:
        return _margin_before(height - self.w), _margin_before(width - self.h)


def _validate_sizes(w: int, h: int | None) -> tuple[int, int]:
    return parse_count("w", w), parse_count("h", w if h is None else h)


def _margin_before(margin: int) -> int:
    """Returns the part of a margin before the center, rounded as in torchvision. Negative margins are padding."""
    return round(margin / 2) if margin > 0 else -(-margin // 2)
