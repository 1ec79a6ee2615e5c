# Needs Python 3.11 or later and nothing else. `make demo ARGS=--json` hands arguments on.

PYTHON ?= python3
ARGS ?=
CORES := $(shell getconf _NPROCESSORS_ONLN)
# The commit suite computes, with one process more than cores. The full suites mostly wait for Kafka.
test coverage: JOBS ?= $(shell echo $$(( 1 + $(CORES) )))
test-full: JOBS ?= $(shell echo $$(( 2 * $(CORES) )))
PARALLEL = --numprocesses $(JOBS) --dist loadfile

VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes: none should compile again what another has.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-full test-all coverage bench chaos lint docs picture dist develop clean
.DEFAULT_GOAL := help

help: ## List what can be made
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; \
		do printf '  make %-9s %s\n' "$$name" "$$text"; done

install: $(VENV)/.runtime ## Set up what runs, without the developers' tools

demo: $(VENV)/.runtime ## Run the demo on a real local Kafka
	@$(BIN)/sotto demo $(ARGS)

test: $(VENV)/.developer ## Run the tests to run before a commit, in about 8 minutes: make test JOBS=0 for one process
	@$(BIN)/pytest -m 'not full' $(PARALLEL) --durations 10 $(ARGS)

test-full: $(VENV)/.developer ## Run the slow suites that make test leaves out
	@$(BIN)/pytest -m full $(PARALLEL) $(ARGS)

test-all: test test-full ## Run all tests

coverage: $(VENV)/.developer ## Measure the branch coverage of stream by the commit suite, in three times its duration
	@$(BIN)/python -m pip install --quiet 'coverage>=7.10'
	@rm -rf build/coverage && mkdir -p build/coverage
	@COVERAGE_FILE=$(CURDIR)/build/coverage/data $(BIN)/python -m coverage run -m pytest -m 'not full' $(PARALLEL) $(ARGS)
	@COVERAGE_FILE=$(CURDIR)/build/coverage/data $(BIN)/python -m coverage combine --quiet
	@COVERAGE_FILE=$(CURDIR)/build/coverage/data $(BIN)/python -m coverage report --sort=cover

bench: $(VENV)/.runtime ## Measure throughput beside other stream processors
	@$(BIN)/python -m benchmarks.throughput $(ARGS)

chaos: $(VENV)/.developer ## Inject faults at length: make chaos ARGS='--minutes 30'
	@$(BIN)/python -m tests.chaos $(ARGS)

lint: $(VENV)/.developer ## Check style, types and the direction of imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/.developer ## Build the documentation into build/docs
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html"

picture: $(VENV)/.developer ## Run the demo and draw what it prints into docs/images/demo.svg
	@$(BIN)/python docs/images/terminal.py docs/images/demo.svg sotto demo

dist: $(VENV)/.python ## Build sdist and wheel into dist
	@$(BIN)/python -m pip install --quiet 'build>=1.3'
	@$(BIN)/python -m build --outdir dist

develop: $(VENV)/.developer ## Only set up the environment

clean: ## Remove the environment, caches and benchmark data; keep data and keys in .sotto
	@if [ -x $(BIN)/sotto ]; then $(BIN)/sotto broker stop; fi
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	@rm -rf .sotto/bench .sotto/bench-venv .sotto/cache
	@find schemas stream tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "There is no '$(PYTHON)'; install Python 3.11 or later, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "'$(PYTHON)' is older than Python 3.11; say make PYTHON=/path/to/a/later/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "'$(PYTHON)' lacks venv or ensurepip; install them (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "Creating $(VENV)" >&2
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml
	@$(call install,-e '.[all]')

$(VENV)/.developer: $(VENV)/.python pyproject.toml
	@$(call install,-e '.[dev]')
	@touch $(VENV)/.runtime

# Prints each step and package as it begins, and all of pip's output only if pip fails. sed -u reads line by line; some
# versions of awk wait for 4 kB. Python compiles the few modules that are ever imported.
define install
echo "Installing into $(VENV) (once); all that pip says goes to $(VENV)/install.log" >&2; \
{ $(BIN)/python -m pip install --no-compile --progress-bar off $(1) 2>&1; echo $$? >$(VENV)/install.status; } | \
	tee $(VENV)/install.log | \
	sed -u -n -E -e 's/^ *(Installing build dependencies): started$$/  \1/p' \
		-e 's/^ *(Preparing|Building) editable .*: started$$/  \1 Sotto/p' \
		-e 's/.*(Downloading|Using cached) ([^ ]*\/)?([^-\/ ]+)-([^- ]+)-[^ ]*\.whl (\(.*\)).*/  \3 \4 \5/p' \
		-e 's/^Installing collected.*/  Unpacking the packages/p' >&2; \
test "$$(cat $(VENV)/install.status)" = 0 || { cat $(VENV)/install.log >&2; \
	echo "The installation failed; is the network reachable?" >&2; exit 1; }; \
touch $@
endef
