"""`PretrainedTransform`: the base of transforms of images into the features of an encoder.

It must not know which encoders there are.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from ...errors import SpaceError
from ...specs import Composite, Unbounded
from ..keys import Key
from ..step_mdp import as_keys
from .images import ToTensorImage
from .observation_transform import ObservationTransform
from .part import Keys

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


class PretrainedTransform(ObservationTransform):
    """Replaces images by features of a pretrained encoder, which is always in evaluation mode.

    Images are `[..., height, width, 3]` or `[..., 3, height, width]`, integers in [0, 255] or floats in [0, 1]. They
    are resized and standardized by the mean and the standard deviation of ImageNet. Images move to the encoder if it is
    on a GPU. Otherwise, the encoder moves to the device of the images.

    Args:
        encoder: a module from standardized images `[n, 3, height, width]` to features.
        num_features: the number of features.
        in_keys: the keys of the images, "pixels" by default.
        out_keys: the keys of the features.
        default_out_key: the default of `out_keys`, with a number if there are several.
        stack_images: whether the features of all images are concatenated into one entry.
        tensor_pixels_keys: keys for copies of the images, one for each of `in_keys`.
        del_keys: whether to remove the images.
        requires_grad: whether gradients flow through the encoder.

    Attributes:
        encoder: the module.

    Raises:
        ValueError: the number of `out_keys` or `tensor_pixels_keys` does not fit that of `in_keys`.
    """

    def __init__(
        self,
        encoder: nn.Module,
        num_features: int,
        in_keys: Keys,
        out_keys: Keys,
        default_out_key: str,
        *,
        stack_images: bool = True,
        tensor_pixels_keys: Keys = None,
        del_keys: bool = True,
        requires_grad: bool = False,
    ):
        keys = as_keys(in_keys) if in_keys else ["pixels"]
        self.stack_images = stack_images
        super().__init__(keys, None)
        self.encoder = encoder.eval().requires_grad_(requires_grad)
        self.num_features, self.del_keys, self.requires_grad = num_features, del_keys, requires_grad
        default = [f"{default_out_key}_{i}" for i in range(len(keys))]
        self.out_keys = as_keys(out_keys) if out_keys else [default_out_key] if len(self._inputs) == 1 else default
        self.tensor_pixels_keys = [] if tensor_pixels_keys is None else as_keys(tensor_pixels_keys)
        if self.tensor_pixels_keys and len(self.tensor_pixels_keys) != len(keys):
            raise ValueError(
                f"Expected one of tensor_pixels_keys for each of {keys}, got {self.tensor_pixels_keys}. Give as many."
            )

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        if name != "out_keys":
            return super()._validate_keys(name, keys)
        if len(keys) != len(self._inputs):
            raise ValueError(
                f"Expected {len(self._inputs)} of out_keys if stack_images={self.stack_images}, got {keys}."
            )
        return keys

    @property
    def _inputs(self) -> list[list[Key]]:
        """The keys of the images of each of `out_keys`."""
        return [self.in_keys] if self.stack_images else [[key] for key in self.in_keys]

    # -- the encoder

    @property
    def device(self) -> torch.device:
        """The device of the encoder."""
        return next(self.encoder.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the encoder and of the features."""
        return next(self.encoder.parameters()).dtype

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)  # moves the encoder or changes its dtype
        self._invalidate()
        return self

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of the transform. The encoder stays in evaluation mode. Returns the transform."""
        super().train(mode)
        self.encoder.eval()
        return self

    def _resize(self, images: Tensor) -> Tensor:
        """Returns images `[..., 3, height, width]` in [0, 1] in the size for the encoder."""
        raise NotImplementedError

    def _prepare(self, value: Tensor) -> Tensor:
        images = ToTensorImage(shape_tolerant=True)._apply_transform(value)
        if images.ndim < 3 or images.shape[-3] != 3:
            raise SpaceError(
                f"Expected images [..., height, width, 3] as input of {type(self).__name__}, got shape "
                f"{tuple(value.shape)}. Give other in_keys."
            )
        return self._resize(images)

    def _encode(self, values: list[Tensor]) -> Tensor:
        """Returns the features of images, `[*dims, len(values) * num_features]`, on their device."""
        device = values[0].device
        if self.device.type == "cpu" != device.type:
            self.encoder.to(device)
        images = torch.stack([self._prepare(value) for value in values], -4).to(self.device, self.dtype)
        mean, std = (images.new_tensor(numbers)[:, None, None] for numbers in (_MEAN, _STD))
        with torch.set_grad_enabled(self.requires_grad and torch.is_grad_enabled()):
            features = self.encoder((images - mean).div_(std).flatten(0, -4))
        return features.reshape(*images.shape[:-4], len(values) * self.num_features).to(device)

    # -- values and specs

    @cached_property
    def _removed_keys(self) -> list[Key]:
        return self._removable(self.in_keys) if self.del_keys else []

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        images = {key: next_tensordict.get(key, None) for key in self.in_keys}
        missing = [key for key, value in images.items() if value is None]
        if missing:
            if self._allow_missing:
                return next_tensordict
            raise self._missing(missing[0], next_tensordict)
        next_tensordict.exclude(*self._removed_keys, inplace=True)
        for key, pixels_key in zip(images, self.tensor_pixels_keys, strict=False):
            next_tensordict.set(pixels_key, images[key])
        for keys, out_key in zip(self._inputs, self.out_keys, strict=True):
            next_tensordict.set(out_key, self._encode([images[key] for key in keys]))
        return next_tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Replaces the specs of the images by those of the features."""
        specs = {key: observation_spec[key] for key in self.in_keys}
        for key in self._removed_keys:
            del observation_spec[key]
        for key, pixels_key in zip(specs, self.tensor_pixels_keys, strict=False):
            observation_spec[pixels_key] = specs[key].clone()
        for keys, out_key in zip(self._inputs, self.out_keys, strict=True):
            shape = (*specs[keys[0]].shape[:-3], len(keys) * self.num_features)
            observation_spec[out_key] = Unbounded(shape, dtype=self.dtype, device=specs[keys[0]].device)
        return observation_spec
