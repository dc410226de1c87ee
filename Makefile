# make run opens the demo, make test runs every test; both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: run test soak recorded lint tools clean

run: $(VENV)/run.stamp
	$(BIN)/python app.py --open

# Browser tests mostly wait, so all others run beside them.
test: $(VENV)/dev.stamp tools lint
	@mkdir -p .pytest_cache; log=.pytest_cache/rest.log; \
	$(BIN)/python -m pytest --ignore=tests/browser --ignore=tests/soak -p no:cacheprovider >$$log 2>&1 & rest=$$!; \
	$(BIN)/python -m pytest tests/browser tests/soak; browser=$$?; \
	wait $$rest; rest=$$?; cat $$log; exit $$((browser + rest))

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
	@echo "Installing the requirements into $(VENV), a minute or more ..."
	$(BIN)/pip install --quiet -r requirements.txt
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements-dev.txt requirements-train.txt
	$(BIN)/pip install --quiet -r requirements-dev.txt
	touch $@

# The browser tests drive the system's Chromium; one of them through nginx.
tools:
	@for tool in chromium nginx; do \
	  PATH="$$PATH:/usr/sbin:/sbin"; package=$$tool; [ $$tool = nginx ] && package=nginx-light; \
	  command -v $$tool >/dev/null || { [ $$tool = chromium ] && command -v google-chrome >/dev/null; } || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -y -q $$package; } || \
	  { echo "The browser tests need $$tool: install it, for example with 'sudo apt-get install $$package'."; exit 1; }; \
	done

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
