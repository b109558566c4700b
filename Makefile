# `make demo` and `make test` do everything on a fresh machine; a second run skips the set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

# What a change of asks for a new build: the build files and all native sources. Python files are used in place.
NATIVE := pyproject.toml CMakeLists.txt docker/setup.sh docker/packages.sh \
          $(wildcard */CMakeLists.txt */*/CMakeLists.txt docker/constraints-*.txt proto/*.proto) \
          $(shell find core kshim envs tests/native -name '*.[ch]' -o -name '*.[ch]pp')

.PHONY: demo test sanitize lint setup clean
demo: setup  ## train briefly, then compare plain and capped Cubic on real kernel sockets
	$(BIN)/reinet demo

test: setup lint  ## everything that continuous integration runs
	$(BIN)/python -m pytest

sanitize: setup  ## the tests with native parts under the address, leak, undefined-behaviour and thread sanitizers
	PYTHON=$(BIN)/python tests/sanitize.sh address
	PYTHON=$(BIN)/python tests/sanitize.sh thread tests/unit/envs/test_sim_vector.py tests/unit/envs/test_simulator.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p build/typing/reinet
	@for part in core kshim envs agents daemon cli; do ln -sfn $(CURDIR)/$$part build/typing/reinet/$$part; done
	@ln -sfn $$($(BIN)/python -c 'import reinet.proto; print(list(reinet.proto.__path__)[0])') build/typing/reinet/proto
	$(BIN)/mypy -p reinet

setup: $(STAMP)
$(STAMP): $(NATIVE)
	PYTHON=$(PYTHON) docker/setup.sh $(VENV)
	@touch $@

clean:
	rm -rf build dist $(STAMP)
