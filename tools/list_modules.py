"""Lists the modules of vecrl with the first sentence of each docstring, for docs/architecture.md and the terminal.

    python tools/list_modules.py

It is also a hook of mkdocs: the lists take the place of the line `<!-- modules -->` on a page, and README.md that of
the line `<!-- README -->`.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "vecrl"
MARKER = "<!-- modules -->"
README_MARKER = "<!-- README -->"


def first_sentence(path: Path) -> str:
    """Returns the first sentence of a module's docstring, on one line, or "" if there is no docstring."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].removesuffix(".").removesuffix(":")


def list_modules() -> str:
    """Returns a heading and a table for each folder of modules, in Markdown."""
    folders: dict[Path, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "__init__.py":
            folders.setdefault(path.parent, []).append(path)
    lines: list[str] = []
    for folder, paths in sorted(folders.items()):
        lines += [f"### `{folder.relative_to(SOURCE.parent)}/`", "", "| module | for |", "|---|---|"]
        lines += [f"| `{path.stem}` | {first_sentence(path).replace('|', chr(92) + '|')} |" for path in paths]
        lines.append("")
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Is called by mkdocs for each page."""
    if README_MARKER in markdown:
        readme = (ROOT / "README.md").read_text().replace("](docs/", "](")  # links are relative to the page
        markdown = markdown.replace(README_MARKER, readme)
    return markdown.replace(MARKER, list_modules()) if MARKER in markdown else markdown


if __name__ == "__main__":
    print(list_modules())
