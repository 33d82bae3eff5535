"""Writes the table of TorchRL's names in docs/from-torchrl.md, from the public names of the installed TorchRL.

    python tools/torchrl_names.py            writes the table
    python tools/torchrl_names.py --check    fails if the table of the page differs

Run it where TorchRL is installed beside vecrl.
"""

import argparse
import importlib
import sys
import warnings
from pathlib import Path

from vecrl.envs.aliases import ABSENT

PAGE = Path(__file__).parents[1] / "docs" / "from-torchrl.md"
START, END = "<!-- names of TorchRL: written by tools/torchrl_names.py -->", "<!-- end of the names -->"

# TorchRL's module, and vecrl's with the same names. Later ones list only names that earlier ones have not.
MODULES = {
    "torchrl.envs": "vecrl.envs",
    "torchrl.envs.transforms": "vecrl.envs.transforms",
    "torchrl.envs.utils": "vecrl.envs.utils",
    "torchrl.envs.libs": "vecrl.envs.libs",
    "torchrl.envs.libs.gym": "vecrl.envs.libs.gym",
    "torchrl.envs.custom": "vecrl.envs.custom",
    "torchrl.envs.model_based": "vecrl.envs.model_based",
    "torchrl.data": "vecrl.specs",  # its specs only
    "torchrl.record": "vecrl.record",
}


def names_of(module: str) -> list[str]:
    """Returns the public names of a module of TorchRL, sorted; of `torchrl.data` those of specs."""
    found = importlib.import_module(module)
    if module == "torchrl.data":
        spec = found.TensorSpec
        return sorted(
            name for name, value in vars(found).items() if isinstance(value, type) and issubclass(value, spec)
        )
    return sorted(found.__all__)


def place_of(name: str) -> str | None:
    """Returns the first module of vecrl that has the name."""
    return next((ours for ours in MODULES.values() if hasattr(importlib.import_module(ours), name)), None)


def table() -> str:
    """Returns the table as Markdown.

    Raises:
        SystemExit: a name is neither there nor listed in `vecrl.envs.aliases.ABSENT`.
    """
    rows, unexplained, seen = [], [], set()
    for theirs, ours in MODULES.items():
        present, elsewhere = [], []
        for name in names_of(theirs):
            if name in ABSENT:
                continue
            place = ours if hasattr(importlib.import_module(ours), name) else place_of(name)
            if place is None:
                unexplained.append(name)
            elif place != ours:
                elsewhere.append(f"`{name}` (`{place}`)")
            elif name not in seen:
                present.append(f"`{name}`")
            seen.add(name)
        rows.append(f"| `{theirs}` | `{ours}` | {', '.join(present) or '–'} | {', '.join(elsewhere) or '–'} |")
    if unexplained:
        sys.exit(f"Expected every name in vecrl, or else in ABSENT with its reason, got {sorted(set(unexplained))}.")
    reasons: dict[str, list[str]] = {}
    for name, reason in sorted(ABSENT.items()):
        reasons.setdefault(reason, []).append(f"`{name}`")
    return "\n".join(
        [
            "| TorchRL | vecrl | names in both; those of an earlier row are not repeated | names that are elsewhere |",
            "|---|---|---|---|",
            *rows,
            "",
            "| can be imported, but raises when it is used | why, and what to use |",
            "|---|---|",
            *(f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()),
        ]
    )


def page_with(table: str) -> str:
    """Returns the page with the given table."""
    before, rest = PAGE.read_text().split(START)
    return f"{before}{START}\n\n{table}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the table of the page differs")
    check = parser.parse_args().check
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page = page_with(table())
    if check and page != PAGE.read_text():
        sys.exit("The names in docs/from-torchrl.md differ. Run tools/torchrl_names.py.")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
