"""Which policy `vecrl evolve` keeps: the one with the best test, also if the run is resumed or interrupted."""

import re
from itertools import pairwise

import pytest
import torch
from matplotlib.image import imread
from tests.cli.test_evolve import plain, rows

from vecrl import checkpoint
from vecrl.cli.evolve import Evolution
from vecrl.cli.selection import Selection
from vecrl.policy.saved_policy import SavedPolicy

NOISY = ["evolve", "Odd/Noisy-v0", "--network", "Linear(obs_length, 1)", "--no-obs-norm", "--popsize", 6, "--no-video"]
NOISY += ["--test-episodes", 5, "--seed", 3]
GREEN = torch.tensor([0x23, 0x8B, 0x45]) / 255  # of tests on the learning curve


@pytest.fixture
def noisy(vecrl, odd, tmp_path):
    """Returns a function that calls `evolve` on Odd/Noisy-v0 and returns its output and the folder."""

    def call(*arguments):
        parent = tmp_path / str(len(list(tmp_path.iterdir())))
        return vecrl(*NOISY, *arguments, "--out", parent), parent / "Odd-Noisy-v0-1"

    return call


def quality(folder):
    """Returns the mean return of best.pt without the noise, which is the same in all tests of a run."""
    with torch.no_grad():
        return -abs(float(SavedPolicy.load(folder / "best.pt").module()(torch.ones(1)).clamp(-1, 1)) - 0.5)


def interrupt(monkeypatch, owner, method, call):
    """Raises KeyboardInterrupt at the end of the n-th call of a method."""
    calls, original = [], getattr(owner, method)

    def interrupted(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, method, interrupted)


def test_resuming_never_makes_the_best_policy_worse(noisy, vecrl):
    answer, folder = noisy("--generations", 1, "--seed", 4)
    assert answer.code == 0, answer.out
    found = [(quality(folder), SavedPolicy.load(folder / "best.pt").mean_return)]
    for generations in (2, 4, 6, 8):
        assert vecrl("evolve", "--resume", folder, "--generations", generations).code == 0
        found.append((quality(folder), SavedPolicy.load(folder / "best.pt").mean_return))
    assert found == sorted(found)
    assert found[-1] > found[0]
    assert found[-1][1] == pytest.approx(max(row["test"] for row in rows(folder)))


@pytest.mark.parametrize("lose", [lambda best: None, lambda best: best.unlink(), lambda best: best.write_text("x")])
def test_resuming_a_finished_run_leaves_its_best_policy(noisy, vecrl, lose):
    _, folder = noisy("--generations", 6, "--test-every", 2)
    before, lines = (folder / "best.pt").read_bytes(), rows(folder)
    lose(folder / "best.pt")
    assert vecrl("evolve", "--resume", folder).code == 0
    assert (folder / "best.pt").read_bytes() == before
    assert rows(folder) == lines


def test_best_policy_of_earlier_generations_is_kept(noisy):
    """The center walks at random here, so its best test is seldom the last one."""
    _, folder = noisy("--generations", 12, "--test-every", 1, "--algorithm", "pgpe-clipup")
    tests = [row["test"] for row in rows(folder)]
    assert max(tests) > tests[-1]
    assert SavedPolicy.load(folder / "best.pt").mean_return == pytest.approx(max(tests))


def test_reported_result_uses_episodes_not_used_for_selection(noisy):
    answer, folder = noisy("--generations", 4, "--test-every", 2)
    found = re.search(
        r"best\.pt: mean return (\S+) over 5 fresh episodes \((\S+) in the test after generation (\d)", answer.out
    )
    best = SavedPolicy.load(folder / "best.pt")
    assert float(found[2]) == pytest.approx(best.mean_return, rel=1e-4)
    assert rows(folder)[int(found[3]) - 1]["test"] == pytest.approx(best.mean_return)
    assert abs(float(found[1]) - float(found[2])) > 0.1, "the same noise is in both"


def test_interrupted_runs_report_the_best_test(noisy, vecrl, monkeypatch):
    _, complete = noisy("--generations", 6, "--test-every", 2)
    with monkeypatch.context() as patch:
        interrupt(patch, Evolution, "advance", 4)
        answer, folder = noisy("--generations", 6, "--test-every", 2)
    assert answer.code == 130
    best = SavedPolicy.load(folder / "best.pt")
    text = f"best.pt: mean return {best.mean_return:.5g} in the test after generation 2 (5 episodes), after 3"
    assert text in answer.out
    assert rows(folder) == rows(complete)[:3]
    assert vecrl("evolve", "--resume", folder).code == 0
    assert rows(folder) == rows(complete)
    assert (folder / "best.pt").read_bytes() == (complete / "best.pt").read_bytes()


def test_interrupts_during_a_test_restore_the_last_complete_generation(noisy, vecrl, monkeypatch):
    _, complete = noisy("--generations", 4, "--test-every", 2)
    with monkeypatch.context() as patch:
        interrupt(patch, Selection, "test", 2)
        answer, folder = noisy("--generations", 4, "--test-every", 2)
    assert answer.code == 130
    assert "in the test after generation 2 (5 episodes), after 3 generations" in answer.out
    assert len(rows(folder)) == 3
    assert vecrl("evolve", "--resume", folder).code == 0
    assert rows(folder) == rows(complete)


def test_interrupts_before_the_first_test_are_reported(noisy, monkeypatch):
    interrupt(monkeypatch, Evolution, "advance", 3)
    answer, folder = noisy("--generations", 6, "--test-every", 5)
    assert answer.code == 130
    assert "No policy was tested yet: best.pt holds the center of the search, after 2 generations" in answer.out
    best, state = SavedPolicy.load(folder / "best.pt"), checkpoint.load(folder / "state.ckpt")["run"]
    assert best.mean_return is None
    assert torch.equal(best.parameters, state["search"]["center"])


def test_tests_appear_in_metrics_and_learning_curve(noisy, monkeypatch):
    answer, folder = noisy("--generations", 5, "--test-every", 2)
    assert answer.code == 0
    lines = (folder / "metrics.csv").read_text().splitlines()
    assert lines[0].endswith(",test")
    assert [bool(line.split(",")[-1]) for line in lines[1:]] == [False, True, False, True, True]
    assert has_tests(folder)
    interrupt(monkeypatch, Evolution, "advance", 3)
    _, untested = noisy("--generations", 5, "--test-every", 4)
    assert not has_tests(untested)


def has_tests(folder):
    image = torch.from_numpy(imread(folder / "learning-curve.png"))[..., :3]
    return bool((image - GREEN).abs().amax(-1).lt(0.01).any())


def test_tests_take_a_tenth_of_the_steps_by_default(noisy):
    _, folder = noisy("--generations", 80, "--test-episodes", 10)
    tested = [row["generation"] for row in rows(folder)[:-1] if row["test"] > -torch.inf]
    assert len(tested) >= 2
    assert tested[0] == 10
    assert min(after - before for before, after in pairwise(tested)) >= 10
    selection, steps = checkpoint.load(folder / "state.ckpt")["run"]["selection"], rows(folder)[-1]["steps"]
    assert len(tested) * 10 <= selection["steps"] <= 0.1 * steps + 20


def test_changing_test_episodes_retests_the_best_policy(noisy, vecrl):
    _, folder = noisy("--generations", 2, "--test-episodes", 1, "--seed", 2)
    before, found = SavedPolicy.load(folder / "best.pt"), [quality(folder)]
    assert vecrl("evolve", "--resume", folder, "--test-episodes", 50).code == 0
    after = SavedPolicy.load(folder / "best.pt")
    found.append(quality(folder))
    assert after.mean_return < before.mean_return - 1, "one lucky episode, which no policy would reach again"
    assert vecrl("evolve", "--resume", folder, "--generations", 20, "--test-every", 2).code == 0
    found.append(quality(folder))
    assert found[2] > found[1] >= found[0]


def test_testing_the_best_member_can_reach_the_target(vecrl, tmp_path):
    """In CartPole, members balance the pole before the center and the mean do."""
    arguments = ["evolve", "native::CartPole-v1", "--seed", 1, "--max-steps", 200, "--no-video", "--out", tmp_path]
    answer = vecrl(*arguments, "--stop-at", 190, "--test-episodes", 10, "--test-every", 3, "--generations", 30)
    assert "Solved" in answer.out
    last = rows(tmp_path / "native-CartPole-v1-1")[-1]
    assert last["test"] >= 190 > max(last["center"], last["mean"])


def test_final_test_of_a_run_does_not_change_later_tests(noisy, vecrl):
    (_, complete), (_, parts) = (noisy("--generations", count, "--test-every", 2) for count in (5, 3))
    assert vecrl("evolve", "--resume", parts, "--generations", 5).code == 0
    lines = rows(complete), rows(parts)
    assert lines[1][2].pop("test") > lines[0][2].pop("test") == -torch.inf
    assert lines[0] == lines[1]
    once, twice = (plain(checkpoint.load(folder / "state.ckpt")["run"]["selection"]) for folder in (complete, parts))
    for name in ("luckiest", "tested_at", "steps"):
        assert once[name] == twice[name]
    assert quality(parts) >= quality(complete)
