# `make demo` and `make test` set everything up in .venv and nothing outside it.
PYTHON ?= python3
BIN := .venv/bin
export RECOLLECT_CACHE ?= $(CURDIR)/.venv/cache
unexport PYTHONDONTWRITEBYTECODE # or every process that a test starts compiles the whole package anew

.PHONY: demo test lint format docs bench mutants soak clean

.venv/.installed: pyproject.toml constraints.txt
	@echo "Installing into .venv, which takes a few minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: .venv/.installed
	$(BIN)/recollect demo --out demo

test: .venv/.installed
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

lint: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: .venv/.installed
	$(BIN)/python -m benchmarks

mutants: .venv/.installed
	$(BIN)/python tests/mutants.py

soak: .venv/.installed
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 -m slow tests
	$(BIN)/python -m pytest soak/soak_*.py -s
	SOAK_MUTATIONS=$${SOAK_MUTATIONS:-3000} $(BIN)/python -m pytest -q -n auto --maxprocesses 4 tests/data tests/store tests/training -k damage
	SOAK_MUTATIONS=$${SOAK_MUTATIONS:-3000} $(BIN)/python -m pytest -q tests/serve/test_fuzz.py

clean:
	rm -rf .venv demo site
