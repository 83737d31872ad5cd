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

# If this variable is set, each of the hundreds of processes of the tests compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test slow soak check fix bench bench-peers simulate experiments docs reference pictures build lock

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

test: check  ## lint, types, import rules, all tests except the slow ones, and a sample of those
	$(BIN)/python -m pytest -q -n $(TESTERS) --dist loadfile --no-loadscope-reorder --rerun-show-tracebacks
	$(BIN)/python -m pytest -q -n $(TESTERS) --dist loadfile --rerun-show-tracebacks -m slow @tests/slow_sample.txt

slow: $(STAMP)  ## the tests that take minutes
	$(BIN)/python -m pytest -q -m slow --rerun-show-tracebacks

soak: $(STAMP)  ## ten minutes of faults on a sharded job, then every invariant and the replay
	$(BIN)/python -m tests.processes.soak --minutes 10

check: $(STAMP)  ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
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

simulate: $(STAMP)  ## 2,000 hostile worlds, every invariant checked beside them (under five minutes)
	$(BIN)/ddloco simulate hostile --seeds 2000

experiments: $(STAMP)  ## compare methods, numbers of learners, settings: docs/experiments.md (five hours; it goes on where it was stopped)
	$(BIN)/python -m ddloco experiment examples/experiments/*.toml --page docs/experiments.md

docs: $(STAMP)  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: $(STAMP)  ## write the pages about settings and commands again, from the source
	$(BIN)/python docs/reference.py

pictures: $(STAMP)  ## draw the documentation's pictures again, from real runs
	$(BIN)/python docs/pictures.py

build: $(STAMP)  ## build the wheel and the source archive into dist/
	$(BIN)/python -m build --no-isolation

lock: pyproject.toml  ## pin the dependencies again (needs uv)
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --group dev pyproject.toml --output-file requirements.txt
