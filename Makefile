# `make demo` and `make test` need python3.11+ with its venv module, and make. They set up .venv themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNS ?= runs
WORKERS ?= 2
# One thread of mathematics a test process: more are slower on a busy machine.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: demo test check bench test-system test-real soak setup clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	@touch $@

# Two stages of one run: imitate a careless teacher, then get better than it by reinforcement learning.
demo: setup
	rm -rf $(RUNS)/demo-sft $(RUNS)/demo-grpo
	$(BIN)/trimtab train examples/demo/sft.yaml --run-dir $(RUNS)/demo-sft
	$(BIN)/trimtab train examples/demo/grpo.yaml policy.model=$(RUNS)/demo-sft --run-dir $(RUNS)/demo-grpo

test: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --durations=20 -m 'not gpu and not system and not soak'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	git ls-files -z | xargs -0 $(BIN)/detect-secrets-hook --exclude-files 'tests/reference/golden.json'

bench: setup
	$(BIN)/python benchmarks/step.py

# Real servers and browsers; none is needed by what there is so far, so this runs the system tests that exist.
test-system: setup
	@command -v chromium >/dev/null || { echo "a browser is needed: apt-get install -y chromium"; exit 2; }
	$(TEST_ENV) $(BIN)/python -m pytest -n 1 --override-ini 'addopts=--strict-markers --import-mode=importlib -ra' tests/system

test-real: setup
	@echo "nothing here needs a pretrained model yet"

soak: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 1 -m soak

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
