# Two commands matter: `make paper` and `make test`. Both set everything up first.
# `make` alone lists the targets.

ifeq ($(OS),Windows_NT)
$(error internalize runs on Linux and macOS. On Windows use WSL)
endif

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

# An environment that was moved, or whose interpreter no longer starts, counts as missing.
ifneq ($(shell test "$$(cat $(STAMP) 2>/dev/null)" = "$(CURDIR)" && $(BIN)/python -c "" 2>/dev/null && echo sound),sound)
$(shell rm -f $(STAMP))
endif

.PHONY: help install paper screenshots docs bench mutants faults check format test test-all clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## build .venv (done by the others when needed)

$(STAMP): pyproject.toml constraints.txt tools/install.py
	$(PYTHON) tools/install.py

paper: $(STAMP)  ## reproduce the paper into report/index.html (a minute on two cores)
	$(BIN)/internalize paper --out report

screenshots: paper  ## the README's pictures of that page (needs chromium)
	$(BIN)/python tools/screenshots.py report

docs: $(STAMP)  ## the site of docs/ into site/index.html; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP)  ## speed and memory as ratios of one run (some minutes; quiet machine)
	$(BIN)/internalize bench

mutants: $(STAMP)  ## broken models, each with the certificate that catches it
	$(BIN)/python -m tests.mutants

faults: $(STAMP)  ## kill -9, full disks, broken files, absurd command lines: what is survived (hours)
	$(BIN)/python -m tests.faults

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

format: $(STAMP)  ## rewrite in house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A process takes half a gigabyte. Those that have nothing left to do take over from the others.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test: $(STAMP)  ## the tests (under 10 minutes)
	$(PYTEST)

test-all: $(STAMP)  ## the tests with the slow ones
	$(PYTEST) -m ''

clean:  ## remove what make made, but not your runs
	rm -rf .venv .install.lock .pytest_cache .ruff_cache .hypothesis dist site
