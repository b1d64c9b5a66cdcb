# The two commands of the README, `make demo` and `make test`, and what developers use besides.
VENV ?= .venv
OUTPUT ?= demo
# The first Python that runs and is new enough (a version manager may offer names that do not run).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export HF_HUB_DISABLE_TELEMETRY ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Tests, whose assertions pytest rewrites, and the package are compiled once, and not in every process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-versions try-release newer-releases lint report records site install clean
help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: install one, or say make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed  ## virtual environment with the package and the developers' tools

demo: install  ## train, score, publish and reload a small English-German model (minutes, two cores)
	$(BIN)/hf-mlnmt demo --output $(OUTPUT)

test: install  ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# What depends on the releases of Transformers and torch: models, their search, Transformers' own tests, the Hub, exports,
# processes. -m '': with the systems that are marked `versions`, which `make test` leaves out.
VERSION_TESTS := tests/modeling tests/zoo tests/search tests/conformance tests/hub tests/generation tests/export \
	$(addprefix tests/training/test_,trainer.py stock_trainer.py processes.py processes_option.py)
test-versions:  ## these tests with the oldest and with the newest releases that pyproject.toml allows
	$(PYTHON) -m venv $(VENV)-oldest && $(PYTHON) -m venv $(VENV)-newest
	$(VENV)-oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable '.[dev]'
	$(VENV)-newest/bin/python -m pip install --quiet --upgrade --editable '.[dev]'
	for set in oldest newest; do $(VENV)-$$set/bin/python -c 'import torch, transformers as t; print(torch.__version__, t.__version__)' \
		&& OMP_NUM_THREADS=1 $(VENV)-$$set/bin/python -m pytest -n 2 --dist worksteal -m '' $(VERSION_TESTS) || exit 1; done

# PYTHONS: those to try. Each environment is 3 to 6 GB on Linux, and is removed before the next.
# PYTHONSAFEPATH: what is installed is tried, not what lies here.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
try-release: export PYTHONSAFEPATH = 1
try-release:  ## wheel and sdist built, and the demo run in a fresh environment of each Python, with both sets
	rm -rf dist $(VENV)-try && $(PYTHON) -m venv $(VENV)-try/tools && $(VENV)-try/tools/bin/python -m pip install --quiet build twine
	$(VENV)-try/tools/bin/python -m build && $(VENV)-try/tools/bin/twine check --strict dist/*
	for python in $(PYTHONS); do for set in newest oldest; do echo "== $$python $$set"; fresh=$(VENV)-try/fresh; rm -rf $$fresh; \
		$$python -m venv $$fresh && $$fresh/bin/python -m pip install --quiet --only-binary :all: \
			$$(test $$set = oldest && echo --constraint constraints-oldest.txt) dist/*.whl \
		&& $$fresh/bin/python -W error -c 'import hf_mlnmt' && $$fresh/bin/hf-mlnmt --version \
		&& $$fresh/bin/hf-mlnmt --help > $$fresh/help.txt && $$fresh/bin/hf-mlnmt demo --small --output $$fresh/demo || exit 1; done; done

newer-releases: install  ## which packages of the tested set have newer releases
	$(BIN)/python -m pip list --outdated

lint: install  ## formatting, style and types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

report: install  ## the tables of README and docs, and the pages of comparisons and studies, anew from results/
	$(BIN)/python studies/report.py

records: install  ## the records in modeling/ and training/ that are made, and all model cards
	$(BIN)/python studies/records.py

site: install  ## docs/ as a site with search, systems and API: .cache/site/html/index.html
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[site]'
	$(BIN)/python studies/site/build.py

clean:  ## remove what the targets above made
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(VENV)-try dist $(OUTPUT) .cache .pytest_cache .mypy_cache .ruff_cache
