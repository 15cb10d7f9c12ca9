# Every target does its own missing set-up and says what it does. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV ?= .venv
DATA_DIR ?= .atoll
LISTEN ?= 127.0.0.1:8080
TEST_PROCESSES ?= 3
# The slowest first, so that no process is left alone with them at the end.
SUITES := $(addprefix tests/,properties faults e2e contract inventory api store unit)
BIN := $(VENV)/bin
STAMP := $(VENV)/.atoll-installed
SOURCES := $(shell find src/atoll/agent/csrc -name '*.[ch]' 2>/dev/null)

.PHONY: help setup demo serve test test-setup bench fmt fuzz clean

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: machine $(STAMP) ## Install what the machine lacks, the virtual environment and the default image
	@$(BIN)/atoll image build --data-dir $(DATA_DIR)

.PHONY: machine
machine:
	@sh deploy/setup-machine.sh

# The package is installed again when what it is made from has changed; dependencies are pinned in constraints.txt.
$(STAMP): pyproject.toml setup.py constraints.txt $(SOURCES)
	@echo "==> installing Atoll into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: machine $(STAMP) ## Watch it work: image, server, sandbox, commands, a restart, the end
	@$(BIN)/python examples/demo.py

serve: setup ## Serve on $(LISTEN)
	@$(BIN)/atoll serve --data-dir $(DATA_DIR) --listen $(LISTEN)

test-setup:
	@sh deploy/setup-machine.sh --test

test: test-setup $(STAMP) ## Run every check
	@echo "==> formatting and lint" && $(BIN)/ruff format --check src tests bench examples setup.py && $(BIN)/ruff check src tests bench examples setup.py
	@echo "==> types" && $(BIN)/mypy
	@echo "==> import layers" && $(BIN)/lint-imports --no-logo
	@echo "==> tests" && $(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(or $(PYTEST_ARGS),$(SUITES))

bench: test-setup $(STAMP) ## Measure, beside runsc, bubblewrap and Docker
	@$(BIN)/python -m bench $(BENCH_ARGS)

fmt: $(STAMP) ## Format, and mend what lint can mend
	@$(BIN)/ruff check --fix --quiet src tests bench examples setup.py; $(BIN)/ruff format src tests bench examples setup.py

fuzz: test-setup $(STAMP) ## Fuzz the agent: what reads foreign bytes (FUZZ_SECONDS=600)
	@ATOLL_FUZZ_SECONDS=$${FUZZ_SECONDS:-600} $(BIN)/python -m pytest -q tests/contract/agent/test_fuzz.py

clean: ## Remove what was built here (not the data directory)
	rm -rf $(VENV) build dist src/*.egg-info src/atoll/agent/bin .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
