# Everything works on a fresh Debian 12 as root with nothing but make installed, and says what it installs.
.DEFAULT_GOAL := help
.PHONY: help setup update newest lowest demo unit test soak bed room coverage bench docs dist lint golden clean distclean

# Bytecode is kept, whatever the environment says: it halves the time to collect the tests, and to start the command.
export PYTHONDONTWRITEBYTECODE =

PYTHON := .venv/bin/python
BED := ci/bed/bed
# The bed, its engines and the command end with make, whatever ends that.
IN_BED = setpriv --pdeathsig TERM $(BED) run --
PYTEST := timeout --foreground --kill-after=60 60m $(PYTHON) -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --maxfail=25

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: ## Python, a virtual environment, the packages
	@ci/setup

update: setup ## Lock the newest versions of all packages: ci/requirements.txt
	@ci/versions update

newest: setup ## The quick loop with the newest packages that pyproject.toml allows
	@ci/versions newest $(or $(ARGS),tests/unit)

lowest: setup ## The quick loop with the lowest packages that pyproject.toml allows
	@ci/versions lowest $(or $(ARGS),tests/unit)

demo: room setup ## From a profile to a wheel, on a real engine: the main job in miniature
	@$(IN_BED) ci/demo

unit: setup ## The quick loop: of each unit test that is not slow three permutations; all of those in ARGS="FILE…"
	@$(PYTHON) -m pytest -q -n auto --dist loadgroup -m "not slow and not soak" $(or $(ARGS),--quick tests/unit)

test: room ## The suite: one of every kind of unit, engine, build, fault, attack, client
	@ci/setup test
	@$(IN_BED) $(PYTEST) -m "not soak" $(ARGS)

soak: room ## What the suite leaves out: every permutation, and one pass of the benchmarks
	@ci/setup test
	@TFDOCK_TESTS_COLD=1 $(IN_BED) $(PYTEST) -m "soak or hypothesis" --hypothesis-profile=soak $(ARGS)
	@$(IN_BED) $(PYTHON) tests/bench/bench.py --quick

bed: room setup ## Keep the test bed running while one works: then tests start at once
	@$(BED) up

room:
	@$(BED) room

coverage: ## Branch coverage by package, of the whole suite or of ARGS="tests/unit"
	@ci/setup test
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(IN_BED) $(PYTHON) -m coverage run -m pytest -q -n 2 --dist loadgroup --no-loadscope-reorder $(ARGS)
	@$(PYTHON) -m coverage combine --quiet && $(PYTHON) -m coverage json --quiet --ignore-errors -o build/coverage/coverage.json
	@$(PYTHON) ci/coverage build/coverage/coverage.json

bench: setup ## Compare with hand-written equivalents; writes build/bench.json
	@$(IN_BED) $(PYTHON) tests/bench/bench.py

clean: ## Remove what the commands made, but for packages, images and caches; say how much
	@$(BED) clean

distclean: ## Remove all that the commands made here, the test bed too; what all clones share stays
	@$(BED) clean all

docs: setup ## The site of the documentation, from docs/ and the code: build/docs/site
	@test -x build/zensical/bin/zensical || (python3 -m venv build/zensical && build/zensical/bin/pip install -q zensical==0.0.73)
	@$(PYTHON) ci/docs $(CURDIR)/build/zensical/bin/zensical

dist: setup ## Build the sdist and the wheel of this commit in dist/, and check them
	@ci/dist

lint: setup ## The linters and the type checker: ruff, mypy
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy

golden: room setup ## Write the expected renders anew; then read the diff
	@$(PYTHON) -m pytest -q tests/unit/plan/test_render.py tests/unit/images/test_runtime_image.py \
		 tests/unit/ci/test_pipeline.py tests/unit/cli/test_matrix_command.py tests/unit/cli/test_lazy_commands.py \
		 tests/unit/test_recorded_documents.py tests/unit/test_documents.py tests/unit/test_architecture.py --golden
	@$(PYTHON) ci/screenshot
	@$(IN_BED) $(PYTHON) tests/played/record.py
