# `make` alone lists the targets. Everything a target needs is set up by it and cached for the next time.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
UV_VERSION := 0.13.9
CACHE ?= $(or $(KVSERVING_CACHE),$(HOME)/.cache/kvserving)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready-$(shell cat requirements/dev.txt pyproject.toml Makefile 2>/dev/null | sha256sum | cut -c1-16)
LOCALCLUSTER := $(PYTHON) hack/localcluster
export KVSERVING_CACHE := $(CACHE)

.PHONY: help demo test test-full lint unit e2e up down generate

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: up ## Serve a real model on a local cluster, load it, and watch the tuner work
	PYTHONPATH=hack $(BIN)/python hack/testenv.py $(BIN)/python -m demo

test: lint unit e2e ## Lint, types, unit tests, CRDs and end-to-end tests on a real cluster

test-full: test ## `make test` and the long runs: fault matrix, kill points, soak
	$(BIN)/pytest -n 2 --hypothesis-profile=search -m "hypothesis and not cluster and not engine"
	$(BIN)/python hack/testenv.py $(BIN)/pytest -m "full"

lint: $(STAMP) ## Formatting, lint, types, layers, generated files; the site of docs/ in build/docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy kubectl operator tuner kernels hack/localcluster hack/demo hack/models hack/observability hack/chartkit benchmarks tests
	$(BIN)/lint-imports
	$(BIN)/python -m kvserving_operator.api.crd --check
	$(BIN)/python -m kvserving_operator.api.docs --check
	PYTHONPATH=hack $(BIN)/python -m observability --check
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	PYTHONPATH=hack $(BIN)/python -m chartkit --check

unit: $(STAMP) ## Tests that need no cluster and no engine
	$(BIN)/pytest -n 2 -m "not cluster and not engine and not prometheus and not full"

e2e: up ## Tests on the real cluster with real engines and a real Prometheus
	$(BIN)/python hack/testenv.py $(BIN)/pytest -v -rP --durations=15 -n 3 -m "(cluster or engine or prometheus) and not full"

up: $(STAMP) ## Bring up the local cluster and load images and models (KUBECONFIG_EXTERNAL uses another one)
	$(LOCALCLUSTER) up
	$(LOCALCLUSTER) load all

down: ## Take the local cluster down; caches stay
	$(LOCALCLUSTER) down

generate: $(STAMP) ## Write crds/, the chart's copy and docs/api.md from the models; alert rules, dashboards and the chart's README
	$(BIN)/python -m kvserving_operator.api.crd --write
	$(BIN)/python -m kvserving_operator.api.docs --write
	PYTHONPATH=hack $(BIN)/python -m observability --write
	PYTHONPATH=hack $(BIN)/python -m chartkit --write

$(STAMP): requirements/dev.txt pyproject.toml
	rm -f $(VENV)/.ready-*
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@
