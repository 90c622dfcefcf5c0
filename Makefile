# Everything works from a fresh clone with Python 3.11 and make: the targets build .venv themselves.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q
.DEFAULT_GOAL := help
# Images of Python often set it. Each of the processes that tests start would then compile this package again.
unexport PYTHONDONTWRITEBYTECODE
# Asked for advisories about the pinned versions.
AUDIT_URL := https://api.osv.dev/
AUDIT := $(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip --vulnerability-service osv
AUDITED := $(VENV)/.audited
# What builds and checks a release.
RELEASE := build/release
.PHONY: help demo demo-fleet unit test check check-benchmarks fmt bench fuzz audit audit-when-reachable wheel
.PHONY: pictures keep-pictures test-faults test-clouds test-pages test-pythons test-docker test-formats test-gpu

help:
	@echo "make demo         train on a bucket, through the cache, in under 3 minutes; table and curves at the end"
	@echo "make demo-fleet   two jobs on four nodes whose caches act as one; a node is lost; under 3 minutes; table and picture"
	@echo "make unit         the unit tests that start no process and no server, in under a minute; no checks"
	@echo "make test         check, and every test that is neither slow nor needs a cloud or Docker"
	@echo "make check        formatting, lint, types, the layers of the rooms; advisories, once a day, where they can be had"
	@echo "make fmt          format the code and mend what lint can mend"
	@echo "make bench        the benchmarks, one after the other; results in benchmarks/results/"
	@echo "make test-faults  the slow tests: faults, kills, end to end"
	@echo "make fuzz         damaged inputs for every parser, SECONDS=3600 of them; what fails is kept in build/fuzz/"
	@echo "make test-clouds  the tests against emulators of the clouds' stores"
	@echo "make test-pages   README and pages as printed, in an environment made from a wheel, beside the other libraries; needs the network"
	@echo "make pictures     the pictures of page and top for docs/deploy/, in build/pictures/; make keep-pictures puts them there"
	@echo "make test-pythons unit tests, README's program and the demo in other Pythons, with the newest and lowest libraries"
	@echo "make wheel        the wheel, the sdist and an SBOM in dist/, checked, installed in a fresh environment and tried"
	@echo "make test-formats the formats on larger files of the libraries' own writers, and on damaged ones; needs the network"
	@echo "make audit        the pinned versions against published advisories; needs the network"
	@echo "make test-docker  the tests of the container images, and of the scripts for SLURM on a real one"
	@echo "make test-gpu     the tests on a CUDA device, the long ones too"

# Quick when up to date: pip runs only after one of these changed.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "cannot make $(VENV): Python 3.11 or newer with its venv module is needed (PYTHON=$(PYTHON))"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m examples.demo

demo-fleet: $(STAMP)
	$(BIN)/python -m examples.fleet

unit: $(STAMP)
	$(PYTEST) -n 2 --dist loadfile -m "not process and not slow and not gpu" $(or $(TESTS),tests/unit)

# The checks beside the tests: mypy takes one core. Three tests at a time on two cores: a third of the time a test waits
# for a pause, a deadline or a process; one more would collect all tests once more, 8 s of CPU. In the order of the
# folders, in which the longest files are not the last ones.
test: $(STAMP)
	@$(MAKE) --no-print-directory check > $(VENV)/check.txt 2>&1 & check=$$!; \
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder $(TESTS); tests=$$?; \
	wait $$check; check=$$?; cat $(VENV)/check.txt; test $$tests = 0 -a $$check = 0

check: $(STAMP)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo > $(VENV)/layers.txt || { cat $(VENV)/layers.txt; exit 1; }
	@$(MAKE) --no-print-directory audit-when-reachable

fmt: $(STAMP)
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --fix --quiet .

# Benchmarks use names of rooms, and no test runs most of them.
check-benchmarks: $(STAMP)
	cd benchmarks && ../$(BIN)/mypy --no-error-summary --cache-dir ../.mypy_cache/benchmarks *.py peers/*.py

bench: $(STAMP) check-benchmarks
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/order.py
	$(BIN)/python benchmarks/first_batch.py

# The properties once more, with fifty times as many examples.
test-faults: $(STAMP) check-benchmarks
	$(PYTEST) -m slow --timeout 900 $(TESTS)
	$(PYTEST) --hypothesis-profile thorough --timeout 900 $(or $(TESTS),tests/property)

# One TARGET or all of them, for hours if need be; test-faults runs a fixed part (tests/fuzz/test_targets.py).
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),3600) $(TARGET)

test-clouds: $(STAMP)
	$(PYTEST) -m clouds --timeout 300 $(TESTS)

# Needs a package index.
test-pages: $(STAMP)
	$(PYTEST) -m pages --timeout 3600 $(or $(TESTS),tests/pages tests/e2e/test_curves.py)

# What the tests of page and top draw, of jobs that run longer than in a test; somebody looks before docs/ has it.
pictures: $(STAMP)
	PICTURES=build/pictures $(PYTEST) -m slow tests/e2e/test_curves.py tests/e2e/test_overview.py tests/e2e/test_top.py
	@echo "look at build/pictures/*; make keep-pictures puts those that docs/deploy/ shows there"

keep-pictures:
	for picture in build/pictures/*; do test ! -f docs/deploy/$${picture##*/} || cp $$picture docs/deploy/; done

# Needs a package index, and 10 GB below build/. PYTHONS="--debian forky": also that release's, as root with debootstrap.
test-pythons:
	$(PYTHON) tests/pythons.py $(PYTHONS)

# Needs a package index.
wheel:
	rm -rf dist
	test -x $(RELEASE)/bin/cyclonedx-py || { $(PYTHON) -m venv $(RELEASE) \
		&& $(RELEASE)/bin/pip install --quiet build twine cyclonedx-bom; }
	$(RELEASE)/bin/python -m build --outdir dist .
	$(RELEASE)/bin/twine check --strict dist/*
	$(PYTHON) tests/try_wheel.py dist $(RELEASE)/bin/cyclonedx-py

# Needs a package index: the libraries' own readers.
test-formats: $(STAMP)
	$(PYTEST) -m formats --timeout 3600 $(or $(TESTS),tests/formats tests/annotations)

# Needs the network.
audit: $(STAMP)
	$(AUDIT)
	@touch $(AUDITED)

# A part of `check` that a machine without network must not fail for; it says so instead. Not more than once a day.
audit-when-reachable: $(STAMP)
	@if [ -n "$$(find $(AUDITED) -newer constraints.txt -mtime -1 2>/dev/null)" ]; then exit 0; \
	elif $(BIN)/python tests/reachable.py $(AUDIT_URL); then $(AUDIT) && touch $(AUDITED); \
	else echo "no dependency audit: $(AUDIT_URL) cannot be reached from here; run 'make audit' where it can"; fi

test-docker: $(STAMP)
	$(PYTEST) -m docker --timeout 900 $(TESTS)

test-gpu: $(STAMP)
	$(PYTEST) -m gpu --timeout 3600 -s $(TESTS)
