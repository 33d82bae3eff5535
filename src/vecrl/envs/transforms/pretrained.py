"""Transforms of images into the features of pretrained encoders: R3M, VIP and VC-1.

Weights come from a local checkpoint or a state dictionary; nothing is downloaded. `backbones` makes the networks and
loads the weights.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from ...errors import SpaceError
from ...specs import Composite, Unbounded
from ..entries.keys import Key
from ..entries.step_mdp import as_keys
from .backbones import RESNETS, VITS, Weights, load_backbone, make_resnet, make_vit
from .base import ObservationTransform
from .images import CenterCrop, Resize, ToTensorImage
from .keyed_module import Keys

__all__ = ["R3MTransform", "VC1Transform", "VIPRewardTransform", "VIPTransform"]


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


class ResNetTransform(PretrainedTransform):
    """The base of encoders that are ResNets. Its arguments are those of `R3MTransform`."""

    _name: str
    _url: str
    _models: tuple[str, ...]
    _num_features: int | None = None  # of a last linear layer

    def __init__(
        self,
        model_name: str,
        in_keys: Keys = None,
        out_keys: Keys = None,
        size: int = 244,
        stack_images: bool = True,
        download: Any = False,
        download_path: str | None = None,
        tensor_pixels_keys: Keys = None,
        requires_grad: bool = False,
        *,
        weights: Weights = None,
    ):
        if model_name not in self._models:
            raise ValueError(f"Expected a model of {self._models}, got {model_name!r}.")
        if weights is None or download:
            raise _no_weights(type(self).__name__, download, self._url)
        ignored = () if self._num_features else ("fc.",)
        super().__init__(
            load_backbone(lambda: make_resnet(model_name, self._num_features), weights, self._name, ignored),
            self._num_features or RESNETS[model_name],
            in_keys,
            out_keys,
            f"{self._name}_vec",
            stack_images=stack_images,
            tensor_pixels_keys=tensor_pixels_keys,
            requires_grad=requires_grad,
        )
        self.model_name, self.size = model_name, size

    def _resize(self, images: Tensor) -> Tensor:
        return Resize(self.size, self.size)._apply_transform(images)


class R3MTransform(ResNetTransform):
    """Replaces images by features of R3M, a ResNet trained on videos (Nair et al., 2022, arXiv:2203.12601).

    As in TorchRL, images are resized to `size` x `size`. The publication (github.com/facebookresearch/r3m) resizes the
    shorter edge to 256, crops the center of 224 x 224, and divides by 255 before it standardizes. For the same, put
    `Resize` and `CenterCrop` before this transform, and set `size=224`.

    Args:
        model_name: "resnet18", "resnet34" or "resnet50".
        in_keys: the keys of the images, `[..., height, width, 3]` or `[..., 3, height, width]`; "pixels" by default.
        out_keys: the keys of the features, "r3m_vec" by default, or "r3m_vec_0", "r3m_vec_1", ... without
            `stack_images`. They are float32 `[..., 512]`, and `[..., 2048]` for "resnet50".
        size: the height and width of images for the encoder, in pixels.
        stack_images: whether the features of all images are concatenated into one entry.
        download: False, because vecrl downloads nothing.
        download_path: not used; it is in TorchRL's signature.
        tensor_pixels_keys: keys for copies of the images, which are removed otherwise; one for each of `in_keys`.
        requires_grad: whether gradients flow through the encoder.
        weights: the published checkpoint (a file or its contents), or a state dictionary of the ResNet in torchvision's
            layout. A file is loaded with `weights_only=True`.

    Raises:
        ValueError: there are no weights, `download` is set, the model is unknown, or the number of keys does not fit.
        StateError: the weights do not fit the model.
        ImportError: torchvision is not installed.

    >>> R3MTransform("resnet18", ["pixels"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Expected weights for R3MTransform, got none. Download the published checkpoint from ...
    """

    _name = "r3m"
    _url = "https://github.com/facebookresearch/r3m"
    _models = tuple(RESNETS)


class VIPTransform(ResNetTransform):
    """Replaces images by features of VIP, a ResNet-50 trained on videos (Ma et al., 2022, arXiv:2210.00030).

    As in TorchRL, images are resized to `size` x `size`. The publication (github.com/facebookresearch/vip) prepares
    them as R3M does; see `R3MTransform`.

    Args:
        model_name: "resnet50".
        in_keys, size, stack_images, download, download_path, tensor_pixels_keys, weights: as in `R3MTransform`.
        out_keys: the keys of the features, float32 `[..., 1024]`; "vip_vec" by default, or "vip_vec_0", "vip_vec_1",
            ... without `stack_images`.

    Raises:
        ValueError: there are no weights, `download` is set, the model is unknown, or the number of keys does not fit.
        StateError: the weights do not fit the model.
        ImportError: torchvision is not installed.

    >>> VIPTransform("resnet50", download=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Expected weights for VIPTransform as a local file, got download=True. Download the published ...
    """

    _name = "vip"
    _url = "https://github.com/facebookresearch/vip"
    _models = ("resnet50",)
    _num_features = 1024

    def __init__(
        self,
        model_name: str,
        in_keys: Keys = None,
        out_keys: Keys = None,
        size: int = 244,
        stack_images: bool = True,
        download: Any = False,
        download_path: str | None = None,
        tensor_pixels_keys: Keys = None,
        *,
        weights: Weights = None,
    ):
        super().__init__(
            model_name,
            in_keys,
            out_keys,
            size,
            stack_images,
            download,
            download_path,
            tensor_pixels_keys,
            weights=weights,
        )


class VIPRewardTransform(VIPTransform):
    """Replaces images by features of VIP, and rewards by the progress towards the features of a goal image.

    The reward of a step is by how much it reduces the Euclidean distance to the features of the goal (Ma et al., 2022).
    The goal is the entry "goal_image" of the input of a reset, or of its output. Its features are written as
    "goal_embedding".

    Args:
        model_name, in_keys, out_keys, size, stack_images, download, download_path, tensor_pixels_keys, weights: as in
            `VIPTransform`, with one key of images.

    Raises:
        ValueError: as in `VIPTransform`, or there are several `in_keys`.
        KeyError: on a reset, if there is no "goal_image".

    >>> VIPRewardTransform("resnet50")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Expected weights for VIPRewardTransform, got none. Download the published checkpoint from ...
    """

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        if name == "in_keys" and len(keys) != 1:
            raise ValueError(f"Expected one of in_keys for VIPRewardTransform, got {keys}. Give the key of one image.")
        return super()._validate_keys(name, keys)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        goal = tensordict_reset.get("goal_image", tensordict.get("goal_image", None))
        if goal is None:
            raise KeyError(
                'Expected an entry "goal_image" in the input of the reset for VIPRewardTransform, got none. Call '
                'env.reset(TensorDict({"goal_image": image}, env.batch_size)).'
            )
        tensordict_reset.set("goal_image", goal).set("goal_embedding", self._encode([goal]))
        return super()._reset(tensordict, tensordict_reset)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict = super()._step(tensordict, next_tensordict)
        goal, (key,) = tensordict["goal_embedding"], self.out_keys
        distance, next_distance = ((td[key] - goal).norm(dim=-1, keepdim=True) for td in (tensordict, next_tensordict))
        reward_key = self._require_parent().reward_key
        return next_tensordict.set("goal_embedding", goal).set(reward_key, distance - next_distance)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Replaces the spec of the images by those of their features and of the features of the goal."""
        observation_spec = super().transform_observation_spec(observation_spec)
        return observation_spec.set("goal_embedding", observation_spec[self.out_keys[0]].clone())

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Adds the specs of the goal and of its features."""
        parent = self._require_parent()
        image = parent.full_observation_spec[self.in_keys[0]]
        features = Unbounded((*image.shape[:-3], self.num_features), dtype=self.dtype, device=image.device)
        if "goal_image" not in state_spec:
            state_spec["goal_image"] = image.clone()
        return state_spec.update({"goal_embedding": features, self.out_keys[0]: features.clone()})

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Replaces the spec of the reward by one without bounds."""
        key = self._require_parent().reward_key
        spec = reward_spec[key]
        reward_spec[key] = Unbounded((*reward_spec.shape, 1), dtype=self.dtype, device=spec.device)
        return reward_spec


class VC1Transform(PretrainedTransform):
    """Replaces images by features of VC-1, a ViT trained on videos (Majumdar et al., 2023, arXiv:2303.18240).

    As published (github.com/facebookresearch/eai-vc), the shorter edge is resized to 256 with bicubic interpolation,
    the center of 224 x 224 is cropped and standardized, and the features are the class token after the last layer.

    Args:
        in_keys: the keys of the images, `[..., height, width, 3]` or `[..., 3, height, width]`; "pixels" if None.
        out_keys: the keys of the features, one for each image; "vc1_vec" if None. They are float32 `[..., 768]`, and
            `[..., 1024]` for "large".
        model_name: "base" (ViT-B/16), "large" (ViT-L/16), or "default": a small one with 64 features and random
            weights, to test a program without a checkpoint.
        del_keys: whether to remove the images.
        weights: the published checkpoint (a file or its contents), or a state dictionary of the ViT in timm's layout.
            A file is loaded with `weights_only=True`.

    Raises:
        ValueError: there are no weights, the model is unknown, or the number of keys does not fit.
        StateError: the weights do not fit the model.
        ImportError: timm is not installed.

    >>> VC1Transform(["pixels"], ["vc1_vec"], "base")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Expected weights for VC1Transform, got none. Download the published checkpoint from ...
    """

    def __init__(
        self, in_keys: Keys, out_keys: Keys, model_name: str, del_keys: bool = True, *, weights: Weights = None
    ):
        if model_name not in VITS:
            raise ValueError(f"Expected a model of {tuple(VITS)}, got {model_name!r}.")
        if weights is None and model_name != "default":
            raise _no_weights("VC1Transform", False, f"https://huggingface.co/facebook/vc1-{model_name}")
        for_training = ("decoder_", "mask_token", "head.")
        vit = (
            make_vit(model_name)
            if weights is None
            else load_backbone(lambda: make_vit(model_name), weights, "model", ignored=for_training)
        )
        super().__init__(vit, VITS[model_name][0], in_keys, out_keys, "vc1_vec", stack_images=False, del_keys=del_keys)
        self.model_name = model_name

    def _resize(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        shorter = min(height, width)
        sizes = 256 * height // shorter, 256 * width // shorter
        resized = Resize(*sizes, interpolation="bicubic")._apply_transform(images)
        return CenterCrop(224)._apply_transform(resized)


def _no_weights(name: str, download: object, url: str) -> ValueError:
    found = (
        f"Expected weights for {name}, got none."
        if not download
        else (f"Expected weights for {name} as a local file, got download={download!r}.")
    )
    return ValueError(
        f"{found} Download the published checkpoint from {url}, and give its path as weights=. A state dictionary is "
        "accepted too."
    )
