"""Transforms with pretrained encoders. The checkpoints are random, in the layout of the published ones."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from vecrl.envs import EnvBase, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    Compose,
    R3MTransform,
    TensorDictPrimer,
    Transform,
    TransformedEnv,
    VC1Transform,
    VIPRewardTransform,
    VIPTransform,
)
from vecrl.envs.transforms.backbones import import_vision
from vecrl.errors import SpaceError, StateError, VersionError
from vecrl.specs import Unbounded
from vecrl.testing import IndependentRowsEnv, TransformConformance

IMAGES = torch.randint(0, 256, (4, 20, 30, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
WITHOUT_WEIGHTS = [
    (partial(R3MTransform, "resnet50", ["pixels"]), "facebookresearch/r3m"),
    (partial(VIPTransform, "resnet50"), "facebookresearch/vip"),
    (partial(VIPRewardTransform, "resnet50"), "facebookresearch/vip"),
    (partial(VC1Transform, ["pixels"], ["vc1_vec"], "base"), "facebook/vc1-base"),
    (partial(R3MTransform, "resnet50", ["pixels"], download="IMAGENET1K_V1"), "got download='IMAGENET1K_V1'"),
]


@pytest.mark.parametrize("module", ["torchvision.models", "timm"])
def test_a_missing_library_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    library = module.partition(".")[0]
    with pytest.raises(VersionError, match=rf"Expected {library} for pretrained .* pip install \"vecrl\[vision\]\""):
        import_vision(module)


@pytest.mark.parametrize(("make", "message"), WITHOUT_WEIGHTS)
def test_missing_weights_are_an_error_that_says_where_they_are(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}.*weights="):
        make()


def test_an_unknown_model_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Expected a model of .*'resnet50'.*, got 'resnet18'"):
        VIPTransform("resnet18", weights={})
    with pytest.raises(ValueError, match=r"Expected a model of .*'large'.*, got 'huge'"):
        VC1Transform(["pixels"], None, "huge", weights={})


vision = pytest.mark.vision


def resnet(name: str, features: int | None = None) -> nn.Module:
    """Returns a ResNet of torchvision with random weights and statistics."""
    torch.manual_seed(1)
    module = getattr(import_vision("torchvision.models"), name)(weights=None)
    module.fc = nn.Identity() if features is None else nn.Linear(module.fc.in_features, features)
    for norm in [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]:
        nn.init.uniform_(norm.running_mean, -0.1, 0.1)
    return module.eval()


def r3m_checkpoint(module: nn.Module) -> dict[str, Any]:
    state = {f"module.convnet.{key}": value for key, value in module.state_dict().items()}
    return {"r3m": {**state, "module.lang_rew.pred.0.weight": torch.zeros(2, 2)}, "global_step": 3}


def vip_checkpoint(module: nn.Module) -> dict[str, Any]:
    return {"vip": {f"module.convnet.{key}": value for key, value in module.state_dict().items()}}


def vc1_checkpoint(module: nn.Module) -> dict[str, Any]:
    return {"model": {**module.state_dict(), "mask_token": torch.zeros(1, 1, 8), "decoder_embed.bias": torch.zeros(8)}}


def standardized(images: Tensor) -> Tensor:
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
    return (images - mean) / std


def prepared(images: Tensor, size: int) -> Tensor:
    functional = import_vision("torchvision.transforms.v2.functional")
    return standardized(functional.resize(images.movedim(-1, -3) / 255, [size, size], antialias=True))


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@vision
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_r3m_equals_the_plain_backbone(name: str, tmp_path: Path) -> None:
    module = resnet(name)
    torch.save(r3m_checkpoint(module), tmp_path / "model.pt")
    transform = R3MTransform(name, ["pixels"], weights=tmp_path / "model.pt", size=64)
    result = transform(TensorDict({"pixels": IMAGES}, [4]))
    with torch.no_grad():
        assert_close(result["r3m_vec"], module(prepared(IMAGES, 64)))
    assert list(result.keys()) == ["r3m_vec"]
    assert not result["r3m_vec"].requires_grad


@vision
def test_vip_equals_the_plain_backbone() -> None:
    module = resnet("resnet50", 1024)
    transform = VIPTransform("resnet50", weights=vip_checkpoint(module))
    result = transform(TensorDict({"pixels": IMAGES[:1]}, [1]))
    with torch.no_grad():
        assert_close(result["vip_vec"], module(prepared(IMAGES[:1], 244)))


@vision
@pytest.mark.parametrize(
    ("name", "images"), [("base", IMAGES[:1]), ("default", IMAGES), ("default", IMAGES.transpose(1, 2))]
)
def test_vc1_equals_the_plain_backbone(name: str, images: Tensor) -> None:
    """Images are resized by their shorter edge and cropped, as the publication does."""
    sizes = {} if name == "base" else {"embed_dim": 64, "depth": 2, "num_heads": 2}
    module = import_vision("timm.models.vision_transformer").VisionTransformer(num_classes=0, **sizes).eval()
    transform = VC1Transform(["pixels"], None, name, weights=vc1_checkpoint(module), del_keys=False)
    result = transform(TensorDict({"pixels": images}, [len(images)]))
    functional = import_vision("torchvision.transforms.v2.functional")
    resized = functional.resize(images.movedim(-1, -3) / 255, [256], functional.InterpolationMode.BICUBIC)
    with torch.no_grad():
        expected = module(standardized(functional.center_crop(resized, [224, 224])))
    assert_close(result["vc1_vec"], expected)
    assert torch.equal(result["pixels"], images)


@vision
def test_floats_and_channels_first_give_the_same_features() -> None:
    transform = R3MTransform("resnet18", ["pixels"], size=32, weights=resnet("resnet18").state_dict())
    features = [
        transform(TensorDict({"pixels": images}, [4]))["r3m_vec"]
        for images in (IMAGES, IMAGES / 255, IMAGES.movedim(-1, -3))
    ]
    assert_close(features[0], features[1])
    assert_close(features[0], features[2])
    with pytest.raises(SpaceError, match=r"Expected images .* got shape \(4, 20, 30\)"):
        transform(TensorDict({"pixels": IMAGES[..., 0]}, [4]))


@vision
def test_several_images_are_stacked_or_separate() -> None:
    make = partial(R3MTransform, "resnet18", ["a", "b"], size=32, weights=resnet("resnet18").state_dict())
    images = TensorDict({"a": IMAGES, "b": IMAGES.flip(0)}, [4])
    stacked = make()(images.copy())["r3m_vec"]
    separate = make(stack_images=False, tensor_pixels_keys=["first", "b"])(images.copy())
    assert_close(stacked, torch.cat([separate["r3m_vec_0"], separate["r3m_vec_1"]], -1))
    assert torch.equal(separate["first"], IMAGES)
    assert torch.equal(separate["b"], IMAGES.flip(0))
    assert "a" not in separate
    with pytest.raises(ValueError, match="Expected 1 of out_keys"):
        make(out_keys=["c", "d"])
    with pytest.raises(ValueError, match="Expected one of tensor_pixels_keys for each"):
        make(tensor_pixels_keys=["c"])


@vision
def test_the_encoder_stays_in_evaluation_mode_and_is_frozen() -> None:
    make = partial(R3MTransform, "resnet18", ["pixels"], size=32, weights=resnet("resnet18").state_dict())
    transform = make()
    assert not any(part.training for part in transform.train().encoder.modules())
    assert not any(parameter.requires_grad for parameter in transform.parameters())
    trained = make(requires_grad=True)
    trained(TensorDict({"pixels": IMAGES}, [4]))["r3m_vec"].sum().backward()
    assert trained.encoder.conv1.weight.grad is not None


@vision
def test_dtype_moves_with_the_transform() -> None:
    transform = R3MTransform("resnet18", ["pixels"], size=32, weights=resnet("resnet18").state_dict())
    env = TransformedEnv(IndependentRowsEnv((0, 1)), transform)
    assert env.observation_spec["r3m_vec"].dtype == transform.dtype == torch.float32
    transform.to(torch.float64)
    assert env.observation_spec["r3m_vec"].dtype == transform.dtype == torch.float64
    check_env_specs(env)


@vision
def test_the_encoder_moves_to_the_device_of_images() -> None:
    transform = R3MTransform("resnet18", ["pixels"], size=32, weights=resnet("resnet18").state_dict())
    assert transform(TensorDict({"pixels": IMAGES.to("meta")}, [4]))["r3m_vec"].device.type == "meta"
    assert transform.device.type == "meta"


@vision
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_encoder_follows_images_to_a_gpu_and_images_follow_the_encoder() -> None:
    transform = R3MTransform("resnet18", ["pixels"], size=32, weights=resnet("resnet18").state_dict())
    expected = transform(TensorDict({"pixels": IMAGES}, [4]))["r3m_vec"]
    on_gpu = transform(TensorDict({"pixels": IMAGES.cuda()}, [4]))["r3m_vec"]
    assert transform.device.type == on_gpu.device.type == "cuda"
    torch.testing.assert_close(on_gpu.cpu(), expected, rtol=1e-2, atol=1e-2)
    assert transform(TensorDict({"pixels": IMAGES}, [4]))["r3m_vec"].device.type == "cpu"
    base = SerialEnv(2, IndependentRowsEnv, device="cuda")
    env = TransformedEnv(base, transform.clone()).to("cuda")
    assert env.reset()["r3m_vec"].device.type == "cuda"


@vision
def test_weights_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    weights = resnet("resnet18").state_dict()
    with pytest.raises(StateError, match="Missing key"):
        R3MTransform("resnet34", ["pixels"], weights=weights)
    with pytest.raises(StateError, match="Missing key"):
        VIPTransform("resnet50", weights={"vip": {}})
    torch.save({"r3m": weights, "settings": Path("a")}, tmp_path / "model.pt")
    with pytest.raises(StateError, match="Expected a checkpoint with tensors and plain values only"):
        R3MTransform("resnet18", ["pixels"], weights=tmp_path / "model.pt")


@vision
def test_vip_reward_is_the_progress_towards_the_goal() -> None:
    transform = VIPRewardTransform("resnet50", size=32, weights=resnet("resnet50", 1024).state_dict())
    env = TransformedEnv(IndependentRowsEnv((0, 1)), transform)
    with pytest.raises(KeyError, match="goal_image"):
        env.reset()
    goals = IMAGES[:2, :6, :8]
    root = env.reset(TensorDict({"goal_image": goals}, [2]))
    rollout = env.rollout(6, auto_reset=False, tensordict=root, break_when_any_done=False)
    goal = transform._encode([goals])
    distances = [(td["vip_vec"] - goal[:, None]).norm(dim=-1, keepdim=True) for td in (rollout, rollout["next"])]
    assert_close(rollout["next", "reward"], distances[0] - distances[1])
    assert rollout["next", "reward"].shape == (2, 6, 1)
    assert rollout["next", "done"][:, :-1].any()  # with resets
    with pytest.raises(ValueError, match="Expected one of in_keys"):
        VIPRewardTransform("resnet50", ["a", "b"], weights=resnet("resnet50", 1024).state_dict())


@pytest.fixture(scope="module")
def weights() -> dict[str, dict[str, Tensor]]:
    return {"resnet18": resnet("resnet18").state_dict(), "resnet50": resnet("resnet50", 1024).state_dict()}


@vision
class TestPretrained(TransformConformance):
    tolerance = 1e-4
    num_interleavings = 1

    @pytest.fixture(autouse=True, params=["r3m", "vip reward", "vc1"])
    def _case(self, request: pytest.FixtureRequest, weights: dict[str, dict[str, Tensor]]) -> None:
        self.kind, self.weights = request.param, weights
        self.movable = self.kind == "r3m"  # of one kind only, because workers import torchvision for seconds

    def make(self) -> Transform:
        if self.kind == "r3m":
            return R3MTransform("resnet18", ["pixels"], size=16, weights=self.weights["resnet18"])
        if self.kind == "vc1":
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return VC1Transform(["pixels"], None, "default", del_keys=False)
        return VIPRewardTransform("resnet50", size=16, weights=self.weights["resnet50"])

    def base(self, ids: Any) -> EnvBase:
        if self.kind != "vip reward":
            return super().base(ids)
        primer = TensorDictPrimer(goal_image=Unbounded((6, 8, 3), dtype=torch.uint8), default_value=200)
        return TransformedEnv(super().base(ids), Compose(primer))
