# Two commands on a fresh machine with Python >= 3.11: `make quickstart` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 3
BIN    := $(VENV)/bin
BENCHES ?= commands lane recorder audit_pair overlap
READY  := $(VENV)/.installed

.PHONY: quickstart test lint types install model lab-vllm lab-sglang bench clean

quickstart: install model
	$(BIN)/harness run quickstart

test: install model lint types
	HARNESS_REQUIRE_MODEL=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal

install: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("harness needs Python 3.11 or newer; set PYTHON=python3.x") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(READY)

model: install
	$(BIN)/harness models pull smollm2-135m

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

lab-vllm: model
	labs/setup_vllm.sh

lab-sglang: model
	labs/setup_sglang.sh

bench: install model
	for name in $(BENCHES); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
