import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT

from ssorl import envs
from ssorl.cli import main
from ssorl.data import concat, load
from ssorl.data.sim import datasets
from ssorl.utils import cache
from ssorl.utils.errors import DataError

D4RL_MEANS = {
    "hopper-medium": 0.443,
    "hopper-medium-replay": 0.150,
    "walker2d-medium": 0.621,
    "walker2d-medium-replay": 0.148,
    "halfcheetah-medium": 0.407,
    "halfcheetah-medium-replay": 0.272,
}
EXPERTS = {"hopper-expert": 1.05, "walker2d-expert": 1.0, "halfcheetah-expert": 0.85}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSORL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_all_datasets_of_the_paper_have_names():
    wanted = {f"{e}-{level}" for e in ("hopper", "walker2d", "halfcheetah") for level in ("medium", "medium-replay")}
    wanted |= {f"{e}-{level}" for e in ("hopper", "walker2d", "halfcheetah") for level in ("medium-expert", "expert")}
    wanted |= {"walker2d-wide"}
    wanted |= {f"maze2d-{m}-dense" for m in ("open", "umaze", "medium", "large")}
    assert set(datasets.names()) == wanted


def test_medium_expert_is_medium_and_expert():
    both = load("sim/hopper-medium-expert:4000")
    assert both.same(concat([load("sim/hopper-medium:2000"), load("sim/hopper-expert:2000")]))
    assert both.meta.source == "sim/hopper-medium-expert:4000" and both.meta.env == "hopper"
    # The expert half has much higher returns.
    n = len(load("sim/hopper-medium:2000"))
    assert both.normalised_returns()[n:].mean() > both.normalised_returns()[:n].mean() + 0.3


def test_the_wide_subsample_contains_rare_returns():
    wide = load("sim/walker2d-wide:6000")
    whole = concat([load("sim/walker2d-medium-replay:1392"), load("sim/walker2d-medium:4608")])  # 302 to 1,000
    assert len(wide) == 50 and wide.meta.source == "sim/walker2d-wide:6000" and wide.labelled.all()
    assert set(wide.returns) <= set(whole.returns)
    assert wide.same(load("sim/walker2d-wide:6000"))
    # A trajectory has the weight 1/n_i² of its bin, so nearly all that are alone in one of 40 bins are drawn.
    bins = np.histogram_bin_edges(whole.returns, 40)
    bin_of = np.clip(np.digitize(whole.returns, bins) - 1, 0, 39)
    alone = whole.returns[np.bincount(bin_of, minlength=40)[bin_of] == 1]
    assert len(alone) and np.isin(alone, wide.returns).mean() > 0.8


def test_a_damaged_cache_file_is_generated_again_with_the_same_bytes(capsys):
    load("sim/halfcheetah-medium-replay:1000")
    (path,) = (cache.root() / "sim").glob("halfcheetah-medium-replay-1000-*.npz")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    load("sim/halfcheetah-medium-replay:1000")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert "damaged" in capsys.readouterr().err


def test_medium_replay_follows_the_proportions_of_training():
    for env, roster in datasets.ROSTERS.items():
        steps, shares = zip(*datasets.recipe(env, "medium-replay"), strict=True)
        assert steps == roster.replay and np.isclose(sum(shares), 1)
        # The first policy represents training up to half way to the second one, and so on.
        assert np.isclose(shares[0], (steps[0] + steps[1]) / 2 / steps[-1])
        assert np.isclose(shares[-1], (steps[-1] - steps[-2]) / 2 / steps[-1])


def test_the_untrained_policy_acts_randomly():
    act = datasets.policy("hopper", 0).act(np.ones((4000, 11)), np.random.default_rng(0))
    assert abs(act.mean()) < 0.02 and 0.5 < act.std() < 0.75


def test_measured_mean_returns_are_close_to_d4rls():
    for name, mean in D4RL_MEANS.items():
        for size in ("default", "full"):
            got = _table()[name][size]["normalised_return"]["mean"]
            assert abs(got - mean) <= 0.05, (name, size, got)
    for name, least in EXPERTS.items():
        assert _table()[name]["full"]["normalised_return"]["mean"] >= least


def _table() -> dict:
    return json.loads(Path(datasets.__file__).with_suffix(".json").read_text())


def test_a_new_sample_agrees_with_the_table():
    eps = load("sim/hopper-expert:8000")
    table = _table()["hopper-expert"]["full"]["normalised_return"]
    assert abs(np.median(eps.normalised_returns()) - table["mean"]) < 0.1


def test_bundled_policies_have_records_and_match_their_environments():
    rows = datasets.bundled()
    assert len(rows) == 23
    for row in rows:
        assert {"command", "seed", "commit", "curve", "config", "hardware"} <= set(row)
        policy = datasets.policy(row["env"], row["steps"])
        env = envs.make(row["env"], 2)
        act = policy.act(env.reset(np.random.default_rng(0)), np.random.default_rng(0))
        assert act.shape == (2, env.n_act) and (np.abs(act) <= 1).all()


def test_commands_show_datasets_and_policies(capsys):
    main(["data", "show", "sim/maze2d-umaze-dense", "--size", "2000", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert 2000 <= shown["steps"] < 2400 and shown["env"] == "maze2d-umaze-dense"
    main(["behaviour", "list", "--json"])
    assert len(json.loads(capsys.readouterr().out)) == 23
    main(["behaviour", "list"])
    assert "2,150,000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sim/hoper-medium", "did you mean sim/hopper-medium"),
        ("sim/hopper-medium:lots", "give a number of steps or `full`"),
        ("sim/hopper-medium:0", "give a number of steps or `full`"),
        ("sim/maze2d-umaze-dense:lots", "sim/maze2d-umaze-dense: the size is 'lots'"),
    ],
)
def test_invalid_names_and_sizes_raise(name, words):
    with pytest.raises(DataError, match=words):
        load(name)


def test_the_documented_returns_are_the_measured_ones():
    page = (ROOT / "docs" / "datasets.md").read_text()
    rows = re.findall(r"^\| `sim/(\S+)` \|.*\| (\S+ ± \S+) \|$", page, re.MULTILINE)
    assert len(rows) == 16
    for name, documented in rows:
        known = datasets.measured(name)["normalised_return"]
        assert f"{known['mean']:.3f} ± {known['std']:.3f}" == documented, name
