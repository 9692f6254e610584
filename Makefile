# `make demo` and `make test` need nothing but Python >= 3.11: each makes the environment in .venv itself.
PYTHON ?= python3
BIN := .venv/bin
# One process a core, one thread each: torch's own threads would only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal
NUMERIC := tests/probes tests/models tests/activations/test_packed.py tests/verification

.PHONY: demo test test-all test-isa lint clean

demo: .venv/installed
	$(BIN)/probekit demo

test: .venv/installed-dev
	$(PYTEST) --nbmake tests experiments

# The same with the long fault campaigns (about half an hour).
test-all: .venv/installed-dev
	PROBEKIT_FAULTS=nightly $(PYTEST) --nbmake tests experiments

# The numeric tests under the kernels of other processors, with 1 and 2 threads.
test-isa: .venv/installed-dev
	for isa in AVX2 ALL; do for threads in 1 2; do \
	    kernels="ONEDNN_MAX_CPU_ISA=$$isa OMP_NUM_THREADS=$$threads"; \
	    test $$isa = ALL || kernels="$$kernels MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2"; \
	    echo "$$kernels"; \
	    env $$kernels $(BIN)/python -m pytest -q $(NUMERIC) || exit 1; \
	done; done

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
