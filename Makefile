# Two commands do everything on a fresh machine: `make serve` and `make test`.
#
#   make serve   install, prepare the bundled model, serve `serve_config.yaml`; Ctrl-C drains, a second one stops at once
#   make observe Prometheus with our alerts beside `make serve` (and Grafana with our dashboard, if installed)
#   make test    install, run the tests (unit, integration, e2e on real vLLM)
#   make check   format, lint, strict types (of the page's JavaScript too, with npm); changes nothing
#   make fix     format and lint, writing
#   make tools   programs of Debian's and npm's packages for some of the tests; as root, `make test` does it
#
# Outside CI: `make coverage` runs the unit tests and shows the coverage of lines; `make test-long` runs what takes long by
# nature (bench/results/long-tests.md has its last results).
#
# HARDWARE=gpu installs vLLM's CUDA build instead of the CPU build.
# TORCH_INDEX=URL names PyTorch's CPU wheel index, where pip is not set up to find `torch==...+cpu` by itself.
# `make hashes` writes the hashes of all packages into requirements/, after a change of their versions.

HARDWARE ?= cpu
PROFILE ?= $(if $(filter gpu,$(HARDWARE)),auto,local)
PYTHON ?= $(firstword $(foreach v,3.11 3.12,$(if $(shell python$(v) -c 'print(1)' 2>/dev/null),python$(v))) python3)
VENV := .venv
BIN := $(VENV)/bin
# Twice quiet: errors, and no warnings (of index locations that a machine lacks, of editable installs).
PIP_QUIET := --quiet --quiet --disable-pip-version-check
PIP_FLAGS := $(PIP_QUIET) --no-deps
PIP_INSTALL := $(BIN)/pip install $(PIP_FLAGS) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Suites that start Ray Serve, and all others. Their sum is every folder with tests.
RAY_SUITES := tests/e2e $(addprefix tests/integration/,application faults gpu_nodes two_nodes)
OTHER_SUITES := $(filter-out $(RAY_SUITES),$(patsubst %/__init__.py,%,$(wildcard tests/integration/*/__init__.py)))
# A file is one process's; they begin in the order given.
NO_RAY := $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder
TSC := $(VENV)/npm/node_modules/.bin/tsc
CODE := router sustainability cluster serve_app bench tests

SERVE_ENV := $(shell grep -v '^\#' cluster/serve.env) RAY_SERVE_HAPROXY_BINARY_PATH=$(CURDIR)/$(BIN)/power-lever-haproxy

# Tests start a hundred Python processes, each of which would otherwise compile our modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: serve observe test test-unit test-integration test-e2e test-long coverage check fix install install-dev tools hashes weights clean

serve: install weights
	@$(SERVE_ENV) $(BIN)/power-lever serve serve_config.yaml

observe: install
	@$(BIN)/python -m cluster.observability.observe

weights: install
	@echo "models, of which what is missing is made or downloaded:"
	@$(BIN)/power-lever weights seed --profile $(PROFILE)

# First what needs no Ray Serve, a process for each core; engines take longest and begin first. Then each suite with Ray
# Serve by itself: a cluster that other tests slow down gives up starting, and tests beside a busy cluster hardly go on.
# All of them run, also after one that fails.
test: install-dev weights tools
	@failed=; $(NO_RAY) $(OTHER_SUITES) tests/unit --durations=10 || failed=1; \
	for suite in $(RAY_SUITES); do $(BIN)/python -m pytest $$suite --durations=10 || failed=1; done; test -z "$$failed"

test-unit: install-dev
	$(NO_RAY) tests/unit

test-integration: install-dev weights
	$(BIN)/python -m pytest tests/integration

test-e2e: install-dev weights
	$(BIN)/python -m pytest tests/e2e

test-long: install-dev weights $(VENV)/guidellm/.installed
	$(BIN)/python -m pytest tests/long --durations=0
	$(NO_RAY) tests/unit --hypothesis-profile=many

# Of this process only: what runs in Ray's workers and in vLLM's processes is not counted.
coverage: install-dev
	$(BIN)/python -m pytest tests/unit --cov --cov-report=term:skip-covered

check: install-dev $(VENV)/npm/.installed
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	@if [ -x $(TSC) ]; then $(TSC) --project serve_app/web/jsconfig.json; fi

fix: install-dev
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

install: $(VENV)/.installed-$(HARDWARE)
install-dev: $(VENV)/.installed-dev
# Programs for some tests and checks: a browser, Prometheus, TypeScript's checker. Tests are skipped where they are missing.
tools: $(VENV)/npm/.installed $(VENV)/.installed-debian

$(BIN)/pip:
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v in ((3, 11), (3, 12)) else f"Python 3.11 or 3.12 is needed, {sys.executable} is {v[0]}.{v[1]}: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_QUIET) --require-hashes -r requirements/pip.txt

# The lists are complete, so --no-deps: a resolver would add torchvision builds that do not fit the CPU torch. Every file
# has its hash in its list; our own package is the checkout itself.
$(VENV)/.installed-%: requirements/%.txt pyproject.toml | $(BIN)/pip
	@echo "installing Ray, vLLM and what they need into $(VENV); the first time takes some minutes"
	@$(PIP_INSTALL) --require-hashes -r requirements/$*.txt
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements/dev.txt $(VENV)/.installed-$(HARDWARE) $(VENV)/sky/.installed
	$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	touch $@

$(VENV)/sky/.installed: requirements/sky.txt | $(BIN)/pip
	$(PYTHON) -m venv $(VENV)/sky
	$(VENV)/sky/bin/pip install $(PIP_FLAGS) --require-hashes -r requirements/sky.txt
	touch $@

$(VENV)/guidellm/.installed: requirements/guidellm.txt | $(BIN)/pip
	$(PYTHON) -m venv $(VENV)/guidellm
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(VENV)/guidellm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/power-lever.pth"
	$(VENV)/guidellm/bin/pip install $(PIP_FLAGS) --require-hashes -r requirements/guidellm.txt
	touch $@

$(VENV)/npm/.installed: requirements/npm/package-lock.json | $(BIN)/pip
	mkdir -p $(VENV)/npm
	cp requirements/npm/package.json requirements/npm/package-lock.json $(VENV)/npm/
	@if command -v npm > /dev/null; then (cd $(VENV)/npm && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error > /dev/null) && touch $@; \
	else echo "The page's types are not checked: there is no npm (Node.js)."; test -z "$$CI"; fi

$(VENV)/.installed-debian: requirements/debian.txt | $(BIN)/pip
	@packages=$$(grep -v '^\#' $<); \
	if dpkg --status $$packages > /dev/null 2>&1; then touch $@; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo apt-get install $$packages; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends $$packages > /dev/null && touch $@; \
	else echo "Some tests will be skipped: they need" $$packages "(apt-get install, as root)."; fi

# After a change of versions, once with the environment of each Python (3.11 and 3.12).
hashes: | $(BIN)/pip
	$(BIN)/python -m cluster.deploy.hashes $(filter-out %/debian.txt,$(wildcard requirements/*.txt))

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
