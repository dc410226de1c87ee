# make run opens the demo, make test runs every test; both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: run test soak recorded lint chromium clean

run: $(VENV)/run.stamp
	$(BIN)/python app.py

test: $(VENV)/dev.stamp chromium lint
	$(BIN)/python -m pytest

# Recorded runs for the first page, and the README's animation, made on this machine.
recorded: $(VENV)/run.stamp
	$(BIN)/python -m app.recorded

# Ten minutes of eight visitors at once on the shipped model; prints the report.
soak: $(VENV)/dev.stamp
	$(BIN)/python tests/soak/soak.py

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/run.stamp: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.12 run")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -r requirements.txt
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements-dev.txt requirements-train.txt
	$(BIN)/pip install --quiet -r requirements-dev.txt
	touch $@

# The browser tests drive the system's Chromium.
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q chromium; } || \
	  { echo "Chromium is needed for the browser tests: install it, for example with 'sudo apt-get install chromium'."; exit 1; }

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
