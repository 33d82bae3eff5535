"""Environments of texts and data loaders give the values of TorchRL's, if TorchRL is installed."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, set_list_to_stack

import vecrl.envs

pytestmark = [pytest.mark.torchrl, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _texts_in_stacks() -> Any:
    with set_list_to_stack(True):
        yield


def libraries() -> list[tuple[Any, Any]]:
    """Returns the classes `LLMEnv` and `LLMHashingEnv` of vecrl and of TorchRL."""
    import torchrl.envs
    import torchrl.envs.llm

    return [
        (vecrl.envs.LLMEnv, vecrl.envs.LLMHashingEnv),
        (torchrl.envs.llm.LLMEnv, torchrl.envs.LLMHashingEnv),
    ]


class Loader:
    def __init__(self, batches: list[Any], batch_size: int) -> None:
        self.batches, self.batch_size = batches, batch_size

    def __iter__(self) -> Any:
        return iter(self.batches)


def entries(td: Any) -> dict[str, Any]:
    """Returns the entries of a TensorDict, with tensors as lists."""
    keys = sorted(td.exclude("next").keys())
    return {key: td[key].tolist() if hasattr(td[key], "tolist") else td[key] for key in keys}


def test_texts_grow_as_in_torchrl() -> None:
    found = []
    for llm_env, _ in libraries():
        env = llm_env(batch_size=2)
        root = env.reset(TensorDict(text=["a", "bc"], batch_size=[2]))
        step = env.step(root.set("text_response", ["d", "e"]))
        found.append((entries(root), entries(step["next"])))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "options", [{}, {"eos_token_id": 7}, {"assign_reward": True, "vocab_size": 10}, {"assign_reward": True}]
)
def test_tokens_grow_as_in_torchrl(options: dict[str, Any]) -> None:
    found = []
    for llm_env, _ in libraries():
        env = llm_env(from_text=False, batch_size=2, **options)
        tokens = torch.arange(6).view(2, 3)
        data = {"tokens": tokens, "attention_mask": torch.ones_like(tokens)}
        root = env.reset(TensorDict(data, [2]))
        next_td = env.step(root.set("tokens_response", torch.tensor([[6, 7], [8, 9]])))["next"]
        found.append(entries(next_td))
    assert found[0] == found[1]


@pytest.mark.parametrize("options", [{}, {"repeats": 2}, {"repeats": 3, "group_repeats": False}])
def test_prompts_come_in_the_order_of_torchrl(options: dict[str, Any]) -> None:
    found = []
    for llm_env, _ in libraries():
        loader = Loader([{"text": [f"{i} {j}" for j in range(2)]} for i in range(3)], 2)
        env = llm_env.from_dataloader(loader, **options)
        found.append([env.reset()["text"] for _ in range(7)])
    assert [list(texts) for texts in found[0]] == [list(texts) for texts in found[1]]


def test_hashed_tokens_have_the_form_of_torchrl() -> None:
    found = []
    for _, hashing_env in libraries():
        env = hashing_env(vocab_size=10, text_output=False)
        root = env.reset(TensorDict(observation=torch.arange(10).view(2, 5), batch_size=[2]))
        step = env.step(root.set("action", torch.tensor([[3], [4]])))
        shapes = {key: (value.shape, value.dtype) for key, value in step["next"].items()}
        found.append((step["next", "observation"].tolist(), shapes))
    assert found[0] == found[1]
