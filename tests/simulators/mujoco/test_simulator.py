"""`MujocoSimulator`: conformance, threads, models of rows, frames, errors."""

import copy
import dataclasses
import gc
import os
import pickle
import re
import sys
import threading
import time

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch

from vecrl.envs import make_env
from vecrl.errors import ClosedError, PendingError, SpaceError
from vecrl.policy import PopulationEvaluator
from vecrl.policy.evaluation import device_loop
from vecrl.simulators.mujoco import MujocoSimulator, MujocoTask, make_batch, make_task, names, warp
from vecrl.simulators.mujoco.compiled_loops import compiled_loops
from vecrl.simulators.mujoco.physics import Physics
from vecrl.testing import BatchSimulatorConformance
from vecrl.vector import BatchedVectorEnv, make_vector_env

mujoco = pytest.importorskip("mujoco")  # some groups of tests have environments without them
numba = pytest.importorskip("numba")


class TestHopper(BatchSimulatorConformance):
    def make(self, num_envs):
        return make_batch("Hopper-v5", num_envs, num_threads=2, max_episode_steps=14)


class TestPusher(BatchSimulatorConformance):
    num_steps = 12

    def make(self, num_envs):
        return make_batch("Pusher-v5", num_envs, num_threads=1, max_episode_steps=9)


def test_names_are_those_of_gymnasium():
    expected = [name for name in gymnasium.registry if name.endswith("-v5")]
    assert {*names()} == {*expected} - {"FrozenLake-v5"}


def test_results_are_float64_and_actions_float32():
    sim = make_batch("HalfCheetah-v5", 2)
    assert sim.reset([0, 1]).dtype == torch.float64
    step = sim.step(torch.zeros(2, 6))
    assert step.reward.dtype == torch.float64
    assert sim.action_space.dtype == np.float32
    assert make_batch("HalfCheetah-v5", 2, infos=False).observation_space == sim.observation_space


def test_infos_can_be_switched_off():
    sim = make_batch("HalfCheetah-v5", 2, infos=False)
    sim.reset([0, 1])
    assert sim.step(torch.zeros(2, 6)).info == {}


def test_results_share_no_memory_with_the_simulator():
    """Writing to observations and infos does not change later steps."""
    sim, other = make_batch("Swimmer-v5", 2), make_batch("Swimmer-v5", 2)
    for each in (sim, other):
        each.reset([0, 1])
    action = torch.ones(2, 2)
    for _ in range(3):
        step, expected = sim.step(action), other.step(action)
        assert torch.equal(step.next_obs, expected.next_obs)
        assert torch.equal(step.info["x_velocity"], expected.info["x_velocity"])
        for value in (step.next_obs, step.reward, *step.info.values()):
            value.zero_()


def test_models_of_rows_are_random_and_reproducible():
    """Rows with equal seeds and actions differ only by their models; a row equals gymnasium's with the same model."""

    def model_fn(row, rng):
        model = make_task("Hopper-v5").load_model()
        model.body_mass[:] *= 1 + 0.5 * row
        model.geom_friction[:] *= rng.uniform(0.5, 1.5)
        return model

    sim = make_batch("Hopper-v5", 3, model_fn=model_fn, model_seed=4)
    again = make_batch("Hopper-v5", 3, model_fn=model_fn, model_seed=4)
    masses = [model.body_mass.sum() for model in sim.models]
    np.testing.assert_allclose(masses, masses[0] * np.array([1, 1.5, 2]))
    env = gymnasium.make("Hopper-v5").unwrapped
    env.model.body_mass[:] = sim.models[2].body_mass
    env.model.geom_friction[:] = sim.models[2].geom_friction
    env.reset(seed=1)
    for each in (sim, again):
        each.reset([1, 1, 1])
    for number in range(20):
        action = torch.full((3, 3), np.sin(number))
        obs = sim.step(action).next_obs
        assert np.array_equal(obs[2], env.step(action[2].numpy())[0])
        assert torch.equal(obs, again.step(action).next_obs)
    assert not torch.equal(obs[0], obs[1])


def test_models_of_humanoids_have_their_own_masses():
    def model_fn(row, rng):
        model = make_task("Humanoid-v5").load_model()
        model.body_mass[1 + row] *= 2
        return model

    sim, env = make_batch("Humanoid-v5", 2, model_fn=model_fn), gymnasium.make("Humanoid-v5").unwrapped
    env.model.body_mass[2] *= 2
    env.reset(seed=1)
    sim.reset([1, 1])
    for _ in range(3):
        action = torch.full((2, 17), 0.3)
        info, expected = sim.step(action).info, env.step(action[1].numpy())[4]
        assert info["x_velocity"][1] == expected["x_velocity"]


def test_models_of_other_sizes_raise():
    def model_fn(row, rng):
        return make_task("Hopper-v5" if row == 0 else "Swimmer-v5").load_model()

    with pytest.raises(SpaceError, match="nq 6 in row 0 and 5 in row 1"):
        make_batch("Hopper-v5", 2, model_fn=model_fn)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5"])
def test_frames_are_those_of_gymnasium(name):
    options = {"render_mode": "rgb_array", "width": 64, "height": 48}
    sim, env = make_batch(name, 2, **options), gymnasium.make(name, disable_env_checker=True, **options)
    sim.reset([3, 4])
    env.reset(seed=4)
    first = sim.render(0)
    for _ in range(5):
        sim.step(torch.ones(2, *sim.action_space.shape))
        env.step(np.ones(sim.action_space.shape, np.float32))
    frame, expected = sim.render(1), env.render()
    assert frame.shape == (48, 64, 3)
    assert np.array_equal(frame, expected)
    assert not np.array_equal(sim.render(0), first)
    state = sim.get_state()
    sim.reset([8, 9])
    other = np.abs(sim.render(1).astype(int) - frame).mean()
    sim.set_state(state)
    difference = np.abs(sim.render(1).astype(int) - frame).mean()
    assert difference < other / 3  # a restored row is drawn at its own place, the others one step of the model before
    sim.close()
    env.close()


def test_wrong_arguments_raise():
    with pytest.raises(ValueError, match=r"Expected one of Ant-v5, .*, got 'Cheetah'"):
        make_batch("Cheetah", 1)
    with pytest.raises(TypeError, match=r"Expected arguments of Hopper-v5 among .*, got weight"):
        make_batch("Hopper-v5", 1, weight=3)
    with pytest.raises(ValueError, match="render_mode"):
        make_batch("Hopper-v5", 1, render_mode="human")
    for name in ("num_threads", "max_episode_steps"):
        with pytest.raises(ValueError, match=name):
            make_batch("Hopper-v5", 1, **{name: 0})
    with pytest.raises(ValueError, match=r"Expected device 'cpu', or one of InvertedPendulum-v5, .* on a GPU"):
        make_batch("Swimmer-v5", 1, device="cuda")


def test_wrong_calls_raise():
    sim = make_batch("Hopper-v5", 2)
    with pytest.raises(PendingError, match="Call reset"):
        sim.step(torch.zeros(2, 3))
    with pytest.raises(SpaceError, match="Expected 2 seeds"):
        sim.reset([1])
    with pytest.raises(SpaceError, match="Expected a seed of 0 or more, got -1"):
        sim.reset([1, -1])
    with pytest.raises(SpaceError, match="Expected a seed of 0 or more, got -1"):
        make_batch("Hopper-v5", 1, model_fn=lambda row, rng: None, model_seed=-1)
    with pytest.raises(SpaceError, match="state of 2 rows"):
        sim.set_state(make_batch("Hopper-v5", 3).get_state())


def crane(**changes):
    """Makes a task of a slide, with some of its functions replaced."""
    xml = """<mujoco><worldbody><body><joint name="rail" type="slide"/><geom size="0.1"/></body></worldbody>
        <actuator><motor joint="rail" ctrlrange="-1 1"/></actuator></mujoco>"""
    functions = {
        "start": lambda start: (start.qpos, start.qvel),
        "observe": lambda rows: np.concatenate([rows.qpos, rows.qvel], 1),
        "reward": lambda move: (move.after.qpos[:, 0], {"speed": move.after.qvel[:, 0]}),
    }
    return MujocoTask(**{"xml": xml, "frame_skip": 1} | functions | changes)


def test_results_that_are_views_share_no_memory_with_the_simulator():
    task = crane(observe=lambda rows: rows.qpos, reward=lambda move: (move.after.qpos[:, 0], {"at": move.after.qpos}))
    steps = []
    for _ in range(2):
        sim = MujocoSimulator(task, 2)
        sim.reset()
        step = sim.step(torch.ones(2, 1))
        if not steps:
            for values in (step.next_obs, step.reward, step.info["at"]):
                values.fill_(7.0)
        steps.append(sim.step(torch.ones(2, 1)))
    assert torch.equal(steps[0].next_obs, steps[1].next_obs)
    assert torch.equal(steps[0].reward, steps[1].reward)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"reward": lambda move: np.zeros(2)}, "Expected `reward` of the task to return rewards and a dict of infos"),
        (
            {"reward": lambda move: (np.zeros((2, 1)), {})},
            r"shape \(2,\) and dtype float64, rows first, got shape \(2, 1\)",
        ),
        ({"reward": lambda move: (np.zeros(2), {"far": 3.0})}, "the info 'far' of `reward` to have 2 rows"),
        ({"terminated": lambda move: np.zeros(2)}, r"`terminated` .* dtype bool, rows first, got .* float64"),
        ({"start": lambda start: start.qpos}, "`start` of the task to return positions and velocities, got ndarray"),
        ({"start": lambda start: (start.qpos, np.zeros(1))}, r"`start` .* shape \(2, 1\)"),
        ({"observe": lambda rows: rows.qpos[0]}, r"`observe` .* shape \(2, k\)"),
        (
            {"observe": lambda rows: [[1.0], [1.0, 2.0]]},
            r"`observe` .* \(2, k\) .*, got 2 items of different shapes: \(1,\), \(2,\)",
        ),
        (
            {"observe": lambda rows: [1.0, [[2.0], 3.0]]},
            r"`observe` .*, got 2 items of different shapes: \(\), items of",
        ),
        (
            {"observe": lambda rows: np.zeros((2, 1 + rows.qpos.any()))},
            r"`observe` .* shape \(2, 1\) .*, got shape \(2, 2\)",
        ),
        (
            {"reward": lambda move: (np.zeros(2), {"far": [[1], []]})},
            "the info 'far' of `reward` .*, got 2 items of different",
        ),
    ],
)
def test_wrong_results_of_a_task_raise(changes, text):
    def play():
        sim = MujocoSimulator(crane(**changes), 2)
        sim.reset()
        sim.step(torch.ones(2, 1))

    with pytest.raises(SpaceError, match=text):
        play()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"frame_skip": 0}, "frame_skip"),
        ({"max_episode_steps": 0}, "max_episode_steps"),
        ({"observe": None}, "Expected observe to be a function over rows, got None"),
        ({"reads": "qpos"}, r"Give \['qpos'\]"),
        ({"reads": ["qpos", "weight"]}, "such as 'qpos' or 'body_mass', got 'weight'"),
        ({"xml": 3}, "Expected xml to be MJCF as a string, .* got 3"),
    ],
)
def test_wrong_tasks_raise(changes, text):
    with pytest.raises(ValueError, match=text):
        MujocoSimulator(crane(**changes), 1)


def test_states_of_other_models_raise():
    def heavier(row, rng):
        model = make_task("Hopper-v5").load_model()
        model.body_mass[1:] *= rng.uniform(0.5, 2.0)
        return model

    saved, same, other = (make_batch("Hopper-v5", 2, model_fn=heavier, model_seed=seed) for seed in (1, 1, 2))
    plain = make_batch("Hopper-v5", 2)
    saved.reset([1, 2])
    saved.step(torch.ones(2, 3))
    state = saved.get_state()
    same.set_state(state)
    assert torch.equal(same.step(torch.ones(2, 3)).next_obs, saved.step(torch.ones(2, 3)).next_obs)
    for sim in (other, plain):
        with pytest.raises(SpaceError, match=r"got one of other models in the rows \[0, 1\]"):
            sim.set_state(state)
    with pytest.raises(PendingError):
        plain.step(torch.zeros(2, 3))  # nothing was restored


def test_infos_have_a_mask_of_rows_that_were_stepped():
    env = BatchedVectorEnv(make_batch("Hopper-v5", 2, max_episode_steps=3), autoreset_mode="next_step")
    env.reset(seed=0)
    for _ in range(3):
        info = env.step(np.zeros((2, 3), np.float32))[4]
        assert info["_x_velocity"].all()
    assert "x_velocity" not in env.step(np.zeros((2, 3), np.float32))[4]  # both rows were reset
    info = env.tensor_step(torch.zeros(2, 3))[4]
    assert info["_x_velocity"].all()
    env.close()


def test_a_field_that_is_not_read_names_what_to_do():
    rows = MujocoSimulator(make_task("Hopper-v5"), 1)._rows
    with pytest.raises(AttributeError, match=r"'xpos'\. Add it to the task's `reads`"):
        rows.xpos  # noqa: B018


@pytest.mark.parametrize("wait", ["sleep", "auto", "spin"])
@pytest.mark.parametrize("num_threads", [2, 5])
def test_waiting_threads_do_all_work_once(wait, num_threads):
    """Steps follow each other at once, after a sleep of the helpers, and with few rows."""
    alone, helped = (make_batch("Hopper-v5", 12, num_threads=count, wait=wait) for count in (1, num_threads))
    seeds, rng = range(12), np.random.default_rng(0)
    assert torch.equal(alone.reset(seeds), helped.reset(seeds))
    for step in range(300):
        actions = torch.from_numpy(rng.uniform(-1, 1, (12, 3)).astype(np.float32))
        mask = torch.from_numpy(rng.random(12) < rng.choice([0.05, 0.5, 1.0]))
        results = [simulator.step_where(mask, actions) for simulator in (alone, helped)]
        assert torch.equal(results[0].next_obs, results[1].next_obs)
        ended = results[0].terminated | results[0].truncated
        assert torch.equal(alone.reset_where(ended), helped.reset_where(ended))
        if step % 100 == 0:
            time.sleep(0.05)
    alone.close()
    for _ in range(2):
        helped.close()
    helped.step(actions)  # by the caller's thread alone


@pytest.mark.parametrize("wait", ["never", ["sleep"], None])
def test_an_unknown_wait_is_an_error(wait):
    with pytest.raises(ValueError, match=re.escape(f"Expected wait to be 'sleep', 'auto' or 'spin', got {wait!r}.")):
        make_batch("Hopper-v5", 2, wait=wait)


def test_threads_and_pipes_end_with_their_owner():
    files = len(os.listdir("/proc/self/fd"))
    simulator = make_batch("Hopper-v5", 4, num_threads=3)
    helpers = list(simulator._physics._threads._threads)
    assert len(helpers) == 2
    del simulator
    gc.collect()
    for thread in helpers:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) == files


def test_what_does_not_fit_the_memory_is_an_error():
    simulator = make_batch("Hopper-v5", 2, num_threads=1)
    simulator.reset([0, 1])
    with pytest.raises(SpaceError, match=r"Expected actions of shape \(2, 3\), got numbers of shape \(2, 1\)"):
        simulator.step(torch.zeros(2, 1))
    with pytest.raises(SpaceError, match=r"Expected a mask of shape \(2,\), got \(3,\)"):
        simulator.step_where(torch.ones(3, dtype=torch.bool), torch.zeros(2, 3))
    state = simulator.get_state()
    state["field/qpos"] = state["field/qpos"].float()
    with pytest.raises(SpaceError, match=r"differs in \['field/qpos'\]"):
        simulator.set_state(state)
    with pytest.raises(AttributeError, match="got a new value of 'qpos'"):
        simulator._rows.qpos = np.zeros(1)
    with pytest.raises(TypeError, match=r"return a mujoco\.MjModel for row 0, got None"):
        make_batch("Hopper-v5", 2, model_fn=lambda row, rng: None)
    for field in ("efc_force", "dof_island", "iacc"):
        with pytest.raises(ValueError, match=rf"got '{field}'\. MuJoCo moves this one"):
            MujocoSimulator(dataclasses.replace(make_task("Hopper-v5"), reads=("qpos", "qvel", field)), 2)


@pytest.mark.parametrize("error", [KeyError("reward"), KeyboardInterrupt()])
def test_an_interrupted_step_needs_a_reset(error):
    task, errors = make_task("Hopper-v5"), [error]

    def reward(move):
        if errors:
            raise errors.pop()
        return task.reward(move)

    simulator = MujocoSimulator(dataclasses.replace(task, reward=reward), 2, num_threads=1)
    start = simulator.reset([0, 1])
    with pytest.raises(type(error)):
        simulator.step(torch.zeros(2, 3))
    for call in (lambda: simulator.step(torch.zeros(2, 3)), lambda: simulator.reset_where(torch.ones(2, dtype=bool))):
        with pytest.raises(PendingError, match="Call reset first"):
            call()
    interrupted = simulator.get_state()
    assert torch.equal(simulator.reset([0, 1]), start)
    simulator.step(torch.zeros(2, 3))
    simulator.set_state(interrupted)
    with pytest.raises(PendingError, match="an error or Ctrl-C interrupted the last call"):
        simulator.step(torch.zeros(2, 3))


@pytest.mark.parametrize("copy_of", [copy.deepcopy, pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize(
    "make",
    [
        lambda: make_batch("Hopper-v5", 2),
        lambda: make_vector_env("mujoco::Hopper-v5", num_envs=2),
        lambda: make_env("mujoco::Hopper-v5", 2),
    ],
)
def test_a_copy_is_an_error_that_says_what_to_do(make, copy_of):
    env = make()
    with pytest.raises(TypeError, match=r"MujocoSimulator, which has threads .* Take its get_state\(\), construct"):
        copy_of(env)
    env.close()


def test_a_second_call_at_the_same_time_is_an_error():
    simulator = make_batch("Hopper-v5", 2, num_threads=1)
    simulator.reset([0, 1])
    with simulator._physics.lock, pytest.raises(PendingError, match="one call of this simulator at a time"):
        simulator.step(torch.zeros(2, 3))
    simulator.step(torch.zeros(2, 3))


def test_a_forked_process_steps_alone():
    simulator = make_batch("Hopper-v5", 4, num_threads=2)
    simulator.reset(range(4))
    actions = torch.ones(4, 3)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, simulator.step(actions).next_obs.numpy().tobytes())
            simulator.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10_000) == simulator.step(actions).next_obs.numpy().tobytes()
    simulator.close()
    os.close(reader)
    os.close(writer)


def test_without_numba_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled_loops.cache_clear()
    with pytest.raises(ImportError, match=r'Numba is not installed: pip install "vecrl\[mujoco\]"'):
        make_batch("Hopper-v5", 2)


def test_without_the_compiler_the_error_names_the_variable(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(RuntimeError, match=r"NUMBA_DISABLE_JIT is set.*unset it"):
        make_batch("Hopper-v5", 2)


def test_a_gpu_has_the_tasks_of_mujoco_warp(monkeypatch):
    calls = []
    monkeypatch.setattr(warp, "make_batch", lambda *args, **kwargs: calls.append((args, kwargs)))
    make_batch("Hopper-v5", 3, device="cuda:1", max_episode_steps=7)
    assert calls == [(("Hopper-v5", 3), {"device": "cuda:1", "infos": True, "max_episode_steps": 7})]


def test_make_vector_env_has_the_prefix():
    env = make_vector_env("mujoco::Hopper-v5", num_envs=3, num_threads=1)
    obs, _ = env.reset(seed=5)
    expected, _ = gymnasium.make("Hopper-v5").reset(seed=6)
    assert np.array_equal(obs[1], expected)
    env.close()


def test_texts_are_models():
    task = make_task("InvertedPendulum-v5", xml_file="<mujoco><worldbody/></mujoco>")
    assert isinstance(task.load_model(), mujoco.MjModel)


def test_populations_step_active_rows_only(monkeypatch):
    """The results are those of all rows stepped; rows of finished members take no time."""
    stepped = []
    step_rows = Physics.step

    def step(self, controls, before, rows=None):
        stepped.append(len(self.data) if rows is None else len(rows))
        return step_rows(self, controls, before, rows)

    monkeypatch.setattr(Physics, "step", step)
    arguments = "mujoco::Hopper-v5", "Linear(obs_length, act_length)", 6
    results = []
    for is_partial in (True, False):
        stepped.clear()
        if not is_partial:
            monkeypatch.setattr(device_loop, "SupportsStepWhere", int)  # of which no simulator is an instance
        with PopulationEvaluator(*arguments, seed=3, max_steps=60) as evaluator:
            torch.manual_seed(1)
            results.append(evaluator(torch.randn(6, evaluator.parameter_length)))
        assert (sum(stepped) == results[-1].interactions) == is_partial
    assert torch.equal(results[0].fitness, results[1].fitness)
    assert torch.equal(results[0].lengths, results[1].lengths)


def test_states_can_be_restored_after_a_large_frame():
    sim = make_batch("Hopper-v5", 1, render_mode="rgb_array", width=800, height=600)
    sim.reset([0])
    state = sim.get_state()
    assert sim.render(0).shape == (600, 800, 3)
    sim.set_state(state)
    sim.close()


def test_a_call_during_close_in_another_thread_raises_closed_error():
    simulator = make_batch("Hopper-v5", 2, num_threads=1)
    simulator.reset([0, 1])
    lock = simulator._physics.lock
    with lock:  # `close` waits for it, as for a running step
        closing = threading.Thread(target=simulator.close)
        closing.start()
        while not simulator._closed:
            pass
        with pytest.raises(ClosedError, match="another thread closes"):
            simulator.step(torch.zeros(2, 3))
    closing.join()
