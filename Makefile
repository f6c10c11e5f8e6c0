# Targets make their own environment in .venv; nothing else has to be installed but Python 3.11+ with pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# uv installs faster where there is one; pip is enough.
UV := $(shell command -v uv 2>/dev/null)
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check)

# Processes share what one of them has compiled: tests start hundreds, each of which would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all timed night lab hunt lint types validate gate compare mutations bench docs clean

$(BIN)/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --quiet --editable . --editable lab
	touch $@

$(BIN)/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --quiet --editable '.[dev]' --editable lab
	touch $@ $(BIN)/.demo

demo: $(BIN)/.demo
	$(BIN)/prestep run --trace prestep-demo.trace.json.gz

# Two processes: each takes up to 3 GB with what it has read and predicted.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Not even imported where it does not run.
PRODUCT := $(PYTEST) --ignore tests/lab

# Minutes, for every change; CI runs test-all. Each night: what CI takes a sample of, other examples, and the laboratory's.
test: $(BIN)/.dev
	$(PRODUCT) -m "not slow and not lab"

test-all: $(BIN)/.dev
	$(PRODUCT) -m "not lab and not night"

night: $(BIN)/.dev
	$(PRODUCT) -m "night and not lab"
	test ! -x .ci-venv-capture/bin/python || .ci-venv-capture/bin/python -m pytest -n 2 -m night tests/workloads
	$(MAKE) hunt

# Writes anew which tests are slow (tests/slow.txt), which of them are left to the night (tests/night.txt), and what each file
# takes (tests/seconds.txt).
timed: $(BIN)/.dev
	$(PRODUCT) -m "not lab" -p tests.timed

lab: $(BIN)/.dev
	$(PYTEST) -m lab
	$(BIN)/prestep validate $$($(BIN)/prestep list sets)

# Property tests with other examples each time, and three times as many: CI repeats the same ones.
ROUNDS ?= 10
hunt: $(BIN)/.dev
	for round in $$(seq $(ROUNDS)); do env -u CI PRESTEP_EXAMPLES=prestep-hunt $(BIN)/python -m pytest -n 2 -q -m hypothesis || exit 1; done

# `prestep.sim` is the folder sim: prestep/__init__.py finds it when it runs, tools that only read find it by links.
.PHONY: .links
.links:
	@mkdir -p $@/prestep && ln -sfn ../lab $@/lab
	@for path in prestep/*.* sim topologies workloads validation cli.py; do ln -sfn ../../$$path $@/prestep/; done

lint: $(BIN)/.dev .links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd .links && $(abspath $(BIN))/lint-imports ../pyproject.toml

types: $(BIN)/.dev .links
	cd .links && $(abspath $(BIN))/mypy --config-file ../pyproject.toml

validate: $(BIN)/.dev
	$(BIN)/prestep validate h200

gate: $(BIN)/.dev
	$(BIN)/prestep validate h200 --known-misses .ci/known-misses.toml

# What moved since BASE (a revision, or a file of `validate --json`); outside the limits of a set is the gate's business.
# One thread, as the command line has it: others add in another order.
# KEPT: a folder with reports that `make test-all` kept (PRESTEP_KEEP_REPORTS); the same tree need not predict them again.
SETS ?= h200 h200-unseen h200-preregistered h200-straggler h200-whatif leafspine collectives collectives-unseen collectives-leafspine probes
KEPT ?= .kept
compare: $(BIN)/.dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m lab.report.kept $(KEPT) $(SETS) --base $(BASE) --known-misses .ci/known-misses.toml

# Whether the comparison notices a tenth more of one constant: some of all kinds, by the questions of `probes`.
mutations: $(BIN)/.dev
	$(BIN)/python -m lab.bench.mutations --sets probes "interference: power" "launch on the host" "peak of H100" "object store"

bench: $(BIN)/.dev
	$(BIN)/python -m pytest tests/bench --benchmark-enable --benchmark-only

$(BIN)/.docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --quiet --editable '.[docs]'
	touch $@

# The site, in docs/_build/html; a warning is an error.
docs: $(BIN)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:
	rm -rf $(VENV) docs/_build docs/made .links .mypy_cache .ruff_cache .pytest_cache .hypothesis
