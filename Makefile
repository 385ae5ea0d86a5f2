# Everything a newcomer runs. The environment lives in .venv and is made on first use.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := .venv-lowest
DEMO_LANG ?= en
TEST_MODELS := .test-models
MAKE_MODELS := ../shared/tools/get_test_models.py
# One thread each: as many tests at once as there are cores to spare.
WORKERS ?= 2
PYTEST := -m pytest -n $(WORKERS) --dist worksteal
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: env demo test test-all test-lowest lint bench messages clean

env: $(READY)

$(READY): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev,bench,lora,onnx,openvino]'
	touch $@

# Train, evaluate and use a small tagger on built-in data, with no network but PyPI.
demo: $(READY)
	@BERTFIT_LANG=$(DEMO_LANG) $(BIN)/bertfit demo --lang $(DEMO_LANG) --output-dir demo-run-$(DEMO_LANG) --overwrite

# Everything a change must pass.
test: $(READY)
	$(BIN)/python $(PYTEST) -m "not slow and not gpu"

# The long forms as well, with real weights where the script that makes them is at hand, and the
# lowest versions that are supported.
test-all: $(READY) $(TEST_MODELS) test-lowest
	BERTFIT_EXAMPLES=new BERTFIT_TEST_MODELS=$(abspath $(TEST_MODELS)) $(BIN)/python $(PYTEST) -m "not gpu"

test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python $(PYTEST) -m "not slow and not gpu"

$(LOWEST)/.ready: pyproject.toml constraints-lowest.txt Makefile
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[demo,dev,lora]'
	touch $@

$(TEST_MODELS): $(READY)
	mkdir -p $@
	if [ -f $(MAKE_MODELS) ]; then \
	  $(BIN)/python $(MAKE_MODELS) --out $@/e5 --model e5-small --vocab zh-en; fi

# Every claim of the README, measured again: hours on two cores.
bench: $(READY) $(TEST_MODELS)
	$(BIN)/python benchmarks/train_vs_trainer.py speed --model $(TEST_MODELS)/e5 --data ../shared/data/cluener
	$(BIN)/python benchmarks/train_vs_trainer.py f1 --model $(TEST_MODELS)/e5 --data ../shared/data/cluener --sentences 2000
	$(BIN)/python benchmarks/memory_truth.py
	$(BIN)/python benchmarks/chaos.py --kills 50 --signals 20

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(LOWEST) demo-run-* $(TEST_MODELS) .mypy_cache .ruff_cache
