# Everything a person needs between `git clone` and trained weights. `make help` lists it.
# Needs git, make and Python; no virtual environment has to be active.

PYTHON ?= python3
JOBS ?= $(shell nproc)

# DVC runs a stage as `python -m pipelines.clean`; here that is the Python of .venv.
VENV := . .venv/bin/activate &&
PYTEST := $(VENV) pytest -n $(JOBS) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help host setup repro test test-slow lint format lock sample bench-reader bench-incremental clean

help: ## List what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

host:
	@[ "$$(uname -s)" = Linux ] || { \
	  echo "Headrace runs on Linux only, since DALI does; this is $$(uname -s)." >&2; exit 1; }

setup: .venv/.installed ## Make .venv from requirements.lock, unless it is up to date

.venv/.installed: requirements.lock | host
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Headrace needs Python 3.11 or newer, and '$(PYTHON)' is not; name one with" \
	    "make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing requirements.lock into .venv; the first time takes some minutes."
	@.venv/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@.venv/bin/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	@touch $@

repro: setup ## Build the dataset, train and evaluate: what is up to date is not run again
	@$(VENV) dvc repro
	@$(VENV) python -m pipelines summary

test: setup ## Run the tests, except the slow ones
	$(PYTEST)

test-slow: setup ## Run the slow tests: kills, chaos, long searches
	$(PYTEST) -m slow

lint: setup ## Check style, types, the direction of imports and spelling
	$(VENV) ruff check
	$(VENV) ruff format --check
	$(VENV) mypy
	$(VENV) lint-imports
	$(VENV) git ls-files -z | xargs -0 codespell

format: setup ## Put the code into the form that `make lint` checks
	$(VENV) ruff check --fix-only
	$(VENV) ruff format

# Made with the oldest Python that pyproject.toml allows: what that resolves to, newer ones install
# too. Left out are pip, local versions (torch's +cpu), and what a CUDA build of torch brings along:
# torch pins that itself, exactly, and a CPU build must install without it.
lock: host ## Resolve pyproject.toml anew into requirements.lock, with PYTHON=python3.11
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "The lock is made with Python 3.11, the oldest supported: make lock PYTHON=python3.11" \
	    >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	  print(*p["project"]["dependencies"], *p["dependency-groups"]["dev"], sep="\n")' \
	  > .venv-lock/direct.txt
	.venv-lock/bin/pip install --quiet --disable-pip-version-check -r .venv-lock/direct.txt
	.venv-lock/bin/pip freeze --all > .venv-lock/all.txt
	sed -E -e 's/\+[a-z0-9.]+$$//' -e '/^pip==/d' \
	  -e '/^(triton|cuda-[a-z-]+|nvidia-(cu|nccl|nvshmem|nvjitlink|nvtx)[a-z0-9-]*)==/d' \
	  .venv-lock/all.txt | LC_ALL=C sort -f > requirements.lock
	rm -rf .venv-lock

sample: setup ## Cut datasets/fashion/sample.zip anew from Debian's dataset-fashion-mnist
	$(VENV) python -m benchmarks.fashion_sample

# The peers resolve to what is newest: a benchmark compares with what people would install today.
bench-reader: setup .venv-bench/.installed ## Measure the reader beside its peers, in about half an hour
	$(VENV) python -m benchmarks.reader --json bench-reader.json

bench-incremental: setup ## Measure what a second build costs, with photos of Debian's wallpaper packages
	$(VENV) python -m benchmarks.incremental

.venv-bench/.installed: benchmarks/reader/requirements.txt
	$(PYTHON) -m venv --clear .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean: ## Remove caches and resume state; data, runs and .venv stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .state .memo
	find pipelines trainers tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
