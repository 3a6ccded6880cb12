# Each target sets itself up: on a fresh Linux machine with Python 3.11 or newer, `make lab` or `make test` is all.
.PHONY: lab test test-matrix notebooks stamp lint

# The first Python that is new enough and can make environments (Debian keeps that part in python3-venv).
PYTHON = $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
INSTALL = $(1)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[triton,lab,test]'
# One thread each for the two workers; the environment's bin first, for nbgrader calls alembic by name.
PYTEST = OMP_NUM_THREADS=1 PATH="$(CURDIR)/$(1)/bin:$$PATH" $(1)/bin/python -m pytest -n 2 --dist loadfile tests/

.venv/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed (on Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Installing into .venv: some minutes the first time"
	@$(PYTHON) -m venv .venv
	@$(call INSTALL,.venv)
	@touch $@

lab: .venv/installed
	.venv/bin/python -m course_lib.workspace

test: .venv/installed
	$(call PYTEST,.venv)

notebooks: .venv/installed
	.venv/bin/python -m course_lib.authoring build

stamp: .venv/installed
	.venv/bin/python -m course_lib.authoring stamp

lint: .venv/installed
	.venv/bin/ruff check .

# The whole suite on the newest Triton, and on the oldest that our GPU measurements use.
test-matrix: .venv-matrix/triton-3.9.0/installed .venv-matrix/triton-3.6.0/installed
	$(call PYTEST,.venv-matrix/triton-3.9.0)
	$(call PYTEST,.venv-matrix/triton-3.6.0)

.venv-matrix/triton-3.9.0/installed: OTHER = triton==3.9.0
.venv-matrix/triton-3.6.0/installed: OTHER = triton==3.6.0 'numpy<2.4'
.venv-matrix/%/installed: .venv/installed
	@echo "Installing into .venv-matrix/$*"
	@$(PYTHON) -m venv .venv-matrix/$*
	@$(call INSTALL,.venv-matrix/$*)
	@# Without dependencies: a CUDA build of torch asks for exactly its own Triton.
	@.venv-matrix/$*/bin/pip install --quiet --no-deps $(OTHER)
	@touch $@
