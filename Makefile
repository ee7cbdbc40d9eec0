# Everything works on a fresh Debian 12 as root with nothing but make installed, and says what it installs.
.DEFAULT_GOAL := help
.PHONY: help setup demo unit test coverage bench lint golden

PYTHON := .venv/bin/python
BED := ci/bed/bed

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: ## Python, a virtual environment, the packages
	@ci/setup

demo: setup ## From a profile to a wheel, on a real engine: the main job in miniature
	@$(BED) run -- ci/demo

unit: setup ## The quick loop: unit tests without the slow ones, no engine
	@$(PYTHON) -m pytest -q -n auto --dist loadgroup -m "not slow" $(or $(ARGS),tests/unit)

test: ## The whole suite: unit, engine, builds
	@ci/setup test
	@$(BED) run -- $(PYTHON) -m pytest -n 2 --dist loadgroup --no-loadscope-reorder $(ARGS)

coverage: ## Branch coverage by package, of the whole suite or of ARGS="tests/unit"
	@ci/setup test
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BED) run -- $(PYTHON) -m coverage run -m pytest -q -n 2 --dist loadgroup --no-loadscope-reorder $(ARGS)
	@$(PYTHON) -m coverage combine --quiet && $(PYTHON) -m coverage json --quiet -o build/coverage/coverage.json
	@$(PYTHON) ci/coverage build/coverage/coverage.json

bench: setup ## Compare with hand-written equivalents; writes build/bench.json
	@$(BED) run -- $(PYTHON) tests/bench/bench.py

lint: setup ## The linters and the type checker: ruff, mypy
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy

golden: setup ## Write the expected renders anew; then read the diff
	@$(PYTHON) -m pytest -q tests/unit/plan/test_render.py tests/unit/images/test_runtime_image.py \
		 tests/unit/ci/test_pipeline.py tests/unit/cli/test_matrix_command.py tests/unit/cli/test_lazy_commands.py \
		 tests/unit/test_recorded_documents.py tests/unit/test_documents.py tests/unit/test_architecture.py --golden
