# Every target sets up .venv first if it is missing or older than the files that define it: for a
# demo what tacit itself needs, for the others also what tests and checks need.

PYTHON ?= python3
MINUTES ?= 30
BIN := .venv/bin
TACIT := .venv/.tacit
VENV := .venv/.installed
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check --no-compile -c constraints.txt
SHELL := /bin/sh

# Where Python may not keep what it compiles, each process compiles torch again, and tests start many.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all fuzz lint format docs bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(TACIT) ## see it work
	@$(BIN)/tacit demo

test: $(VENV) ## run the tests, without the slow ones
	@$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow"

test-all: $(VENV) ## run all tests; property tests then draw new examples each time
	@TACIT_RANDOM_EXAMPLES=1 $(BIN)/pytest -q -n 2 --dist worksteal

fuzz: $(VENV) ## try hostile files, command lines and kills for MINUTES=30 (SEED=1 repeats a session)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
	  $(INSTALL) --no-deps atheris || \
	  echo "atheris cannot be installed here: no parser is guided by coverage" >&2
	@$(BIN)/python -m tests.hostile.fuzz --minutes $(MINUTES) --out build/fuzz $(if $(SEED),--seed $(SEED))

lint: $(VENV) ## check style and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(VENV) ## fix what can be fixed, and format
	@$(BIN)/ruff check --fix --exit-zero
	@$(BIN)/ruff format

docs: $(VENV) ## build the documentation as a website in build/docs; a broken link is an error
	@$(BIN)/python docs/package_graph.py --check
	@$(BIN)/mkdocs build --strict

bench: $(VENV) ## time what has to be fast
	@set -e; for script in bench/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

clean: ## remove everything that was generated, .venv too
	@rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +

# The pinned versions are what CI tests; pip stays silent unless something goes wrong.  Python
# compiles what is imported, and most of what is installed never is.
$(TACIT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "tacit needs Python 3.11 or newer, and '$(PYTHON)' is not: name one with make PYTHON=..." >&2; \
	  exit 1; }
	@echo "Setting up .venv with the pinned dependencies; this takes about a minute."
	@$(PYTHON) -m venv .venv
	@$(INSTALL) -e .
	@touch $@

$(VENV): $(TACIT)
	@echo "Adding what tests and checks need."
	@$(INSTALL) -e '.[dev,nlu,federation]'
	@touch $@
