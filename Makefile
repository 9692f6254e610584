# `make demo` and `make test` need nothing but Python >= 3.11: each makes the environment in .venv itself.
PYTHON ?= python3
BIN := .venv/bin
# One process a core, one thread each: torch's own threads would only get in each other's way.
# The compiled files are kept, also where the environment says otherwise: tests start some hundred processes.
PARALLEL := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto --dist worksteal
PYTEST := OMP_NUM_THREADS=1 $(PARALLEL)
NUMERIC := tests/probes tests/models tests/activations/run tests/verification

.PHONY: demo test test-all test-isa lint docs models-table clean

demo: .venv/installed
	$(BIN)/probekit demo

test: .venv/installed-dev
	$(PYTEST) --nbmake experiments/own_model_and_data.ipynb tests

# The same with the long fault campaigns.
test-all: .venv/installed-dev
	PROBEKIT_FAULTS=nightly $(PYTEST) --nbmake experiments/own_model_and_data.ipynb tests

# The numeric tests under the kernels of other processors, with 1 and 2 threads. The plain kernels of torch and MKL's
# compatible ones reproduce on AMD what processors without bf16 do.
test-isa: .venv/installed-dev
	for threads in 1 2; do \
	    echo "own kernels, $$threads threads"; \
	    OMP_NUM_THREADS=$$threads $(PARALLEL) $(NUMERIC) || exit 1; \
	    echo "AVX2, $$threads threads"; \
	    OMP_NUM_THREADS=$$threads ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 \
	        OPENBLAS_CORETYPE=Haswell $(PARALLEL) $(NUMERIC) || exit 1; \
	    echo "plain kernels, $$threads threads"; \
	    OMP_NUM_THREADS=$$threads ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default \
	        $(PARALLEL) tests/probes || exit 1; \
	done

# pyright in two runs, with room: one of everything fills node's default heap of 4 GB, and then crawls.
lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	NODE_OPTIONS=--max-old-space-size=8192 $(BIN)/pyright --pythonpath $(BIN)/python probekit experiments benchmarks
	NODE_OPTIONS=--max-old-space-size=8192 $(BIN)/pyright --pythonpath $(BIN)/python tests

# The documentation as a site in site/, without a network; the reference is generated from the options.
docs: .venv/installed-docs
	@echo "Writing docs/reference/ and docs/will-my-model-load.md from the options and the families ..."
	@$(BIN)/python -m probekit.cli.reference commands > docs/reference/commands.md
	@$(BIN)/python -m probekit.cli.reference python > docs/reference/python.md
	@$(BIN)/python -m probekit.cli.reference capabilities > docs/reference/capabilities.md
	@$(BIN)/python -m probekit.cli.reference models > docs/will-my-model-load.md
	@echo "Building the site ..."
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Done: open $(CURDIR)/site/index.html in a browser."

# Which model types of the installed transformers load, measured on tiny models: some twenty minutes on a core.
models-table: .venv/installed
	$(BIN)/python -m probekit.verification.model_types_table > docs/model-types.md.new
	mv docs/model-types.md.new docs/model-types.md

.venv/installed: pyproject.toml constraints.txt
	@echo "Making the environment in .venv, once; torch and transformers take a minute or two ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e . -c constraints.txt
	touch $@

# mkdocs alone; the tools of the tests take longer to install than the site takes to build.
.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet -e '.[docs]' -c constraints.txt
	touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing the tools of the tests into .venv, once ..."
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	touch $@

clean:
	rm -rf .venv runs site
