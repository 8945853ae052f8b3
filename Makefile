# Two commands matter: `make demo` and `make test`. Both build .venv on first use; the second time they start at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint lock clean

demo: $(READY)
	$(BIN)/ssorl data show sim/hopper-medium-expert --quality 50 --plot demo.png

test: $(READY)
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/pyright

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ssorl needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# The locked versions, for Python 3.11 and newer. Needs uv.
lock:
	uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --no-annotate --no-header \
	  --no-emit-package ssorl --output-file requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
