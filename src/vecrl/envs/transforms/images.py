"""Transforms of images: from bytes to floats, grey, smaller, cut; by torch alone.

Images are `[..., channels, height, width]`, but for what `ToTensorImage` takes, which is `[..., height, width,
channels]` as cameras and screens have it. Knows values and specs; what came before an image is nothing to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import SpaceError
from ...specs import Bounded, TensorSpec, Unbounded
from .spec_probe import probe_output
from .stateless import ObservationTransform

_GREY = (0.2989, 0.587, 0.114)  # ITU-R BT.601, rounded as torchvision rounds it
_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
_ANTIALIASED = ("bilinear", "bicubic")


class ImageTransform(ObservationTransform):
    """The base of transforms of images: of "pixels", where no keys are given.

    Args:
        in_keys, out_keys: see `Transform`.
    """

    elementwise = True
    _min_dims = 3  # dimensions of an image
    _monotonous = True  # whether brighter images never become darker ones, so that bounds are mapped like values

    def __init__(self, in_keys: Any = None, out_keys: Any = None):
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)

    @property
    def supports_rollout(self) -> bool:
        return False  # for which all frames of a rollout would have to be held at their first, full size

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        parent = self.parent
        if spec.ndim - (0 if parent is None else parent.batch_dims) < self._min_dims:
            raise SpaceError(
                f"{type(self).__name__} expects images of {self._min_dims} dimensions or more behind the batch, but a "
                f"shape of {tuple(spec.shape)} came: name others with in_keys."
            )
        value, shape = probe_output(self._apply_transform, spec)
        if not (isinstance(spec, Bounded) and self._monotonous):
            return Unbounded(shape, dtype=value.dtype, device=spec.device)
        row_resized, high = self._apply_transform(spec.low), self._apply_transform(spec.high)
        return Bounded(row_resized, high, shape, dtype=value.dtype, device=spec.device)


class ToTensorImage(ImageTransform):
    """From `[..., height, width, channels]` to `[..., channels, height, width]`, and from whole numbers up to 255 to
    floats up to 1.

    Args:
        from_int: whether values are divided by 255; where left out, those that are no floats are.
        unsqueeze: put a dimension of size 1 in front of an image that has no other dimensions.
        dtype: of the result; torch's default dtype where left out.
        in_keys, out_keys: which images, "pixels" by default.
        shape_tolerant: leave the dimensions as they are where the last one does not have size 3.

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
        in_keys: Any = None,
        out_keys: Any = None,
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
        image = value.to(self.dtype)
        if scaled:
            image = image / 255 if image is value else image.div_(255)
        return image.unsqueeze(0) if self.unsqueeze and image.ndim == 3 else image


class GrayScale(ImageTransform):
    """One channel of the three: 0.2989 red + 0.587 green + 0.114 blue, in the same dtype; one channel stays as it is.

    Args:
        in_keys, out_keys: which images, "pixels" by default.

    >>> from tensordict import TensorDict
    >>> GrayScale()(TensorDict({"pixels": torch.ones(3, 8, 6)}))["pixels"].shape
    torch.Size([1, 8, 6])
    """

    def _apply_transform(self, value: Tensor) -> Tensor:
        if value.shape[-3] == 1:
            return value
        if value.shape[-3] != 3:
            raise ValueError(f"Expected images [..., 3 (or 1), height, width], but {tuple(value.shape)} came.")
        if value.is_floating_point() and value.stride(-3) == 1:  # as cameras have it, where a product is quicker
            weights = torch.tensor(_GREY, dtype=value.dtype, device=value.device)
            return (value.movedim(-3, -1) @ weights).unsqueeze(-3)
        red, green, blue = (part * weight for part, weight in zip(value.split(1, -3), _GREY, strict=True))
        return (red + green + blue).to(value.dtype)


class Resize(ImageTransform):
    """Images of another size, the last two dimensions of them.

    As TorchRL does it, `w` is the size of the next to last dimension, and `h` of the last one.

    Args:
        w, h: the sizes; `h` is `w` where left out.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic"; the last two average over all pixels that
            a new one covers. Whole numbers are rounded.
        in_keys, out_keys: which images, "pixels" by default.

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
        in_keys: Any = None,
        out_keys: Any = None,
    ):
        mode = str(getattr(interpolation, "value", interpolation))
        if mode not in _MODES:
            raise ValueError(f"Expected an interpolation of {_MODES}, but {interpolation!r} came.")
        super().__init__(in_keys, out_keys)
        self.w, self.h = _sizes(w, h)
        self.interpolation = mode
        self._monotonous = mode != "bicubic"  # which overshoots at edges

    def _apply_transform(self, value: Tensor) -> Tensor:
        if value.shape[-2:] == (self.w, self.h):
            return value
        flat = value.reshape(-1, *value.shape[-3:]) if value.ndim > 2 else value[None, None]
        images = flat if flat.is_floating_point() else flat.float()
        images = self._resize_antialiased(images) if self.interpolation in _ANTIALIASED else self._interpolate(images)
        if not value.is_floating_point():
            limits = torch.iinfo(value.dtype)
            images = images.round().clamp(limits.min, limits.max).to(value.dtype)
        return images.reshape(*value.shape[:-2], self.w, self.h)

    def _interpolate(self, images: Tensor) -> Tensor:
        antialias = self.interpolation in _ANTIALIASED
        return functional.interpolate(images, (self.w, self.h), mode=self.interpolation, antialias=antialias)

    def _resize_antialiased(self, images: Tensor) -> Tensor:
        """`_interpolate`, on a processor as sums of weighted rows and then of weighted columns, which is three times
        as quick there and differs in the last bit."""
        if images.device.type != "cpu" or images.dtype not in (torch.float32, torch.float64) or not images.numel():
            return self._interpolate(images)
        channels_last = images.stride(1) == 1  # channels lie last, as cameras have them
        images = images.movedim(1, -1) if channels_last else images.reshape(-1, *images.shape[2:], 1)
        num_images, height, width, channels = images.shape
        rows, columns = self._cached_taps(num_images, height, width, images.dtype)
        row_resized = _weighted_sum(images.reshape(num_images * height, -1), *rows).view(
            num_images, self.w, width, channels
        )
        resized = _weighted_sum(row_resized.permute(0, 2, 3, 1).reshape(num_images * width, -1), *columns)
        return resized.view(num_images, self.h, channels, self.w).permute(0, 2, 3, 1)

    def _cached_taps(self, num_images: int, height: int, width: int, dtype: torch.dtype) -> Any:
        """Which rows and which columns of `num_images` images go into those of the results, and their weights."""
        cache_key, taps = self._cache.get("taps", (None, None))
        if cache_key != (num_images, height, width, dtype):
            rows = _interpolation_taps(height, self.w, self.interpolation, dtype, num_images)
            taps = rows, _interpolation_taps(width, self.h, self.interpolation, dtype, num_images)
            self._cache["taps"] = (num_images, height, width, dtype), taps
        return taps


def _interpolation_taps(
    size: int, out_size: int, mode: str, dtype: torch.dtype, num_images: int
) -> tuple[Tensor, Tensor]:
    """Of `num_images` vectors of `size` behind one another, interpolated to `to`: which elements (`[num_images * to,
    taps]`) go into each
    element of the results, and with which weights, such as torch has them."""
    identity = torch.eye(size, dtype=dtype)[None, None]
    weights = functional.interpolate(identity, (out_size, size), mode=mode, antialias=True)[0, 0]
    is_used = weights != 0
    num_taps = int((size - is_used.flip(1).int().argmax(1) - is_used.int().argmax(1)).max())
    tap_indices = is_used.int().argmax(1).clamp(max=size - num_taps).unsqueeze(1) + torch.arange(num_taps)
    flat_indices = (tap_indices + size * torch.arange(num_images)[:, None, None]).reshape(-1, num_taps)
    return flat_indices, weights.gather(1, tap_indices).repeat(num_images, 1)


def _weighted_sum(vectors: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Sums of weighted `vectors`, one for each row of `where`."""
    return functional.embedding_bag(indices, vectors, per_sample_weights=weights, mode="sum")


class Crop(ImageTransform):
    """A part of each image; zeros where it reaches beyond.

    As TorchRL does it, `w` is the size of the next to last dimension, and `h` of the last one.

    Args:
        w, h: the sizes of the part; `h` is `w` where left out.
        top, left: where it begins.
        in_keys, out_keys: which images, "pixels" by default.

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
        in_keys: Any = None,
        out_keys: Any = None,
    ):
        super().__init__(in_keys, out_keys)
        self.w, self.h = _sizes(w, h)
        self.top, self.left = int(top), int(left)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        if -1 in spec.shape:  # where it reaches beyond, there are zeros whatever the bounds
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
    """The middle of each image; zeros around where that is smaller.

    As TorchRL does it, `w` is the size of the next to last dimension, and `h` of the last one.

    Args:
        w, h: the sizes of the middle; `h` is `w` where left out.
        in_keys, out_keys: which images, "pixels" by default.

    >>> from tensordict import TensorDict
    >>> CenterCrop(4)(TensorDict({"pixels": torch.ones(3, 8, 6)}))["pixels"].shape
    torch.Size([3, 4, 4])
    """

    def __init__(self, w: int, h: int | None = None, in_keys: Any = None, out_keys: Any = None):
        super().__init__(w, h, in_keys=in_keys, out_keys=out_keys)

    def _top_left(self, height: int, width: int) -> tuple[int, int]:
        return _margin(height - self.w), _margin(width - self.h)


def _sizes(w: int, h: int | None) -> tuple[int, int]:
    sizes = int(w), int(w if h is None else h)
    if min(sizes) < 1:
        raise ValueError(f"Expected sizes of 1 or more, but w={w} and h={h} came.")
    return sizes


def _margin(margin: int) -> int:
    """How much of what is spare (or, below 0, lacks) lies before the middle, rounded as torchvision does."""
    return round(margin / 2) if margin > 0 else -(-margin // 2)
