PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo ui test lint docs clean

demo: $(VENV)/.installed
	$(BIN)/freshstack-dagster demo

ui: $(VENV)/.installed
	$(BIN)/freshstack-dagster init
	DAGSTER_HOME=$(CURDIR) PYTHONWARNINGS='ignore:Function `dev_command`' $(BIN)/dagster dev

test: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

clean:
	rm -rf data/lake data/cache data/mirrors data/reports data/dagster data/freshstack.duckdb*

docs: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/mkdocs build --quiet --strict
