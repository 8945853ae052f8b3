# The two main targets are `make demo` and `make test`. Both build .venv on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# uv needs half of pip's minute; pip is used if uv cannot be installed. uv compiles bytecode, as pip does: the tests start
# hundreds of processes, and each would compile all modules again if Python may not write bytecode beside them.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV     := $(BIN)/uv pip install --quiet --python $(BIN)/python
# These tests start a Ray cluster, so they run alone.
ALONE  := tests/unit/study/test_ray_cluster.py

.PHONY: demo test campaign docs figures browser lint lock dist clean

demo: $(READY)
	$(BIN)/ssorl run sim/hopper-medium-expert

test: $(READY) lint browser
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --ignore $(ALONE)
	$(BIN)/python -m pytest $(ALONE)

# The full fault searches, of which `make test` runs 2 %: a kill before every write, thousands of mutated files.
# This takes one to two hours on two cores.
CAMPAIGNS := tests/faults/test_kills.py tests/faults/test_hostile_loaders.py tests/unit/training/test_checkpoint.py \
  tests/unit/data/formats/test_fuzz.py tests/unit/data/test_stream.py
campaign: $(READY)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --campaign $(CAMPAIGNS)

# Draw every figure and table of the docs from results/, without a GPU and without training.
figures: $(READY)
	$(BIN)/python scripts/results.py draw
	$(BIN)/python scripts/ledger_power.py --table
	$(BIN)/python scripts/agents_page.py
	$(BIN)/python scripts/run_page.py
	$(BIN)/python benchmarks/idm_table.py --table --docs full > /dev/null
	$(BIN)/python benchmarks/idm_table.py --table --docs variants --store results/idm-variants.jsonl > /dev/null
	$(BIN)/python benchmarks/idm_table.py --table --docs dropout --store results/idm-dropout.jsonl > /dev/null
	$(BIN)/python benchmarks/idm_ablation.py --table > /dev/null
	$(BIN)/python benchmarks/certain.py > /dev/null
	$(BIN)/python benchmarks/self_training.py > /dev/null
	$(BIN)/python benchmarks/mended_start.py > /dev/null
	$(BIN)/python benchmarks/label_table.py --table > /dev/null

# Build the documentation in site/. Open site/index.html; no server is needed. The tests build it too.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

# Install a browser for the tests of pages. Without a browser these tests are skipped, with a message.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	  || echo "no browser could be installed: the tests of pages will be skipped"; fi

# Static checks; pre-commit runs the same ones.
lint: $(READY)
	$(BIN)/ruff check src tests benchmarks scripts examples
	$(BIN)/ruff format --check src tests benchmarks scripts examples
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ssorl needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	{ $(PIP) uv==0.13.7 && $(UV) --compile-bytecode -r requirements.lock && $(UV) --no-deps --editable .; } || \
	  { $(PIP) -r requirements.lock && $(PIP) --no-deps --editable .; }
	@touch $@

# Lock the versions of all dependencies, for Python 3.11 and newer. Needs uv.
lock:
	uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --no-annotate --no-header \
	  --no-emit-package ssorl --output-file requirements.lock

# Build and check the wheel and the sdist in dist/, and run the wheel in a clean environment. Needs a package index.
dist: $(READY)
	$(BIN)/python scripts/check_dist.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache site dist
