"""The lint of the project's language finds forbidden phrases in comments, strings, names and Markdown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.language_lint import PHRASES, files_in, main, uses_in


def lines(path: str, source: str) -> list[tuple[int, str]]:
    return [(use.line, use.phrase) for use in uses_in(path, source)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("# made anew\n", [(1, "anew")]),
        ("x = 1  # nobody\n", [(1, "nobody")]),
        ("# this is under\n# way now\n", [(1, "under way")]),
        ("# this is under\n\n# way\n", []),
        ('"""Says\n\nwhat stands\n    on it."""\n', [(3, "stands on")]),
        ("def test_who_is_told(): ...\n", [(1, "told"), (1, "who")]),
        ("class MadeGood: ...\n", [(1, "Made Good")]),
        ("value.begun = 3\n", [(1, "begun")]),
        ("whoami = retold = mender = 1\n", []),
        ("# a mended one, of its own  accord\n", [(1, "mended"), (1, "of its own accord")]),
        ("raise E('The worker begins again.')\n", [(1, "begins again")]),
        ("raise E('Left out')\n", [(1, "Left out")]),
        ("f'it is {told!r} likewise'\n", [(1, "likewise"), (1, "told")]),
        ("'first\\nanew'\n", [(1, "anew")]),
        ("# Expected a worker, got a process.\n", []),
        ("# as long\n# as it is open, as soon as it is closed\n", []),
        ("# stays as it is\n", [(1, "as it is")]),
        ("def _told_(): ...\nclass Unlike: ...\nsome = tried\n", [(1, "told"), (2, "Unlike")]),
        ("arena_size = in_flight = tenant\n", [(1, "arena"), (1, "in flight"), (1, "tenant")]),
    ],
)
def test_python(source: str, found: list[tuple[int, str]]) -> None:
    assert lines("a.py", source) == found


def test_strings_that_follow_each_other_are_one() -> None:
    source = 'raise E(\n    f"Expected an int, but {x!r} "  # why\n    f"came: left "\n    "out."\n)\n'
    assert lines("a.py", source) == [(3, "but ... came"), (3, "left out")]
    assert lines("a.py", 'f("but this", "came")\n') == []
    assert lines("a.py", 'f("But. It came")\n') == []


def test_toml_is_read_as_text() -> None:
    assert lines("a.toml", "x = 1  # nobody\n") == [(1, "nobody")]


def test_markdown_but_no_block_quotes() -> None:
    source = "# Title\n\nIt comes to\nan end.\n\n> Whoever reads this.\n\n```python\nx = 1  # anew\n```\n"
    assert lines("a.md", source) == [(3, "comes to an end"), (9, "anew")]


def test_marked_lines_are_quotations() -> None:
    assert lines("a.py", "# nobody  lint: quote\n# nobody\n") == [(2, "nobody")]
    assert lines("a.md", "Nobody. <!-- lint: quote -->\n") == []


def test_every_phrase_is_found() -> None:
    for phrase in PHRASES:
        plain = re.sub(r"\(([^)|]*)[^)]*\)(?!\?)|\([^)]*\)\?|\[(.)[^]]*\]|(s)\?", r"\1\2\3", phrase).replace("s?", "s")
        assert [found for _, found in lines("a.md", f"So {plain} it goes.")] == [plain], phrase


def test_files_are_listed_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("# anew\n")
    (tmp_path / "sub" / "b.md").write_text("anew, and\nanew\n")
    (tmp_path / "c.txt").write_text("anew\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/a.py:1: 'anew'",
        f"{tmp_path}/sub/b.md:1: 'anew'",
        f"{tmp_path}/sub/b.md:2: 'anew'",
    ]
    assert main(["--count", str(tmp_path)]) == 1
    assert capsys.readouterr().out.split() == ["1", str(tmp_path), "2", f"{tmp_path}/sub", "3", "in", "all"]
    (tmp_path / "a.py").write_text("# again\n")
    assert main([str(tmp_path / "a.py")]) == 0
    with pytest.raises(FileNotFoundError, match="Expected a file or a folder"):
        files_in([tmp_path / "nowhere"])
