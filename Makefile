# Everything a newcomer runs. The environment lives in .venv and is made on first use.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_LANG ?= en
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: env demo test test-all lint bench messages clean

env: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $@

# Train, evaluate and use a small tagger on built-in data, with no network but PyPI.
demo: $(READY)
	@BERTFIT_LANG=$(DEMO_LANG) $(BIN)/bertfit demo --lang $(DEMO_LANG) --output-dir demo-run-$(DEMO_LANG) --overwrite

# Everything a change must pass.
test: $(READY)
	$(BIN)/python -m pytest -m "not slow and not gpu"

# The long forms as well.
test-all: $(READY)
	$(BIN)/python -m pytest -m "not gpu"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) demo-run-* .mypy_cache .ruff_cache
