# Two commands do everything on a bare machine: `make demo` and `make test`.
# Both first build `.venv` from the lock, by `uv`, and do it again only when the lock changes.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Of a test that hangs, what all threads do is shown after five minutes. At its timeout its process
# is ended, and another one takes the tests that are left.
PYTEST := $(BIN)/pytest -n auto --dist worksteal --timeout-method thread -o faulthandler_timeout=300

.PHONY: setup demo test test-all lint format bench docs lock clean

setup: $(READY)

# uv comes from the machine if it is there, else from the package registry into the new environment.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("flipguard needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "Installing requirements.lock into .venv, with torch, Spark and the test tools."
	@echo "On Linux x86-64 that downloads 4.0 GB, less what uv's cache has, and takes 8 GB on disk."
	$(PYTHON) -m venv --clear .venv
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=.venv PATH="$$PATH:$(CURDIR)/$(BIN)" uv pip install --compile-bytecode --require-hashes -r requirements.lock
	VIRTUAL_ENV=.venv PATH="$$PATH:$(CURDIR)/$(BIN)" uv pip install --no-deps -e .
	@touch $@

demo: setup
	@echo "The demo downloads nothing: its data are generated."
	$(BIN)/flipguard demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(PYTEST) --timeout 600 -m "not slow"

test-all: lint
	FLIPGUARD_EFFORT=10 $(PYTEST) --timeout 7200

bench: setup
	$(BIN)/python benchmarks/evidence.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/demo.py --out benchmarks/results/demo.json

docs: setup
	$(BIN)/python docs/build.py
	$(BIN)/sphinx-build -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "The site is build/docs/index.html."

# The lock holds exact versions and hashes, and names no host.
lock:
	uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --quiet -o requirements.lock

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
