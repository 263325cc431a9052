# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv in this checkout first.
# Needs: make, git, Python >= 3.11 with its venv module. PYTHON=/path/to/python3 picks another interpreter.

SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# linearizable.py takes a quarter of an hour and more: by itself.
BENCHES ?= $(filter-out benchmarks/engines_server.py benchmarks/pty_run.py benchmarks/linearizable.py benchmarks/peers.py benchmarks/mooncake_client.py benchmarks/gpu_check.py benchmarks/kernels_aot.py,$(wildcard benchmarks/*.py))

.PHONY: help demo test lint format types unit bench gpu-wheels test-vllm test-lmcache bench-peers test-roce clean

help:
	@echo "make demo       set up, start a store under a real trace, and kvtop on it (without a terminal: print the diagnosis)"
	@echo "make test       set up, then ruff, mypy and pytest"
	@echo "make lint       set up, then ruff and mypy only"
	@echo "make bench      set up, then every script of benchmarks/ (minutes)"
	@echo "make test-vllm  a real vLLM in its own environment (.vllm-lab: about 4 GB of disk, AVX2)"
	@echo "make test-roce  a store between two QEMU guests over RoCE verbs (root, about 1.5 GB of disk, a quarter of an hour)"
	@echo "make test-lmcache  LMCache's check of L2 adapters on ours, in its own environment (.lmcache-lab: about 1 GB)"
	@echo "make bench-peers  LMCache and Mooncake beside ours, each where its environment is named"
	@echo "make gpu-wheels  wheels for benchmarks/gpu_check.py on a GPU without a network (GPU_WHEELS=nixl-cu13: NIXL, too)"
	@echo "make clean      remove .venv, kv and caches"

demo: $(VENV)/.store
	@$(BIN)/kvtop demo

# Two at a time: mypy's minute and PyTorch's unpacking use one core each.
test:
	@$(MAKE) --no-print-directory -j2 lint unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: $(VENV)/.dev $(VENV)/.torch
	@sh scripts/halves.sh $(BIN)/python $(PYTEST_ARGS)

bench: $(VENV)/.dev
	@set -e; for bench in $(BENCHES); do echo "== $$bench"; $(BIN)/python "$$bench"; done

test-vllm: $(VENV)/.dev
	KVSCOPE_TEST_VLLM=1 $(BIN)/python -m pytest tests/live/test_vllm.py $(PYTEST_ARGS)

test-roce: $(VENV)/.dev
	KVSCOPE_TEST_ROCE=1 $(BIN)/python -m pytest tests/roce $(PYTEST_ARGS)

test-lmcache: $(VENV)/.dev
	KVSCOPE_TEST_LMCACHE=1 $(BIN)/python -m pytest tests/live/test_lmcache.py $(PYTEST_ARGS)

bench-peers: $(VENV)/.dev
	$(BIN)/python benchmarks/peers.py

# benchmarks/gpu_check.py finds them there: what the machine with the GPU lacks is unpacked, nothing is installed.
gpu-wheels: $(BIN)/python
	@sh scripts/gpu_wheels.sh $(BIN)/python wheels $(GPU_WHEELS)

clean:
	rm -rf $(VENV) kv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment itself: made once, thrown away again when it is only half made.
$(BIN)/python:
	@sh scripts/check_python.sh "$(PYTHON)"
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps: installed again only when pyproject.toml is newer.
$(VENV)/.base: pyproject.toml | $(BIN)/python
	@echo "installing kvscope (base) into $(VENV)"
	@$(PIP) install --editable .
	@touch $@

# Without the store's packages the demo shows its recorded incident, and says so.
$(VENV)/.store: pyproject.toml | $(BIN)/python
	@echo "installing kvscope with its store into $(VENV)"
	@$(PIP) install --editable '.[store]' || $(PIP) install --editable .
	@touch $@ $(VENV)/.base

# The kernels run under Triton's interpreter and are compiled ahead of time, both without a GPU. Only a CPU build of
# PyTorch is taken (0.2 GB, not 3): where pip finds none, the tests that need it skip, by name.
TORCH ?= torch==2.13.0+cpu
TRITON ?= triton>=3.6,<3.10
$(VENV)/.torch: pyproject.toml $(VENV)/.dev
	@echo "installing $(TORCH) and Triton into $(VENV)"
	@$(PIP) install --no-compile '$(TORCH)' '$(TRITON)' 2>/dev/null || \
		echo "pip finds no $(TORCH): the tests of the kernels will skip (PIP_EXTRA_INDEX_URL names an index of CPU builds)"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing kvscope with its development tools into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.base
