# Each target sets itself up: on a fresh Linux machine with Python 3.11 or newer, `make lab` or `make test` is all.
.PHONY: lab test test-all test-matrix notebooks stamp lint mutants ablation classroom site

# The first Python that is new enough and can make environments (Debian keeps that part in python3-venv).
PYTHON = $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
# Not compiled: Python does so with what it imports, and the rest would take half a minute.
INSTALL = $(1)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[$(EXTRAS)]'
# One thread each for the two workers; the environment's bin first, for nbgrader calls alembic by name. Container images
# forbid Python to keep what it compiled, and then each of the hundreds of processes that tests start compiles PyTorch.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= PATH="$(CURDIR)/$(1)/bin:$$PATH" \
	$(1)/bin/python -m pytest -n 2 tests/

lab: .venv/ready-for-lab
	.venv/bin/python -m courseware.workspace

test: .venv/ready-for-test
	$(call PYTEST,.venv)

# With what takes too long for every change: all variants, all cheats, all mutants, other versions of Triton.
test-all: .venv/ready-for-test
	COURSEWARE_SEED=$$(date +%Y%m%d) COURSEWARE_ALL_VARIANTS=1 COURSEWARE_ALL_CHEATS=1 $(call PYTEST,.venv)
	$(MAKE) mutants test-matrix

notebooks: .venv/ready-for-test stamp
	.venv/bin/python -m tools.authoring build

# `make stamp REPOSITORY=https://github.com/someone/course` says that it is published there, in every file that links to it.
stamp: .venv/ready-for-site
	.venv/bin/python -m tools.authoring stamp $(REPOSITORY:%=--repository %)
	.venv/bin/python -m tools.authoring glossary

# The course as pages. Afresh each time: it takes under a minute, and nothing stays of a lesson that is gone.
site: .venv/ready-for-site
	rm -rf site/_build
	.venv/bin/python -m sphinx --quiet --fail-on-warning --keep-going -c site -d site/_build/doctrees . site/_build/html
	@echo "Open site/_build/html/index.html"

lint: .venv/ready-for-test
	.venv/bin/ruff check .

# Changes every answer in thousands of small ways, which the checks must refuse. A quarter of an hour on 2 cores.
mutants: .venv/ready-for-test
	OMP_NUM_THREADS=1 .venv/bin/python -m tools.mutants

# Takes each misconception out and shows whether the message is worse without it.
ablation: .venv/ready-for-test
	OMP_NUM_THREADS=1 .venv/bin/python -m tools.ablation

# An nbgrader course, for an instructor: `make classroom DIR=some/new/folder`.
classroom: .venv/ready-for-test
	.venv/bin/python -m courseware classroom $(DIR)

# The whole suite on the newest Triton, and on the oldest that our GPU measurements use.
test-matrix: test-triton-3.9.0 test-triton-3.6.0
test-triton-%: .venv-matrix/triton-%/ready
	$(call PYTEST,.venv-matrix/triton-$*)

# A learner's environment has no test tools in it: JupyterLab would show their menus, and jupytext act on saves.
# torch and Triton, 2.5 GB, follow while the first lesson is read: courseware/workspace.py installs them.
.venv/ready-for-lab: EXTRAS = lab
.venv/ready-for-test .venv-matrix/%: EXTRAS = triton,lab,cuda,test,site
# The explorers of lessons 11 and 14 compute with torch.
.venv/ready-for-site: EXTRAS = triton,site
.venv/ready-for-lab: SIZE = 100 MB, about a minute
.venv/ready-for-test .venv/ready-for-site: SIZE = 3 GB, some minutes
.venv/ready-for-%: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Needs Python 3.11 or newer with venv (on Debian: apt-get install python3-venv)"; \
		echo "Found: $$(python3 --version 2>&1 || echo none)"; exit 1; }
	@echo "Installing what make $* needs into .venv, the first time only: $(SIZE)"
	@$(PYTHON) -m venv .venv
	@$(call INSTALL,.venv)
	@touch $@

.venv-matrix/triton-3.9.0/ready: OTHER = triton==3.9.0
.venv-matrix/triton-3.6.0/ready: OTHER = triton==3.6.0 'numpy<2.4'
.venv-matrix/%/ready: pyproject.toml constraints.txt
	@echo "Installing into .venv-matrix/$*"
	@$(PYTHON) -m venv .venv-matrix/$*
	@$(call INSTALL,.venv-matrix/$*)
	@# Without dependencies: a CUDA build of torch asks for exactly its own Triton.
	@.venv-matrix/$*/bin/python -m pip install --quiet --no-deps $(OTHER)
	@touch $@
