"""Transforms of images into the features of pretrained encoders: R3M, VIP and VC-1.

Weights come from a local checkpoint or a state dictionary; nothing is downloaded. This module must not know how
backbones are made and loaded (`backbones`), and how they are applied (`image_encoder`).
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Composite, Unbounded
from ..keys import Key
from .backbones import RESNETS, VITS, Weights, load_backbone, make_resnet, make_vit
from .image_encoder import PretrainedTransform
from .images import CenterCrop, Resize
from .part import Keys

__all__ = ["R3MTransform", "VC1Transform", "VIPRewardTransform", "VIPTransform"]


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
