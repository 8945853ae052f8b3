"""Extension of griffe for the API pages: the comment on a field's line becomes the field's description."""

import ast
import io
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, Extension


@cache
def comments(path: Path) -> dict[int, str]:
    """Return the comments of a file by line number."""
    text = io.StringIO(path.read_text())
    tokens = (token for token in tokenize.generate_tokens(text.readline) if token.type == tokenize.COMMENT)
    return {token.start[0]: token.string.lstrip("# ").strip() for token in tokens}


class Comments(Extension):
    """Use comments as docstrings of attributes; griffe itself reads only strings below an attribute."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **kwargs: Any) -> None:
        if attr.docstring or not isinstance(node, ast.AST) or not isinstance(attr.filepath, Path):
            return
        text = comments(attr.filepath).get(attr.endlineno or 0, "")
        if text and not text.startswith(("noqa", "type:", "pyright:")):
            attr.docstring = Docstring(text[0].upper() + text[1:] + ".", parent=attr)
