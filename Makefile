# Two commands on a fresh machine: `make lease-race` and `make test`. They need Python 3.11+, pip and make.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fencepost-setup
# A machine without a C compiler gets one from PyPI: it builds the clock preload, once.
EXTRAS := dev,adapters,toxiproxy,docker$(if $(shell command -v cc gcc clang 2>/dev/null),,$(shell printf ',compiler'))
WORKERS ?= auto

.PHONY: setup lease-race lease-race-log test test-docker soak toxiproxy toxiproxy-if-possible lint typecheck docs lock bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found: install one, or set PYTHON=/path/to/python3." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $(STAMP)

lease-race: $(STAMP)
	@$(BIN)/fencepost race

lease-race-log: $(STAMP)
	@$(BIN)/fencepost race --log

test: $(STAMP) lint typecheck toxiproxy-if-possible
	$(BIN)/python -m pytest -n $(WORKERS)

# On containers: what each crash does there, and the families in which the server or the network fails. Needs a Docker
# engine, or root and dockerd; images that cannot be pulled are imported from local files.
test-docker: $(STAMP)
	$(BIN)/python tests/docker/run.py tests/test_container_server.py scenarios --pg docker --network toxiproxy -k "restart or network or test_container_server"

# Finds the Toxiproxy server, or builds it with Go into the user's cache.
toxiproxy: $(STAMP)
	@$(BIN)/python -m fencepost.harness.network.toxiproxy_binary

# Tests of the network run on both engines where it can be had; where not, this says so, and so do the skipped tests.
toxiproxy-if-possible: $(STAMP)
	@$(BIN)/python -m fencepost.harness.network.toxiproxy_binary --if-possible

# What `make test` does in small: a minute of clock storm, 20 replays of every finding, 200 of every lease race.
soak: $(STAMP)
	STORM_SECONDS=60 REPLAYS=20 $(BIN)/python -m pytest -n $(WORKERS) tests/test_clock_storm.py tests/test_adapters_findings.py
	$(BIN)/python -m pytest -n $(WORKERS) scenarios/ -k lease_race --repeat 200
	$(BIN)/python -m pytest -n $(WORKERS) scenarios/ -k lease_race --repeat 200 --actors process

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(STAMP)
	$(BIN)/mypy

# Pages that are written from the code; tests compare them with it.
docs: $(STAMP)
	$(BIN)/python docs/write.py
	$(BIN)/fencepost twins --markdown > docs/what-it-catches.md

bench: $(STAMP)
	$(BIN)/python benchmarks/race.py
	$(BIN)/python benchmarks/reference_queue.py
	$(BIN)/python benchmarks/restart.py
	$(BIN)/python benchmarks/gate.py

# Writes constraints.txt anew from the newest releases pyproject.toml allows.
lock: pyproject.toml
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check '.[dev,adapters,toxiproxy,docker,compiler]'
	{ echo "# Exact versions of a set-up, written by 'make lock'."; build/lock/bin/pip freeze --exclude fencepost; } > constraints.txt

clean:
	rm -rf $(VENV) build dist .fencepost .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './src/*' -prune -exec rm -rf {} +
