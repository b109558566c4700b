# `make demo` and `make test` do everything on a fresh machine; a second run skips the set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# Several files at a time, in the order given: the long ones first.
SEVERAL := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --durations 20

# Hundreds of processes import the same modules: what one has compiled the others read, also where the environment forbids to
# keep it, as images for containers like to.
unexport PYTHONDONTWRITEBYTECODE

# What a change of asks for a new build: the build files and all native sources. Python files are used in place.
NATIVE := pyproject.toml CMakeLists.txt docker/setup.sh docker/packages.sh \
          $(wildcard */CMakeLists.txt */*/CMakeLists.txt docker/constraints-*.txt proto/*.proto) \
          $(shell find core kshim alcc envs tests/native -name '*.[ch]' -o -name '*.[ch]pp')

# What clang-format checks: every native source that git knows, or, outside git, all there are.
FORMATTED := $(or $(shell git ls-files '*.[ch]' '*.[ch]pp' 2>/dev/null),$(filter %.c %.h %.cpp %.hpp,$(NATIVE)))

.PHONY: demo test test-without-kernel test-of-host test-with-links collected test-unit test-kernel test-end-to-end sanitize lint style types format setup clean help
demo: setup  ## train briefly, then compare plain and capped Cubic on real kernel sockets
	$(BIN)/reinet demo

# On two cores four of those without links at a time, which wait for a quarter of their time. So that the processes find all
# tests compiled, one collects them first. The tests of the whole host, which wait most of theirs, run beside them, and get
# what they need first (chrt). Links on a busy host say nothing: they have it to themselves, three tests at a time, which take
# less than a third of the processors' time, and one where a test is of the whole host as well.
test: setup  ## everything that continuous integration runs
	$(MAKE) -j 2 style collected
	$(MAKE) -j 3 types test-without-kernel test-of-host BEHIND="chrt --idle 0"
	$(MAKE) test-with-links

test-without-kernel: setup
	$(BEHIND) $(SEVERAL) -n 4 tests/end-to-end tests/unit -m "not kernel and not mahimahi"

test-of-host: setup
	$(BIN)/python -m pytest tests/kernel -m "alone and not mahimahi" --durations 20

test-with-links: setup
	$(SEVERAL) -n 3 $(addprefix tests/kernel/test_,alcc.py shim_caps.py) tests/end-to-end tests/kernel -m "(kernel or mahimahi) and not alone"
	$(BIN)/python -m pytest tests/kernel -m "alone and mahimahi" --durations 20

collected: setup
	@$(BIN)/python -m pytest --collect-only -q tests >/dev/null || true  # who runs them says what is wrong

test-unit test-kernel test-end-to-end: test-%: setup  ## one folder of tests
	$(BIN)/python -m pytest tests/$*

sanitize: setup  ## the tests with native parts under the address, leak, undefined-behaviour and thread sanitizers
	PYTHON=$(BIN)/python tests/sanitize.sh address
	PYTHON=$(BIN)/python tests/sanitize.sh thread tests/unit/envs/test_sim_vector.py tests/unit/envs/test_simulator.py \
	  tests/unit/alcc/test_edges.py tests/unit/alcc/test_library.py tests/unit/alcc/test_gate.py

lint: style types  ## style and types; changes nothing

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(FORMATTED)

types: setup
	@mkdir -p build/typing/reinet
	@for part in core kshim alcc envs agents daemon cli; do ln -sfn $(CURDIR)/$$part build/typing/reinet/$$part; done
	@ln -sfn $$($(BIN)/python -c 'import reinet.proto; print(list(reinet.proto.__path__)[0])') build/typing/reinet/proto
	@ln -sfn $(CURDIR)/agents/service/trainer build/typing/reinet/trainer
	$(BEHIND) $(BIN)/mypy -p reinet

format: setup  ## what the hooks would change
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(FORMATTED)

setup: $(STAMP)  ## the environment, and native parts that changed built anew: what most targets begin with
$(STAMP): $(NATIVE)
	PYTHON=$(PYTHON) docker/setup.sh $(VENV)
	@touch $@

clean:  ## remove what was built; the next target sets up again
	rm -rf build dist $(STAMP)

help:  ## list these targets
	@sed -n 's/^\([a-z][a-z -]*\):.*  ## /\1: /p' $(MAKEFILE_LIST)
