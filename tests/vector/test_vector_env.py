"""`VectorEnv`: copies of results, calls to environments, spaces, arguments, and closing.

`tests/conformance` compares its values with gymnasium.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import CountingEnv, EchoEnv, counting, echoes, makers, ones

from vecrl.errors import PendingError, SerializationError, SpaceError, WorkerError
from vecrl.vector import VectorEnv, info_of

PLACES = [("serial", 1), ("threads", 2), ("processes", 2)]
MODES = [mode.value for mode in AutoresetMode]
ALL = pytest.mark.parametrize(("backend", "num_workers"), PLACES)


# -- copies of results -----------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("name", ["counting", "dict", "graph", "image"])
def test_results_are_never_overwritten(name, backend, num_workers):
    """The results of 50 steps and some resets are unchanged at the end, however many of them are kept."""
    with VectorEnv(makers(name, 4), backend=backend, num_workers=num_workers, autoreset_mode="same_step") as envs:
        saved: list[Any] = [envs.reset(seed=1)]
        copies = [copy.deepcopy(saved[0])]
        for step in range(50):
            saved.append(envs.step(np.ones(4, int)))
            if step % 10 == 0:
                saved.append(envs.reset(options={"reset_mask": np.array([True, False, False, True])}))
            copies += [copy.deepcopy(result) for result in saved[len(copies) :]]
        assert_same(saved, copies)


@ALL
@pytest.mark.parametrize("keep", [0, 1, 2, 3, 7])
def test_edits_of_results_do_not_affect_later_ones(backend, num_workers, keep):
    """The caller may write to results, whether it keeps the last 0 or 7 of them."""

    def life(edit: bool, mode: str) -> list[Any]:
        results, stored = [], []
        with VectorEnv(makers("dict", 3), backend=backend, num_workers=num_workers, autoreset_mode=mode) as envs:
            envs.reset(seed=1)
            for step in range(20):
                if step % 5 == 4:
                    obs, info = envs.reset(seed=step, options={"reset_mask": np.array([False, True, False])})
                    result: Any = (obs, info)
                else:
                    result = envs.step(np.ones(3, int))
                results.append(copy.deepcopy(result))
                stored = [*stored, result][-keep:] if keep else []
                if edit:
                    overwrite(result)
        return results

    for mode in MODES[:2]:
        assert_same(life(True, mode), life(False, mode))


def overwrite(value: Any) -> None:
    """Overwrites every array in a result."""
    if isinstance(value, dict):
        for item in value.values():
            overwrite(item)
    elif isinstance(value, tuple):
        for item in value:
            overwrite(item)
    elif isinstance(value, np.ndarray):
        if value.dtype == object:
            for item in value:
                overwrite(item)
        else:
            value.fill(7 if value.dtype != bool else True)


def test_views_of_results_are_not_overwritten():
    """A row or a slice of an observation keeps its memory like the whole observation."""
    with VectorEnv(counting(3, 90)) as envs:
        row, part = envs.reset()[0][1], envs.step([0] * 3)[0][1:, 2]
        for _ in range(12):
            envs.step([0] * 3)
        assert row.tolist() == [1, 0, 0]
        assert part.tolist() == [1, 1]


def test_infos_are_copies():
    """An environment that returns the same dict and array every time cannot change earlier results."""
    shared = {"row": np.zeros(2)}

    class Same(EchoEnv):
        def step(self, action):
            shared["row"] += 1
            return super().step(action)

    with VectorEnv([lambda: Same(infos=[shared])]) as envs:
        envs.reset()
        first = envs.step(ones(1))[-1]["row"]
        envs.step(ones(1))
    assert first.tolist() == [[1, 1]]


# -- resets ----------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("mode", MODES)
def test_masked_reset_clears_pending_autoresets(mode, backend, num_workers):
    """After an explicit reset the next step is a step (in gymnasium, without shared memory, it is a silent reset)."""
    place = {"backend": backend, "num_workers": num_workers}
    with VectorEnv(counting(2, 1), autoreset_mode=mode, **place) as envs:
        envs.reset()
        envs.step([0, 0])
        obs, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert obs[0, 2] == 0
        obs, *_ = envs.step([0, 0])
        assert obs[0, 2] == (0 if mode == "SameStep" else 1)


def test_reset_mask_does_not_change_the_callers_options():
    options = {"reset_mask": np.array([True, False]), "level": 2}
    with VectorEnv(counting(2)) as envs:
        envs.reset()
        envs.reset(options=options)
        assert envs.get_attr("options") == ([None, {"level": 2}], [None])
    assert set(options) == {"reset_mask", "level"}


@pytest.mark.parametrize("mask", [[True], [1, 0], np.zeros(2, bool), np.ones((2, 1), bool)])
def test_invalid_masks_raise(mask):
    with VectorEnv(counting(2)) as envs:
        envs.reset()
        for error in (ValueError, AssertionError):  # those of gymnasium's versions
            with pytest.raises(error, match="reset_mask"):
                envs.reset(options={"reset_mask": mask})


def test_a_first_reset_resets_all():
    with VectorEnv(counting(2)) as envs:
        with pytest.raises(SpaceError, match="reset all first"):
            envs.reset(options={"reset_mask": np.array([True, False])})
        obs, _ = envs.reset(seed=3, options={"reset_mask": np.array([True, True]), "level": 2})
        assert obs.shape == (2, 3)
        assert envs.get_attr("options") == ([{"level": 2}], [{"level": 2}])


@pytest.mark.parametrize("place", [{"num_workers": 1}, {"num_workers": 2, "backend": "threads"}])
@pytest.mark.parametrize("error", [RuntimeError, AssertionError, SpaceError])
def test_unequal_spaces_raise_the_errors_of_gymnasium(error, place):
    """Gymnasium raises a RuntimeError, and up to version 1.2 also an AssertionError."""
    fns = [EchoEnv, partial(EchoEnv, spaces.Box(-9.0, 9.0, (2,), np.float32))]
    with pytest.raises(error, match="observation_space"):
        VectorEnv(fns, **place)


@pytest.mark.parametrize("seed", [[1], [1, 2, 3]])
def test_invalid_seeds_raise(seed):
    with VectorEnv(counting(2)) as envs, pytest.raises(ValueError, match="2, one per environment"):
        envs.reset(seed=seed)


def test_fractional_seeds_raise():
    with VectorEnv(counting(2)) as envs, pytest.raises(TypeError, match=r"integer or one per environment, got 1\.5"):
        envs.reset(seed=1.5)


@pytest.mark.parametrize("seed", [4, np.int64(4), [4, 5], np.array([4, 5])])
def test_seeds_of_every_kind(seed):
    with VectorEnv(counting(2)) as envs:
        envs.reset(seed=seed)
        assert envs.np_random_seed == (4, 5)
        assert [rng.random() for rng in envs.np_random] == [np.random.default_rng(s).random() for s in (4, 5)]


# -- calls to environments -------------------------------------------------------------------------


@ALL
def test_call_get_and_set_reach_environments(backend, num_workers):
    with VectorEnv(counting(3), backend=backend, num_workers=num_workers) as envs:
        envs.reset()
        assert envs.call("twice", 5, plus=1) == (11, 12, 13)
        assert envs.call("env_id") == (0, 1, 2)
        assert envs.get_attr("label") == ("counting 0", "counting 1", "counting 2")
        envs.set_attr("length", [1, 2, 3])
        assert envs.get_attr("length") == (1, 2, 3)
        envs.set_attr("length", 8)
        assert envs.get_attr("length") == (8, 8, 8)
        envs.set_attr("label", ("a", "b", "c"))
        assert envs.call("label") == ("a", "b", "c")
        with pytest.raises(ValueError, match="3 values"):
            envs.set_attr("label", ["a"])
        with pytest.raises(WorkerError, match="nowhere"):
            envs.get_attr("nowhere")
        assert envs.step([0] * 3)[0][:, 2].tolist() == [1, 1, 1]


def test_attributes_are_read_through_wrappers():
    with VectorEnv(makers("CartPole-v1", 2)) as envs:
        assert envs.get_attr("gravity") == (9.8, 9.8)
        envs.set_attr("gravity", [1.0, 2.0])
        assert envs.call("gravity") == (1.0, 2.0)


@ALL
def test_render(backend, num_workers):
    with VectorEnv(counting(3, render_mode="rgb_array"), backend=backend, num_workers=num_workers) as envs:
        envs.reset()
        frames = envs.render()
        assert envs.render_mode == "rgb_array"
        assert envs.metadata["render_fps"] == 7
    assert isinstance(frames, tuple)
    assert [frame[0, 0, 0] for frame in frames] == [0, 1, 2]
    with VectorEnv(counting(1)) as envs:
        assert envs.render() is None


def test_info_of_one_environment():
    with VectorEnv([partial(EchoEnv, infos=[{}, {"x": 1, "deep": {"y": 2.0}}]), EchoEnv]) as envs:
        envs.reset()
        info = envs.step(ones(2))[-1]
    assert info_of(info, 0) == {"x": 1, "deep": {"y": 2.0}}
    assert info_of(info, 1) == {}


# -- spaces ----------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("place", ["observation", "action"])
def test_differing_spaces_raise(place, backend, num_workers):
    """Also if they have equal byte sizes and different bounds."""
    other = spaces.Box(-2.0, 2.0, (2,), np.float32)
    fns = [EchoEnv, EchoEnv, EchoEnv, partial(EchoEnv, **{place: other})]
    with pytest.raises(SpaceError, match="environment ") as exc_info:
        VectorEnv(fns, backend=backend, num_workers=num_workers)
    assert f"its {place}_space is" in str(exc_info.value)
    assert "Box(-1.0, 1.0, (2,), float32)" in str(exc_info.value)
    assert "Box(-2.0, 2.0, (2,), float32)" in str(exc_info.value)


@ALL
def test_observation_mode_different(backend, num_workers):
    """`observation_mode="different"` works as in gymnasium; spaces of other shapes or dtypes raise."""
    bounds = [1.0, 2.0, 3.0]
    fns = [partial(EchoEnv, spaces.Box(-b, b, (2,), np.float32)) for b in bounds]
    place = {"backend": backend, "num_workers": num_workers}
    expected = gymnasium.vector.SyncVectorEnv(fns, observation_mode="different")
    with VectorEnv(fns, observation_mode="different", **place) as envs:
        assert envs.observation_space == expected.observation_space
        assert envs.single_observation_space == expected.single_observation_space
        assert envs.reset()[0].shape == (3, 2)
    expected.close()
    for wrong in (spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float64)):
        with pytest.raises(SpaceError, match="observation_space"):
            VectorEnv([*fns, partial(EchoEnv, wrong)], observation_mode="different", **place)
    with pytest.raises(SpaceError, match="action_space"):
        VectorEnv(
            [EchoEnv, EchoEnv, partial(EchoEnv, action=spaces.Discrete(3))], observation_mode="different", **place
        )


UNLIKE = {
    "Discrete": [spaces.Discrete(2), spaces.Discrete(3, start=5)],
    "MultiDiscrete": [spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([4, 3])],
    "Dict": [spaces.Dict(a=spaces.Dict(b=spaces.Box(-h, h, (2,)))) for h in (1, 4)],
    "Tuple": [spaces.Tuple([spaces.Box(-n, n, (2,)), spaces.Discrete(n)]) for n in (2, 3)],
    "Sequence": [spaces.Sequence(spaces.Box(-h, h, (2,))) for h in (1, 4)],
    "Graph": [spaces.Graph(spaces.Box(-n, n, (2,)), spaces.Discrete(n)) for n in (2, 3)],
    "OneOf": [spaces.OneOf([spaces.Box(-n, n, (2,)), spaces.Discrete(n)]) for n in (2, 3)],
}


class Sampling(EchoEnv):
    """Observes elements of its own copy of a space."""

    def __init__(self, observation):
        super().__init__(copy.deepcopy(observation))

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return super().reset()

    def observe(self):
        return self.observation_space.sample()


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_spaces_in_mode_different_equal_gymnasium(name):
    fns = [partial(Sampling, space) for space in UNLIKE[name]]
    with VectorEnv(fns, observation_mode="different", backend="threads", num_workers=2) as envs:
        expected = gymnasium.vector.SyncVectorEnv(fns, observation_mode="different")
        assert envs.observation_space == expected.observation_space
        assert envs.single_observation_space == expected.single_observation_space
        assert_same(envs.reset(seed=3)[0], expected.reset(seed=3)[0])
        actions = np.zeros((2, 2), np.float32)
        assert_same(envs.step(actions)[0], expected.step(actions)[0])


def test_observation_mode_tuple():
    """A pair: the batched and the single space."""
    single = spaces.Box(-9.0, 9.0, (2,), np.float32)
    batched = spaces.Box(-9.0, 9.0, (2, 2), np.float32)
    with VectorEnv([EchoEnv] * 2, observation_mode=(batched, single)) as envs:
        assert envs.observation_space is batched
        assert envs.single_observation_space is single
        assert envs.reset()[0] in batched


# -- arguments and closing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"backend": "clouds"}, "backend"),
        ({"num_workers": 0}, "num_workers"),
        ({"num_workers": "2"}, "num_workers"),
        ({"step_timeout": -1}, "step_timeout"),
        ({"check_nan": "x"}, "Expected check_nan to be True or False, got 'x'"),
        ({"backend": "processes", "threads_per_worker": 0}, "threads_per_worker"),
        ({"autoreset_mode": "never"}, "autoreset_mode"),
        ({"observation_mode": "any"}, "observation_mode"),
        ({"backend": "processes", "start_method": "thread"}, "start_method"),
    ],
)
def test_invalid_arguments_raise(arguments, text):
    with pytest.raises(ValueError, match=text):
        VectorEnv(**{"env_fns": counting(1)} | arguments)


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("space", [spaces.Dict(), spaces.Tuple(()), spaces.Dict(a=spaces.Dict())])
def test_empty_spaces_are_supported(space, backend):
    class Empty(CountingEnv):
        observation_space = action_space = space

        def reset(self, **kwargs):
            self.steps = 0
            return space.sample(), {}

        def step(self, action):
            self.steps += 1
            return space.sample(), 1.0, self.steps == 2, False, {}

    with VectorEnv([lambda: Empty(0)] * 2, backend=backend, autoreset_mode="same_step") as envs:
        envs.reset()
        envs.step(envs.action_space.sample())
        assert envs.step(envs.action_space.sample())[4]["final_obs"].tolist() == [space.sample()] * 2


def test_unpicklable_factories_raise():
    import threading

    lock = threading.Lock()
    with pytest.raises(SerializationError, match='backend="threads"'):
        VectorEnv([lambda: (lock, CountingEnv(0))[1]], backend="processes")


@ALL
def test_failures_leave_other_environments_unchanged(backend, num_workers):
    """The failed one must be reset; a masked reset returns the others' latest observations."""
    fns = [EchoEnv, partial(EchoEnv, fault_at=2), EchoEnv]
    with VectorEnv(fns, backend=backend, num_workers=num_workers, autoreset_mode="disabled") as envs:
        envs.reset()
        envs.step(ones(3))
        with pytest.raises(WorkerError, match="environment 1 ") as exc_info:
            envs.step(ones(3))
        assert exc_info.value.env_ids == (1,)
        assert exc_info.value.transition.obs[[0, 2], 0].tolist() == [2, 2]
        with pytest.raises(PendingError, match=r"\[1\] failed before"):
            envs.step(ones(3))
        obs, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
        assert obs[:, 0].tolist() == [2, 0, 2]
        assert envs.step(ones(3))[0][:, 0].tolist() == [3, 1, 3]


def test_failing_resets_leave_others_reset():
    """In next-step mode, environments that were reset are stepped next, not reset again."""

    class Once(CountingEnv):
        def reset(self, *, seed=None, options=None):
            if options == {"fail": True} and self.env_id == 1:
                raise OSError("no")
            return super().reset(seed=seed, options=options)

    with VectorEnv([partial(Once, i, 2) for i in range(2)]) as envs:
        envs.reset()
        envs.step([0, 0])
        envs.step([0, 0])
        with pytest.raises(WorkerError, match=r"environment 1 .*OSError"):
            envs.reset(options={"fail": True})
        envs.reset(options={"reset_mask": np.array([False, True])})
        assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_empty_info_and_nan_check():
    with VectorEnv(counting(2), empty_info=True) as envs:
        assert envs.reset()[1] == {}
        assert envs.step([0, 0])[-1] == {}
    subs, fns = echoes(2)
    with VectorEnv(fns, check_nan=True) as envs:
        envs.reset()
        subs[1].observe = lambda: np.array([0, np.nan], np.float32)
        with pytest.raises(WorkerError, match=r"environment 1 .*the observation is NaN"):
            envs.step(ones(2))


def test_repr():
    with VectorEnv(makers("CartPole-v1", 2), autoreset_mode="disabled") as envs:
        assert repr(envs) == (
            "VectorEnv('CartPole-v1', num_envs=2, backend='serial', num_workers=1, autoreset_mode=DISABLED)"
        )
        assert envs.spec.id == "CartPole-v1"
        assert envs.unwrapped is envs


def test_seeds_and_actions_that_are_no_arrays_of_one_dimension_more_raise():
    import torch  # other tests of this file also run without it

    with VectorEnv(makers("counting", 2)) as envs:
        with pytest.raises(TypeError, match="Expected a seed to be None, an integer or one per environment"):
            envs.reset(seed=torch.tensor(3))
        envs.reset()
        with pytest.raises(SpaceError, match=r"Expected actions of shape \(2,\).*all of one shape"):
            envs.step([[1.0], [1.0, 2.0]])
