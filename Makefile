# The front door: every task that a contributor or a fresh machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
# GradientMail needs Python 3.12 or newer.
PYTHON_3_12 ?= python3.12

# Half as many again as there are cores: tests of processes wait for a quarter of their time.
TESTERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) '*' 3 / 2)
PYTEST := $(BIN)/python -m pytest -q --rerun-show-tracebacks

# If this variable is set, each of the hundreds of processes of the tests compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

RELEASE := .venv-release

.PHONY: help setup demo test tests test-times slow soak check lint types fix bench bench-peers simulate experiments docs reference pictures build release lock

help:  ## say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

$(STAMP): requirements.txt pyproject.toml hatch_build.py $(wildcard ddloco/workers/*.c)
	$(PYTHON) -c 'import sys; sys.exit("ddloco needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(STAMP)  ## make .venv and install everything, pinned by hash

demo: $(STAMP)  ## train three learners on real text, then replay the run bit for bit
	$(BIN)/ddloco run examples/quickstart.toml --dir runs/demo --overwrite
	$(BIN)/ddloco replay runs/demo

test: lint  ## lint, types, import rules, and all tests except the slow ones (seven to twelve minutes on two cores)
	@echo "Seven to twelve minutes on two cores. What this machine cannot test is listed at the end, with the reason."
	$(MAKE) --no-print-directory -j2 types tests

# The first line compiles all tests, once for all testers, and finds those that cannot be imported.
tests: $(STAMP)
	@$(BIN)/python -m pytest -qq --collect-only > $(VENV)/collected || (cat $(VENV)/collected; false)
	$(PYTEST) -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(PLUGINS)

test-times:  ## the processor time of all tests except the slow ones, by folder
	$(MAKE) --no-print-directory tests PLUGINS="-p tests.times"

slow: $(STAMP)  ## the tests that take minutes
	$(PYTEST) -m slow

soak: $(STAMP)  ## ten minutes of faults on a sharded job, then every invariant and the replay; tapes with each field changed; flipped bytes; 5,000 liars; 400 real runs, half of them with a planted fault
	$(BIN)/python -m tests.processes.soak --minutes 10
	$(PYTEST) -m "slow or not slow" tests/processes/test_changed_tapes.py tests/processes/test_flipped_bytes.py
	$(BIN)/python -m tests.lab.hostile --seeds 5000 --lying
	$(BIN)/python -m tests.lab.suspects --seeds 200
	$(BIN)/python -m tests.lab.suspects --seeds 200 --clean

check: lint types  ## lint, format, import rules, types

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/basedpyright

fix: $(STAMP)  ## repair what the linter and formatter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## every figure as a ratio against a floor in the same run (about 35 minutes)
	$(BIN)/python tests/bench/run.py --page docs/performance.md

$(PEERS)/%/.installed: tests/bench/peers_%.txt
	@mkdir -p $(PEERS)
	$(if $(filter gradientmail,$*),$(PYTHON_3_12),$(PYTHON)) -m venv $(PEERS)/$*
	$(PEERS)/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Peers that cannot be installed here are left out of the comparison.
bench-peers: $(STAMP)  ## install gloo, torchft, hivemind, Flower and GradientMail into .venv-peers/, and compare a round with theirs
	-$(MAKE) --keep-going $(patsubst tests/bench/peers_%.txt,$(PEERS)/%/.installed,$(wildcard tests/bench/peers_*.txt))
	$(BIN)/python tests/bench/run.py peers

simulate: $(STAMP)  ## 2,000 hostile worlds and 1,000 with a liar, every invariant checked beside them (five minutes)
	$(BIN)/python -m tests.lab.hostile --seeds 2000
	$(BIN)/python -m tests.lab.hostile --seeds 1000 --lying

experiments: $(STAMP)  ## compare methods, numbers of learners, settings: docs/experiments.md (five hours; it goes on where it was stopped)
	$(BIN)/python -m ddloco experiment examples/experiments/*.toml
	$(BIN)/python docs/experiment_page.py examples/experiments/*.toml --page docs/experiments.md

docs: $(STAMP)  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(STAMP)  ## write the pages about settings and commands again, from the source
	$(BIN)/python docs/reference.py

pictures: $(STAMP)  ## draw the documentation's pictures again, from real runs
	$(BIN)/python docs/pictures.py

build: $(STAMP)  ## build the wheel and the source archive into dist/
	$(BIN)/python -m build --no-isolation

$(RELEASE)/.installed: Makefile
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'hatchling>=1.27' 'twine>=6' 'uv>=0.8'
	@touch $@

release: $(RELEASE)/.installed  ## build what is published, and check it on every Python, by pip, uv and in a container (half an hour)
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" $(RELEASE)/bin/python -m tests.release

lock: pyproject.toml  ## pin the dependencies again (needs uv)
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --group dev pyproject.toml --output-file requirements.txt
