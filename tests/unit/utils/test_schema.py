"""Each kind of result has one schema, which what version 0.1 wrote has too."""

import json

import pytest
from support.paths import ROOT

from ssorl.idm.schema import check as check_labels
from ssorl.report.schema import check as check_run
from ssorl.study.schema import check as check_cell
from ssorl.utils.errors import DataError

RUN = ROOT / "tests" / "pins" / "v01" / "run"


def read(path) -> dict:
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"}


@pytest.mark.parametrize(
    ("check", "path"), [(check_run, RUN / "result.json"), (check_labels, RUN / "proxies" / "0.json")]
)
def test_files_of_version_0_1_have_the_schema(check, path):
    stored = read(path)
    check(stored)
    for key in stored.keys() & {"scores", "truth", "data", "seeds"}:
        with pytest.raises(DataError, match=f"{key} is 'x'"):
            check({**stored, key: "x"})
    with pytest.raises(DataError, match="is missing"):
        check({key: value for key, value in stored.items() if key not in ("timings", "worst")})


def test_a_cell_of_a_study_has_the_schema(tmp_path):
    from ssorl.study.executor import BLANK

    stored = {"schema": 1, "cell": {}, **BLANK, "labelled_return": 3.0, "idm": None, "timings": {"labels": 1.0}}
    check_cell(stored)
    idm = {"hash": "abc", "mse": 0.1, "validation_mse": None, "by_round": []}
    check_cell({**stored, "idm": idm})
    with pytest.raises(DataError, match="idm: mse is 'x'"):
        check_cell({**stored, "idm": {**idm, "mse": "x"}})
    with pytest.raises(DataError, match="curve is"):
        check_cell({**stored, "curve": {"at": [None, "x"]}})
