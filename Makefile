# Commands for development and CI. Each target sets up its requirements; nothing is installed outside of .venv, .venv-* and var/.
PYTHON ?= python3
# An explicit PYTHON of another version than that of .venv gets its own environment, .venv-VERSION.
VENV := .venv
ifneq ($(origin PYTHON),file)
ASKED := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
MADE_BY := $(shell sed -n 's/^version = \([0-9]*\.[0-9]*\).*/\1/p' .venv/pyvenv.cfg 2>/dev/null)
ifneq ($(filter-out $(ASKED),$(MADE_BY)),)
VENV := .venv-$(ASKED)
endif
endif
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS ?=
# Another PySpark than the locked one; its tests run in an environment of its own.
PYSPARK ?= 4.2
PYSPARK_VENV := $(VENV)-pyspark-$(PYSPARK)
TESTS_ON_4.1 := tests/spark/pyspark_4_1 tests/spark/test_batch_read.py tests/spark/test_body_read.py tests/spark/test_store_read.py
SPARK_TESTS := tests/spark tests/spark/long tests/pipelines tests/pipelines/long
TESTS_ON_4.2 := $(SPARK_TESTS)
# PySpark 4.1 leaves the socket of an action open until it is collected as garbage, and converts no schema for a time zone.
PYTEST_ON_4.1 := -W ignore::pytest.PytestUnraisableExceptionWarning -k "not arrow_schema and not schema_is_parsed and not schema_has_the_columns"
# Tests wait for processes of their own half of the time: one more than cores, four at most.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(len(os.sched_getaffinity(0)) + 1, 4))')
SEED ?= 1
FUZZ_SECONDS ?= 60

.PHONY: help setup demo demo-fast test test-spark test-pyspark check fuzz soak torture format docs proto bench interop lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## create a virtual environment with the locked dependencies, including Java for Spark

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Kourou needs Python 3.11 or later; $$($(PYTHON) --version) found. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing (on Debian: apt install python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

demo: $(READY) ## run the demo on a year of flights: broker, live consumers, Spark stream, kill -9 (3 minutes)
	$(BIN)/python examples/flights/demo.py

demo-fast: $(READY) ## run the demo with 20,000 flights
	$(BIN)/python examples/flights/demo.py --fast

test: $(READY) ## run the tests that need only this tree, without the long ones of Spark (PYTHON=python3.13, TESTS="tests/client")
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

test-spark: $(READY) ## run all tests of Spark and the pipelines, also those of whole commands, clusters and lakehouses (20 minutes)
	$(BIN)/pytest -q -n auto --maxprocesses 2 --dist loadfile $(or $(TESTS),$(SPARK_TESTS))

test-pyspark: $(PYSPARK_VENV)/.ready ## run the tests of Spark on the oldest PySpark (PYSPARK=4.1: batch reads only; TESTS="tests/spark/test_write.py")
	$(PYSPARK_VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile $(PYTEST_ON_$(PYSPARK)) $(or $(TESTS),$(TESTS_ON_$(PYSPARK)))

# The locked packages are those of $(VENV): only PySpark is installed here, and precedes the one there.
$(VENV)-pyspark-%/.ready: tests/spark/pyspark-%.lock $(READY)
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --no-deps --require-hashes -r $<
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth"
	@touch $@

check: $(READY) ## check format, lint, types, layers, spelling and documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests examples bench docs *.md
	$(BIN)/pytest -q tests/test_docs.py tests/test_tidy.py

fuzz: $(READY) ## fuzz every decoder with random and mutated bytes (FUZZ_SECONDS=60, SEED=1)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --seed $(SEED)

soak: $(READY) ## let members come and go, and be killed while they pop, for hours of virtual time; test properties with 1,000 examples; run all tests of Spark, kill its jobs in mid-batch, run a declarative pipeline; test older versions of PySpark; send a million hostile frames to each kind of ports while a healthy client runs (2 hours)
	$(MAKE) test-spark
	$(BIN)/pytest -q tests/sim/long tests/torture/long
	KOUROU_TEST_PROFILE=thorough KOUROU_CRASH_CYCLES=10 $(BIN)/pytest -q tests/crash/test_lost_masters.py tests/crash/test_killed_replicas.py
	KOUROU_TEST_PROFILE=thorough $(BIN)/pytest -q -n $(WORKERS) --dist loadfile tests/filter tests/http2 tests/model tests/protocol tests/proxy tests/sim tests/broker/replication tests/broker/controlling tests/store/test_crashes.py tests/crash/test_killed_pops.py
	$(BIN)/pytest -q tests/spark/kills tests/spark/declarative tests/pipelines/kills -p no:randomly
	$(MAKE) test-pyspark PYSPARK=4.2
	$(MAKE) test-pyspark PYSPARK=4.1
	$(BIN)/python -m bench.hostile --frames 1000000 --seed $(SEED)
	$(BIN)/python -m bench.hostile --port grpc --frames 1000000 --seed $(SEED)

torture: $(READY) ## test kills, power failures, torn and flipped bytes, failing calls, a full disk, chaos, lost acks, changes of mode, replicas (3 hours; TORTURE="--only flips", SEED=1)
	$(BIN)/python -m tests.torture --seed $(SEED) $(TORTURE)

format: $(READY) ## format the source and apply automatic lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## generate docs/configuration.md, and the options of docs/spark.md, from the source
	$(BIN)/python -m tests.configuration_page
	$(BIN)/python -m tests.spark_options_page

proto: $(READY) ## generate descriptors and stubs of the proxy's messages from src/kourou/proxy/pb/protos
	$(BIN)/python -m tests.proxy_messages

bench: $(READY) ## run the short benchmarks: both installs, and the Java broker if Maven is installed; needs Go (10 minutes)
	$(BIN)/python -m bench

interop: $(READY) ## test with Java, Go, Node and Rust clients, mqadmin and the Java broker 5.5.0 (needs JDK 17, Maven, Go, Node, Rust)
	$(BIN)/pytest tests/interop -p no:randomly

lock: pyproject.toml ## regenerate requirements.lock (needs uv)
	uv pip compile --quiet pyproject.toml --extra spark --extra java --extra fast --extra server --extra proxy --group test --group lint --group demo \
	  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -o requirements.lock

clean: ## remove all files that the targets create
	rm -rf .venv .venv-* var dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
