"""Files that cannot be written: the error names the path, the previous file is kept, and no draft remains."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.security.limited_calls import LimitedCalls, Outcome

PATHS = {
    "checkpoint": "a.ckpt",
    "policy": "best.pt",
    "video": "video.pt",
    "open video": "video.pt",
    "recording": "run_tensordict.t",
    "scalars": "exp/scalars/loss.csv",
    "text": "exp/texts/note_0.txt",
    "histogram": "exp/histograms/weights_0.csv",
    "settings": "exp/texts/hparams0.txt",
    "logged video": "exp/videos/film_0.pt",
    "config": "config.yaml",
    "metrics": "metrics.csv",
    "curve": "learning-curve.png",
}
APPENDING = {"scalars", "metrics"}  # they add lines to the file
OLD = "0,0.5\n1,0.25\n"
OTHER_USER = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach, which the folders of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="vecrl-files-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def make_paths(folder: Path) -> dict[str, Path]:
    """Returns the path for each writer, in a folder of its own."""
    paths = {writer: folder / str(number) / name for number, (writer, name) in enumerate(PATHS.items())}
    for path in paths.values():
        path.parent.mkdir(parents=True)
    return paths


def save_all(limited: LimitedCalls, paths: dict[str, Path], wall_s: float = 10, **options: Any) -> dict[str, Outcome]:
    cases = [{"writer": writer, "path": str(path), **options} for writer, path in paths.items()]
    return dict(zip(paths, limited("save", cases, memory_mb=2000, cpu_s=5, wall_s=wall_s), strict=True))


def refusal_problem(outcome: Outcome, path: Path) -> str:
    """Returns what is wrong with an outcome that must be an error for this path; "" if nothing is."""
    is_error = "OSError" in outcome.error or "VecrlError" in outcome.error
    return "" if is_error and (str(path) in outcome.message or str(path.parent) in outcome.message) else str(outcome)


def check_kept(path: Path, writer: str) -> str:
    """Returns what is wrong with the folder of a file that must be as before; "" if nothing is."""
    others = [other.name for other in path.parent.iterdir() if other != path]
    if others:
        return f"additional files {others}"
    content = path.read_text(errors="replace") if path.exists() else "<no file>"
    kept = content.startswith(OLD) if writer in APPENDING else content == OLD
    return "" if kept else f"the previous file is lost, it contains {content[:40]!r} of {len(content)} characters"


def check(problems: dict[str, list[str]]) -> None:
    lines = [f"{writer}: {text}" for writer, texts in problems.items() for text in texts if text]
    assert not lines, "\n".join(["", *lines])


def test_every_writer_writes_its_file(limited: LimitedCalls, folder: Path) -> None:
    """The other tests of this file would not find a writer that fails for another reason, or writes elsewhere."""
    paths = make_paths(folder)
    outcomes = save_all(limited, paths)
    check({writer: [str(outcome) if outcome.error or outcome.status else ""] for writer, outcome in outcomes.items()})
    assert all(path.stat().st_size > 10_000 for path in paths.values())


def test_a_full_disk_keeps_the_previous_file(limited: LimitedCalls, folder: Path) -> None:
    """The process may write files of 8 kB only, as on a disk that is full then."""
    paths = make_paths(folder)
    for path in paths.values():
        path.write_text(OLD)
    outcomes = save_all(limited, paths, max_bytes=8192)
    check(
        {writer: [refusal_problem(outcomes[writer], path), check_kept(path, writer)] for writer, path in paths.items()}
    )


def test_a_full_device_is_an_error(limited: LimitedCalls, folder: Path) -> None:
    """Only writers that open the file itself; a link leads to the device, and no writer may replace it."""
    paths = {writer: path for writer, path in make_paths(folder).items() if writer in ("scalars", "text", "metrics")}
    for path in paths.values():
        path.symlink_to("/dev/full")
    outcomes = save_all(limited, paths)
    check({writer: [refusal_problem(outcome, paths[writer])] for writer, outcome in outcomes.items()})
    assert Path("/dev/full").is_char_device()


def test_a_folder_without_permission_is_an_error(limited: LimitedCalls, folder: Path) -> None:
    paths = make_paths(folder)
    for path in paths.values():
        path.write_text(OLD)
        path.chmod(0o444)
        path.parent.chmod(0o555)
    outcomes = save_all(limited, paths, user=None if os.geteuid() else OTHER_USER)
    check(
        {writer: [refusal_problem(outcomes[writer], path), check_kept(path, writer)] for writer, path in paths.items()}
    )
    for path in paths.values():
        path.parent.chmod(0o755)


def test_a_folder_that_vanished_is_an_error_or_made_again(limited: LimitedCalls, folder: Path) -> None:
    """Loggers and videos make the folders of their files."""
    paths = make_paths(folder)
    outcomes = save_all(limited, paths, without_folder=True)
    problems = {}
    for writer, path in paths.items():
        outcome = outcomes[writer]
        made_again = not outcome.error and not outcome.status and path.exists()
        draft = [other.name for other in path.parent.glob(".*")] if path.parent.exists() else []
        problems[writer] = ["" if made_again else refusal_problem(outcome, path), f"drafts {draft}" if draft else ""]
    check(problems)


def test_a_folder_of_that_name_is_an_error(limited: LimitedCalls, folder: Path) -> None:
    paths = make_paths(folder)
    for path in paths.values():
        path.mkdir()
        (path / "file").write_text(OLD)
    outcomes = save_all(limited, paths)
    problems = {}
    for writer, path in paths.items():
        others = [other.name for other in path.parent.iterdir() if other != path]
        kept = (path / "file").read_text() == OLD
        problems[writer] = [
            refusal_problem(outcomes[writer], path),
            f"additional files {others}" if others else "",
            "" if kept else "the folder changed",
        ]
    check(problems)


def test_a_pipe_is_an_error(limited: LimitedCalls, folder: Path) -> None:
    """No writer waits for a reader of the pipe, and none replaces it."""
    paths = make_paths(folder)
    for path in paths.values():
        os.mkfifo(path)
    outcomes = save_all(limited, paths, wall_s=3)
    problems = {}
    for writer, path in paths.items():
        others = [other.name for other in path.parent.iterdir() if other != path]
        problems[writer] = [
            refusal_problem(outcomes[writer], path),
            f"additional files {others}" if others else "",
            "" if path.is_fifo() else "the pipe was replaced",
        ]
    check(problems)


def test_a_full_disk_behind_a_link_keeps_the_link_and_the_file(limited: LimitedCalls, folder: Path) -> None:
    paths = make_paths(folder)
    target = folder / "target"
    target.mkdir()
    for number, path in enumerate(paths.values()):
        (target / str(number)).write_text(OLD)
        path.symlink_to(target / str(number))
    outcomes = save_all(limited, paths, max_bytes=8192)
    problems = {}
    for writer, path in paths.items():
        problems[writer] = [
            refusal_problem(outcomes[writer], path) and refusal_problem(outcomes[writer], path.resolve()),
            check_kept(path, writer),
            "" if path.is_symlink() else "the link was replaced",
        ]
    check(problems)
    assert sorted(target.iterdir()) == sorted(path.resolve() for path in paths.values())
