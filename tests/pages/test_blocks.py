"""Every code block of README.md and docs/ runs, names a reason why it does not, or is output (support/pages.py)."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.episodes import make_episodes
from support.pages import PAGES, Block, WrongBlockError, blocks, check, run
from support.systems import TINY

import ssorl
from ssorl.agents import AGENTS
from ssorl.data import save
from ssorl.idm import IDMS
from ssorl.study.paper import STUDIES

ELSEWHERE = {  # pages whose blocks other tests run, and whose results they check
    "docs/example.md": "test_example.py",
    "docs/labels.md": "test_labels_page.py",
    "docs/your-own-agent.md": "test_your_own_agent.py",
}
RUN = [page for page in PAGES if page not in ELSEWHERE and any(b.kind in ("python", "sh") for b in blocks(page))]
SMALL = {"hidden": (8,), "batch": 16, "updates": 20}


@pytest.fixture(scope="module")
def small():
    """Replace the presets by tiny ones: these tests check the calls, not the results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IDMS, "robust-quick", replace(TINY, hidden=(8,), steps=60))
        patch.setitem(IDMS, "blend-quick", replace(TINY, hidden=(8,), steps=60))
        for kind in AGENTS.values():
            for preset in ("quick", "paper"):
                if "hidden" in getattr(kind, "__dataclass_fields__", {}):
                    patch.setitem(kind.PRESETS, preset, SMALL)
        for study in STUDIES.values():
            patch.setitem(study.__dict__, "_made", {})  # grids are cached; these have other presets
        yield


@pytest.fixture(scope="module")
def own(small, tmp_path_factory) -> Path:
    """Make what the pages assume: files of the reader, and a finished run."""
    folder = tmp_path_factory.mktemp("own")
    eps = make_episodes([30] * 20, n_obs=4, n_act=2, env="pointmass")
    for name in ("my.hdf5", "my.pkl", "mine.hdf5", "theirs.pkl"):
        save(eps, folder / name)
    ssorl.run("builtin/pointmass", out=folder / "runs" / "FOLDER", agent="bc", seeds=2, episodes=2)
    return folder


def test_all_pages_are_tested():
    assert {"README.md", "docs/quickstart.md", "docs/data.md", "docs/engine.md", "docs/api/index.md"} <= {*PAGES}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in Path(__file__).with_name(test).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_marked_and_names_what_exists(page):
    for block in blocks(page):
        check(block)


@pytest.mark.parametrize("page", RUN)
def test_page_runs(page, own, tmp_path, monkeypatch):
    shutil.copytree(own, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSORL_CACHE", str(tmp_path / "cache"))
    names: dict = {
        "__name__": "page",
        "obs": np.zeros(4, np.float32),
    }  # obs: the reader's observation
    for block in blocks(page):
        # A point mass stands in for the hopper, whose simulation takes a minute.
        run(block, names, lambda text: text.replace("sim/hopper-medium-expert", "builtin/pointmass"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nssorl data list\n```", "a block is one of python, sh"),
        ("Look:\n\n    ssorl data list\n", "a block is one of"),
        ("- in a list\n\n  ```console\n  ssorl data list\n  ```", "a block is one of"),
        ("```sh\nssorl data list --colour\n```", "is no command"),
        ("```sh\nssorl run sim/hopper-mediumexpert\n```", "no dataset sim/hopper-mediumexpert"),
        ("```sh\nssorl run my.npz --agent td4\n```", "no agent td4"),
        ("```sh\nssorl study show main-expert\n```", "no study main-expert"),
        ("```sh\nls\n```", "ls is not run by the tests"),
        ("<!-- not run: long -->\n```sh\nmake tests\n```", "there is no tests"),
        ("<!-- not run: installs -->\n```sh\npip install 'ssorl[gpus]'\n```", "there is no gpus"),
        ("<!-- not run: long -->\n```sh\nssorl run --speed 3\n```", "is no command"),
        ("<!-- not run: Slurm -->\n```sh\nsrun ray -- \\\n  ssorl study run claims --scal lite\n```", "is no command"),
        ('<!-- not run: a shell\'s -->\n```sh\neval "$(ssorl completion csh)"\n```', "is no command"),
        ("<!-- not run: a shell's -->\n```sh\nssorl completion csh | source\n```", "is no command"),
        ("<!-- not run: long -->\n```sh\nfor x in\n```", "syntax error"),
        ("<!-- not run: long -->\n```python\nimport ssorl.\n```", "invalid syntax"),
        ("<!-- file: a.toml -->\n```toml\na = b\n```", "Invalid value"),
        ('```json\n{"a": …}\n```', "Expecting value"),
        ("<!-- not run: it is output -->\n```text\n3\n```", "output is neither run"),
    ],
)
def test_wrong_block_raises(text, message):
    (block,) = blocks("README.md", text)
    with pytest.raises(WrongBlockError, match=re.escape(message)):
        check(block)


def test_failing_block_raises(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'fit'"):
        run(Block("README.md", 7, "python", None, None, "import ssorl\nssorl.fit()\n"), {})
    with pytest.raises(WrongBlockError, match=r"README.md:9: ssorl data show a.npz ends with 2"):
        run(Block("README.md", 9, "sh", None, None, "ssorl data show a.npz\n"), {})
    assert "a.npz" in capsys.readouterr().err
