"""A headless browser for all tests of pages, and pages to open in it."""

import pytest

from ssorl.report.page import page
from support.chrome import NAMES, Chrome, find
from support.page_samples import parent, result, write


@pytest.fixture(scope="session")
def chrome(tmp_path_factory):
    path = find()
    if path is None:
        pytest.skip(f"no browser is installed; looked for {', '.join(NAMES)}")
    browser = Chrome(path, str(tmp_path_factory.mktemp("profile")))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def run_page(tmp_path_factory):
    """The page of a complete run."""
    return page(write(tmp_path_factory.mktemp("runs") / "one", result()))


@pytest.fixture(scope="session")
def parent_page(tmp_path_factory):
    """The page over several qualities, with the pages that it links to."""
    folder = write(tmp_path_factory.mktemp("runs") / "several", sample := parent((10, 50, 100)))
    for cell in sample["cells"]:
        page(write(folder / cell["folder"], result(seeds=1, episodes=2, points=3)))
    return page(folder)


NASTY = "<script>hacked=1</script><img src=x onerror=hacked=1>\"'&"


def visible(selector: str) -> str:
    """Return JavaScript that counts the visible elements of a selector."""
    return f"[...document.querySelectorAll({selector!r})].filter(e => e.checkVisibility()).length"


CONTRAST = """(() => {
  const light = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const against = c => (Math.max(light(c), paper) + .05) / (Math.min(light(c), paper) + .05);
  const of = (s, p) => Math.min(...[...document.querySelectorAll(s)].map(e => against(getComputedStyle(e)[p])));
  return [of('p, h1, h2, h3, dt, dd, summary, th, td, a:not(.skip)', 'color'), of('svg.chart text', 'fill'),
          of('.dot:not(.k-shade .dot)', 'fill'), of('.chart .line', 'stroke')];
})()"""
