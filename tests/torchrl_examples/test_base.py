"""Examples: manual rollouts, partial resets, groups of agents, and a policy that obeys a mask."""

from typing import Any

import torch
from tensordict import TensorDict

from vecrl.envs import EnvBase, GymEnv, NativeEnv, check_env_specs
from vecrl.specs import Bounded, Categorical, Composite, Unbounded


def test_step_and_maybe_reset() -> None:
    env = GymEnv("CartPole-v1")
    data_ = env.reset()
    result = []
    for _ in range(60):
        data, data_ = env.step_and_maybe_reset(env.rand_action(data_))
        result.append(data)
    stacked: Any = torch.stack(result)
    assert stacked.shape == (60,)
    assert stacked["next", "done"].any()
    assert not stacked["done"].any()


class Zeros(EnvBase):
    """Returns zeros after a reset."""

    def __init__(self, places: list[Any], rows: int):
        super().__init__()
        self.observation_spec = Composite({place: {"val": Unbounded((rows,), dtype=torch.int64)} for place in places})
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.full_done_spec = Composite(
            {place: {"done": Categorical(2, (rows,), dtype=torch.bool)} for place in places}
        )

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return self.observation_spec.zero()

    def _step(self, tensordict: Any) -> Any:
        return self.observation_spec.zero()

    def _set_seed(self, seed: int | None) -> None: ...


def test_a_single_reset_at_the_root() -> None:
    env = Zeros([], 2)
    env.observation_spec = Composite(val=Unbounded((2,), dtype=torch.int64))
    env.full_done_spec = Composite(done=Categorical(2, (2,), dtype=torch.bool))
    data = TensorDict({"val": torch.tensor([1, 1]), "_reset": torch.tensor([False, True])}, [])
    env.reset(data)
    assert data.get("val").tolist() == [1, 0]


def _agents(**root: Any) -> TensorDict:
    return TensorDict(
        {
            **root,
            "agent0": {"val": torch.tensor([1, 1]), "_reset": torch.tensor([False, True])},
            "agent1": {"val": torch.tensor([2, 2]), "_reset": torch.tensor([True, False])},
        },
        [],
    )


def test_nested_resets() -> None:
    data = _agents()
    Zeros(["agent0", "agent1"], 2).reset(data)
    assert data.get(("agent0", "val")).tolist() == [1, 0]
    assert data.get(("agent1", "val")).tolist() == [0, 2]


def test_nested_resets_are_overridden_by_one_at_the_root() -> None:
    env = Zeros(["agent0", "agent1"], 2)
    done = env.full_done_spec.clone().unlock_(recurse=True)
    done["done"] = Categorical(2, (2,), dtype=torch.bool)
    env.full_done_spec = done
    data = _agents(_reset=torch.tensor([True, True]))
    env.reset(data)
    assert data.get(("agent0", "val")).tolist() == [0, 0]
    assert data.get(("agent1", "val")).tolist() == [0, 0]


def test_the_mask_is_eliminated() -> None:
    env = NativeEnv("CartPole-v1", 4)
    env.reset()
    tensordict = TensorDict({"_reset": torch.tensor([[True], [False], [True], [True]])}, [4])
    result = env.reset(tensordict)
    assert sorted(result.keys()) == ["done", "observation", "terminated", "truncated"]
    assert result["done"].shape == (4, 1)


def test_specs_of_agents() -> None:
    """Actions, observations and rewards are per agent; the done flag is shared."""

    class Balance(EnvBase):
        n_agents = 5

        def __init__(self) -> None:
            super().__init__()
            action_specs, observation_specs, reward_specs = [], [], []
            for _ in range(self.n_agents):
                action_specs.append(Bounded(-1, 1, (2,)))
                reward_specs.append(Unbounded((1,)))
                observation_specs.append(Unbounded((16,)))
            agents = (self.n_agents,)
            self.action_spec = Composite(
                {"agents": Composite({"action": torch.stack(action_specs)}, shape=agents)}  # pyright: ignore[reportArgumentType]
            )
            self.reward_spec = Composite(
                {"agents": Composite({"reward": torch.stack(reward_specs)}, shape=agents)}  # pyright: ignore[reportArgumentType]
            )
            self.observation_spec = Composite(
                {"agents": Composite({"observation": torch.stack(observation_specs)}, shape=agents)}  # pyright: ignore[reportArgumentType]
            )
            self.done_spec = Categorical(n=2, shape=torch.Size((1,)), dtype=torch.bool)

        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            return self.observation_spec.rand()

        def _step(self, tensordict: Any) -> Any:
            reward = -tensordict["agents", "action"].square().sum(-1, keepdim=True)
            data = self.observation_spec.rand().update(self.full_done_spec.zero())
            return data.set(("agents", "reward"), reward)

        def _set_seed(self, seed: int | None) -> None: ...

    env = Balance()
    check_env_specs(env)
    assert env.action_key == ("agents", "action")
    assert env.reward_key == ("agents", "reward")
    assert env.done_key == "done"
    assert env.reward_spec == env.output_spec["full_reward_spec"][env.reward_key]
    assert env.reward_spec.shape == (5, 1)
    assert isinstance(env.output_spec["full_reward_spec"], Composite)
    data = env.rand_step()
    assert data["agents"].batch_size == data["next", "agents"].batch_size == (5,)
    assert data["agents", "action"].shape == (5, 2)
    assert data["next", "agents", "observation"].shape == (5, 16)
    assert data["next", "agents", "reward"].shape == (5, 1)
    assert data["next", "done"].shape == (1,)
