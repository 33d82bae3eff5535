"""Finds phrases that the style of this project forbids, in prose and in names.

    python tools/language_lint.py                      checks everything; prints one line per use
    python tools/language_lint.py src/vecrl/engine     checks one package
    python tools/language_lint.py --count              prints the number of uses in each package

It reads comments, strings (docstrings and messages) and names in Python files, and the whole text of other files. Names
are split into words: `begin_anew` contains "anew", and so does `BeginAnew`. A phrase may cross the end of a line or the
border between adjacent string literals. Quotations are skipped: block quotes in Markdown, and lines that contain
"lint: quote".
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples", "tools", "docs")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "mkdocs.yml", ".ci/run")
ABOUT_PHRASES = ("tools/language_lint.py", "tests/test_language_lint.py")  # they contain the phrases
GENERATED = ("benchmarks/results/",)
MARK = "lint: quote"

# Regular expressions; a space matches any white space, or underscores.
PHRASES = (
    "anew",
    "begun",
    "beg[ai]n(s|ning)? again",
    "who",
    "whom",
    "whose",
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    "told",
    "t(ells?|old) of",
    "ma(de|kes?) good",
    "mend(s|ed|ing)?",
    "left out",
    "under way",
    "what is late",
    "c[oa]mes? to an end",
    "st(ands?|ood) on",
    "h(angs?|ung) on",
    "puts? by",
    "likewise",
    "for good",
    "of its own accord",
    "as it is",
    "there (is|was) nothing to",
    # British spelling; "cancelled" is that of asyncio
    "cent(re|red|res|ring)",
    "labelled",
    "(behavi|col|fav|neighb)ours?",
    "(normali|initiali|optimi|seriali|randomi|organi|recogni|summari|minimi|maximi|utili|vectori)s(e|ed|er|es|ing)",
    # metaphors
    "arenas?",
    "crews?",
    "in flight",
    "freights?",
    "nursery",
    "rosters?",
    "tenants?",
    "zygotes?",
)
VAGUE_NAMES = ("some", "told", "tried", "unlike", "whom")  # participles and pronouns, of functions and classes
_ANY = "|".join(PHRASES).replace(" ", r"[\s_]+")
_FORBIDDEN = re.compile(rf"(?<![^\W_])({_ANY})(?![^\W_])", re.IGNORECASE)
_COMPARISON = re.compile(r"\b(far|long|many|much|often|soon|well)[\s_]+$", re.IGNORECASE)  # "as long as it is open"
_BUT_CAME = re.compile(r"\bbut\b[^.]*?\b(came)\b")  # messages say "Expected ..., got ..."
_ESCAPES = re.compile(r"\\[nrt]")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OPENING = re.compile(r"""^[a-zA-Z]*('''|\"\"\"|'|")""")
_STRINGS = {tokenize.STRING, *(getattr(tokenize, f"FSTRING_{part}", -1) for part in ("START", "MIDDLE", "END"))}
_BETWEEN = {tokenize.NL, tokenize.COMMENT}


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """One use of a forbidden phrase."""

    path: str
    line: int
    phrase: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}"


@dataclass(slots=True)
class Text:
    """Pieces of a file that form one text, with the line of each."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, piece: str, line: int) -> None:
        """Appends a piece; splits it into lines."""
        for number, part in enumerate(piece.splitlines(keepends=True)):
            self.pieces.append(part)
            self.lines.append(line + number)

    def uses(self) -> Iterator[tuple[int, str]]:
        """Yields the line and the words of each forbidden phrase."""
        text, starts = "".join(self.pieces), [0]
        for piece in self.pieces:
            starts.append(starts[-1] + len(piece))
        found = [
            (match.start(), match.group())
            for match in _FORBIDDEN.finditer(text)
            if not (match.group().lower().startswith("as") and _COMPARISON.search(text, 0, match.start()))
        ]
        if self.kind == "string":
            found += [(match.start(1), "but ... came") for match in _BUT_CAME.finditer(text)]
        if self.kind == "vague name":
            found = [(0, text.strip("_"))]
        for start, phrase in sorted(found):
            yield self.lines[bisect_right(starts, start) - 1], " ".join(re.split(r"[\s_]+", phrase))


def uses_in(path: str, source: str) -> list[Use]:
    """Finds the forbidden phrases in a file.

    Args:
        path: its name in the result; ".py" files are read as Python, others as Markdown.
        source: its text.

    Returns:
        The uses, sorted by line.
    """
    quoted = {number for number, line in enumerate(source.splitlines(), 1) if MARK in line}
    texts = _python_texts(source) if path.endswith(".py") else [_markdown_text(source)]
    found = {(line, phrase, index) for text in texts for index, (line, phrase) in enumerate(text.uses())}
    return sorted(Use(path, line, phrase) for line, phrase, _ in found if line not in quoted)


def _python_texts(source: str) -> Iterator[Text]:
    """Yields adjacent comments as one text, adjacent strings as one text, and each name."""
    comments, strings, last_name = Text("comment"), Text("string"), ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, string, (line, _), *_ = token
        if kind == tokenize.COMMENT:
            if comments.lines and comments.lines[-1] < line - 1:
                yield comments
                comments = Text("comment")
            comments.add(string.lstrip("#") + "\n", line)
        if kind in _STRINGS:
            strings.add(_strip_quotes(string) if kind == tokenize.STRING else string, line)
        elif kind not in _BETWEEN and strings.pieces:
            yield strings
            strings = Text("string")
        if kind == tokenize.NAME:
            vague = last_name in ("def", "class") and string.strip("_").lower() in VAGUE_NAMES
            yield Text("vague name" if vague else "name", [_CAMEL.sub("_", string)], [line])
            last_name = string
    yield from (comments, strings)


def _strip_quotes(string: str) -> str:
    """Returns the text between the quotes, with escapes as spaces."""
    opening = _OPENING.match(string)
    if opening is None:
        return string
    return _ESCAPES.sub("  ", string[opening.end() : -len(opening.group(1))])


def _markdown_text(source: str) -> Text:
    text = Text("text")
    for number, line in enumerate(source.splitlines(), 1):
        text.add("\n" if line.lstrip().startswith(">") else line + "\n", number)
    return text


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Returns the files among `paths`, and the Python and Markdown files in folders among them, sorted.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found |= {*path.rglob("*.py"), *path.rglob("*.md")}
        elif path.is_file():
            found.add(path)
        else:
            raise FileNotFoundError(f"Expected a file or a folder, got {path}. Give paths that exist.")
    return sorted(
        p for p in found if _display_path(p) not in ABOUT_PHRASES and not _display_path(p).startswith(GENERATED)
    )


def _display_path(path: Path) -> str:
    full = path.resolve()
    return str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else str(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the uses; returns 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; default: everything")
    parser.add_argument("--count", action="store_true", help="print only the number of uses in each package")
    options = parser.parse_args(argv)
    paths = options.paths or [ROOT / name for name in (*FOLDERS, *FILES) if (ROOT / name).exists()]
    uses = [use for path in files_in(paths) for use in uses_in(_display_path(path), path.read_text())]
    if options.count:
        packages = Counter(str(Path(use.path).parent) for use in uses)
        lines = [f"{count:6} {package}" for package, count in sorted(packages.items())]
        print("\n".join([*lines, f"{len(uses):6} in all"]))
    else:
        print("\n".join(map(str, uses)))
    return int(bool(uses))


if __name__ == "__main__":
    sys.exit(main())
