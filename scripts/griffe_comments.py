"""For the API pages: a field's comment, on its line, is what the page says of it."""

import ast
import io
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, Extension


@cache
def comments(path: Path) -> dict[int, str]:
    """The comments of a file by their lines."""
    text = io.StringIO(path.read_text())
    found = (token for token in tokenize.generate_tokens(text.readline) if token.type == tokenize.COMMENT)
    return {token.start[0]: token.string.lstrip("# ").strip() for token in found}


class Comments(Extension):
    """Our settings have a comment each, not a string below; griffe knows strings alone."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **kwargs: Any) -> None:
        if attr.docstring or not isinstance(node, ast.AST) or not isinstance(attr.filepath, Path):
            return
        said = comments(attr.filepath).get(attr.endlineno or 0, "")
        if said and not said.startswith(("noqa", "type:", "pyright:")):
            attr.docstring = Docstring(said[0].upper() + said[1:] + ".", parent=attr)
