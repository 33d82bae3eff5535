"""Native tasks over TensorDicts equal dialect 1 bit for bit, in any batch, with and without stored state."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import NativeEnv, check_env_specs
from vecrl.errors import ClosedError, SpaceError
from vecrl.simulators.native import NATIVE
from vecrl.vector import make_vector_env

torch.set_num_threads(1)
BATCHES: list[Any] = [(1,), (3,), (2, 3), ()]


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("batch", [*BATCHES, None])
def test_specs_match_the_spaces(name: str, categorical: bool, batch: Any) -> None:
    env = NativeEnv(name, batch_size=batch, categorical_action_encoding=categorical)
    check_env_specs(env, seed=0, break_when_any_done="both")
    assert env.batch_locked == (batch is not None)
    if batch is None:
        check_env_specs(env, tensordict=TensorDict({}, [4, 2]))


@pytest.mark.parametrize("name", NATIVE)
def test_trajectories_equal_dialect_1(name: str) -> None:
    """Covers steps, fast rollouts and stateless rows: observations, rewards, done flags and final observations."""
    n, steps = 5, 120
    plain = make_vector_env(f"native::{name}", num_envs=n, max_episode_steps=40)
    envs = {
        "kept": NativeEnv(name, n, categorical_action_encoding=True, max_episode_steps=40),
        "at once": NativeEnv(name, n, categorical_action_encoding=True, max_episode_steps=40),
        "travelling": NativeEnv(name, categorical_action_encoding=True, max_episode_steps=40),
    }
    torch.manual_seed(0)
    actions = envs["kept"].action_spec.rand((steps,))
    for env in envs.values():
        env.set_seed(7)
    rollout = envs["at once"].rollout(steps, actions=actions.movedim(0, 1), break_when_any_done=False)
    roots = {key: envs[key].reset(TensorDict({}, [n])) for key in ("kept", "travelling")}
    obs, _ = plain.reset(seed=7)
    for t in range(steps):
        next_td, reward, terminated, truncated, info = plain.step(actions[t])
        for key, root in roots.items():
            step_td, roots[key] = envs[key].step_and_maybe_reset(root.set("action", actions[t]))
            for data in (step_td, rollout[:, t]):
                assert data["observation"].equal(obs)
                assert data["next", "observation"].equal(info["final_obs"])
                assert data["next", "reward"].squeeze(-1).equal(reward)
                assert data["next", "terminated"].squeeze(-1).equal(terminated)
                assert data["next", "truncated"].squeeze(-1).equal(truncated)
                assert data["next", "done"].squeeze(-1).equal(terminated | truncated)
                assert not data["done"].any()
        obs = next_td
    assert rollout["next", "done"].any()


def test_fast_rollouts_equal_steps() -> None:
    made = [NativeEnv("Acrobot-v1", batch_size=(2, 3), max_episode_steps=20) for _ in range(2)]
    actions = made[0].action_spec.rand((50,)).movedim(0, 2)
    for stop in (True, False, True):
        for env in made:
            env.set_seed(3)
        at_once = made[0].rollout(50, actions=actions, break_when_any_done=stop)
        by_steps = made[1].rollout(50, actions=actions, break_when_any_done=stop, callback=lambda *_: None)
        assert at_once.shape == by_steps.shape == (2, 3, 20 if stop else 50)
        assert at_once.names == by_steps.names == [None, None, "time"]
        assert set(at_once.keys(True, True)) == set(by_steps.keys(True, True))
        for key in by_steps.keys(True, True):
            assert at_once[key].equal(by_steps[key]), key
        after = [env.rand_step(env.reset())["observation"] for env in made]
        assert after[0].equal(after[1]), "both go on from the same rows"


def test_long_rollouts_grow_their_buffers() -> None:
    env = NativeEnv("Pendulum-v1", 2, max_episode_steps=1100)
    rollout = env.rollout(5000)
    assert rollout.shape == (2, 1100)
    assert rollout["next", "truncated"][:, -1].all()
    assert rollout["observation"][:, 1:].equal(rollout["next", "observation"][:, :-1])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised by torch while it imports its compiler
def test_compiled_rollouts_equal_eager_rollouts() -> None:
    made = [NativeEnv("Pendulum-v1", 4, max_episode_steps=6, compile=compiled) for compiled in (False, True)]
    actions = made[0].action_spec.rand((20,)).movedim(0, 1)
    for env in made:
        env.set_seed(1)
    eager, compiled = (env.rollout(20, actions=actions, break_when_any_done=False) for env in made)
    for key in eager.keys(True, True):
        assert torch.allclose(eager[key].float(), compiled[key].float(), atol=1e-4), key


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["step", "reset"]), st.integers(0, 15)), max_size=10), st.booleans())
def test_partial_steps_and_resets_equal_independent_rows(rounds: list[tuple[str, int]], kept: bool) -> None:
    env = NativeEnv("CartPole-v1", 4) if kept else NativeEnv("CartPole-v1")
    alone = [NativeEnv("CartPole-v1", batch_size=()) for _ in range(4)]
    env.set_seed(5)
    root = env.reset(TensorDict({}, [4]))
    roots = []
    for row, single in enumerate(alone):
        single.set_seed(5 + row)
        roots.append(single.reset())
    for what, bits in rounds:
        mask = torch.tensor([bool(bits >> row & 1) for row in range(4)])
        action = torch.nn.functional.one_hot(torch.arange(4) % 2, 2).bool()
        if what == "step":
            root = env.step_mdp(env.step(root.set("action", action).set("_step", mask)))
        else:
            root = env.reset(root.set("_reset", mask.unsqueeze(-1)))
        for row in mask.nonzero().squeeze(-1).tolist():
            single = alone[row]
            step_td = what == "step"
            roots[row] = (
                single.step_mdp(single.step(roots[row].set("action", action[row]))) if step_td else single.reset()
            )
        assert root["observation"].equal(torch.stack([item["observation"] for item in roots]))


def test_seeds_determine_trajectories() -> None:
    item, other = NativeEnv("CartPole-v1", 3), NativeEnv("CartPole-v1", batch_size=(1, 3))
    assert item.set_seed(9) == other.set_seed(9) != 9
    first = item.reset()["observation"]
    assert other.reset()["observation"][0].equal(first)
    repeated = item.reset()["observation"]
    assert not repeated.eq(first).all(-1).any(), "a later reset goes on with each row's stream"
    item.set_seed(9)
    assert item.reset()["observation"].equal(first)
    item.set_seed(10)
    assert item.reset()["observation"][:2].equal(first[1:])
    unseeded = NativeEnv("CartPole-v1", 3), NativeEnv("CartPole-v1", 3)
    assert not unseeded[0].reset()["observation"].equal(unseeded[1].reset()["observation"])


def test_stateless_rows_work_in_any_batch() -> None:
    """Covers any batch size, several batches in turn, and distinct initial states."""
    env = NativeEnv("CartPole-v1")
    env.set_seed(0)
    first, second = env.reset(TensorDict({}, [2])), env.reset(TensorDict({}, [3, 2]))
    starts = torch.cat([first["observation"], second["observation"].flatten(0, 1)])
    assert len(starts.unique(dim=0)) == 8
    assert env.rand_step(second)["next", "observation"].shape == (3, 2, 4)
    assert env.rand_step(first)["next", "observation"].shape == (2, 4)
    assert env.reset()["observation"].shape == (4,)
    data = first.clone()
    data["rows", "state"][0] = torch.tensor([3.0, 0, 0, 0])
    assert env.rand_step(data)["next", "terminated"].squeeze(-1).tolist() == [True, False], "the state is the input's"
    rollout = env.rollout(30, tensordict=TensorDict({}, [6]), break_when_any_done=False)
    assert rollout.shape == (6, 30)
    assert len(rollout["observation"][:, 0].unique(dim=0)) == 6
    assert env.rollout(500, tensordict=TensorDict({}, [6]), break_when_all_done=True)["next", "done"][:, -1].all()


def test_stateless_rows_can_be_restored() -> None:
    env = NativeEnv("Acrobot-v1")
    root = env.reset(TensorDict({}, [3]))
    action = env.rand_action(root)["action"]
    saved = root.clone()
    first = env.step(root.set("action", action))["next"]
    repeated = env.step(env.reset(saved, set_state=True).set("action", action))["next"]
    assert repeated["observation"].equal(first["observation"])
    assert repeated["rows", "steps"].equal(first["rows", "steps"])
    with pytest.raises(NotImplementedError, match="set_state"):
        NativeEnv("Acrobot-v1", 3).reset(set_state=True)


def test_gradients_flow_through_stateless_rows() -> None:
    env = NativeEnv("Pendulum-v1")
    action = torch.zeros(2, 1, requires_grad=True)
    root = env.reset(TensorDict({}, [2]))
    total = 0.0
    for _ in range(3):
        root = env.step(root.set("action", action))["next"]
        total = total + root["reward"].sum()
    (slope,) = torch.autograd.grad(total, action)  # pyright: ignore[reportArgumentType]
    assert slope.isfinite().all()
    assert slope.ne(0).all()


def test_reset_options() -> None:
    env = NativeEnv("CartPole-v1", 3)
    assert env.reset(options={"low": 0.01, "high": 0.01})["observation"].allclose(torch.tensor(0.01))


def test_invalid_actions_raise() -> None:
    env = NativeEnv("CartPole-v1", 2, categorical_action_encoding=True)
    root = env.reset()
    with pytest.raises(SpaceError, match=r"Expected actions of shape \(2,\), got \(2, 1\)"):
        env.step(root.set("action", torch.zeros(2, 1, dtype=torch.int64)))
    with pytest.raises(SpaceError, match="actions from 0 to 1"):
        env.step(root.set("action", torch.tensor([0, 2])))


def test_error_messages() -> None:
    with pytest.raises(ValueError, match="got 'Chess'"):
        NativeEnv("Chess", 1)
    with pytest.raises(ValueError, match="contradict each other"):
        NativeEnv("CartPole-v1", 3, batch_size=(4,))
    with pytest.raises(ValueError, match="Expected num_envs or batch_size"):
        NativeEnv("CartPole-v1", compile=True)
    with pytest.raises(TypeError, match="compile to be True or False"):
        NativeEnv("CartPole-v1", 2, compile={"mode": "reduce-overhead"})
    with pytest.raises(SpaceError, match="Expected a reset before the first step"):
        NativeEnv("CartPole-v1", 2).rand_step()
    with pytest.raises(SpaceError, match='Expected "rows" in the TensorDict'):
        NativeEnv("CartPole-v1").rand_step()
    env = NativeEnv("CartPole-v1", 2)
    root = env.reset()
    env.close()
    with pytest.raises(ClosedError):
        env.rand_step(root)
    assert env.rollout(2).shape == (2, 2)


def test_double_precision_and_other_devices() -> None:
    env = NativeEnv("Pendulum-v1", 2, dtype=torch.float64, device="cpu")
    rollout = env.rollout(3)
    assert rollout["observation"].dtype == rollout["next", "reward"].dtype == torch.float64
    assert rollout.device == torch.device("cpu")
    check_env_specs(env)
    before = env.reset()
    changed = env.to("cpu")
    assert changed is env
    assert env.rand_step(before)["next", "observation"].dtype == torch.float64


def test_frames_are_rendered() -> None:
    pytest.importorskip("pygame")
    env = NativeEnv("CartPole-v1", 2, render_mode="rgb_array")
    env.reset()
    frame = env.render(1)
    assert frame is not None
    assert frame.shape == (400, 600, 3)
    assert NativeEnv("CartPole-v1", 1, batch_size=(1,)).simulator.num_envs == 1
    env.close()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", NATIVE)
def test_no_host_synchronization(name: str, kept: bool) -> None:
    """The meta device has shapes and no data, so reading a value there raises where a GPU would synchronize."""
    env = NativeEnv(name, 6 if kept else None, device="meta")
    root = env.reset(TensorDict({}, [6], device="meta"))
    _, root = env.step_and_maybe_reset(env.rand_action(root))
    mask = torch.ones(6, 1, dtype=torch.bool, device="meta")
    root = env.reset(root.set("_reset", mask))
    step_td = env.step(env.rand_action(root).set("_step", mask))
    assert step_td["next", "observation"].shape == root["observation"].shape
    switches = {} if kept else {"tensordict": TensorDict({}, [6], device="meta")}
    assert env.rollout(4, break_when_any_done=False, **switches).shape == (6, 4)
    with pytest.raises((RuntimeError, NotImplementedError)):
        env.any_done(step_td["next"])


def test_overridden_steps_are_called_in_resets() -> None:
    class Tagged(NativeEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            next_td = super()._step(tensordict)
            return next_td.set("observation", next_td["observation"] + 100)

    env = Tagged("CartPole-v1", 2)
    root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    assert root["observation"].gt(50).all()


def test_given_actions_are_copied() -> None:
    env = NativeEnv("Pendulum-v1", 2)
    actions = torch.zeros(2, 4, 1)
    rollout = env.rollout(4, actions=actions)
    actions.fill_(9)
    assert rollout["action"].eq(0).all()


@pytest.mark.parametrize("kept", [True, False])
def test_options_of_partial_resets(kept: bool) -> None:
    env = NativeEnv("CartPole-v1", 2 if kept else None)
    root = env.reset(TensorDict({}, [2]))
    before = root["observation"].clone()
    mask = torch.tensor([[True], [False]])
    after = env.reset(root.set("_reset", mask), options={"low": 0.01, "high": 0.01})["observation"]
    assert after[0].allclose(torch.tensor(0.01))
    assert after[1].equal(before[1])


def test_seeds_apply_at_the_reset_of_their_row() -> None:
    env = NativeEnv("CartPole-v1", 3)
    env.set_seed(4)
    first, second = env.reset()["observation"], env.reset()["observation"]
    root = env.rollout(2, break_when_any_done=False)[:, -1].exclude("next")
    env.set_seed(4)
    root = env.reset(root.set("_reset", torch.tensor([[True], [False], [False]])))
    assert root["observation"][0].equal(first[0])
    assert not root["observation"][1:].equal(first[1:])
    root = env.reset(root.set("_reset", torch.tensor([[True], [True], [False]])))
    assert root["observation"][:2].equal(torch.stack([second[0], first[1]]))
    assert env.reset()["observation"][2].equal(first[2])
