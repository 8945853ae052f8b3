"""One headless browser for all tests of the page."""

import pytest
from chrome import NAMES, Chrome, find
from page_samples import parent, result, write

from ssorl.report.page import page


@pytest.fixture(scope="session")
def chrome(tmp_path_factory):
    path = find()
    if path is None:
        pytest.skip(f"no browser to look at the page with: none of {', '.join(NAMES)} is installed")
    browser = Chrome(path, str(tmp_path_factory.mktemp("profile")))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def run_page(tmp_path_factory):
    """The page of a whole run."""
    return page(write(tmp_path_factory.mktemp("runs") / "one", result()))


@pytest.fixture(scope="session")
def parent_page(tmp_path_factory):
    """The page over several qualities, beside the pages it leads to."""
    folder = write(tmp_path_factory.mktemp("runs") / "several", told := parent((10, 50, 100)))
    for cell in told["cells"]:
        page(write(folder / cell["folder"], result(seeds=1, episodes=2, looks=3)))
    return page(folder)
