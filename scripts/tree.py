"""Print the top of src/ssorl, the largest import cycle between its entries, and the files that a command opens.

    python scripts/tree.py                      # this checkout
    python scripts/tree.py --root OTHER         # another checkout, such as the tag of an older version
    python scripts/tree.py --opened ssorl run builtin/pointmass --out RUN   # package files, in the order of their use

Lazy imports (inside functions), imports for type checking and imports by string ("ssorl.x.y", "ssorl.x.y:Name")
all count as edges.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

DOTTED = re.compile(r"ssorl(\.\w+)+[.:]?\w*")  # a module, or a name in one: "ssorl.data.formats:load"


def modules(src: Path) -> dict[str, Path]:
    """Return every module under src/ssorl by its dotted name."""
    names = {}
    for path in sorted(src.glob("ssorl/**/*.py")):
        names[".".join(path.relative_to(src).with_suffix("").parts).removesuffix(".__init__")] = path
    return names


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, wherever in it, by statement or by a string."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ssorl":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "ssorl")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            parts = re.split("[.:]", node.value)
            yield max((n for n in (".".join(parts[:k]) for k in range(1, len(parts) + 1)) if n in known), key=len)


def top(name: str) -> str:
    """Return the entry at the top of the package that a module belongs to."""
    return name.split(".")[1] if "." in name else "ssorl"


def graph(src: Path) -> dict[str, set[str]]:
    """Return which top-level entries each one imports, without the package's own __init__, which re-exports."""
    known = modules(src)
    edges: dict[str, set[str]] = {top(name): set() for name in known if name != "ssorl"}
    for name, path in known.items():
        if name != "ssorl":
            edges[top(name)] |= {top(t) for t in imports(path, known) if t != "ssorl"} - {top(name)}
    return edges


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one entry, largest first."""
    reach = {start: _reachable(start, edges) for start in edges}
    components = {tuple(sorted(b for b in edges if b in reach[a] and a in reach[b])) for a in edges}
    return sorted((list(group) for group in components if len(group) > 1), key=len, reverse=True)


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        fresh = edges.get(todo.pop(), set()) - seen
        seen |= fresh
        todo += fresh
    return seen


TRACE = """
import json, os, sys
src, out, words = sys.argv[1], sys.argv[2], sys.argv[3:]
seen, last, changes = [], None, 0
def watch(frame, event, arg):
    global last, changes
    file = frame.f_code.co_filename
    if file.startswith(src) and frame.f_code.co_flags & 1:  # a function; bodies of modules and classes are imports
        if file != last:
            changes, last = changes + 1, file
        if file not in seen:
            seen.append(file)
sys.setprofile(watch)
from ssorl.cli import main
try:
    main(words)
finally:
    sys.setprofile(None)
    json.dump({"files": [os.path.relpath(f, src) for f in seen], "changes": changes}, open(out, "w"))
"""


def opened(src: Path, words: list[str]) -> dict:
    """Run a command and return the package's files in the order in which their functions are first called."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "opened.json"
        package = str(src.resolve() / "ssorl") + "/"
        subprocess.run([sys.executable, "-c", TRACE, package, str(out), *words], check=True, stdout=sys.stderr)
        return json.loads(out.read_text())


def main() -> None:
    """Print the tree, or the files that a command opens."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--opened", nargs=argparse.REMAINDER, help="ssorl and its arguments")
    given = parser.parse_args()
    src = given.root / "src"
    if given.opened:
        files = opened(src, given.opened[1:])["files"]
        print("\n".join(f"{place + 1:3} {file}" for place, file in enumerate(files)))
        print(f"{len(files)} files")
        return
    entries = sorted(p.name for p in (src / "ssorl").iterdir() if p.name != "__pycache__")
    print(f"{len(entries)} entries at the top of src/ssorl: {' '.join(entries)}")
    edges = graph(src)
    largest, *_ = cycles(edges) or [[]]
    print(f"largest import cycle: {len(largest)} entries: {' '.join(largest)}" if largest else "no import cycle")
    for name, targets in sorted(edges.items(), key=lambda item: len(_reachable(item[0], edges))):
        print(f"  {name:12} imports {' '.join(sorted(targets)) or 'nothing'}")


if __name__ == "__main__":
    main()
