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
from .throughout import ObservationTransform
from .trying import tried

_GREY = (0.2989, 0.587, 0.114)  # ITU-R BT.601, rounded as torchvision rounds it
_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
_SMOOTH = ("bilinear", "bicubic")


class ImageTransform(ObservationTransform):
    """The base of transforms of images: of "pixels", where no keys are given.

    Args:
        in_keys, out_keys: see `Transform`.
    """

    pointwise = True
    _least = 3  # dimensions of an image
    _monotonous = True  # whether brighter images never become darker ones, so that bounds are mapped like values

    def __init__(self, in_keys: Any = None, out_keys: Any = None):
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)

    @property
    def _unrolls(self) -> bool:
        return False  # for which all frames of a rollout would have to be held at their first, full size

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        parent = self.parent
        if spec.ndim - (0 if parent is None else parent.batch_dims) < self._least:
            raise SpaceError(
                f"{type(self).__name__} expects images of {self._least} dimensions or more behind the batch, but a "
                f"shape of {tuple(spec.shape)} came: name others with in_keys."
            )
        value, shape = tried(self._apply_transform, spec)
        if not (isinstance(spec, Bounded) and self._monotonous):
            return Unbounded(shape, dtype=value.dtype, device=spec.device)
        low, high = self._apply_transform(spec.low), self._apply_transform(spec.high)
        return Bounded(low, high, shape, dtype=value.dtype, device=spec.device)


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

    _least = 2

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
        made = flat if flat.is_floating_point() else flat.float()
        made = self._averaged(made) if self.interpolation in _SMOOTH else self._interpolated(made)
        if not value.is_floating_point():
            limits = torch.iinfo(value.dtype)
            made = made.round().clamp(limits.min, limits.max).to(value.dtype)
        return made.reshape(*value.shape[:-2], self.w, self.h)

    def _interpolated(self, images: Tensor) -> Tensor:
        smooth = self.interpolation in _SMOOTH
        return functional.interpolate(images, (self.w, self.h), mode=self.interpolation, antialias=smooth)

    def _averaged(self, images: Tensor) -> Tensor:
        """`_interpolated`, on a processor as sums of weighted rows and then of weighted columns, which is three times
        as quick there and differs in the last bit."""
        if images.device.type != "cpu" or images.dtype not in (torch.float32, torch.float64) or not images.numel():
            return self._interpolated(images)
        last = images.stride(1) == 1  # channels lie last, as cameras have them
        images = images.movedim(1, -1) if last else images.reshape(-1, *images.shape[2:], 1)
        n, height, width, channels = images.shape
        rows, columns = self._taps(n, height, width, images.dtype)
        low = _weighted(images.reshape(n * height, -1), *rows).view(n, self.w, width, channels)
        small = _weighted(low.permute(0, 2, 3, 1).reshape(n * width, -1), *columns)
        return small.view(n, self.h, channels, self.w).permute(0, 2, 3, 1)

    def _taps(self, n: int, height: int, width: int, dtype: torch.dtype) -> Any:
        """Which rows and which columns of `n` images go into those of the results, and their weights."""
        kind, found = self._derived.get("taps", (None, None))
        if kind != (n, height, width, dtype):
            rows = _taps(height, self.w, self.interpolation, dtype, n)
            found = rows, _taps(width, self.h, self.interpolation, dtype, n)
            self._derived["taps"] = (n, height, width, dtype), found
        return found


def _taps(size: int, to: int, mode: str, dtype: torch.dtype, n: int) -> tuple[Tensor, Tensor]:
    """Of `n` vectors of `size` behind one another, interpolated to `to`: which elements (`[n * to, taps]`) go into each
    element of the results, and with which weights, such as torch has them."""
    unit = torch.eye(size, dtype=dtype)[None, None]
    weights = functional.interpolate(unit, (to, size), mode=mode, antialias=True)[0, 0]
    used = weights != 0
    reach = int((size - used.flip(1).int().argmax(1) - used.int().argmax(1)).max())
    where = used.int().argmax(1).clamp(max=size - reach).unsqueeze(1) + torch.arange(reach)
    whole = (where + size * torch.arange(n)[:, None, None]).reshape(-1, reach)
    return whole, weights.gather(1, where).repeat(n, 1)


def _weighted(vectors: Tensor, where: Tensor, weights: Tensor) -> Tensor:
    """Sums of weighted `vectors`, one for each row of `where`."""
    return functional.embedding_bag(where, vectors, per_sample_weights=weights, mode="sum")


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

    _least = 2

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

    def _begins(self, height: int, width: int) -> tuple[int, int]:
        return self.top, self.left

    def _apply_transform(self, value: Tensor) -> Tensor:
        height, width = value.shape[-2:]
        top, left = self._begins(height, width)
        bottom, right = top + self.w, left + self.h
        inside = value[..., max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
        if top >= 0 and left >= 0 and bottom <= height and right <= width:
            return inside
        beside = min(max(-left, 0), self.h), max(right - max(width, left), 0)
        above = min(max(-top, 0), self.w), max(bottom - max(height, top), 0)
        return functional.pad(inside, (*beside, *above))


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

    def _begins(self, height: int, width: int) -> tuple[int, int]:
        return _margin(height - self.w), _margin(width - self.h)


def _sizes(w: int, h: int | None) -> tuple[int, int]:
    sizes = int(w), int(w if h is None else h)
    if min(sizes) < 1:
        raise ValueError(f"Expected sizes of 1 or more, but w={w} and h={h} came.")
    return sizes


def _margin(spare: int) -> int:
    """How much of what is spare (or, below 0, lacks) lies before the middle, rounded as torchvision does."""
    return round(spare / 2) if spare > 0 else -(-spare // 2)
