"""VecNorm: which values update its statistics, its output, and saving, moving and sharing the statistics."""

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.tensordict_envs import BoundedValuesEnv, GroupsEnv

from vecrl.envs import GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    Compose,
    NoopResetEnv,
    ObservationNorm,
    StepCounter,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)
from vecrl.envs.transforms.vecnorm_stats import _remove
from vecrl.errors import SpaceError
from vecrl.testing import IndependentRowsEnv

STEPS = [[[1.0, 2], [3, 8]], [[2.0, 2], [2, 5]], [[0.0, 0], [1, 1]]]


def fed(norm: VecNorm, key: str = "x") -> list[torch.Tensor]:
    return [norm(TensorDict({key: torch.tensor(rows)}, [2]))[key] for rows in STEPS]


@pytest.mark.parametrize(
    ("decay", "peer"),
    [
        (
            0.9,
            [
                [[-1.0, -1.0], [1.0, 1.0]],
                [[0.0, -0.9018195271492004], [0.0, 0.32207831740379333]],
                [[-1.512161374092102, -1.0671424865722656], [-0.46676400303840637, -0.6915637850761414]],
            ],
        ),
        (
            1.0,
            [
                [[-1.0, -1.0], [1.0, 1.0]],
                [[0.0, -0.904534101486206], [0.0, 0.30151134729385376]],
                [[-1.5666987895965576, -1.107823371887207], [-0.5222329497337341, -0.7385489344596863]],
            ],
        ),
    ],
)
def test_values_equal_torchrl(decay: float, peer: Any) -> None:
    """The expected numbers are from TorchRL 0.14.1's VecNorm."""
    torch.testing.assert_close(torch.stack(fed(VecNorm(["x"], decay=decay))), torch.tensor(peer), rtol=1e-5, atol=1e-6)


def test_large_means_keep_precision() -> None:
    rng = np.random.default_rng(0)
    norm = VecNorm(["x"], decay=1.0, eps=1e-12)
    rows = 1e6 + rng.normal(0, 1, (100, 8, 1))
    made = [norm(TensorDict({"x": torch.from_numpy(part)}, [8]))["x"] for part in rows]
    expected = (rows[-1] - rows.mean((0, 1))) / rows.std((0, 1))
    assert torch.allclose(made[-1], torch.from_numpy(expected), atol=1e-9)


def test_single_environments_count_one_row() -> None:
    env = TransformedEnv(IndependentRowsEnv(), VecNorm())
    reset_td = env.reset()
    assert reset_td["observation"].tolist() == [0, 0, 0]
    env.step(env.rand_action(reset_td))
    assert env.transform.get_extra_state()["observation_count"].tolist() == pytest.approx([1.9999] * 3)
    assert env.transform.get_extra_state()["reward_count"].tolist() == [1]
    check_env_specs(env)


def test_min_variance() -> None:
    norm = VecNorm(["x"], eps=0.25)
    norm(TensorDict({"x": torch.zeros(4, 1)}, [4]))
    norm.freeze()
    assert norm(TensorDict({"x": torch.ones(1, 1)}, [1]))["x"].item() == 2


# -- updates


def counts(env: Any) -> dict[str, float]:
    state = env.transform.get_extra_state()
    return {key.removesuffix("_count"): value.max().item() for key, value in state.items() if key.endswith("_count")}


def test_only_stepped_rows_update_statistics() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1, 2)), VecNorm(decay=1.0))
    root = env.reset()
    assert counts(env) == {"observation": 3, "reward": 0}
    root = env.step_mdp(env.step(env.rand_action(root)))
    assert counts(env) == {"observation": 6, "reward": 3}
    env.step(env.rand_action(root.copy()).set("_step", torch.tensor([True, False, True])))
    assert counts(env) == {"observation": 8, "reward": 5}
    env.reset(root.copy().set("_reset", torch.tensor([[False], [True], [False]])))
    assert counts(env) == {"observation": 9, "reward": 5}
    env.reset(root.copy().set("_reset", torch.zeros(3, 1, dtype=torch.bool)))
    assert counts(env) == {"observation": 9, "reward": 5}


def test_statistics_equal_those_of_stepped_rows() -> None:
    torch.manual_seed(0)
    plain, env = (
        IndependentRowsEnv((0, 1, 2)),
        TransformedEnv(IndependentRowsEnv((0, 1, 2)), VecNorm(["observation"], ["normed"], decay=1.0)),
    )
    root, seen = env.reset(), [plain.reset()["observation"]]
    other = plain.reset()
    for _ in range(10):
        with_action = env.rand_action(root)
        other = other.update(with_action.select(*env.action_keys))
        step_td, root = env.step_and_maybe_reset(with_action)
        done = step_td["next", "done"].squeeze(-1)
        seen.append(step_td["next", "observation"])
        seen.append(root["observation"][done])
    values = torch.cat(seen).double()
    torch.testing.assert_close(env.transform.loc["observation"], values.mean(0).float())
    torch.testing.assert_close(env.transform.scale["observation"], values.std(0, correction=0).float())


def test_groups_are_reset_by_their_own_masks() -> None:
    norm = VecNorm([("a", "val"), ("b", "val"), ("a", "reward")], decay=1.0)
    env = TransformedEnv(GroupsEnv(("a", "b"), root=False), norm)
    root = env.reset()
    assert env.transform.loc["a", "val"].shape == (2, 3)
    root["a", "_reset"] = torch.tensor([[True], [False]])
    root["b", "_reset"] = torch.tensor([[False], [False]])
    env.reset(root)
    assert counts(env) == {"a.val": 2, "b.val": 1, "a.reward": 0}
    check_env_specs(env)


def test_frozen_and_eval_mode_do_not_update() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), VecNorm())
    env.rollout(3)
    before_value = env.transform.get_extra_state()
    env.transform.freeze()
    assert env.transform.frozen
    env.rollout(3)
    env.transform.unfreeze()
    env.eval()
    env.rollout(3)
    after = env.transform.get_extra_state()
    assert all(torch.equal(after[key], value) for key, value in before_value.items())
    env.train()
    env.rollout(3)
    assert env.transform.get_extra_state()["reward_count"][0] > before_value["reward_count"][0]


@pytest.mark.parametrize("options", [{}, {"decay": 1.0, "shapes": [(2,)]}])
def test_frozen_copies_follow_the_statistics_without_updates(options: dict[str, Any]) -> None:
    norm = VecNorm(["x"], ["y"], **options)
    fed(norm)
    copies = [norm.frozen_copy(), pickle.loads(pickle.dumps([norm, norm.frozen_copy()]))]
    for source, copied in [(norm, copies[0]), copies[1]]:
        loc, data = copied.loc["x"].clone(), TensorDict({"x": torch.full((2, 2), 9.0)}, [2])
        copied(data.copy())
        assert copied.frozen
        assert not source.frozen
        assert source.loc["x"].equal(loc)  # the copy does not update
        source(data.copy())
        assert not source.loc["x"].equal(loc)
        assert copied.loc["x"].equal(source.loc["x"])
        assert copied(data.copy())["y"].equal(source.freeze()(data.copy())["y"])


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("make_train", [lambda env: env(), lambda env: SerialEnv(2, env)])
def test_an_environment_for_tests_follows_the_training(inside: bool, make_train: Any) -> None:
    env = TransformedEnv(make_train(lambda: GymEnv("Pendulum-v1")), VecNorm(in_keys=["observation"]))
    env.rollout(5)
    frozen = env.transform.frozen_copy()
    test_env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), frozen) if inside else frozen)

    def test_rollout() -> torch.Tensor:
        test_env.set_seed(0)
        return test_env.rollout(3, actions=torch.zeros(3, 1))["observation"]

    before_training = test_rollout()
    assert test_rollout().equal(before_training)
    env.rollout(100)
    after_training = test_rollout()
    assert not after_training.equal(before_training)
    plain = GymEnv("Pendulum-v1")
    plain.set_seed(0)
    expected = plain.rollout(3, actions=torch.zeros(3, 1))["observation"]
    torch.testing.assert_close(env.transform.to_observation_norm().loc, frozen.loc["observation"])
    torch.testing.assert_close(
        after_training, (expected - env.transform.loc["observation"]) / env.transform.scale["observation"]
    )


def test_frozen_copies_in_processes_follow_shared_statistics() -> None:
    shared = VecNorm.build_td_for_shared_vecnorm(GymEnv("Pendulum-v1"), keys=["observation"])
    env = TransformedEnv(GymEnv("Pendulum-v1"), VecNorm(["observation"], shared_td=shared))
    env.rollout(5)
    frozen = env.transform.frozen_copy()
    with ParallelEnv(1, lambda: TransformedEnv(GymEnv("Pendulum-v1"), frozen.clone())) as test_env:
        resets = []
        for _ in range(2):
            test_env.set_seed(0)
            resets.append(test_env.reset()["observation"])
            count = shared["observation_count"].clone()
            test_env.rollout(3)
            assert shared["observation_count"].equal(count)
            env.rollout(20)
    assert not resets[0].equal(resets[1])


# -- dtypes, shapes, gradients


def test_dtypes() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        made = VecNorm(["x"])(TensorDict({"x": torch.tensor([[0], [1]]).to(dtype)}, [2]))["x"]
        assert made.dtype == (dtype if dtype.is_floating_point else torch.float32)
        assert made.tolist() == [[-1], [1]]


def test_gradients_pass_through_values_and_not_through_statistics() -> None:
    x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    VecNorm(["x"])(TensorDict({"x": x}, [2]))["x"].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0], [1.0]]


def test_inputs_are_not_changed() -> None:
    x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    made = VecNorm(["x"], ["y"])(TensorDict({"x": x}, [2]))
    assert x.tolist() == [[1.0], [3.0]]
    assert made["y"].tolist() == [[-1], [1]]


def test_stored_trajectories_and_shapes() -> None:
    data = TensorDict({"x": torch.randn(4, 5, 2, 3), "r": torch.randn(4, 5)}, [4, 5])
    norm = VecNorm(["x", "r"], decay=1.0, shapes=[(2, 3), ()])
    made = norm(data.clone())
    assert (made["x"].shape, made["r"].shape) == ((4, 5, 2, 3), (4, 5))
    torch.testing.assert_close(made["x"].mean((0, 1)), torch.zeros(2, 3), atol=1e-6, rtol=0)
    assert norm.loc["r"].shape == ()
    with pytest.raises(SpaceError, match="'x'"):
        norm(TensorDict({"x": torch.randn(4, 2), "r": torch.randn(4)}, [4]))
    with pytest.raises(ValueError, match="a shape for each"):
        VecNorm(["x", "r"], shapes=[(2, 3)])


def test_missing_entries_are_named() -> None:
    with pytest.raises(KeyError, match="'reward'"):
        VecNorm()(TensorDict({"observation": torch.zeros(2, 1)}, [2]))
    env = TransformedEnv(IndependentRowsEnv(), VecNorm(["observation", "nothing"]))
    with pytest.raises(KeyError, match="'nothing'"):
        env.reset()
    with pytest.raises(RuntimeError, match="to have statistics"):
        VecNorm().loc  # noqa: B018


# -- saving, moving, sharing


def test_empty_states_can_be_loaded() -> None:
    reset_td, second = (TransformedEnv(IndependentRowsEnv((0, 1)), Compose(StepCounter(), VecNorm())) for _ in range(2))
    reset_td.rollout(5)
    second.load_state_dict(pickle.loads(pickle.dumps(reset_td.state_dict())))
    data = TensorDict({"observation": torch.randn(2, 3), "reward": torch.randn(2, 1)}, [2])
    assert torch.equal(reset_td.transform[1](data.copy())["reward"], second.transform[1](data.copy())["reward"])
    fresh = VecNorm()
    fresh.load_state_dict(VecNorm().state_dict())
    assert fresh.get_extra_state() == {}


def test_clones_share_statistics() -> None:
    norm = VecNorm(["x"], decay=1.0)
    clone = norm.clone()
    fed(norm)
    fed(clone)
    assert norm.get_extra_state()["x_count"][0] == 12


def test_to_observation_norm() -> None:
    norm = VecNorm(["x"], ["y"])
    made = fed(norm, "x")
    fixed = norm.to_observation_norm()
    assert isinstance(fixed, ObservationNorm)
    data = TensorDict({"x": torch.tensor(STEPS[-1])}, [2])
    torch.testing.assert_close(fixed(data.copy())["y"], norm.freeze()(data)["y"])
    assert len(made) == 3
    env = TransformedEnv(IndependentRowsEnv((0, 1)), VecNorm())
    env.rollout(3)
    both = env.transform.to_observation_norm()
    assert [part.in_keys for part in both] == [["observation"], ["reward"]]


def test_shared_statistics() -> None:
    shared = VecNorm.build_td_for_shared_vecnorm(BoundedValuesEnv(4), ["observation", "reward"])
    assert sorted(shared.keys())[:3] == ["observation_count", "observation_m2", "observation_mean"]
    reset_td, second = (TransformedEnv(BoundedValuesEnv(4), VecNorm(shared_td=shared, decay=1.0)) for _ in range(2))
    reset_td.rollout(2)
    second.rollout(2)
    reset_td.transform.freeze()
    reset_td.rollout(1)
    assert counts(reset_td) == {"observation": 24, "reward": 16}
    assert torch.equal(reset_td.transform.loc["observation"], shared["observation_mean"].float())
    third = VecNorm(shared_td=shared)
    third.load_state_dict(reset_td.transform.state_dict())
    assert shared["observation_count"][0] == 24


def test_shared_files_are_removed() -> None:
    shared: Any = VecNorm.build_td_for_shared_vecnorm(BoundedValuesEnv())
    path = Path(shared["reward_mean"].filename)
    norm = VecNorm(shared_td=shared)
    del shared
    assert path.exists()
    folder, me = str(path.parent), os.getpid()
    _remove(folder, me + 1)  # the end of a fork does not remove files of its parent
    assert path.exists()
    del norm
    assert not path.exists()


def learn(norm: VecNorm) -> None:
    torch.set_num_threads(1)
    for _ in range(200):
        norm(TensorDict({"observation": torch.ones(4, 3), "reward": torch.ones(4, 1)}, [4]))


def test_no_update_is_lost_between_processes() -> None:
    shared = VecNorm.build_td_for_shared_vecnorm(BoundedValuesEnv(4))
    norm = VecNorm(shared_td=shared, decay=1.0)
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=learn, args=(pickle.loads(cloudpickle.dumps(norm)),)) for _ in range(2)]
    for process in others:
        process.start()
    learn(norm)
    for process in others:
        process.join()
        assert process.exitcode == 0
    assert shared["observation_count"].tolist() == [3 * 200 * 4] * 3


def test_workers_share_statistics() -> None:
    shared = VecNorm.build_td_for_shared_vecnorm(IndependentRowsEnv())
    make = lambda: TransformedEnv(IndependentRowsEnv(), VecNorm(shared_td=shared, decay=1.0))  # noqa: E731
    with ParallelEnv(2, make) as env:
        env.rollout(5, break_when_any_done=False)
    assert shared["reward_count"].item() == 10


def test_freezing_applies_to_parents_and_slices() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Compose(VecNorm(["observation"]), NoopResetEnv(5, random=False)))
    norm = env.transform[0]
    part = env.transform[:1]
    env.reset()

    def count() -> float:
        return norm.get_extra_state()["observation_count"].max().item()

    for disabled, on in [(norm.freeze, norm.unfreeze), (env.eval, env.train), (norm.eval, norm.train)]:
        before_value = count()
        disabled()
        env.reset()
        assert count() == before_value
        if norm.frozen:
            part(TensorDict({"observation": torch.ones(4, 3)}, [4]))
            assert count() == before_value
        on()
        env.reset()
        assert count() > before_value


def test_shared_statistics_are_visible_without_own_data() -> None:
    shared = VecNorm.build_td_for_shared_vecnorm(GymEnv("Pendulum-v1"), keys=["observation"])
    late = VecNorm(in_keys=["observation"], shared_td=shared)
    with pytest.raises(RuntimeError, match="to have statistics"):
        _ = late.loc
    assert late.get_extra_state() == {}
    early = VecNorm(in_keys=["observation"], shared_td=shared)
    for _ in range(2):
        TransformedEnv(GymEnv("Pendulum-v1"), early.clone()).rollout(20)
        assert late.loc["observation"].equal(early.loc["observation"])
        assert late.scale["observation"].equal(early.scale["observation"])
        assert late.to_observation_norm().loc.equal(early.loc["observation"])
        assert late.get_extra_state().keys() == early.get_extra_state().keys() != set()
        assert late.frozen_copy().loc["observation"].equal(early.loc["observation"])


def test_values_are_restored() -> None:
    norm = VecNorm(["x"], ["y"], decay=1.0)
    with pytest.raises(RuntimeError, match="to have statistics, got none"):
        norm.denorm(TensorDict(y=torch.ones(2)))
    data = norm(TensorDict({"x": torch.tensor(STEPS[0])}, [2]))
    stored = data.exclude("x")
    assert norm.denorm(stored)["x"].tolist() == STEPS[0]
    assert "x" not in stored
    assert list(norm.denorm(TensorDict(z=torch.ones(2))).keys()) == ["z"]


def test_attached_transforms_are_pickled_without_their_environment() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), VecNorm())
    env.rollout(2)
    norm = pickle.loads(pickle.dumps(env.transform))
    assert norm.container is None
    assert norm.loc["observation"].equal(env.transform.loc["observation"])


# -- VecNormV2


def fed_v2(**options: Any) -> list[Any]:
    norm = VecNormV2(["x"], decay=1.0, **options)
    found = []
    for factor in (1, 2, 3):
        value = torch.tensor([[1.0, 2.0], [3.0, 6.0]]) * factor
        result = norm(TensorDict({"x": value}, [2]))["x"]
        found.append([result.tolist(), norm.loc["x"].tolist(), norm.scale["x"].tolist()])
    return found


def test_v2_of_each_row_equals_torchrl() -> None:
    expected = [
        [[[0, 0], [0, 0]], [[1, 2], [3, 6]], [[1e-4, 1e-4], [1e-4, 1e-4]]],
        [[[1, 1], [1, 1]], [[1.5, 3], [4.5, 9]], [[0.5, 1], [1.5, 3]]],
        [[[1.224745] * 2] * 2, [[2, 4], [6, 12]], [[0.816497, 1.632993], [2.449490, 4.898980]]],
    ]
    for found, values in zip(fed_v2(), expected, strict=True):
        for own_value, value in zip(found, values, strict=True):
            np.testing.assert_allclose(own_value, value, rtol=1e-5, atol=1e-6)


def test_v2_of_all_rows_equals_torchrl() -> None:
    expected = [
        [[[-1, -1], [1, 1]], [2, 4], [1, 2]],
        [[[-0.534522] * 2, [1.603567] * 2], [3, 6], [1.870829, 3.741657]],
        [[[-0.369274] * 2, [1.846372] * 2], [4, 8], [2.708013, 5.416026]],
    ]
    for found, values in zip(fed_v2(reduce_batch_dims=True), expected, strict=True):
        for own_value, value in zip(found, values, strict=True):
            np.testing.assert_allclose(own_value, value, rtol=1e-5, atol=1e-6)


def test_v2_statistics_in_the_data_equal_those_in_the_transform() -> None:
    rollouts = []
    for stateful in (True, False):
        torch.manual_seed(0)
        norm = VecNormV2(["observation", "reward"], ["normed", "pay"], stateful=stateful, decay=0.9)
        env = TransformedEnv(IndependentRowsEnv((0, 1, 2)), norm)
        rollouts.append(env.rollout(20, break_when_any_done=False))
    for key in ("normed", ("next", "normed"), ("next", "pay")):
        torch.testing.assert_close(rollouts[0][key], rollouts[1][key])
    assert set(rollouts[1]["next"].keys()) - set(rollouts[0]["next"].keys()) == {
        f"_vecnorm_{name}" for name in ("loc", "var", "count")
    }
    assert norm.get_extra_state() == {}
    with pytest.raises(RuntimeError, match="Expected a stateful VecNormV2"):
        norm.loc  # noqa: B018


def test_v2_frozen_copies_and_shared_statistics() -> None:
    norm = VecNormV2(["x"], decay=1.0)
    with pytest.raises(RuntimeError, match="to have statistics, got none"):
        norm.frozen_copy()
    norm(TensorDict({"x": torch.tensor(STEPS[0])}, [2]))
    copied = norm.frozen_copy()
    assert type(copied) is VecNormV2
    norm(TensorDict({"x": torch.tensor(STEPS[1])}, [2]))
    copied(TensorDict({"x": torch.tensor(STEPS[1])}, [2]))
    assert copied.loc["x"].tolist() == STEPS[0]
    assert norm.to_observation_norm().loc.equal(norm.loc["x"])
    shared = VecNorm.build_td_for_shared_vecnorm(GymEnv("Pendulum-v1"), keys=["observation"])
    first, second = (VecNormV2(["observation"], shared_data=shared) for _ in range(2))
    TransformedEnv(GymEnv("Pendulum-v1"), first).rollout(5)
    assert second.loc["observation"].equal(first.loc["observation"])
    with pytest.raises(RuntimeError, match="stateful=True with reduce_batch_dims"):
        VecNormV2(["x"], stateful=False, reduce_batch_dims=True)


def test_invalid_arguments_raise() -> None:
    for decay in (0, 1.5, "x"):
        with pytest.raises(ValueError, match=f"Expected a decay above 0 and up to 1 .*, got {decay!r}"):
            VecNorm(decay=decay)  # pyright: ignore[reportArgumentType]
    for eps in (-1, "x"):
        with pytest.raises(ValueError, match=f"Expected eps to be a number of 0 or more, got {eps!r}"):
            VecNormV2(["x"], eps=eps)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"decay above 0 and up to 1.*2\.0"):
        VecNorm(decay=2.0)
    with pytest.raises(TypeError, match="build_td_for_shared_vecnorm"):
        VecNorm(shared_td={})  # pyright: ignore[reportArgumentType]
    with pytest.raises(KeyError, match=r"reward.*remove them"):
        VecNorm(shared_td=VecNorm.build_td_for_shared_vecnorm(GymEnv("Pendulum-v1"), keys=["observation"]))


def test_another_batch_size_is_explained() -> None:
    norm = VecNormV2(["x"])
    norm(TensorDict({"x": torch.rand(3, 4)}, [3]))
    with pytest.raises(
        SpaceError, match=r"1 rows of shape \(3, 4\) at 'x', as before, got shape \(5, 4\).*reduce_batch"
    ):
        norm(TensorDict({"x": torch.rand(5, 4)}, [5]))
    norm = VecNormV2(["x"], reduce_batch_dims=True)
    assert [norm(TensorDict({"x": torch.rand(n, 4)}, [n]))["x"].shape for n in (3, 5)] == [(3, 4), (5, 4)]


def test_new_api_makes_the_second_version() -> None:
    norm = VecNorm(in_keys=["observation"], stateful=False, new_api=True)
    assert type(norm) is VecNormV2
    assert not norm.stateful
    assert type(VecNorm(["observation"], new_api=True, decay=0.5, reduce_batch_dims=True)) is VecNormV2
    assert type(VecNorm(in_keys=["observation"], new_api=False)) is type(VecNorm()) is VecNorm
    for env in (
        TransformedEnv(GymEnv("Pendulum-v1"), norm),
        TransformedEnv(GymEnv("Pendulum-v1"), Compose(norm.clone())),
    ):
        check_env_specs(env)
        assert ("next", "_vecnorm_count", "observation") in env.rollout(3).keys(True)
    assert type(pickle.loads(pickle.dumps(norm.clone()))) is VecNormV2
    with pytest.raises(TypeError, match="unexpected keyword argument 'stateful'"):
        VecNorm(in_keys=["observation"], stateful=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shapes'"):
        VecNorm(in_keys=["observation"], shapes=[(3,)], new_api=True)
