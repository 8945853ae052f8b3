"""Update the GPU-hours in docs/studies.md: the estimates of `ssorl study run --dry-run` for an empty store.

python scripts/studies_page.py     # not part of `make figures`: it takes a minute and does not depend on results
"""

import re
import tempfile
from pathlib import Path

from ssorl.study.cost import cost
from ssorl.study.paper import STUDIES

PAGE = Path(__file__).parents[1] / "docs" / "studies.md"


def main() -> None:
    """Write the hours into the table of the page."""
    text = PAGE.read_text()
    with tempfile.TemporaryDirectory() as store:
        for name, study in STUDIES.items():
            lite, paper = (
                cost(study, scale, Path(store), study.cells(scale)).seconds["gpu"] / 3600 for scale in ("lite", "paper")
            )
            hours = f"{lite:.1f} | {paper:.{int(0 < paper < 0.95)}f}"
            pattern = rf"(\| `{name}` \|.*\| )[\d.,]+ \| [\d.,]+ \|\n"
            assert re.search(pattern, text), name
            text = re.sub(pattern, lambda m, hours=hours: f"{m[1]}{hours} |\n", text)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
