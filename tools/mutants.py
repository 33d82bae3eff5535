"""Shows that the tests find defects: puts one small defect at a time into a copy of the source, and runs tests on it.

    python tools/mutants.py [CHECKOUT]

Prints for each defect whether the tests failed, and exits with 1 if they did not. CHECKOUT is that of another commit;
without it, this one is taken. A defect is "absent" where another commit does not have its text. Run it before and after
tests are removed or run less often. It takes minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GROUPS = "not simulators and not unity and not genesis and not mjlab and not old_pythons and not brax_v1"
MARKS = (
    f"{GROUPS} and not packages and not ray and not peers and not torchrl and not loggers and not vision "
    "and not language"
)


class Mutant(NamedTuple):
    """A defect: in `file`, `old` becomes `new`, which some test in `tests` should find."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant("engine/transition.py", "self.terminated | self.truncated", "self.terminated", ("engine", "vector")),
    Mutant("engine/pending.py", "since < before", "since > before", ("engine", "faults")),
    Mutant("engine/env_index.py", ".max() >= self.num_envs", ".max() > self.num_envs", ("engine", "venv")),
    Mutant("engine/worker.py", "[index] = buffers.truncated[index] = False", "[index] = False", ("engine", "faults")),
    Mutant("engine/infos.py", "batch.start + offset", "offset", ("engine", "vector")),
    Mutant("simulators/gymnasium/simulator.py", "= terminated, truncated\n", "= terminated, False\n", ("vector",)),
    Mutant("simulators/native/cartpole.py", ") | (abs(state[2])", ") & (abs(state[2])", ("simulators/native",)),
    Mutant(
        "simulators/native/mountain_car.py", "(position <= MIN_POSITION)", "(position < -9)", ("simulators/native",)
    ),
    Mutant("seeding.py", "word >> np.uint64(32)", "word >> np.uint64(31)", ("test_seeding.py", "frozen")),
    Mutant("running_stats.py", "_at_least_one(self._count) +", "self._count +", ("test_running_stats.py",)),
    Mutant("vector/reset_masks.py", "leaf[ids] = new", "leaf[ids] = new[::-1]", ("vector",)),
    Mutant("venv/base.py", "wait_num < env_num)", "wait_num <= env_num)", ("venv",)),
    Mutant("policy/obs_norm.py", "self.stats.var * self.count", "self.stats.var", ("policy",)),
    Mutant("policy/population_search.py", "(counts + 1) / 2", "counts / 2", ("policy",)),
    Mutant("specs/domains.py", "<= self.high.to(val.device))", "< self.high.to(val.device))", ("specs",)),
    Mutant("specs/domains.py", "(index < counts)", "(index <= counts)", ("specs",)),
    Mutant("envs/entries/step_mdp.py", "name not in skip_overlay and (", "(", ("envs/test_step_mdp_rules.py",)),
    Mutant("envs/transforms/counters.py", "count >= self.max_steps", "count > self.max_steps", ("envs/transforms",)),
    Mutant("envs/transforms/rewards.py", "return (value > 0)", "return (value >= 0)", ("envs/transforms",)),
    Mutant("envs/transforms/frames.py", "source < start_indices", "source <= start_indices", ("envs/transforms",)),
    # steps in one process, and rollouts over records
    Mutant("engine/worker.py", "[actions[row] for row in rows]", "actions[: len(rows)]", ("engine/test_pool.py",)),
    Mutant("simulators/gymnasium/simulator.py", "reward = 0.0", "reward = 1.0", ("engine/test_pool.py",)),
    Mutant(
        "envs/rollouts/rollout.py",
        "(loop.is_done and not stop_rule.never_stops)",
        "False",
        ("envs/test_rollout_rules.py", "envs/test_rollout_fast_paths.py"),
    ),
]


def is_found(mutant: Mutant, checkout: Path, folder: Path) -> bool | None:
    """Returns whether a test fails on a copy of the source with the defect, which is made in `folder`; None if absent.

    Raises:
        SystemExit: the file in this checkout does not have the text of the mutant just once, or no test ran.
    """
    source = folder / "vecrl"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(checkout / "src" / "vecrl", source)
    path = source / mutant.file
    text = path.read_text() if path.exists() else ""
    if text.count(mutant.old) != 1:
        if checkout != ROOT:
            return None
        sys.exit(f"Expected {mutant.file} to have {mutant.old!r} once, got {text.count(mutant.old)} times.")
    path.write_text(text.replace(mutant.old, mutant.new))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    paths = [str(checkout / "tests" / path) for path in mutant.tests]
    options = [
        "-q",
        "-x",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-m",
        MARKS,
        "--deselect",
        "tests/frozen/test_signatures.py",
    ]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    code = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=False).returncode
    if code not in (0, 1, 2):  # passed, failed, or failed while tests were collected
        sys.exit(f"pytest ended with {code}: {' '.join(command)}")
    return code != 0


def main(checkout: Path) -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, mutant in enumerate(MUTANTS, 1):
            found = is_found(mutant, checkout, Path(folder))
            missed += found is False
            text = f"{mutant.old.strip()} -> {mutant.new.strip()}"
            result = "absent" if found is None else "found " if found else "MISSED"
            print(f"{number:2} {result} {mutant.file}: {text}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).resolve()))
