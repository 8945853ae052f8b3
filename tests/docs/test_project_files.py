"""CONTRIBUTING, SECURITY, CHANGELOG, the workflows and the hooks name only what exists, and agree with each other."""

import json
import re
import tomllib

import pytest
import yaml
from support.paths import ROOT

import ssorl

SRC = ROOT / "src" / "ssorl"
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", ".github/PULL_REQUEST_TEMPLATE.md"]


def recipe(target: str) -> list[str]:
    """Return the commands of a target of the Makefile, without the path of the environment."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert found, target
    return [line.strip().removeprefix("$(BIN)/") for line in found[1].splitlines()]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_only_what_exists(name):
    text = (ROOT / name).read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^):]+)\)", text)]
    assert not [link for link in links if not (ROOT / link).exists()]
    assert set(re.findall(r"`make (\w+)", text)) <= {*re.findall(r"^(\w+):", MAKEFILE, re.M)}
    if name == "CONTRIBUTING.md":  # other pages tell of files that were
        paths = [path for path in re.findall(r"`((?:[\w-]+/)+[\w.-]*)`", text) if not re.search("[A-Z]{3}", path)]
        assert len(paths) > 15 and not [p for p in paths if not (SRC / p).exists() and not (ROOT / p).exists()]


def test_contributing_is_short_and_names_ten_changes():
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    assert len(lines) <= 60
    assert [line.partition(".")[0] for line in lines if re.match(r"\d+\. ", line)] == [str(n) for n in range(1, 11)]


def test_hooks_are_the_commands_of_make_lint():
    """The hooks repair what they can, so without --check; they get the names of files, so without folders."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    told = [hook["entry"].removeprefix(".venv/bin/").replace(" --fix", "") for hook in hooks]
    lint = [re.sub(r" --check| src tests.*", "", line) for line in recipe("lint")]
    assert sorted(told) == sorted(lint)
    assert " lint " in re.search(r"^test:.*", MAKEFILE, re.M)[0]  # type: ignore[index]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_says_that_it_was_never_run_and_calls_what_exists(path):
    text = path.read_text()
    assert text.startswith("# Never run here")
    jobs = yaml.safe_load(text)["jobs"].values()
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert {*re.findall(r"make (\w+)", "\n".join(runs))} <= {*re.findall(r"^(\w+):", MAKEFILE, re.M)}
    scripts = re.findall(r"\S+\.py", "\n".join(runs))
    assert all((ROOT / name).exists() for name in scripts)
    for version in re.findall(r"uv==\S+", "\n".join(runs)):
        assert version in MAKEFILE
    for job in jobs:
        versions = job.get("strategy", {}).get("matrix", {}).get("python", [])
        assert all(f"Programming Language :: Python :: {version}" in PROJECT["classifiers"] for version in versions)


def test_tests_and_wheel_run_on_every_supported_version():
    supported = re.findall(r"Python :: (3\.\d+)", json.dumps(PROJECT["classifiers"]))
    for name, job in {"tests": "test", "build": "wheel"}.items():
        text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
        assert yaml.safe_load(text)["jobs"][job]["strategy"]["matrix"]["python"] == supported


def test_the_changelog_is_in_dated_versions():
    text = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (.+)", text, re.M)
    assert re.match(r"Unreleased \(\d+\.\d+\.\d+\)$", titles[0])
    assert all(re.match(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)$", title) for title in titles[1:])
    assert set(re.findall(r"^### (.+)", text, re.M)) == {"Added", "Changed", "Fixed"}
    assert titles[1].split()[0] == ssorl.__version__ == PROJECT["version"]
    assert f"version: {ssorl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
