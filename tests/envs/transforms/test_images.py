"""Transforms of images, compared with plain torch and with values from TorchRL (through torchvision)."""

import re
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from vecrl.envs.transforms import CenterCrop, Compose, Crop, GrayScale, Resize, ToTensorImage, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, Unbounded
from vecrl.testing import IndependentRowsEnv

SCREEN = (torch.arange(2 * 8 * 6 * 3) * 37 % 256).to(torch.uint8).view(2, 8, 6, 3)


def through(transform: Any, pixels: torch.Tensor) -> torch.Tensor:
    return transform(TensorDict({"pixels": pixels}))["pixels"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_to_tensor_image_divides_by_255(dtype: torch.dtype) -> None:
    made = through(ToTensorImage(dtype=dtype), SCREEN)
    assert made.dtype == dtype
    assert torch.equal(made, SCREEN.movedim(-1, -3).to(dtype) / 255)


def test_all_bytes_become_the_quotients_of_torch() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3).view(16, 16, 3)
    for given in (pixels, pixels.transpose(0, 1), pixels[::2], pixels[:0]):
        assert torch.equal(through(ToTensorImage(), given), given.movedim(-1, -3).float().div_(255))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_bytes_are_divided_in_traces_and_under_vmap() -> None:
    pixels = torch.full((2, 4, 4, 3), 255, dtype=torch.uint8)

    def convert(value: torch.Tensor) -> torch.Tensor:
        return ToTensorImage()._apply_transform(value)

    expected = torch.ones(2, 3, 4, 4)
    assert torch.equal(torch.vmap(convert)(pixels), expected)
    for trace in (make_fx(convert)(pixels), torch.jit.trace(convert, (pixels,))):
        assert torch.equal(trace(torch.zeros_like(pixels)), torch.zeros_like(expected))  # and no constant


def test_to_tensor_image_does_not_scale_floats_by_default() -> None:
    pixels = SCREEN.float()
    saved = pixels.clone()
    assert torch.equal(through(ToTensorImage(), pixels), saved.movedim(-1, -3))
    assert torch.equal(through(ToTensorImage(from_int=True), pixels), saved.movedim(-1, -3) / 255)
    assert torch.equal(through(ToTensorImage(from_int=False), SCREEN), saved.movedim(-1, -3))
    assert torch.equal(pixels, saved)


def test_to_tensor_image_unsqueezes_single_images_only() -> None:
    assert through(ToTensorImage(unsqueeze=True), SCREEN[0]).shape == (1, 3, 8, 6)
    assert through(ToTensorImage(unsqueeze=True), SCREEN).shape == (2, 3, 8, 6)


def test_to_tensor_image_shape_tolerant() -> None:
    channels_first = SCREEN.movedim(-1, -3)
    assert through(ToTensorImage(shape_tolerant=True), channels_first).shape == (2, 3, 8, 6)
    assert through(ToTensorImage(), channels_first).shape == (2, 6, 3, 8)


WEIGHTS = (0.2989, 0.587, 0.114)


def test_grayscale_is_a_weighted_sum() -> None:
    red, green, blue = SCREEN.movedim(-1, 0).float()
    odd = torch.rand(3, 5, 3, 3)  # pixels that are no multiple of four
    torch.testing.assert_close(through(GrayScale(), odd.movedim(-1, -3))[:, 0], odd @ torch.tensor(WEIGHTS))
    expected = (0.2989 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)
    for image in (SCREEN.movedim(-1, -3), SCREEN.movedim(-1, -3).contiguous()):
        torch.testing.assert_close(through(GrayScale(), image.float()), expected, rtol=1e-6, atol=1e-5)
        assert torch.equal(through(GrayScale(), image), expected.to(torch.uint8))
    assert torch.equal(through(GrayScale(), expected), expected)
    for shape in ((2, 8, 6), (8, 6)):
        with pytest.raises(
            ValueError, match=re.escape(f"[..., 3, height, width] to convert to gray, got shape {shape}")
        ):
            through(GrayScale(), torch.zeros(shape))


@pytest.mark.parametrize("size", [(4, 3), (4, 9), (20, 13), (8, 3)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("antialias", [True, False])
def test_resize_equals_torch_interpolation(size: tuple[int, int], mode: str, last: bool, antialias: bool) -> None:
    image = torch.rand(2, 8, 6, 3).movedim(-1, -3)
    image = image if last else image.contiguous()
    expected = functional.interpolate(image, size, mode=mode, antialias=antialias and mode.startswith("bi"))
    for given_td in (image, image.unsqueeze(1), image[0], image.requires_grad_()):
        made = through(Resize(*size, mode, antialias=antialias), given_td)
        assert made.shape == (*given_td.shape[:-2], *size)
        requested = expected[0] if given_td.ndim == 3 else expected.reshape(made.shape)
        torch.testing.assert_close(made.detach(), requested, rtol=1e-6, atol=1e-6)


# The result of TorchRL 0.14.1 with torchvision 0.28.0 for SCREEN as [channels, height, width] with Resize(3, 4, mode).
PEER = {
    "bilinear": [[86, 115, 148, 141], [120, 123, 118, 146], [90, 113, 154, 138]],
    "bicubic": [[80, 112, 154, 141], [124, 125, 112, 149], [84, 111, 161, 135]],
    "nearest": [[0, 111, 77, 188], [52, 163, 129, 240], [2, 113, 79, 190]],
}


@pytest.mark.parametrize("mode", sorted(PEER))
def test_integer_images_round_like_torchvision(mode: str) -> None:
    made = through(Resize(3, 4, mode), SCREEN.movedim(-1, -3))
    assert made.dtype == torch.uint8
    assert made[0, 0].tolist() == PEER[mode]


def test_images_of_the_target_size_are_returned() -> None:
    image = SCREEN.movedim(-1, -3)
    assert through(Resize(8, 6), image) is image


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            Unbounded((3, 8, 6), dtype=torch.bool),
            r"integers or floats as input of Resize, got torch.bool\. Convert them",
        ),
        (Unbounded((3, 0, 6)), r"one pixel or more as input of Resize, got shape \(3, 0, 6\)\. Give other in_keys"),
    ],
)
@pytest.mark.parametrize("antialias", [True, False])
def test_images_that_cannot_be_resized_raise(spec: Unbounded, text: str, antialias: bool) -> None:
    resize = Resize(4, antialias=antialias)
    for make in (
        lambda: resize.transform_observation_spec(Composite(pixels=spec)),
        lambda: through(resize, spec.zero()),
    ):
        with pytest.raises(SpaceError, match=text):
            make()


@pytest.mark.parametrize("shape", [(0, 3, 8, 6), (0, 8, 6), (2, 0, 8, 6)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_no_images_are_resized_to_no_images(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = through(Resize(4, 5), torch.zeros(shape, dtype=dtype))
    assert (made.shape, made.dtype) == ((*shape[:-2], 4, 5), dtype)


def test_crops() -> None:
    image = SCREEN.movedim(-1, -3)
    assert torch.equal(through(Crop(4, 2, top=1, left=3), image), image[..., 1:5, 3:5])
    assert torch.equal(through(Crop(3), image), image[..., :3, :3])
    assert torch.equal(through(CenterCrop(4, 2), image), image[..., 2:6, 2:4])
    assert torch.equal(through(CenterCrop(5, 3), image), image[..., 2:7, 2:5])  # 1.5 rounds to the even 2


def test_crops_are_zero_beyond_the_image() -> None:
    image = SCREEN.movedim(-1, -3)
    beyond = through(Crop(4, 2, top=6), image)
    assert torch.equal(beyond[..., :2, :], image[..., 6:, :2])
    assert not beyond[..., 2:, :].any()
    around = through(CenterCrop(11, 9), image)
    assert around.shape == (2, 3, 11, 9)
    assert torch.equal(around[..., 1:9, 1:7], image)  # the leading margin is the smaller one
    assert int(around.sum()) == int(image.sum())


@pytest.mark.parametrize("bad", ["lanczos", "box", ""])
def test_unknown_interpolations_raise(bad: str) -> None:
    with pytest.raises(ValueError, match="interpolation"):
        Resize(4, interpolation=bad)


def test_specs_keep_valid_bounds() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Compose(ToTensorImage(), GrayScale(), Resize(4, 5)))
    spec = env.observation_spec["pixels"]
    assert isinstance(spec, Bounded)
    assert spec.shape == (2, 1, 4, 5)
    assert spec.low.max() == 0
    assert spec.high.min() > 0.99
    overshoots = TransformedEnv(IndependentRowsEnv((0, 1)), Compose(ToTensorImage(), Resize(4, 5, "bicubic")))
    assert isinstance(overshoots.observation_spec["pixels"], Unbounded)
    dynamic = Composite(pixels=Unbounded((-1, 8, 6, 3), dtype=torch.uint8))
    assert ToTensorImage().transform_observation_spec(dynamic)["pixels"].shape == (-1, 3, 8, 6)


def test_crops_outside_the_image_are_zero() -> None:
    for top, remaining in [(-6, 0), (0, -6), (9, 9), (-9, -9)]:
        made = Crop(4, 3, top, remaining)(TensorDict({"pixels": torch.ones(1, 5, 5)}))["pixels"]
        assert made.shape == (1, 4, 3), (top, remaining)
