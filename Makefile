# Everything starts from here: `make demo` shows what raxss does, `make test` checks that it does.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
OUT ?= demo
JOBS ?= 2
# Threads that wait sleep instead of spinning: a fifth slower alone, four times faster on a busy machine.
export OMP_WAIT_POLICY ?= passive

.PHONY: help install demo viewer test test-slow test-gpu coverage coverage-report wheel lint bench clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) --version || { echo "Python 3.11 is needed: install it, or say PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(VENV)/installed  ## create .venv and install raxss with what its tests need

demo: install  ## train on the embedded sample, evaluate, explain
	$(BIN)/raxss demo --out $(OUT) --overwrite

viewer:  ## build the script of reports from its TypeScript (needs node; users do not)
	cd src/raxss/explain/export/report/viewer && npm ci --no-audit --no-fund && npm run build

lint: install  ## style, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## lint, types and the tests (8 minutes on two cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(COV)

test-slow: install  ## what takes longer: kill loops, long series
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not gpu and not alone" -n $(JOBS) --dist loadfile --timeout 2400
	$(BIN)/python -m pytest -m "slow and not gpu and alone" --timeout 2400

test-gpu: install  ## what needs a CUDA device
	$(BIN)/python -m pytest -m gpu

# CI runs the tests once, with coverage: `make test COV=...`, then `make coverage-report`.
COVERED := --cov --cov-report=
coverage: COV := $(COVERED)
coverage: test coverage-report  ## line coverage of the tests, subprocesses included: 93 % in all, 80 % a file

coverage-report: install  ## what `make test COV=...` has left, with two slow files, against these limits
	$(BIN)/python -m pytest -m slow --timeout 2400 --cov --cov-append --cov-report=json:build/coverage.json --cov-report= tests/test_slow_ray.py tests/test_faithfulness_page.py
	$(BIN)/python scripts/check_coverage.py build/coverage.json

wheel: install  ## build wheel and sdist, install the wheel into an empty environment and use it there
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/raxss-*.whl
	cd build && wheel/bin/python ../scripts/check_installed.py ../README.md
	cd build && wheel/bin/raxss demo --out demo --overwrite

bench: install  ## speed and memory against peers, to benchmarks/RESULTS.md (under 30 minutes on two cores)
	env -u OMP_WAIT_POLICY $(BIN)/python -m benchmarks all  # peers wait as they please

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) build dist $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis
