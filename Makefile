# Everything runs in .venv, which the first target that needs it makes. Paths are relative on
# purpose: make cannot hold a folder with a space in its name in a target.
#
# Settings, as in `make run CONFIG=configs/digits_o3.yaml`:
#   PYTHON  interpreter that .venv is made with (default: the first fit one of PYTHONS)
#   CONFIG  what `make run` trains
#   ARGS    further command-line arguments of `make run`
#   JOBS    number of test processes
# One thread computes images of 64 pixels fastest; OMP_NUM_THREADS overrides it.

PYTHONS := python3.11 python3.12 python3.10 python3
CONFIG ?= configs/digits_o2.yaml
ARGS ?=
JOBS ?= 2

NATIVE_SOURCES := $(foreach suffix,cpp cu cuh h inc,$(wildcard csrc/*/*.$(suffix) csrc/*/*/*.$(suffix)))
PIP_INSTALL = -m pip install --constraint $(CONSTRAINTS)
# One file runs in one process, so that a fixture of a module is made once.
# Tests of fl change their process for good: they run alone, and the others without them.
PYTEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help run test test-fast test-slow lint format clean install

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

run: install  ## train CONFIG (configs/digits_o2.yaml) with real data
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} .venv/bin/python -m lightning_mp fit --config "$(CONFIG)" $(ARGS)

test: install  ## pass the whole test suite, fast tests first
	@$(MAKE) --no-print-directory test-fast
	@$(MAKE) --no-print-directory test-slow

test-fast: install  ## pass the tests that are not marked slow
	$(PYTEST) -m "not slow"
	$(PYTEST) -m "not slow" tests/fl/active

test-slow: install  ## pass the tests that are marked slow
	$(PYTEST) -m slow
	$(PYTEST) -m slow tests/fl/active

lint: install  ## check format, lint, types, layers and spelling
	bash .ci/run lint

format: install  ## rewrite the sources in the project's format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	git ls-files -z -- 'csrc/*' | grep -zE '\.(c|cpp|cu|cuh|h|inc)$$' | xargs -0r .venv/bin/clang-format -i

install: .venv/.installed  ## make .venv and install the project into it

clean:  ## delete the environments, builds and caches (not the runs)
	rm -rf .venv .venv-lightning-2.4 build dist lightning_mp.egg-info lightning_mp/_*.so
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: CONSTRAINTS = constraints.txt
.venv/.installed: EXTRAS = dev,lm,vision
.venv/.installed: constraints.txt
.venv-lightning-2.4/.installed: CONSTRAINTS = constraints-lightning-2.4.txt
# Without lm: the test of that example is slow, and does not run there.
.venv-lightning-2.4/.installed: EXTRAS = dev,vision
.venv-lightning-2.4/.installed: constraints-lightning-2.4.txt

# --no-build-isolation: setup.py builds for the torch of the environment, which comes first.
.venv/.installed .venv-lightning-2.4/.installed: setup.cfg setup.py pyproject.toml $(NATIVE_SOURCES)
	@set -- $(PYTHONS); test -z '$(PYTHON)' || set -- '$(PYTHON)'; \
	for python in "$$@"; do \
	    "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' \
	        2>/dev/null && break; python=; \
	done; \
	test -n "$$python" || { echo "make: found no Python >= 3.10 with venv, tried: $$*; install one," \
	    "or name it: make PYTHON=/path/to/python" >&2; exit 1; }; \
	echo "making $(@D) with $$python"; "$$python" -m venv "$(@D)"
	"$(@D)/bin/python" $(PIP_INSTALL) setuptools torch
	"$(@D)/bin/python" $(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch "$@"
