# Everything a fresh clone needs is Python (3.10 or later) and make.
#
#   make demo         trace ping-pong and all-reduce under torchrun, then look at them
#   make test         format, lint, types and tests
#   make help         the other targets

PYTHON ?= python3
TORCH ?= 2.13.0
NPROC ?= 2
OUT ?= build/demo
BACKEND ?= gloo
CASES ?= 20000
N ?= 200
SEED ?= 1

# `make test-torch TORCH=...` keeps other versions of torch in environments of their own.
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.stamp
# Three files of tests at a time, the longest first (tests/conftest.py): most of a test is the start
# of a process or its sleep.
BESIDE = -n 3 --dist loadfile --no-loadscope-reorder
# Thousands of interpreters start: each module of ours is compiled once.
unexport PYTHONDONTWRITEBYTECODE
CHECKED = disttrace viewer tests examples benchmarks hatch_build.py hatch_manual.py
ON_CORES = tests/recording tests/capture tests/test_install.py tests/jobs

.DEFAULT_GOAL := help
.PHONY: help newest setup demo test frameworks fuzz stress red-team surfaces working memory test-all lint types check pytest docs-site coverage test-torch test-gpu prove-gpu imitated standin torch-suite faults bench bench-viewer docs clean sanitize test-cores native

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## the environment, with torch $(TORCH) and everything optional

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 || \
	  { echo "make: no '$(PYTHON)' here; name a Python 3.10 or later: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: '$(PYTHON)' is older than Python 3.10; name another: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: '$(PYTHON)' has no venv module (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	@$(BIN)/python -m compileall -q disttrace viewer # as of a package that pip installs
	@touch $@

demo: $(STAMP) ## trace a ping-pong and an all-reduce under torchrun, then view and diagnose
	rm -rf $(OUT)
	OMP_NUM_THREADS=1 DISTTRACE=1 DISTTRACE_DIR=$(OUT) \
	  $(BIN)/torchrun --standalone --nproc-per-node $(NPROC) \
	  examples/pingpong_allreduce.py
	$(BIN)/disttrace diagnose $(OUT) || test $$? -eq 1 # 1 is a finding, such as a slow machine
	$(BIN)/disttrace view $(OUT)

test: lint ## format, lint, types, tests; types and the site are checked while tests wait
	$(MAKE) --no-print-directory --jobs=3 types docs-site pytest

lint: $(STAMP)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)

check: lint types

types: $(STAMP)
	nice $(BIN)/mypy $(CHECKED)

pytest: $(STAMP)
	MAKEFLAGS= $(BIN)/python -m pytest $(BESIDE)

docs-site: $(STAMP) ## the site of docs/ in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 nice $(BIN)/mkdocs build --strict --quiet

coverage: $(STAMP) ## the tests, and which lines they reached (of this process only)
	$(BIN)/python -m pytest $(BESIDE) --cov=disttrace --cov=disttrace_viewer --cov-report=term:skip-covered

test-all: test ## also what is too long for every run
	$(BIN)/python -m pytest $(BESIDE) -m "long or faults"
	$(MAKE) faults torch-suite

test-torch: ## the tests on another torch: make test-torch TORCH=2.15.0
	$(MAKE) VENV=.venv-$(TORCH) TORCH=$(TORCH) setup
	.venv-$(TORCH)/bin/python -m pytest $(BESIDE)

prove-gpu: $(STAMP) ## every scenario on NCCL, then the other way round: each has to be seen to fail
	$(BIN)/python tests/gpu/proof/prove.py --out build/proof
	$(BIN)/python tests/gpu/proof/prove.py --out build/proof --counter

standin: $(STAMP) ## those that make sense without a GPU, as on four versions of torch; docs/dev/standin.md
	$(BIN)/python tests/gpu/proof/prove.py --backend standin --out build/proof \
	  --semantics 2.5,2.8,2.13,2.15 --total 7200 --write docs/dev/standin.md
	$(BIN)/python tests/gpu/proof/prove.py --backend standin --out build/proof --counter

imitated: $(STAMP) ## those of a GPU on torch's own NCCL groups, without one; some gigabytes of packages each
	for torch in 2.5.1 2.8.0 2.15.0; do $(BIN)/python tests/gpu/imitated.py --torch $$torch --write docs/dev/imitated.md; done

test-gpu: $(STAMP) ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

faults: $(STAMP) ## the whole matrix of faults, and the page that shows it; BACKEND=standin: as on NCCL
	$(BIN)/python tests/reliability/faults.py --backend $(BACKEND) --losses $(if $(filter gloo,$(BACKEND)),--write docs/dev/faults.md)

fuzz: $(STAMP) ## wrong journals against every command and reader: make fuzz CASES=20000
	PYTHONPATH=.:viewer:tests $(BIN)/python -m fuzz --cases $(CASES)

stress: $(STAMP) ## 64 threads for a minute, on each core at each bound; 300 times traced anew
	$(BIN)/python tests/reliability/many_threads.py
	$(BIN)/python tests/reliability/many_threads.py --written --max-mb 1 --max-mb 16
	PYTHONPATH=. $(BIN)/python tests/reliability/reinstalled.py build/reinstalled c 300
	PYTHONPATH=. $(BIN)/python tests/reliability/reinstalled.py build/reinstalled python 300

surfaces: $(STAMP) ## thirteen scenes, real jobs: every surface says the same of each
	$(BIN)/python tests/reliability/matrix.py

memory: $(STAMP) ## what every command needs of memory for 50 MB of the most expensive input
	$(BIN)/python tests/reliability/memory.py

faults-live: $(STAMP) ## every hang of the matrix, told by the job itself on its stderr
	$(BIN)/python tests/reliability/faults_live.py --jobs 2 --write docs/dev/live.md
	$(BIN)/python tests/reliability/faults_live.py --jobs 2 --stall 3 --write docs/dev/live.md
	$(BIN)/python tests/reliability/faults_live.py --jobs 2 --apart --write docs/dev/live.md
	$(BIN)/python tests/reliability/faults_live.py --jobs 2 --hosts --write docs/dev/live.md

watched: $(STAMP) ## slow programs and faults that end, with the watch (killed at random) and without
	$(BIN)/python tests/reliability/watched.py
	$(BIN)/python tests/reliability/watched.py --kill

working: $(STAMP) ## ranks that are idle, at work or stuck: what is reported of each
	$(BIN)/python tests/reliability/idle.py
	$(BIN)/python tests/reliability/working.py

lowest: ## a slice of the tests on the wheel, with the lowest versions, on each Python that is here
	$(PYTHON) tests/reliability/lowest.py

newest: ## the same with the newest versions
	$(PYTHON) tests/reliability/lowest.py --newest

frameworks: $(STAMP) ## a hang under each framework of docs/frameworks.md, installed from packages
	$(BIN)/python -m pytest -m long tests/frameworks

faults-random: $(STAMP) ## programs and faults drawn from a seed: make faults-random N=200 SEED=1 [FRAMEWORKS=1]
	PYTHONPATH=tests $(BIN)/python -m faults.drawn --number $(N) --seed $(SEED) --jobs 4 $(if $(FRAMEWORKS),--frameworks)

native: $(STAMP) ## the native core, compiled in place (an editable install does it too)
	$(BIN)/python hatch_build.py

test-cores: $(STAMP) ## the tests of recorder and capture on each core
	TEST_CORE=c $(BIN)/python -m pytest $(BESIDE) $(ON_CORES)
	TEST_CORE=python $(BIN)/python -m pytest $(BESIDE) $(ON_CORES)

SANITIZED = LD_PRELOAD=$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so):$$($(CC) -print-file-name=libstdc++.so.6) \
  ASAN_OPTIONS=detect_leaks=0
sanitize: $(STAMP) ## recorder's tests and a stress program on a core with ASan and UBSan
	CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -g -O1" \
	  $(BIN)/python hatch_build.py
	rm -rf build/stress
	$(SANITIZED) $(BIN)/python -m pytest tests/recording tests/lifecycle/test_thread_lines.py || touch build/.failed
	PYTHONPATH=. $(SANITIZED) $(BIN)/python -W ignore tests/reliability/stress.py build/stress c 20
	$(BIN)/python hatch_build.py
	@if [ -e build/.failed ]; then rm build/.failed; exit 1; fi

red-team: $(STAMP) ## programs that look for us, untraced and traced, compared
	$(BIN)/python tests/reliability/red_team.py

torch-suite: $(STAMP) ## all of PyTorch's own distributed tests, plain and traced, compared
	cd tests && PYTHONPATH=. ../$(BIN)/python -m torch_suite.compare

bench: $(STAMP) ## what tracing costs, beside other tracers
	$(BIN)/python benchmarks/recorder/overhead.py

bench-viewer: $(STAMP) ## how a verdict's cost grows with ranks and operations; CPU of each command
	PYTHONPATH=.:viewer $(BIN)/python benchmarks/viewer/growth.py
	$(BIN)/python benchmarks/viewer/commands.py

docs: $(STAMP) ## the notebook, run on a real job
	$(BIN)/python docs/run_notebook.py
	$(BIN)/python docs/record_hang.py

clean: ## everything made here except the environments
	rm -rf build dist disttrace-out .mypy_cache .ruff_cache .pytest_cache
	find disttrace viewer tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
