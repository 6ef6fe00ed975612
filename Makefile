# Every target is what a person and CI both run. PORT, TORCH and TORCH_INDEX can be given on the command line.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
BIN := $(VENV)/bin
PORT ?=
# What is typed goes first, then our own variable; PORT alone may be there for something else.
LISTEN := $(if $(filter command line,$(origin PORT)),$(PORT),$(or $(NEARHIT_SERVER__PORT),$(PORT)))
BENCH_SECONDS ?= 3
BENCH_ORDERS ?= 5
BENCH_LIMIT ?=
BENCH_POSTGRES ?=
OVERLOAD_SECONDS ?= 60
SOAK_SECONDS ?= 3600
BENCH_SCRATCH ?= $(VENV)/bench-cache
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Hundreds of tests start a process of ours: what was compiled for one is kept for the next.
export PYTHONDONTWRITEBYTECODE :=
# Tests wait for processes, sockets and clocks half of their time, so more than there are cores.
TEST_PROCESSES ?= 4

.DEFAULT_GOAL := help
.PHONY: help install install-dev serve pictures test tests lint types imports docs fmt bench bench-money bench-pages bench-cache proof h200-dry h200-keep containers clean bench-overload bench-slow bench-faults bench-routing soak constraints release bench-engine

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nearhit needs Python 3.11 or newer; say which with PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e ".[bench]"
	@touch $@

install: $(VENV)/.installed ## the virtual environment, enough to serve
install-dev: $(VENV)/.installed-dev ## the same with the tools of `make test`

serve: install ## start the gateway on 127.0.0.1:8080, or where nearhit.yaml, NEARHIT_SERVER__PORT or PORT says
	@exec $(BIN)/nearhit serve $(if $(LISTEN),--port $(LISTEN))

test: install-dev lint imports ## everything that must pass; about 10 minutes on 2 cores
	@# Reading the types keeps one core busy for a minute, tests often wait: beside each other both are done sooner.
	@$(MAKE) --no-print-directory -j2 types tests

tests: install-dev ## the tests alone
	@# Many start processes and wait for clocks. What fails beside others must pass alone, and is named: it is to be mended.
	$(BIN)/python -m pytest -q -m "not proof" -n $(TEST_PROCESSES) --dist worksteal || { status=$$?; \
	  [ $$status -eq 1 ] || exit $$status; echo "once more, alone: what failed beside others"; \
	  $(BIN)/python -m pytest -q -m "not proof" -n 0 --last-failed --last-failed-no-failures none; }

lint: install-dev ## ruff, spelling, the compose file
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

types: install-dev ## basedpyright, strict
	$(BIN)/basedpyright

imports: install-dev ## who may import whom
	$(BIN)/lint-imports

docs: install-dev ## write what is generated: docs/configuration.md, docs/files.md, the rooms of README.md
	$(BIN)/python docs/generate.py

pictures: install-dev ## take the pictures of the pages anew: docs/pictures
	$(BIN)/python docs/pictures.py

fmt: install-dev ## format and mend what can be mended
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: install ## the gateway beside direct calls, money, pages; results are kept under docs/benchmarks/
	$(BIN)/python -m gateway.bench.gateway --seconds $(BENCH_SECONDS) --save docs/benchmarks
	$(MAKE) --no-print-directory bench-money bench-pages

bench-money: install ## what money costs a request; with an empty database in BENCH_POSTGRES one budget of four processes too
	$(BIN)/python -m gateway.bench.money --save docs/benchmarks $(if $(BENCH_POSTGRES),--postgres $(BENCH_POSTGRES))

bench-pages: install ## every page's queries over a million requests, and their export; fails where one takes over 300 ms
	rm -f $(VENV)/bench-pages.db*
	$(BIN)/python -m gateway.bench.pages --database sqlite:///$(VENV)/bench-pages.db --save docs/benchmarks

bench-overload: install ## goodput at 2, 5 and 10 times the capacity; kept under docs/benchmarks/
	$(BIN)/python -m gateway.bench.overload --seconds $(OVERLOAD_SECONDS) --save docs/benchmarks

bench-slow: install ## p99 beside 500 clients that never finish a request, and without; kept under docs/benchmarks/
	$(BIN)/python -m gateway.bench.slow --save docs/benchmarks

bench-faults: install ## how much longer requests take while Redis or an upstream hangs; kept under docs/benchmarks/
	$(BIN)/python -m gateway.bench.faults --save docs/benchmarks

bench-routing: install ## routing decisions, failover, translation; kept under docs/benchmarks/
	$(BIN)/python -m gateway.bench.routing --save docs/benchmarks

soak: install ## an hour of mixed traffic: does anything grow; kept under docs/benchmarks/
	$(BIN)/python -m gateway.bench.soak --seconds $(SOAK_SECONDS) --save docs/benchmarks

bench-engine: $(VENV)/.installed-bench ## the engine beside transformers and llama.cpp; kept under docs/benchmarks/
	$(BIN)/nearhit bench engine --save docs/benchmarks $(BENCH_ENGINE)

bench-cache: install ## reuse on the labelled data in NEARHIT_BENCH_DATA; about an hour; kept under docs/benchmarks/
	@test -n "$(NEARHIT_BENCH_DATA)" || { echo "set NEARHIT_BENCH_DATA to a folder with streams/ and pairs/"; exit 1; }
	$(BIN)/python -m cache.training --data "$(NEARHIT_BENCH_DATA)" --leave-one-out --out $(BENCH_SCRATCH) --cache $(BENCH_SCRATCH)
	$(BIN)/python -m gateway.bench.cache_suite --data "$(NEARHIT_BENCH_DATA)" --apart $(BENCH_SCRATCH) --cache $(BENCH_SCRATCH) \
	  --orders $(BENCH_ORDERS) $(if $(BENCH_LIMIT),--limit $(BENCH_LIMIT))

proof: install-dev ## the full-size proofs (long); what they measure is kept under docs/proofs/
	NEARHIT_PROOF=1 $(BIN)/python -m pytest -q -m proof --timeout 3600

h200-dry: install-dev ## the device benchmark without a device: every stage on tiny shapes, two to five minutes
	rm -rf $(VENV)/h200-dry && $(BIN)/python -m engine.device_bench dry --out $(VENV)/h200-dry

h200-keep: install ## what a device run left in the folder FROM becomes pages under docs/benchmarks/
	@test -n "$(FROM)" || { echo "FROM=folder with right.jsonl or fast.jsonl"; exit 1; }
	$(BIN)/python -m engine.device_bench keep "$(FROM)"

constraints: ## pin every dependency with its hashes: constraints.txt
	$(PYTHON) -m venv $(VENV)-release && $(VENV)-release/bin/pip install --quiet --group release
	$(VENV)-release/bin/uv pip compile pyproject.toml --extra oidc --generate-hashes --python-version 3.11 --no-header --no-annotate -q -o constraints.txt

release: constraints ## the wheel (the same bytes whoever builds it) and its list of parts, in dist/
	SOURCE_DATE_EPOCH=1580601600 $(VENV)-release/bin/uv build --wheel --no-build-isolation --python $(VENV)-release/bin/python -o dist
	$(VENV)-release/bin/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml --output-reproducible --of JSON -o dist/nearhit.cdx.json

containers: ## build the image and run the whole stack with podman (Debian, root)
	deploy/prove_containers.sh

clean: ## forget the environment and every cache
	rm -rf $(VENV) .ruff_cache .pytest_cache .hypothesis .import_linter_cache
