# triton-mblt: set-up, serving and tests. `make help` lists everything.
# Needs Python 3.10-3.12 with pip, and make; everything else goes into $(VENV).

PYTHON       ?= python3
VENV         ?= .venv
# The package index from which torch (alone) is installed, for example that of a CPU build. Empty: pip's own setting.
TORCH_INDEX  ?=
# emulated: no card needed. device: a Mobilint card with its driver; then MODEL is required.
MBLT_NPU     ?= emulated
# A package folder or a mobilint/... id. Empty with the emulated NPU: the demo model.
MODEL        ?=
HTTP_PORT    ?= 8000
GRPC_PORT    ?= 8001
METRICS_PORT ?= 8002
# More options for `triton-mblt serve`, and for pytest.
SERVE_ARGS   ?=
PYTEST_ARGS  ?=

PY      := $(VENV)/bin/python
PIP     := $(PY) -m pip --disable-pip-version-check
# exec: a signal for make reaches the launcher, not a shell between them.
RUN     := PYTHONPATH=backend_src$${PYTHONPATH:+:$$PYTHONPATH} exec $(PY) -m triton_mblt
hash     = $(shell cat $(1) | cksum | cut -d' ' -f1)
REQS    := requirements-torch.txt requirements.txt requirements-npu.txt
READY   := $(VENV)/.ready-$(call hash,$(REQS) pyproject.toml)
DEV     := $(VENV)/.dev-$(call hash,$(REQS) pyproject.toml requirements-dev.txt)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev serve test lint types doctor clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
	@echo
	@echo 'Variables: PYTHON VENV TORCH_INDEX MBLT_NPU=emulated|device MODEL HTTP_PORT GRPC_PORT METRICS_PORT'

setup: $(READY) ## make the virtual environment and install pinned packages
setup-dev: $(DEV)

serve: setup ## serve in the foreground; Ctrl-C stops everything
	@$(RUN) serve --npu $(MBLT_NPU) $(if $(MODEL),--model '$(MODEL)') --http-port $(HTTP_PORT) \
	  --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT) $(SERVE_ARGS)

test: setup-dev lint types ## lint, check types, run all tests
	$(PY) -m pytest $(PYTEST_ARGS)

lint: setup-dev ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup-dev ## mypy --strict
	$(PY) -m mypy

doctor: setup ## say in plain words what this machine lacks
	@$(RUN) doctor --npu $(MBLT_NPU) --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT)

clean: ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' || { \
	  echo '$(PYTHON) is not Python 3.10, 3.11 or 3.12. Name one: make $(MAKECMDGOALS) PYTHON=python3.11' >&2; exit 1; }
	@echo '[1/5] virtual environment $(VENV)'
	@$(PYTHON) -m venv $(VENV) || { \
	  echo 'could not make it (on Debian and Ubuntu: apt-get install python3-venv)' >&2; rm -rf $(VENV); exit 1; }

$(READY): | $(PY)
	@echo '[2/5] torch$(if $(TORCH_INDEX), from $(TORCH_INDEX))'
	@$(PIP) install $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') -r requirements-torch.txt
	@echo '[3/5] packages of requirements.txt'
	@$(PIP) install -r requirements-torch.txt -r requirements.txt
	@echo '[4/5] NPU packages and the embedded server'
	@$(PIP) install --no-deps -r requirements-npu.txt
	@echo '[5/5] triton-mblt itself'
	@$(PIP) install --no-deps --no-build-isolation --quiet -e .
	@rm -f $(VENV)/.ready-* && touch $@

$(DEV): | $(READY)
	@echo '[tests] pytest, ruff, mypy'
	@$(PIP) install -r requirements-dev.txt
	@rm -f $(VENV)/.dev-* && touch $@
