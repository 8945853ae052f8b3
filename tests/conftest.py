"""Shared data, made once."""

import os
import signal
from importlib.metadata import version
from pathlib import Path

# A script's `&` has Ctrl-C ignored, by all that is started from there too: the tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Compiling dominates the tests that use JAX: keep what was compiled for the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
# Small programs, each compiled once on a fresh clone: code that is made quickly beats code that is quick. The older
# emitters take half the time; 0.12 has them no more, and its YNNPACK fails at products in bfloat16 on some processors
# of AMD. XLA ends at a flag that it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + (
        " --xla_cpu_use_fusion_emitters=false"
        if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 12)
        else " --xla_cpu_experimental_ynn_fusion_type="
    ),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("support")  # the helpers' assertions show their values, too

from support.campaign import Campaign  # noqa: E402

from ssorl.data.episodes import Episodes  # noqa: E402

# Begun first, so that no worker is left alone with one of them at the end.
LONG = ["faults/test_kills", "conformance/test_agents_conform", "pages/test_example", "probe/test_dt"]
LONG += ["faults/test_strange_data", "unit/cli/test_label", "unit/cli/test_run", "unit/study/test_scheduler"]
LONG += ["unit/data/sim/test_sac", "golden/test_cql_update", "pages/test_blocks", "probe/test_inverse"]
LONG += ["faults/test_determinism", "unit/data/formats/test_fuzz"]

pytest_plugins = ["support.page_fixtures"]  # a browser, and pages to open in it


def pytest_addoption(parser) -> None:
    parser.addoption("--campaign", action="store_true", help="all kill points and mutated files, not a seeded 2 %%")


def pytest_configure(config) -> None:
    """Hypothesis tries the same examples each time, new ones in a campaign, and never minds how long one takes."""
    campaign, slow = config.getoption("--campaign"), [HealthCheck.too_slow]
    settings.register_profile("ssorl", deadline=None, derandomize=not campaign, suppress_health_check=slow)
    settings.load_profile("ssorl")


@pytest.fixture(scope="session")
def campaign(request) -> Campaign:
    """How much of the long searches for faults is done."""
    return Campaign(request.config.getoption("--campaign"))


def pytest_collection_modifyitems(items) -> None:
    place = {Path(__file__).parent / f"{name}.py": i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(LONG)))


@pytest.fixture(scope="session")
def pointmass() -> Episodes:
    from ssorl.data import load

    return load("builtin/pointmass")


@pytest.fixture(scope="module")
def eps(pointmass) -> Episodes:
    """Enough to split and to learn something from."""
    return pointmass[:40]


@pytest.fixture(scope="module")
def small_idm():
    """What a run fits where it is not told which model: here a tiny one."""
    from dataclasses import replace

    from support.systems import TINY

    from ssorl.idm import IDMS

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IDMS, "robust-quick", replace(TINY, hidden=(8,), steps=60, validate_every=30))
        patch.setitem(IDMS, "blend-quick", replace(TINY, hidden=(8,), steps=60, validate_every=30))
        yield
