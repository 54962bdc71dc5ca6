# Every target works in .venv; `make setup` makes it. See README.md.
VENV   := .venv
PY     := $(VENV)/bin/python
PYTHON ?= python3

.PHONY: setup demo test lint fmt proto requirements

setup: $(VENV)/.done

$(VENV)/.done: requirements.txt requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("error: Python 3.11 or newer is needed, this is %s" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m protos.generate --check

fmt: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

proto: setup
	$(PY) -m protos.generate

# Pins with hashes, without an index address in the file.
requirements: 
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 pyproject.toml -o requirements.txt
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --group dev pyproject.toml -o requirements-dev.txt

demo: setup
	@$(PY) -m simnode.install
	@$(PY) -m simnode.demo
