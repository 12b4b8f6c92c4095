# Everything happens in .venv, inside this checkout. `make` alone lists the targets.

# The newest Python, 3.11 or later, that can create a virtual environment.
PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

VENV := .venv
RUN  := $(VENV)/bin/python
PIP  := $(RUN) -m pip --quiet --disable-pip-version-check --no-input

EXAMPLES := $(filter-out examples/__init__.py,$(sort $(wildcard examples/*.py)))

# Tests that search for counterexamples; `make prove-long` lets them search longer.
DEEP := $(addprefix tests/test_,$(addsuffix .py,agreement store_agreement cube_agreement delta_history delta_upkeep \
	encrypted_agreement store_prefilters store_values fuzz_decoders))

# Tests create thousands of small databases: put them in memory if there is room.
ROOM := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 6000000 2>/dev/null && echo TMPDIR=/dev/shm)

# Tests start hundreds of processes; without bytecode files, each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

# Many tests wait for servers, locks and times to live: one process more than there are cores.
WORKERS := $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)' 2>/dev/null || echo auto)

# Options for the command that a target runs: make test ARGS="-k fork -x"
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo examples test test-pythons prove prove-long lint types fmt docs package generate api budgets bench bench-full bench-size bench-valkey bench-threads bench-search bench-recall bench-import bench-values bench-encryption bench-inspector screenshots clean

help:  ## print this list
	@echo "make ..."
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="	" read -r target text; \
	do printf '  %-16s %s\n' "$$target" "$$text"; done

demo: $(VENV)/.demo  ## a tour in the terminal: crash and resume, time travel, cost (no API key)
	@$(VENV)/bin/threadkeep demo

examples: $(VENV)/.demo  ## run every example
	@set -e; for example in $(EXAMPLES); do echo "== $$example"; $(RUN) $$example; done

test: $(VENV)/.stamp  ## run the tests
	$(ROOM) $(RUN) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-pythons: $(VENV)/.stamp  ## run chosen tests on each supported Python of this machine
	$(ROOM) $(RUN) tools/test_pythons.py $(ARGS)

prove: $(VENV)/.stamp  ## run the fault matrix: kills, full disks, cut connections, ...; ARGS=--record writes the matrix
	$(RUN) tools/prove.py $(ARGS)

prove-long: $(VENV)/.stamp  ## run all other longer tests: failovers, every backend, model checking; hours
	$(RUN) -m pytest tests/prove -q -n auto $(ARGS)
	THREADKEEP_EVERYTHING=1 $(RUN) -m pytest tests --ignore=tests/prove -q -n auto -k "valkey or Valkey" $(ARGS)
	THREADKEEP_EVERYTHING=1 $(RUN) -m pytest tests --ignore=tests/prove -q -n auto -m "long or sampled" $(ARGS)
	THREADKEEP_HYPOTHESIS=prove $(RUN) -m pytest $(DEEP) -q $(ARGS)

lint: $(VENV)/.stamp  ## check rules and format with ruff
	$(RUN) -m ruff check $(ARGS)
	$(RUN) -m ruff format --check

types: $(VENV)/.stamp  ## check types with mypy, strict
	$(RUN) -m mypy $(ARGS)

fmt: $(VENV)/.stamp  ## format, and apply ruff's fixes
	$(RUN) -m ruff check --fix-only
	$(RUN) -m ruff format

docs: $(VENV)/.stamp  ## build the site of the documentation into build/site; any warning is an error
	$(RUN) -m sphinx -b html -c tools/site -W --keep-going -q -E -d build/doctrees . build/site $(ARGS)
	@echo "The site is in build/site/index.html"

package: $(VENV)/.stamp  ## build the wheel, and use it in an empty environment as the README says
	$(RUN) tools/check_package.py $(ARGS)

generate: $(VENV)/.stamp  ## write the generated parts of the documentation
	$(RUN) tools/generate_docs.py

api: $(VENV)/.stamp  ## record the public names and signatures, after a change that is meant
	$(RUN) tools/public_api.py --write

budgets: $(VENV)/.stamp  ## record what each verb costs, after a change that makes a difference
	$(ROOM) $(RUN) tools/record_budgets.py $(ARGS)

bench: $(VENV)/.stamp  ## compare with the official savers and stores: a short run
	$(RUN) bench/run.py $(ARGS)

bench-full: $(VENV)/.stamp  ## the same at full size, into docs/benchmarks.md; about an hour
	$(RUN) bench/run.py --full --record $(ARGS)

bench-size: $(VENV)/.stamp  ## measure the bytes of each file or table
	$(RUN) bench/size.py $(ARGS)

bench-valkey: $(VENV)/.stamp  ## measure what threads cost a Valkey cluster
	$(RUN) bench/cluster.py $(ARGS)

bench-threads: $(VENV)/.stamp  ## measure a page of keep.threads() among 100,000 threads
	$(RUN) bench/catalogue.py $(ARGS)

bench-search: $(VENV)/.stamp  ## measure searches beside the database's own full-text queries
	$(RUN) bench/search.py $(ARGS)

bench-import: $(VENV)/.stamp  ## measure an import of 100,000 checkpoints
	$(RUN) bench/import_from.py $(ARGS)

bench-values: $(VENV)/.stamp  ## measure large lists and dicts beside SqliteSaver
	$(RUN) bench/values.py $(ARGS)

bench-inspector: $(VENV)/.stamp  ## measure pages of the inspector beside commands
	$(RUN) bench/inspector.py $(ARGS)

screenshots: $(VENV)/.stamp  ## make the pictures of the inspector in docs/images
	$(RUN) tools/screenshots.py $(ARGS)

bench-encryption: $(VENV)/.stamp  ## measure what encryption costs
	$(RUN) bench/run.py --full --rows encryption $(ARGS)

bench-recall: $(VENV)/.bench  ## measure the recall of vector search
	$(RUN) bench/recall.py $(ARGS)

clean:  ## remove the virtual environment and all caches
	rm -rf $(VENV) .pythons .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "threadkeep needs Python 3.11 or later with venv; none was found." \
		"Name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "threadkeep needs Python 3.11 or later; $(PYTHON) is not." >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.made
	@echo "Installing threadkeep and what the demo and the examples need"
	@$(PIP) install -e ".[demo,cube,vectors]"
	@touch $@

$(VENV)/.stamp: pyproject.toml | $(VENV)/.made
	@echo "Installing threadkeep and its tools"
	@$(PIP) install -e ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.stamp
	@echo "Installing a model for embeddings"
	@$(PIP) install -e ".[bench]"
	@touch $@
