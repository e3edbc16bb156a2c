# `make` lists the targets. All of them start from nothing but GNU make, bash and a Python 3.11 or newer.

SHELL := bash
.DEFAULT_GOAL := help
BIN := .venv/bin
INSTALLED := .venv/installed

# More for the command at hand, e.g. make test ARGS='-k watermark -x', make demo ARGS='--help'
ARGS ?=

.PHONY: help demo test check docs pytest second-look bench soak packages clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: PACKAGES_FOR := demo
demo: packages $(INSTALLED) ## Everything at once on this machine, from nothing: PostgreSQL, Kafka, orders that expire
	@$(BIN)/cdcwatch demo $(ARGS)

test: check pytest ## The checks, then all tests but the long ones (ARGS='-k NAME' selects)

# Three at a time, each with servers of its own: most tests wait. `WORKERS=0` for one after the other.
WORKERS ?= 3
pytest: packages $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

# For one or two tests: more are no coincidence, and none means that the checks failed.
FAILED := .pytest_cache/failed
second-look: $(INSTALLED) ## What failed last, by itself, three times
	@mkdir -p .pytest_cache; $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none --collect-only | grep :: > $(FAILED) || true
	@echo "second look at: $$(head -3 $(FAILED))" >&2; test -s $(FAILED) -a "$$(wc -l < $(FAILED))" -le 2
	for look in 1 2 3; do $(BIN)/python -m pytest -v @$(FAILED) || exit; done

check: packages $(INSTALLED) ## Lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict cdcwatch
	$(BIN)/lint-imports

docs: $(INSTALLED) ## Write what docs/ has from the code: configuration, commands
	$(BIN)/python -m tools.reference

bench: packages $(INSTALLED) ## Measurements side by side (ARGS='--only read'), printed as ratios
	$(BIN)/python -m bench $(ARGS)

# Reports are printed as they come. MINUTES is for the soak under faults; the others take what they take.
MINUTES ?= 60
soak: packages $(INSTALLED) ## The long tests: load, crashes, restarts, a bad network (MINUTES=60)
	CDCWATCH_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak -s $(ARGS)

packages: ## What this machine lacks: PostgreSQL with wal2json, Maven, Java (apt-get, sudo when not root)
	@tools/bring-packages $(PACKAGES_FOR)

clean: ## Remove what make made here; the downloaded Kafka in ~/.cache/cdcwatch stays
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Repeated only when pyproject.toml changes.
$(INSTALLED): pyproject.toml | packages
	@python=$$(tools/find-python) && { test -x $(BIN)/python || "$$python" -m venv --clear .venv; }
	@echo "installing cdcwatch and what it needs into .venv" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,demo,bench]'
	@touch $@
