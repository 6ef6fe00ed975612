# Every target is what a person and CI both run. PORT, TORCH and TORCH_INDEX can be given on the command line.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
BIN := $(VENV)/bin
PORT ?= 8080
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install install-dev serve test fmt lint types imports docs proof bench clean
help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/pip install --quiet -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --group dev
	@touch $@

install: $(VENV)/.installed             ## the virtual environment, enough to serve
install-dev: $(VENV)/.installed-dev     ## the same with the tools of `make test`

serve: install   ## start the gateway on 127.0.0.1:$(PORT)
	@NEARHIT_SERVER__PORT=$${NEARHIT_SERVER__PORT:-$(PORT)} exec $(BIN)/nearhit serve

test: install-dev lint types imports    ## everything CI runs
	$(BIN)/python -m pytest -q

fmt: install-dev ## format and mend what can be mended
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: install-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: install-dev
	$(BIN)/basedpyright

imports: install-dev
	$(BIN)/lint-imports
