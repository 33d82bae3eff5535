"""Recorders in environments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.record import CSVLogger, PixelRenderTransform, TensorDictRecorder, VideoRecorder
from vecrl.specs import Bounded, Composite, Unbounded


class Screen(EnvBase):
    """Shows the number of steps of the episode as the shade of an image; an episode has 7 steps."""

    def __init__(self, batch_size: Any = (), channels_first: bool = True):
        super().__init__(batch_size=batch_size)
        self.image_shape = (3, 8, 10) if channels_first else (8, 10, 3)
        pixels = Bounded(0, 255, (*self.batch_size, *self.image_shape), dtype=torch.uint8)
        self.observation_spec = Composite(pixels=pixels, shape=self.batch_size)
        self.action_spec = Unbounded((*self.batch_size, 1))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.count = 0

    def _image(self) -> TensorDict:
        pixels = torch.full((*self.batch_size, *self.image_shape), 10 * self.count, dtype=torch.uint8)
        return TensorDict({"pixels": pixels}, self.batch_size)

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        self.count = 0
        return self._image()

    def _step(self, tensordict: Any) -> TensorDict:
        self.count += 1
        flags = torch.full((*self.batch_size, 1), self.count >= 7)
        return self._image().update({"reward": torch.zeros(*self.batch_size, 1), "done": flags})

    def _set_seed(self, seed: int | None) -> None: ...


def videos(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the videos `[T, 3, H, W]` in a folder."""
    paths = sorted((folder / "exp/videos").rglob("*.pt"))
    return {path.stem: torch.load(path, weights_only=True)[0] for path in paths}


def recording(tmp_path: Path, env: EnvBase, **options: Any) -> Any:
    logger = CSVLogger("exp", log_dir=str(tmp_path))
    return env.append_transform(VideoRecorder(logger, "run", **options))


def shades(video: torch.Tensor) -> list[int]:
    return video[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("channels_first", [True, False])
def test_resets_and_steps_are_recorded(tmp_path: Path, channels_first: bool) -> None:
    env = recording(tmp_path, Screen(channels_first=channels_first), skip=1)
    check_env_specs(env)
    env.transform.dump()
    data = env.rollout(10)
    assert data["next", "pixels"].shape[1:] == env.base_env.image_shape
    env.transform.dump()
    env.rollout(3)
    env.transform.dump(suffix="short", step=99)
    env.transform.dump()
    found = videos(tmp_path)
    assert list(found) == ["run_0", "run_1", "run_short_99"]
    assert found["run_1"].shape == (8, 3, 8, 10)
    assert shades(found["run_1"]) == [0, 10, 20, 30, 40, 50, 60, 70]
    assert shades(found["run_short_99"]) == [0, 10, 20, 30]


@pytest.mark.parametrize(("skip", "expected"), [(None, [10, 30, 50, 70]), (3, [20, 50])])
def test_images_are_skipped(tmp_path: Path, skip: int | None, expected: list[int]) -> None:
    env = recording(tmp_path, Screen(), skip=skip)
    env.rollout(10)
    env.transform.dump()
    assert shades(videos(tmp_path)["run_0"]) == expected


def test_close_writes_the_rest(tmp_path: Path) -> None:
    env = recording(tmp_path, Screen(), skip=1)
    env.rollout(2)
    env.close()
    assert shades(videos(tmp_path)["run_0"]) == [0, 10, 20]


@pytest.mark.parametrize("batch_class", [SerialEnv, ParallelEnv])
def test_recorders_inside_of_batches_dump_on_request(tmp_path: Path, batch_class: Any) -> None:
    makers = [partial(lambda name: recording(tmp_path / name, Screen(), skip=1), name) for name in "ab"]
    with batch_class(2, makers) as env:
        env.rollout(2)
        getattr(env, "transform.dump")()
        assert [shades(videos(tmp_path / name)["run_0"]) for name in "ab"] == [[0, 10, 20]] * 2


def test_batches_become_grids(tmp_path: Path) -> None:
    env = recording(tmp_path, Screen((3,)), skip=1)
    env.rollout(2)
    env.transform.dump()
    grid = videos(tmp_path)["run_0"]
    assert grid.shape == (3, 3, 16, 20)
    assert grid[2, 0, ::8, ::10].tolist() == [[20, 20], [20, 0]]


def test_batches_may_be_consecutive_frames(tmp_path: Path) -> None:
    env = recording(tmp_path, Screen((3,)), skip=1, make_grid=False, center_crop=4)
    env.rollout(1)
    env.transform.dump()
    video = videos(tmp_path)["run_0"]
    assert video.shape == (6, 3, 4, 4)
    assert shades(video) == [0, 0, 0, 10, 10, 10]


def test_stored_data_are_recorded(tmp_path: Path) -> None:
    recorder = VideoRecorder(CSVLogger("exp", log_dir=str(tmp_path)), "data")
    for shade in (0.0, 0.5, 1.0):
        recorder(TensorDict({"pixels": torch.full((3, 8, 8), shade)}))
    recorder.dump()
    assert shades(videos(tmp_path)["data_0"]) == [0, 128, 255]


def test_recorders_outside_and_inside_of_batches_give_the_same(tmp_path: Path) -> None:
    outside = recording(tmp_path / "outside", SerialEnv(2, Screen), skip=1)
    outside.rollout(4)
    outside.transform.dump()
    inside = ParallelEnv(2, lambda: recording(tmp_path / "inside", Screen(), skip=1))
    inside.rollout(4)
    inside.close()
    (grid,) = videos(tmp_path / "outside").values()
    for video in videos(tmp_path / "inside").values():
        torch.testing.assert_close(grid[:, :, :, :10], video)


def test_arguments_are_checked(tmp_path: Path) -> None:
    logger = CSVLogger("exp", log_dir=str(tmp_path))
    with pytest.raises(ValueError, match="Expected skip of 1 or more, got 0"):
        VideoRecorder(logger, "run", skip=0)
    with pytest.raises(ValueError, match="Expected one key of images"):
        VideoRecorder(logger, "run", in_keys=["a", "b"])
    with pytest.raises(ValueError, match="Expected skip of 1 or more, got 0"):
        TensorDictRecorder("file", skip=0)


# -- TensorDictRecorder


def test_tensordicts_are_saved(tmp_path: Path) -> None:
    base = str(tmp_path / "data/run")
    env = Screen((2,)).append_transform(TensorDictRecorder(base, skip=2))
    env.rollout(6)
    env.transform.dump()
    env.transform.dump(suffix="nothing")
    env.rollout(4)
    env.transform.dump(suffix="more")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["run_more_tensordict.t", "run_tensordict.t"]
    data = torch.load(f"{base}_tensordict.t", weights_only=False)
    assert data.batch_size == (3, 2)
    assert data["pixels"][:, 1, 0, 0, 0].tolist() == [20, 40, 60]
    assert data["reward"].dtype == torch.float32
    assert data["done"].tolist() == [[[False]] * 2] * 3
    assert len(torch.load(f"{base}_more_tensordict.t", weights_only=False)) == 2


def test_a_failed_dump_keeps_the_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = TensorDictRecorder(str(tmp_path / "run"), skip_reset=True, skip=1)
    env = Screen((2,)).append_transform(recorder)
    env.rollout(2)
    recorder.dump()
    [path] = tmp_path.iterdir()
    before = path.read_bytes()
    env.rollout(3)

    def fail(data: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        recorder.dump()
    assert [path] == [*tmp_path.iterdir()]
    assert path.read_bytes() == before
    monkeypatch.undo()
    recorder.dump()
    assert len(torch.load(path, weights_only=False)) == 3


def test_selected_keys_and_resets_are_saved(tmp_path: Path) -> None:
    base = str(tmp_path / "run")
    recorder = TensorDictRecorder(base, skip_reset=False, skip=1, in_keys=["pixels"])
    env = Screen().append_transform(recorder)
    env.rollout(2)
    recorder.dump()
    data = torch.load(f"{base}_tensordict.t", weights_only=False)
    assert list(data.keys()) == ["pixels"]
    assert data["pixels"][:, 0, 0, 0].tolist() == [0, 10, 20]


def test_other_objects_are_saved(tmp_path: Path) -> None:
    recorder = TensorDictRecorder(str(tmp_path / "run"), skip=1)
    for i in range(3):
        recorder(TensorDict(text=NonTensorData(f"t{i}"), nested=TensorDict(x=torch.tensor(i))))
    recorder.dump()
    data = torch.load(tmp_path / "run_tensordict.t", weights_only=False)
    assert data["nested", "x"].tolist() == [0, 1, 2]
    assert data["text"] == ["t0", "t1", "t2"]


# -- PixelRenderTransform


def cartpole() -> GymEnv:
    return GymEnv("CartPole-v1", render_mode="rgb_array")


def test_rendered_images_are_added() -> None:
    env = cartpole().append_transform(PixelRenderTransform())
    check_env_specs(env)
    assert env.observation_spec["pixels"].shape == (400, 600, 3)
    env.set_seed(0)
    data = env.rollout(3)
    assert data["pixels"].dtype == torch.uint8
    assert data["next", "pixels"].shape == (3, 400, 600, 3)
    np.testing.assert_array_equal(data["next", "pixels"][-1], env.render())
    torch.testing.assert_close(data["pixels"][1:], data["next", "pixels"][:-1])


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_batches_are_rendered(batch: Any) -> None:
    inside = batch(2, lambda: cartpole().append_transform(PixelRenderTransform()))
    outside = batch(2, cartpole).append_transform(PixelRenderTransform())
    for env in (inside, outside):
        check_env_specs(env)
        env.set_seed(0)
    torch.testing.assert_close(
        inside.rollout(3, lambda td: td.set("action", torch.tensor([[0, 1]] * 2)))["pixels"],
        outside.rollout(3, lambda td: td.set("action", torch.tensor([[0, 1]] * 2)))["pixels"],
    )
    for env in (inside, outside):
        env.close()


def test_images_are_preprocessed_and_may_be_other_objects() -> None:
    env = cartpole().append_transform(
        PixelRenderTransform(out_keys=["image"], preproc=lambda image: torch.tensor(image.copy()).permute(2, 0, 1))
    )
    assert env.rollout(2)["image"].shape == (2, 3, 400, 600)
    env = cartpole().append_transform(PixelRenderTransform(as_non_tensor=True))
    assert env.reset()["pixels"].shape == (400, 600, 3)


def test_rendering_is_switched_off() -> None:
    env = cartpole().append_transform(PixelRenderTransform())
    env.transform.switch("off")
    assert "pixels" not in env.rollout(2)
    assert "pixels" not in env.observation_spec
    env.transform.switch()
    assert "pixels" in env.rollout(2)
    with pytest.raises(ValueError, match="Expected mode 'on', 'off', a bool or None"):
        env.transform.switch("sometimes")


@pytest.mark.filterwarnings("ignore:.*You are calling render method:UserWarning")
def test_environments_without_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected an environment that renders images, got None\. Make it with"):
        GymEnv("CartPole-v1").append_transform(PixelRenderTransform()).reset()
    with pytest.raises(RuntimeError, match="Expected PixelRenderTransform in an environment, got stored data"):
        PixelRenderTransform()(TensorDict())


class Calls:
    """A logger of another library: an object with `log_video`."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log_video(self, name: str, video: torch.Tensor, step: int | None = None, **options: Any) -> None:
        self.calls.append((name, video, step, options))


def test_any_logger_with_log_video_gets_the_frames() -> None:
    logger = Calls()
    env = Screen((2,)).append_transform(VideoRecorder(logger, "run", skip=1, fps=7))
    env.rollout(2)
    assert [tuple(frame.shape) for frame in env.transform.obs] == [(3, 8, 20)] * 3
    env.transform.dump()
    env.transform.dump()
    env.rollout(1)
    env.transform.dump(suffix="late", step=9)
    found = [(name, tuple(video.shape), video.dtype, step, options) for name, video, step, options in logger.calls]
    fps = {"fps": 7}
    assert found == [
        ("run", (1, 3, 3, 8, 20), torch.uint8, 0, fps),
        ("run_late", (1, 2, 3, 8, 20), torch.uint8, 9, fps),
    ]
    assert shades(logger.calls[0][1][0]) == [0, 10, 20]
    assert env.transform.obs == []


def test_frames_are_held_without_a_logger() -> None:
    recorder = VideoRecorder(None, skip=1)
    env = Screen(channels_first=False).append_transform(recorder)
    check_env_specs(env)
    recorder.dump()
    assert recorder.obs == []
    env.rollout(3)
    env.close()
    assert shades(torch.stack(recorder.obs)) == [0, 10, 20, 30]
    assert recorder.obs[0].dtype == torch.uint8


def test_frames_become_an_animation(tmp_path: Path) -> None:
    from PIL import Image

    recorder = VideoRecorder(None, skip=1)
    Screen().append_transform(recorder).rollout(3)
    animation = recorder.to_animation(title="run", interval=100)
    assert len(recorder.obs) == 4
    animation.save(tmp_path / "run.gif", writer="pillow")
    with Image.open(tmp_path / "run.gif") as image:
        assert getattr(image, "n_frames", 1) == 4
    recorder.to_animation(clear=True).save(tmp_path / "again.gif", writer="pillow")
    assert recorder.obs == []
    with pytest.raises(ValueError, match=r"Expected frames in obs, got none\. Step the environment"):
        recorder.to_animation()


def test_animations_need_frames_and_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = recording(tmp_path, Screen(), skip=1)
    env.rollout(1)
    with pytest.raises(ValueError, match="Use logger=None to hold them"):
        env.transform.to_animation()
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.animation", None)
    with pytest.raises(ImportError, match="Expected matplotlib for animations, got none"):
        env.transform.to_animation()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("logs", "run"), TypeError, "Expected a logger with log_video, or None, got str"),
        ((Calls(), None), TypeError, "Expected a tag as text"),
        ((Calls(), "run", None, None, None, None, None, -1), ValueError, "Expected fps to be a finite number above 0"),
        ((None, None, None, None, None, None, None, float("nan")), ValueError, "Expected fps to be a finite number"),
    ],
)
def test_wrong_arguments_of_a_recorder_are_refused(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        VideoRecorder(*arguments)
