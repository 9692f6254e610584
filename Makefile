# `make demo` and `make test` need nothing but Python >= 3.11: each makes the environment in .venv itself.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/installed
	$(BIN)/probekit demo

test: .venv/installed-dev
	$(BIN)/python -m pytest -q --nbmake tests experiments/quickstart.ipynb

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e . -c constraints.txt
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	touch $@

clean:
	rm -rf .venv runs
