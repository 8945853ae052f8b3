"""Draw sentences at random from the docstrings, comments and user messages of src, to judge their style.

Usage: python scripts/sentences.py [--seed 1] [--count 20] [--under src/ssorl/idm]
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MIN_WORDS = 5  # shorter texts are names and units rather than sentences
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Usage):\s*$")
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'({])")
DIRECTIVE = re.compile(r"\b(noqa|type: ignore|pragma|fmt:)|^-{3,}")


class Sentence(NamedTuple):
    """One sentence and its place."""

    path: str
    line: int
    kind: str  # docstring, comment or message
    text: str


def draw(seed: int, count: int, under: Path = ROOT / "src") -> list[Sentence]:
    """Return `count` random sentences of the Python files under a folder."""
    sentences = collect(under)
    return random.Random(seed).sample(sentences, min(count, len(sentences)))


def collect(under: Path) -> list[Sentence]:
    """Return all sentences of the Python files under a folder, in a fixed order."""
    out = []
    for path in sorted(under.rglob("*.py")):
        code = path.read_text()
        texts = [*_strings(ast.parse(code)), *_comments(code)]
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
        out += [Sentence(name, line, kind, s) for line, kind, text in sorted(texts) for s in split(text)]
    return out


def split(text: str) -> list[str]:
    """Return the sentences of a text; each entry of a docstring section counts as one."""
    blocks, current = [], []
    for line in [*textwrap.dedent(text).splitlines(), ""]:
        begins_entry = re.match(r"\s+\w+: ", line) is not None
        if not line.strip() or SECTION.match(line.strip()) or begins_entry:
            blocks.append(" ".join(current))
            current = []
        if line.strip() and not SECTION.match(line.strip()):
            current.append(line.strip())
    sentences = [s for block in blocks for s in END.split(block)]
    return [s for s in sentences if len(re.findall(r"[A-Za-z]{2,}", s)) >= MIN_WORDS]


def _strings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of docstrings and of other strings that contain spaces, such as messages."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstring = ast.get_docstring(node)
                if docstring:
                    docstrings.add(id(first.value))
                    yield first.lineno, "docstring", docstring
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{…}" for v in node.values)
            yield node.lineno, "message", text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            yield node.lineno, "message", node.value


def _comments(code: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of comments; comments on consecutive lines of their own are one text."""
    first, previous, lines = 0, -1, []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#! ")
        if DIRECTIVE.search(text):
            continue
        own_line = not token.line[: token.start[1]].strip()
        if own_line and token.start[0] == previous + 1:
            lines.append(text)
        else:
            if lines:
                yield first, "comment", "\n".join(lines)
            first, lines = token.start[0], [text]
        previous = token.start[0] if own_line else -1
    if lines:
        yield first, "comment", "\n".join(lines)


def main() -> None:
    """Print a draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw")
    parser.add_argument("--count", type=int, default=20, help="number of sentences")
    parser.add_argument("--under", type=Path, default=ROOT / "src", help="folder with the Python files")
    args = parser.parse_args()
    for sentence in draw(args.seed, args.count, args.under.resolve()):
        print(f"{sentence.path}:{sentence.line} ({sentence.kind})\n  {sentence.text}")


if __name__ == "__main__":
    main()
