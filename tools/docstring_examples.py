"""An extension of the API pages: shows the examples of docstrings as code.

Examples stand in docstrings without a heading. Without this extension Markdown takes their ">>>" for quotations, and
their brackets for links.
"""

import re

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)


class DocstringExamples(Extension):
    """Fences every paragraph of a docstring that begins with ">>>"."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
