# The commands people and CI share. Each does all the set-up it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := $(VENV)/.bench-installed

.PHONY: demo test lint docs bench fuzz clean

# The main job on embedded data: no download, no GPU. Ends with the path of a report.
demo: $(STAMP)
	rm -rf out/demo
	$(BIN)/calibrl run all --small --backend processes --out out/demo
	$(BIN)/calibrl report out/demo

# The documentation is built by its own tests.
test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation as a site in out/site; a warning is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Speed, as a ratio to named peers in the same run.
bench: $(BENCH)
	$(BIN)/python benchmarks/maps.py
	$(BIN)/python benchmarks/peers.py --jobs 2
	$(BIN)/python benchmarks/bandit.py
	$(BIN)/python benchmarks/mdp.py
	$(BIN)/python benchmarks/inventory.py
	$(BIN)/python benchmarks/planning.py

# Damaged, mistaken and hostile files by the thousand, and kills: minutes. Fails if anything is used in silence or crashes.
fuzz: $(STAMP)
	$(BIN)/python benchmarks/fuzz.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "calibrl needs Python 3.11 or newer; try: make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(BENCH): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps obp
	touch $@

clean:
	rm -rf $(VENV) out build dist *.egg-info
