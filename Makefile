# Two commands on a fresh machine: `make lease-race` and `make test`. They need Python 3.11+, pip and make.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fencepost-setup
# A machine without a C compiler gets one from PyPI: it builds the clock preload, once.
EXTRAS := dev,adapters,toxiproxy,docker$(if $(shell command -v cc gcc clang 2>/dev/null),,$(shell printf ',compiler'))
WORKERS ?= auto

.PHONY: setup lease-race lease-race-log report report-traces screenshots browser test test-docker soak toxiproxy toxiproxy-if-possible lint typecheck docs quality lock bench clean

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

test: $(STAMP) lint typecheck toxiproxy-if-possible
