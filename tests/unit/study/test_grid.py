"""Grids of studies: numbers of cells, the settings that a cell depends on, cost estimates, and users' files."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from support.paths import ROOT

from ssorl.agents import make
from ssorl.study.cost import DEVICES, _work, cost, rate, work
from ssorl.study.files import find
from ssorl.study.grid import DEFAULTS, FIGURES, Cell, Grid, Study, resolve
from ssorl.study.paper import STUDIES
from ssorl.study.scales import SCALES
from ssorl.utils.errors import SsorlError

PAPER = SCALES["paper"]
QUALITIES, SEEDS = 6, 5
# Baseline and SS at each q, and one oracle, which all q share.
MAIN = 2 * QUALITIES + 1
COUNTS = {
    "example-density": 1,
    "main-medium-expert": 2 * 3 * MAIN * SEEDS,  # datasets x agents: 390
    "gap-medium-expert": 2 * 3 * MAIN * SEEDS,
    "gap-one-percent": 1 * 3 * MAIN * SEEDS,  # 195
    "low-label": 3 * (4 * 2 * QUALITIES + 1) * SEEDS,  # four shares of labels with one oracle: 3 x 49 x 5 = 735
    "dt-joint": (MAIN + 3 * QUALITIES) * SEEDS,  # DT between its bounds; DT-Joint, SS-CQL, SS-TD3BC: 31 x 5 = 155
    "dt-joint-lambda": 16 * QUALITIES * SEEDS,  # 480
    "self-training": 2 * QUALITIES * (1 + 2 * 2) * SEEDS,  # agents; ours and m x N: 300
    "self-training-mse": QUALITIES * (1 + 2 * 2) * SEEDS,  # 150
    "idm-architecture": 2 * QUALITIES * (3 + 2) * SEEDS,  # k = 0 is symmetric already: 5 windows, 300
    "labelled-quality": 2 * 2 * 9 * SEEDS,  # 180
    "unlabelled-quality": 2 * 2 * 9 * SEEDS,
    "labelled-size": 2 * 9 * 3 * SEEDS,  # 270
    "unlabelled-size": 2 * 9 * 3 * SEEDS,
    "gap-by-agent": 6 * 3 * MAIN * SEEDS,  # 1170
    "densities": 9 + 4 + 1,
    "main-medium": 2 * 3 * MAIN * SEEDS,
    "main-medium-replay": 2 * 3 * MAIN * SEEDS,
    "main-halfcheetah": 3 * 3 * MAIN * SEEDS,  # 585
    "labelled-returns": 9 * QUALITIES * SEEDS,  # 270
    "wide-subsample": 1 * 3 * MAIN * SEEDS,
    "maze2d": 4 * 1 * MAIN * SEEDS,  # 260
}
BEYOND = {"idm-robust": 2 * (MAIN + QUALITIES) * SEEDS}  # 190
BEYOND |= {"idm-robust-agents": 2 * BEYOND["idm-robust"]}


@pytest.mark.parametrize("name", COUNTS | BEYOND)
def test_number_of_cells_of_each_study(name):
    assert len(STUDIES[name].cells("paper")) == (COUNTS | BEYOND)[name]


def test_studies_are_complete_and_the_claims_need_their_cells():
    assert set(STUDIES) == {*COUNTS, *BEYOND, "claims"}
    # Every cell of kind "return" or "idm" in any study, except other weights of DT-Joint: 4,130.
    parts = [set(STUDIES[n].cells("paper")) for n in COUNTS if STUDIES[n].figure not in ("density", "table")]
    other = set(STUDIES["dt-joint-lambda"].cells("paper")) - set(STUDIES["dt-joint"].cells("paper"))
    assert set(STUDIES["claims"].cells("paper")) == set().union(*parts) - other


def test_docs_page_has_the_numbers_of_cells_and_valid_examples(tmp_path):
    text = (ROOT / "docs" / "studies.md").read_text()
    rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    documented = {row[0].strip("`"): [int(x.replace(",", "")) for x in row[2:5]] for row in rows if len(row) == 7}
    assert set(documented) == set(STUDIES)
    for name, study in STUDIES.items():
        assert documented[name] == [len(study.cells(scale)) for scale in SCALES], name
    for kind in ("yaml", "toml"):
        (tmp_path / f"mine.{kind}").write_text(re.findall(rf"```{kind}\n(.*?)```", text, re.S)[0])
    mine = find(tmp_path / "mine.yaml")
    assert text.index("```yaml") < text.index("```toml") and mine == find(tmp_path / "mine.toml")
    assert len(mine.cells("lite")) == 3 * 3 * 3 and len({c.idm_hash for c in mine.cells("lite")}) == 2 * 3 * 3
    named = {w for row in rows if len(row) == 2 for w in re.findall(r"`(\w+)`", row[0])}
    assert set(DEFAULTS) <= named | set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize("scale", ["smoke", "lite"])
def test_smaller_scales_have_the_same_grid(scale):
    for name, study in STUDIES.items():
        small, full = (
            {json.dumps({k: v for k, v in p.at.items() if k != "seed"}) for p in study.points(s)}
            for s in (scale, "paper")
        )
        assert small == full, name


def test_studies_share_cells():
    cells = {name: set(STUDIES[name].cells("paper")) for name in STUDIES}
    assert cells["main-medium-expert"] == cells["gap-medium-expert"] < cells["gap-by-agent"]
    assert cells["main-medium"] < cells["gap-by-agent"] and cells["main-medium-replay"] < cells["gap-by-agent"]
    assert cells["gap-one-percent"] < cells["low-label"]
    assert cells["labelled-quality"] == cells["unlabelled-quality"]
    # 10 % of each: on walker2d the same nine pairs, two agents, five seeds.
    assert len(cells["labelled-size"] & cells["unlabelled-size"] & cells["labelled-quality"]) == 9 * 2 * SEEDS
    # "ours" has k = 1 and one round, as the main study.
    ours = cells["self-training"] & cells["idm-architecture"] & cells["main-medium-expert"]
    assert len(ours) == 2 * QUALITIES * SEEDS


def test_agents_on_a_split_share_the_idm():
    cells = STUDIES["main-medium-expert"].cells("paper")
    assert len({c.idm_hash for c in cells} - {None}) == 2 * QUALITIES * SEEDS
    assert {c.variant for c in cells if c.idm_hash is None} == {"baseline", "oracle"}
    mse = {c.idm_hash for c in STUDIES["self-training-mse"].cells("paper")}
    assert mse == {c.idm_hash for c in STUDIES["self-training"].cells("paper")}


def test_settings_at_scale_paper_are_the_papers():
    cells = [c for name in COUNTS for c in STUDIES[name].cells("paper") if c.kind == "return"]
    assert {(c.episodes, c.policy) for c in cells} == {(30, "last")}
    assert {c.settings for c in cells if c.agent in ("cql", "dt")} == {()}  # no change to the published defaults
    assert make("cql").updates == make("dt").updates == make("td3bc").updates == 200_000
    mazes = {c.settings for c in cells if "maze2d" in c.dataset}
    assert mazes == {(("actor_lr", 1e-4), ("critic_lr", 1e-4))}
    assert all(c.dataset.endswith(":full") for c in cells)
    lambdas = [dict(c.settings) for c in STUDIES["dt-joint-lambda"].cells("paper")]
    pairs = {(s.get("lambda_s", 0.01), s.get("lambda_r", 0.1)) for s in lambdas}
    assert pairs == {(a, b) for a in (1, 0.1, 0.01, 0.001) for b in (1, 0.1, 0.01, 0.001)}
    windows = {(dict(c.idm).get("past", 1), dict(c.idm).get("future", 0)) for c in windows_of("paper")}
    assert windows == {(0, 0), (1, 0), (2, 0), (1, 1), (2, 2)}
    trained = {(dict(c.idm).get("members", 1), c.rounds) for c in STUDIES["self-training"].cells("paper")}
    assert trained == {(1, 0), (2, 3), (2, 5), (3, 3), (3, 5)}
    thirds = {tuple(dict(c.recipe).values()) for c in STUDIES["unlabelled-size"].cells("paper")}
    assert len(thirds) == 27 and {t[1] for t in thirds} == {0.1}  # labelled, its share, unlabelled, its share


def windows_of(scale: str) -> list[Cell]:
    return STUDIES["idm-architecture"].cells(scale)


# Cells -----------------------------------------------------------------------------------------------------


def cell(**settings) -> Cell:
    return resolve({"dataset": "sim/hopper-medium", **settings}, PAPER)


def test_cells_leave_out_settings_without_an_effect():
    assert cell(variant="oracle", quality=10) == cell(variant="oracle", quality=90, idm="robust", certain=0.5)
    assert cell(variant="oracle", seed=1) != cell(variant="oracle")
    assert cell(variant="baseline", idm="robust", rounds=3) == cell(variant="baseline")
    assert cell(variant="baseline", quality=10) != cell(variant="baseline", quality=90)
    assert cell(agent="dt-joint", idm="robust") == cell(agent="dt-joint")  # it needs no proxies
    assert cell(idm="robust") != cell()
    third = {"setup": "decoupled", "variant": "oracle"}  # its oracle sees the trajectories of the split only
    assert cell(**third, labelled="low") != cell(**third, labelled="high")


def test_equal_settings_have_one_canonical_form():
    assert cell(settings={"alpha": 2.5}).hash == cell().hash == cell(quality=50.0, fraction=0.1).hash
    assert cell(settings={"hidden": [64, 64]}) == cell(settings={"hidden": (64, 64)})
    assert cell(past=1) == cell(idm_settings={"past": 1}) == cell()
    assert cell(idm="paper-quick").idm == resolve({"dataset": "x", "idm": "paper-quick"}, PAPER).idm
    lite = resolve({"dataset": "sim/hopper-medium"}, SCALES["lite"])
    as_paper = {"settings": dict(lite.settings), "idm_settings": dict(lite.idm or ()), "looks": lite.looks}
    assert cell(**as_paper).hash == lite.hash  # a scale is a name for settings


def test_hash_of_a_known_cell():
    """Results on disk are found by their hash: if this test fails, users' stores are lost."""
    text = (
        '{"agent":"td3bc","certain":null,"dataset":"sim/hopper-medium:full","env":null,"episodes":30,"idm":{},'
        '"kind":"return","looks":20,"policy":"last","recipe":{"fraction":0.1,"quality":50},"rounds":0,"seed":0,'
        '"settings":{},"setup":"coupled","variant":"ss"}'
    )
    assert cell().hash == hashlib.sha256(text.encode()).hexdigest()[:16] == "4ec5f6a81a122a04"


def test_cells_survive_json():
    for example in (*STUDIES["labelled-size"].cells("smoke")[:3], *windows_of("lite")[:3], cell(variant="oracle")):
        again = Cell.from_json(json.loads(json.dumps(example.as_json())))
        assert again == example and again.hash == example.hash
    with pytest.raises(SsorlError, match="another version"):
        Cell.from_json({"kind": "return"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"qualty": 10}, "no setting 'qualty'"),
        ({"variant": "best"}, "variant is 'best'"),
        ({"setup": "decoupled", "quality": 10}, "quality has no effect in the decoupled setup"),
        ({"agent": "sac"}, "no agent is called 'sac'"),
        ({"settings": {"alhpa": 1}}, "td3bc has no setting 'alhpa'; did you mean alpha"),
        ({"idm": "best"}, "idm is 'best'"),
        ({"idm_settings": {"k": 1}}, "an inverse dynamics model has no setting"),
        ({"dataset": ""}, "names no dataset; add `dataset`"),
    ],
)
def test_invalid_settings_raise(settings, words):
    with pytest.raises(SsorlError, match=words):
        cell(**settings)


# Cost estimates --------------------------------------------------------------------------------------------


def test_settings_that_change_no_program_share_its_count():
    small = (("batch", 4), ("context", 3), ("heads", 1), ("layers", 1), ("width", 8))
    first = work("dt-joint", (*small, ("lambda_r", 0.5), ("lambda_s", 0.25)))
    programs = _work.cache_info().misses
    assert work("dt-joint", (*small, ("lambda_r", 2.0), ("lr", 1e-3))) == first
    assert _work.cache_info().misses == programs
    assert work("dt-joint", (*small, ("dropout", 0.0))) < first  # at zero, the program skips dropout


def test_flops_per_update_and_measured_rates():
    one, two = (work("td3bc", (("batch", n), ("hidden", (512, 512)))) for n in (1024, 2048))
    assert two == pytest.approx(2 * one, rel=0.05)
    # A critic has 23 x 512 + 512 x 512 + 512 weights and the actor 17 x 512 + 512 x 512 + 512 x 6, about W = 0.275
    # million each; a row costs 2 W forwards, and backwards 2 W for the weights and 2 W for the inputs of a layer. Each
    # update: both critics there and back and both targets and the target actor there, 6 x 2 + 2 x 3; every other update
    # the actor there and back and one critic there and, for its input alone, back: (6 + 4) / 2. In all 23 W a row.
    assert one == pytest.approx(23 * 0.275e6 * 1024, rel=0.1)
    # The measured rates in DEVICES match the agents as they are now.
    gpu = DEVICES["gpu"]
    assert rate(gpu, "td3bc", work("td3bc", ())) == pytest.approx(26_479, rel=0.1)
    assert rate(gpu, "cql", work("cql", ())) == pytest.approx(885, rel=0.1)
    lite = {name: tuple(sorted(SCALES["lite"].agents[name].items())) for name in ("cql", "dt")}
    assert rate(gpu, "cql", work("cql", lite["cql"])) == pytest.approx(10_288, rel=0.1)
    assert rate(gpu, "dt", work("dt", lite["dt"])) == pytest.approx(7_413, rel=0.1)
    assert rate(gpu, "iql", 1.0) == gpu.updates  # a tiny update of an agent without measurements


def test_cost_is_the_sum_of_its_parts(tmp_path):
    study = STUDIES["maze2d"]
    cells = study.cells("paper")
    total = cost(study, "paper", tmp_path, cells, list(STUDIES.values()))
    assert (total.cells, total.done, total.models) == (260, 0, 4 * QUALITIES * SEEDS)
    assert total.shared == 260 and total.shapes == 4 and total.updates == 260 * 200_000  # the claims need them too
    train, fit = 260 * 200_000 / 26_479, 120 * 100_000 / 15_100
    play, start = 260 * (2 * 30 + 20 * 5) * 1000 / 60_000, 4 * 20  # final evaluation and learning curve
    assert total.seconds["gpu"] == pytest.approx(train + fit + play + start, rel=0.1)
    assert total.seconds["cpu"] > 100 * total.seconds["gpu"]
    thirds = STUDIES["labelled-quality"]  # two datasets, two agents; the trajectories of a split change no shape
    assert cost(thirds, "paper", tmp_path, thirds.cells("paper")).shapes == 4
    data = cost(STUDIES["densities"], "paper", tmp_path, STUDIES["densities"].cells("paper"))
    assert data.seconds == {"gpu": 0, "cpu": 0}


# Grids -----------------------------------------------------------------------------------------------------


def test_points_have_distinct_coordinates():
    for study in STUDIES.values():
        points = study.points("smoke")
        assert len({json.dumps(p.at) for p in points}) == len(points), study.name
    at = STUDIES["low-label"].points("smoke")[0].at
    assert at == {
        "dataset": "walker2d-medium-expert",
        "agent": "dt",
        "variant": "baseline",
        "fraction": 0.01,
        "quality": 10,
        "seed": 0,
    }


def test_only_selects_points_and_seeds_sets_their_number():
    study = STUDIES["main-medium-expert"]
    part = study.points("paper", only={"agent": ["dt"], "quality": ["10", "90"], "variant": ["ss"]})
    assert len(part) == 2 * 2 * SEEDS
    assert len(study.points("paper", seeds=2)) == len(study.points("paper")) * 2 / 5
    with pytest.raises(SsorlError, match="no such axis"):
        study.points("paper", only={"agnet": ["dt"]})
    with pytest.raises(SsorlError, match="main-medium-expert: --only leaves no points"):
        study.points("paper", only={"agent": ["bc"]})


def test_seeds_argument_overrides_the_study():
    few = Study("few", "few", (Grid({"dataset": "x", "seeds": 2}),))
    assert [len(few.points("lite", n)) for n in (None, 4)] == [2, 4] and not few.names_seeds
    data = Study("data", "data", (Grid({"dataset": "x", "kind": "data", "seeds": 1}),))
    assert len(data.points("lite", 4)) == 1  # a picture of one split
    assert Study("own", "own", (Grid({"dataset": "x"}, {"seed": [0, 1]}),)).names_seeds
    assert Study("own", "own", (Grid({"dataset": "x"}, {"which": {"a": {"seed": 0}, "b": {"seed": 5}}}),)).names_seeds


def test_settings_of_labels_are_merged_with_base():
    axes = {"alpha": {"low": {"settings": {"alpha": 1.0}}, "high": {"settings": {"alpha": 5.0}}}}
    study = Study("s", "s", (Grid({"dataset": "x", "settings": {"batch": 8}, "seeds": 1}, axes),))
    assert [(p.at["alpha"], dict(p.cell.settings)) for p in study.points("paper")] == [
        ("low", {"alpha": 1, "batch": 8}),
        ("high", {"alpha": 5, "batch": 8}),
    ]


TOML = """
title = "Mine"
by = "idm"
panels = ["dataset"]
[base]
dataset = "mine.npz"
agent = "iql"
[axes]
quality = [10, 100]
[axes.idm.short]
[axes.idm.long]
past = 3
"""


YAML = """
title: Mine
by: idm
panels: [dataset]
base: {dataset: mine.npz, agent: iql}
axes:
  quality: [10, 100]
  idm:
    short:
    long: {past: 3}
"""


def test_study_files_of_all_kinds_are_equal(tmp_path):
    (tmp_path / "own.toml").write_text(TOML)
    values = {"base": {"dataset": "mine.npz", "agent": "iql"}}
    values["axes"] = {"quality": [10, 100], "idm": {"short": {}, "long": {"past": 3}}}
    (tmp_path / "own.json").write_text(json.dumps(values))
    grid = f"Grid({values['base']!r}, {values['axes']!r})"
    (tmp_path / "own.py").write_text(
        f"from ssorl.study.grid import Grid, Study\nSTUDY = Study('own', 'Mine', ({grid},))\n"
    )
    (tmp_path / "own.yaml").write_text(YAML)
    studies = [find(tmp_path / f"own.{kind}") for kind in ("toml", "json", "py", "yaml")]
    assert studies[0].name == "own" and studies[0].title == "Mine" and studies[0].panels == ("dataset",)
    grids = [[(p.cell.hash, p.at) for p in study.points("lite")] for study in studies]
    assert grids[0] == grids[1] == grids[2] == grids[3] and len(grids[0]) == 2 * 2 * 3
    first = studies[0].points("lite")[0].cell
    assert first.dataset == "mine.npz" and dict(first.settings)["updates"] == make("iql", "quick").updates


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "base = 3", "base and axes are tables"),
        ("a.toml", "[base", "cannot be read"),
        ("a.toml", "axis = 1", "no 'axis'"),
        ("a.toml", "name = '../x'", "is also a file name"),
        ("a.json", "[]", "does not hold a table"),
        ("a.toml", "[axes]\nquality = 10\n[base]\ndataset = 'x'", "the axis quality is 10"),
        ("a.py", "x = 1", "defines no STUDY"),
        ("a.yaml", "base:\n  dataset: x\n agent: dt", r"a\.yaml: cannot be read \(line 3: "),
        ("a.yaml", "base: {dataset: x}\nfigur: iqm", r"a\.yaml, line 2: a study has no 'figur'; did you mean figure\?"),
        ("a.yaml", "base:\n  dataset: x\n  qualty: 5", r"line 3: a study has no 'qualty'; did you mean quality\?"),
        ("a.yaml", "base: {dataset: x}\naxes:\n  agents: [dt]", r"line 3: a study has no 'agents'; did you mean agent"),
        ("a.yaml", "base: {dataset: x}\naxes:\n  idm:\n    one:\n      pst: 3", r"line 5: .* did you mean past"),
        ("a.yaml", "base: {dataset: x}\nscales:\n  lit: {}", r"line 3: ssorl has no 'lit'; did you mean lite"),
        ("a.yaml", "grids:\n- base: {dataset: x}\n  axs: {}", r"line 3: a grid has no 'axs'; did you mean axes"),
        ("a.yaml", "base: {dataset: x}\ngrids: []", "line 2: each grid has a base"),
        ("a.yaml", "base:\n  dataset: x\n  dataset: y", "line 3: 'dataset' is already defined in line 2"),
        ("a.yaml", "base:\n  dataset: [x, y]", "line 2: dataset is .*; give one value, or make it an axis"),
        ("a.yaml", "base: {dataset: x}\npanels: [agnt]", "line 2: panels names 'agnt'; did you mean agent"),
        ("a.yaml", "base: {dataset: x}\nfigure: iqn", "line 2: figure names 'iqn'; did you mean iqm"),
        ("a.yaml", "base: {dataset: 2020-01-01}", "base.dataset is 2020-01-01, a date; put it in quotes"),
        ("a.yaml", "base: {dataset: x, fraction: .nan}", "base.fraction is nan; give a number"),
        ("a.yaml", "a: !!python/object/apply:os.system [echo]", "line 1: could not determine a constructor"),
        ("a.yaml", "base: &b\n  dataset: *b", "nested too deeply"),
        (
            "a.yaml",
            "\n".join(["a0: &a0 [1, 2]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(20))]),
            "more than",
        ),
        ("a.yaml", "- 1", "does not hold a table"),
        ("a.yaml", "base: {dataset: x, agent: tdbc}", "no agent is called 'tdbc'; did you mean td3bc"),
        ("a.yaml", "base: {dataset: x, settings: {alhpa: 1}}", "td3bc has no setting 'alhpa'; did you mean alpha"),
        ("a.yaml", "base: {dataset: x, idm: papr}", "did you mean paper"),
        ("a.yaml", "base: {dataset: x, idm_settings: {hiden: 1}}", "a.yaml: .* did you mean hidden"),
        ("a.yaml", "base:\n  dataset: x\n  seeds: 0", "line 3: seeds is 0; give a whole number from 1 up"),
        ("a.yaml", "base:\n  dataset: x\n  seeds: 1.5", "line 3: seeds is 1.5; give a whole"),
        ("a.yaml", "base:\n  dataset: x\n  rounds: -2", "line 3: rounds is -2; give a whole number from 0 up"),
        ("a.yaml", "base:\n  dataset: x\n  rounds: true", "line 3: rounds is True; give a whole number from 0 up"),
        ("a.yaml", "base:\n  dataset: x\n  certain: 3", "line 3: certain is 3; give a share above 0 and at most 1"),
        ("a.yaml", "base:\n  dataset: x\n  episodes: -2", "line 3: episodes is -2; give a whole number from 1 up"),
        ("a.yaml", "base: {dataset: x}\naxes:\n  quality: [50, abc]", "line 3: quality is 'abc'; give a percentage"),
        ("a.yaml", "base: {dataset: x}\naxes:\n  quality: []", "line 3: the axis quality has no values"),
        ("a.yaml", "base: {dataset: x}\naxes:\n  idm: {}", "a.yaml: a: has no points, because an axis has no values"),
        ("a.yaml", "base: {dataset: x, setup: decoupled, labelled: hi}", "labelled is 'hi'; did you mean high"),
        ("a.yaml", "base: {dataset: sim/hoper-medium}", "line 1: sim/hoper-medium: .* did you mean sim/hopper-medium"),
        ("a.yaml", "base: {dataset: sim/hopper-medium, size: big}", "size is 'big'; give a number of steps, or `full`"),
        ("a.yaml", "base: {dataset: x, settings: {batch: many}}", "a.yaml: batch of td3bc is 'many'; give a whole"),
        ("a.yaml", "base: {dataset: x, settings: {hidden: 64}}", "hidden of td3bc is 64; give a list of whole numbers"),
        ("a.yaml", "base: {dataset: x, kind: idm, setup: null}", "name a setup, or leave out `kind: idm`"),
        (
            "a.yaml",
            "grids:\n- base: {dataset: x}\n- base: {dataset: x, settings: {alpha: 1}}",
            "two different cells have the coordinates dataset x, agent td3bc, .*; make an axis of what differs",
        ),
        ("a.yaml", "base: {dataset: x, settings: {norm: 1}}", "norm of td3bc is 1; give true or false"),
        (
            "a.yaml",
            "base: {dataset: x}\naxes: {quality: [10, 50]}\nscales:\n  smoke: {quality: 50}",
            "line 4: the axis quality and `scales` both set quality; remove it from one of them",
        ),
        (
            "a.yaml",
            "base: {dataset: x}\naxes: {how: {a: {fraction: 0.1}, b: {fraction: 0.5}}}\nscales: {smoke: {fraction: 1}}",
            "line 3: the axis how and `scales` both set fraction",
        ),
        (
            "a.yaml",
            "base: {dataset: x}\naxes:\n  a: {x: {settings: {updates: 5}}}\nscales: {smoke: {settings: {updates: 9}}}",
            "line 4: the axis a and `scales` both set settings.updates; remove it from one of them",
        ),
        (
            "a.yaml",
            "base: {dataset: x}\naxes:\n  one: {a: {quality: 10}, b: {quality: 30}}\n  two: {c: {quality: 50}, d: }",
            "line 4: the axes one and two both set quality; remove it from one of them",
        ),
    ],
)
def test_invalid_study_files_raise(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(SsorlError, match=words):
        find(tmp_path / name).points("smoke")


def test_labels_of_the_dataset_axis_replace_names():
    """One dataset with two settings is two values of the axis."""
    axis = {
        "short": {"dataset": "sim/hopper-medium", "settings": {"updates": 20}},
        "long": {"dataset": "sim/hopper-medium"},
    }
    points = Study("s", "s", (Grid({"seeds": 1}, {"dataset": axis, "variant": ("baseline", "ss")}),)).points("smoke")
    assert [p.at["dataset"] for p in points] == ["short", "short", "long", "long"]
    assert len({p.cell for p in points}) == 4
    plain = Study("s", "s", (Grid({"seeds": 1}, {"dataset": ("sim/hopper-medium", "y")}),)).points("smoke")
    assert [p.at["dataset"] for p in plain] == ["hopper-medium", "y"]


def test_only_compares_numbers_by_value():
    axes = {"size": (20_000, 1_000_000), "certain": (0.25, 1), "quality": (10, 30)}
    study = Study("s", "s", (Grid({"dataset": "sim/hopper-medium", "seeds": 1}, axes),))
    for only, n in (
        ({"size": ["1000000"]}, 4),
        ({"size": ["1e6"]}, 4),
        ({"quality": ["10.0"]}, 4),
        ({"certain": [".25"]}, 4),
    ):
        assert len(study.points("smoke", only=only)) == n
    large = Study("s", "s", (Grid({"dataset": "x"}, {"seed": (1234567, 1234568)}),))
    assert [p.at["seed"] for p in large.points("smoke", only={"seed": ["1234568"]})] == [1234568]


def test_powers_of_ten_are_numbers_in_yaml(tmp_path):
    (tmp_path / "a.yml").write_text(
        "base: {dataset: x, settings: {actor_lr: 1e-5}, seeds: 1}\naxes: {fraction: [5e-2, 0.1]}"
    )
    cells = find(tmp_path / "a.yml").cells("paper")
    assert [dict(c.recipe)["fraction"] for c in cells] == [0.05, 0.1] and dict(cells[0].settings)["actor_lr"] == 1e-5


def test_every_figure_can_be_drawn():
    from ssorl.study.report.charts import DRAWN

    assert set(FIGURES) == set(DRAWN) and {s.figure for s in STUDIES.values()} <= {*FIGURES, "claims"}


def test_unknown_studies_files_and_scales_raise(tmp_path):
    with pytest.raises(SsorlError, match="did you mean main-medium-expert"):
        find("main-medium-exper")
    with pytest.raises(SsorlError, match="no such file"):
        find(tmp_path / "none.toml")
    with pytest.raises(SsorlError, match="there are smoke, lite, paper"):
        STUDIES["maze2d"].points("huge")


def test_scale_lite_keeps_the_learning_rate_of_robust():
    cells = STUDIES["idm-robust"].cells("lite")
    rates = {dict(c.idm).get("affine", False): dict(c.idm).get("lr") for c in cells if c.idm is not None}
    assert rates == {False: 3e-4, True: 1e-3}
