"""Build the wheel and the sdist, check what is in them, and run the wheel in a clean virtual environment.

    python scripts/check_dist.py                # writes dist/, checks it, removes the environment again
    python scripts/check_dist.py --dist FOLDER

The wheel is built from the sdist, so both are complete if the wheel runs. Dependencies have the versions of
requirements.lock. The wheel runs in another folder, so that the checkout cannot be imported in its place: first with
the base install alone, then with the extra `sim`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 5_000_000  # bytes of either file; the bundled policies are 3.3 MB
SIMULATED = ("data", "show", "sim/hopper-medium:2000")  # needs the extra `sim`
RUN = "run builtin/pointmass --agent bc --updates 200 --set batch=64 --idm-updates 200 --episodes 5 --out first"


def build(folder: Path) -> tuple[Path, Path]:
    """Build into an empty folder and return the paths of the wheel and the sdist."""
    for old in [*folder.glob("ssorl-*.whl"), *folder.glob("ssorl-*.tar.gz")]:
        old.unlink()
    subprocess.run([_uv(), "build", "--quiet", "--out-dir", folder, ROOT], check=True)
    (wheel,), (sdist,) = folder.glob("ssorl-*.whl"), folder.glob("ssorl-*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Exit with a sentence if a file is missing, superfluous or too large."""
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "ssorl").rglob("*") if path.is_file()}
    sources = {name for name in sources if "__pycache__" not in name}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    faults = [f"{wheel.name} lacks {name}" for name in sorted(sources - packed)]
    faults += [f"{wheel.name} should not have {name}" for name in sorted(packed - sources)]
    needed = {f"src/{name}" for name in sources} | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    faults += [f"{sdist.name} lacks {name}" for name in sorted(needed - names)]
    faults += [f"{f.name} has {f.stat().st_size:,} bytes, more than {LIMIT:,}" for f in (wheel, sdist) if _large(f)]
    if faults:
        raise SystemExit("\n".join(faults))
    for file, count in (wheel, len(packed)), (sdist, len(names)):
        print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB, {count} files")


def check_run(wheel: Path) -> None:
    """Install the wheel into a new environment, run a small Algorithm 1 there, and simulate once `sim` is installed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        _install(python, wheel)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"SSORL_CACHE": str(folder / "cache")}
        options: dict[str, Any] = {"cwd": elsewhere, "env": env, "text": True}

        def call(*words: str | Path) -> str:
            return subprocess.run(words, **options, check=True, stdout=subprocess.PIPE).stdout

        where = call(python, "-c", "import ssorl; print(ssorl.__file__)").strip()
        if not Path(where).is_relative_to(folder / "venv"):
            raise SystemExit(f"the clean environment imported {where}, not the wheel")
        print(call(python.parent / "ssorl", "--version"), end="")
        call(python.parent / "ssorl", "data", "list")
        print(call(python.parent / "ssorl", *RUN.split()))
        scores = json.loads((elsewhere / "first" / "result.json").read_text())["scores"]
        if set(scores) != {"baseline", "ss", "oracle"} or not (elsewhere / "first" / "report.html").stat().st_size:
            raise SystemExit("the run wrote no report, or lacks a variant")
        done = subprocess.run([python.parent / "ssorl", *SIMULATED], **options, capture_output=True)
        if done.returncode != 2 or "pip install 'ssorl[sim]'" not in done.stderr:
            raise SystemExit(f"the base install should name the extra `sim`, but it wrote: {done.stderr}")
        _install(python, wheel, "sim")
        print(call(python.parent / "ssorl", *SIMULATED))


def _install(python: Path, wheel: Path, extra: str = "") -> None:
    """Install the wheel, or the wheel with an extra, and dependencies in the locked versions."""
    package = f"ssorl[{extra}] @ {wheel.resolve().as_uri()}" if extra else wheel
    lock = ["--constraint", ROOT / "requirements.lock"]
    subprocess.run([_uv(), "pip", "install", "--quiet", "--python", python, *lock, package], check=True)


def _large(file: Path) -> bool:
    return file.stat().st_size > LIMIT


def _uv() -> str:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise SystemExit("uv is needed: run `make dist`, which installs it")
    return uv


def main() -> None:
    """Build both files, check them, and run the wheel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    folder = parser.parse_args().dist
    wheel, sdist = build(folder)
    check_contents(wheel, sdist)
    check_run(wheel)
    print("the wheel runs in a clean environment")


if __name__ == "__main__":
    main()
