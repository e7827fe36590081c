# Two commands on a fresh machine: `make lease-race` and `make test`. They need Python 3.11+, pip and make.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fencepost-setup
# A machine without a C compiler gets one from PyPI: it builds the clock preload, once.
EXTRAS := dev,adapters,toxiproxy,docker$(if $(shell command -v cc gcc clang 2>/dev/null),,$(shell printf ',compiler'))
WORKERS ?= auto

.PHONY: setup lease-race lease-race-log report report-traces screenshots browser test test-docker soak toxiproxy toxiproxy-if-possible lint typecheck docs quality stress hunts lock bench clean

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

# The families on the reference queue, a few twins, which must fail, and the late writes on two libraries, as pages:
# build/report/index.html.
REPORT_TRACES := build/report-traces
REPORT_TWINS := no_guard guard_without_row_lock heartbeat_revives_expired_lease steal_of_live_lease
REPORT_QUEUES := procrastinate pgqueuer

report: report-traces
	@$(BIN)/fencepost report $(REPORT_TRACES) -o build/report

report-traces: $(STAMP)
	rm -rf $(REPORT_TRACES) build/report
	$(BIN)/fencepost run --trace-dir $(REPORT_TRACES)/reference --json > /dev/null
	@for twin in $(REPORT_TWINS); do \
	  $(BIN)/fencepost run lease_race heartbeat --queue fencepost.queue_impl.twins:$$twin \
	    --trace-dir $(REPORT_TRACES)/$$twin --json > /dev/null; \
	  test $$? -eq 1 || { echo "the twin $$twin was not caught" >&2; exit 1; }; \
	done
	@for queue in $(REPORT_QUEUES); do \
	  $(BIN)/fencepost run variants --queue $$queue --trace-dir $(REPORT_TRACES)/$$queue --json > /dev/null; \
	  test $$? -ne 2 || exit 2; \
	done

# The pictures in docs/images, taken of the pages of `make report` in an installed Chromium.
screenshots: report-traces
	$(BIN)/python docs/screenshots.py $(REPORT_TRACES)

# Where apt-get and root are at hand. Tests of report pages are skipped without a browser, and say so.
browser:
	apt-get update && apt-get install --yes chromium

# The seed is fixed, so that a build does not fail by chance; `pytest scenarios/ -m invariants` takes a new one every time.
test: $(STAMP) lint typecheck toxiproxy-if-possible
	$(BIN)/python -m pytest -n $(WORKERS) --hypothesis-seed 1

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
	EXPLORE_EVERY_TWIN=1 $(BIN)/python -m pytest -n $(WORKERS) -rP tests/test_explore_real.py
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
	mkdir -p build
	$(BIN)/fencepost twins --markdown > build/what-it-catches.md && mv build/what-it-catches.md docs/
	$(BIN)/python docs/write.py

# How many examples the state machine takes for each twin, how small its counterexample gets, and a schedule of every
# variant replayed. Writes docs/figures/machine.json and the page that shows it; takes the better part of an hour.
quality: $(STAMP)
	rm -rf .fencepost/quality
	FENCEPOST_QUALITY=1 $(BIN)/python -m pytest -n $(WORKERS) tests/quality
	$(BIN)/python tests/quality/write_figures.py
	$(BIN)/python docs/write.py

# What a plain stress test hits, a minute for each twin. Writes docs/figures/stress.json.
stress: $(STAMP)
	$(BIN)/python benchmarks/stress.py --seconds 60
	$(BIN)/python docs/write.py

# How many orders `fencepost explore` runs until it meets what each concurrency twin breaks: docs/figures/explore.json.
# And what the commands of docs/hunts.md print. Takes a few minutes.
hunts: $(STAMP)
	$(BIN)/python benchmarks/explore_twins.py
	$(BIN)/python docs/rerun_hunts.py
	$(BIN)/python docs/write.py

# With what is measured beside us. Editable, as the set-up is: anything else would take the checkout's place in it.
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/race.py
	$(BIN)/python benchmarks/reference_queue.py
	$(BIN)/python benchmarks/restart.py
	$(BIN)/python benchmarks/gate.py
	$(BIN)/python benchmarks/linearize.py
	$(BIN)/python benchmarks/explore_reduction.py

# Writes constraints.txt anew from the newest releases pyproject.toml allows.
lock: pyproject.toml
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check '.[dev,adapters,toxiproxy,docker,compiler,bench]'
	{ echo "# Exact versions of a set-up, written by 'make lock'."; build/lock/bin/pip freeze --exclude fencepost; } > constraints.txt

clean:
	rm -rf $(VENV) build dist .fencepost .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './src/*' -prune -exec rm -rf {} +
