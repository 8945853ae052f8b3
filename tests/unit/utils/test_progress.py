"""Progress in a notebook and as plain lines."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

from ssorl.utils.progress import Progress, duration


class FakeHandle:
    """A fake of the handle that IPython's `display` returns; it records the pages."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def update(self, data, raw) -> None:
        assert raw
        self.pages.append(data["text/html"])


@pytest.fixture
def notebook(monkeypatch) -> FakeHandle:
    """Make this process look like a notebook's kernel, and return the display's handle."""
    handle = FakeHandle()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display.display = lambda data, raw, display_id: handle
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return handle


def test_a_notebook_shows_a_bar_for_each_task(notebook, capsys):
    with Progress({"<training>": (10, "updates"), "playing": (4, "steps")}) as progress:
        progress("<training>", 10, "<note>")
        progress("playing", 4)
    assert capsys.readouterr().err == ""
    last = notebook.pages[-1]
    assert last.count("<progress") == 2 and 'value="10" max="10"' in last and 'value="4" max="4"' in last
    assert "&lt;training&gt;: 10 of 10 updates" in last and "<training>" not in last
    assert "&lt;note&gt;" in notebook.pages[0] and "<note>" not in notebook.pages[0]


def test_quiet_shows_nothing_in_a_notebook(notebook, capsys):
    with Progress({"training": (10, "updates")}, quiet=True) as progress:
        progress("training", 10)
        progress.say("text")
    assert notebook.pages == [] and capsys.readouterr().err == "" and progress.done == {"training": 10}


def test_ipython_in_a_terminal_gets_lines(notebook, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    with Progress({"training": (10, "updates")}) as progress:
        progress("training", 10)
    assert notebook.pages == [] and capsys.readouterr().err == "training: 10 of 10 updates\n"


def test_a_stream_gets_one_line_at_the_end_of_a_task():
    stream = io.StringIO()
    with Progress({"training": (10, "updates")}, stream) as progress:
        for _ in range(4):
            progress("training", 3)
    assert stream.getvalue().startswith("training: 12 of 10 updates") and stream.getvalue().count("\n") == 1


def test_durations_have_units():
    assert [duration(s) for s in (40, 720, 12000)] == ["40 s", "12 min", "3 h 20 min"]
