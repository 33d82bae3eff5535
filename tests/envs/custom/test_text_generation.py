"""Environments of texts and tokens."""

import itertools
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import DataLoadingPrimer, LLMEnv, LLMHashingEnv, SerialEnv, StepCounter, check_env_specs
from vecrl.errors import SpaceError


class Letters:
    """A tokenizer with a token for each letter, which pads with spaces."""

    def __call__(self, texts: Any, **options: Any) -> dict[str, torch.Tensor]:
        texts = [texts] if isinstance(texts, str) else texts
        size = max(map(len, texts))
        ids = torch.tensor([[ord(letter) for letter in text.ljust(size)] for text in texts])
        return {"input_ids": ids, "attention_mask": (ids != 32).long()}

    def batch_decode(self, rows: Any, **options: Any) -> list[str]:
        return ["".join(map(chr, row)) for row in rows]

    def __len__(self) -> int:
        return 128


class TestLLMEnv:
    def test_texts_grow(self) -> None:
        env = LLMEnv(batch_size=2)
        root = env.reset(TensorDict(text=["a", "bc"], batch_size=[2]))
        step = env.step(root.set("text_response", ["d", "e"]))
        assert step["next", "text"] == ["ad", "bce"]
        assert not step["next", "done"].any()
        assert env.step(env.step_mdp(step).set("text_response", ["", "f"]))["next", "text"] == ["ad", "bcef"]
        assert "reward" not in step["next"]
        assert list(env.reward_keys) == []

    def test_tokens_and_their_mask_grow(self) -> None:
        env = LLMEnv(from_text=False, batch_size=2, vocab_size=10, eos_token_id=5)
        tokens, mask = torch.arange(6).view(2, 3), torch.tensor([[0, 1, 1], [1, 1, 1]])
        root = env.reset(TensorDict(tokens=tokens, attention_mask=mask, batch_size=[2]))
        next_td = env.step(root.set("tokens_response", torch.tensor([[5, 7], [8, 9]])))["next"]
        assert next_td["tokens"].tolist() == [[0, 1, 2, 5, 7], [3, 4, 5, 8, 9]]
        assert next_td["attention_mask"].tolist() == [[0, 1, 1, 1, 1], [1] * 5]
        assert next_td["done"].tolist() == next_td["terminated"].tolist() == [[True], [False]]

    def test_rewards_and_flags_of_tokens(self) -> None:
        env = LLMEnv(from_text=False, has_attention=False, assign_reward=True, assign_done=True, reward_key="pay")
        root = env.reset(TensorDict(tokens=torch.arange(3)))
        next_td = env.step(root.set("tokens_response", torch.tensor([1, 2])))["next"]
        assert next_td["pay"].tolist() == [0.0, 0.0]
        assert next_td["tokens_data", "done"].tolist() == [False, False]
        assert next_td["done"].shape == (1,)

    @pytest.mark.parametrize("batch_size", [None, 2, (2,)])
    @pytest.mark.parametrize("from_text", [True, False])
    def test_specs(self, from_text: bool, batch_size: Any) -> None:
        prompts = {"text": ["a", "bc"]} if from_text else {"tokens": torch.ones(2, 3, dtype=torch.int64)}
        options: Any = {} if from_text else {"vocab_size": 4, "has_attention": False}
        env = LLMEnv.from_dataloader([prompts], from_text=from_text, batch_size=batch_size or (), **options)
        assert env.batch_size == (() if batch_size is None else (2,))
        check_env_specs(env, return_contiguous=False, seed=None)

    def test_rollouts_of_random_responses(self) -> None:
        env = LLMEnv()
        rollout = env.rollout(3, auto_reset=False, tensordict=env.reset(TensorDict(text="hello")))
        assert rollout["next", "text"] == ["hello" + "a string" * i for i in (1, 2, 3)]

    def test_prompts_from_a_loader(self) -> None:
        loader = [{"text": ["a", "b"]}, {"text": ["c", "d"]}]
        env = LLMEnv.from_dataloader(loader, batch_size=2, repeats=2)
        assert env.batch_size == (4,)
        assert env.reset()["text"] == ["a", "a", "b", "b"]
        env = LLMEnv.from_dataloader(loader, batch_size=2, repeats=2, group_repeats=False)
        assert [env.reset()["text"] for _ in range(3)] == [["a", "a"], ["b", "b"], ["c", "c"]]

    def test_the_next_prompt_after_the_end_of_an_episode(self) -> None:
        numbers = itertools.count()
        env = (
            LLMEnv()
            .append_transform(StepCounter(max_steps=2))
            .append_transform(DataLoadingPrimer([{"text": ["p", "q"]}]))
        )
        rollout = env.rollout(5, lambda td: td.set("text_response", str(next(numbers))), break_when_any_done=False)
        assert rollout["text"] == ["p", "p0", "q", "q2", "p"]
        assert rollout["next", "text"] == ["p0", "p01", "q2", "q23", "p4"]

    def test_tokens_of_texts(self) -> None:
        env = LLMEnv.from_dataloader([{"text": ["ab", "cd"]}], batch_size=2, tokenizer=Letters())
        step = env.step(env.reset().set("text_response", ["e", "f"]))
        assert step["tokens"].tolist() == [[97, 98], [99, 100]]
        assert step["next", "tokens"].tolist() == [[97, 98, 101], [99, 100, 102]]
        env = LLMEnv.from_dataloader([{"text": ["ab", "c"]}], batch_size=2, tokenizer=Letters(), from_text=False)
        step = env.step(env.reset().set("tokens_response", torch.tensor([[101], [102]])))
        assert step["next", "tokens"].tolist() == [[97, 98, 101], [99, 32, 102]]
        assert step["next", "attention_mask"].tolist() == [[1, 1, 1], [1, 0, 1]]

    def test_in_a_batch(self) -> None:
        env = SerialEnv(2, lambda: LLMEnv.from_dataloader([{"text": ["a", "b"]}], batch_size=()))
        step = env.step(env.reset().set("text_response", ["x", "y"]))
        assert step["next", "text"] == ["ax", "ay"]
        env.close()

    def test_errors(self) -> None:
        for options in ({"assign_reward": True}, {"assign_done": True}, {"eos_token_id": 1}):
            with pytest.raises(ValueError, match="Expected from_text=False"):
                LLMEnv(**options)
        with pytest.raises(KeyError, match="Expected a prompt 'text' in the input"):
            LLMEnv().reset()
        env = LLMEnv(from_text=False, has_attention=False)
        with pytest.raises(ValueError, match=r"of shape \[\*batch, tokens\]"):
            env._step(TensorDict(tokens=torch.ones(3), tokens_response=torch.tensor(1)))


class TestLLMHashingEnv:
    def test_a_hash_depends_on_all_tokens_and_their_order(self) -> None:
        env = LLMHashingEnv(vocab_size=4)
        rows = torch.tensor(list(itertools.product(range(4), repeat=5)))
        found = set(env.reset(TensorDict(observation=rows, batch_size=[len(rows)]))["hashing"].flatten().tolist())
        longer = env.reset(TensorDict(observation=torch.nn.functional.pad(rows, (1, 0)), batch_size=[len(rows)]))
        assert len(found | set(longer["hashing"].flatten().tolist())) == 2 * 4**5

    def test_equal_tokens_have_equal_hashes(self) -> None:
        env = LLMHashingEnv(vocab_size=20)
        root = env.reset(TensorDict(observation=torch.arange(10).view(2, 5), batch_size=[2]))
        step = env.step(root.set("action", torch.tensor([[3], [4]])))
        assert step["next", "observation"].tolist() == [[0, 1, 2, 3, 4, 3], [5, 6, 7, 8, 9, 4]]
        again = env.reset(TensorDict(observation=step["next", "observation"], batch_size=[2]))
        assert again["hashing"].equal(step["next", "hashing"])
        assert again["hashing"].shape == (2, 1)
        assert again["hashing"].tolist() == [[6294010961374965545], [6660669911444543767]]  # in every process

    def test_texts(self) -> None:
        env = LLMHashingEnv(tokenizer=Letters())
        assert env.vocab_size == 128
        root = env.make_tensordict("abc")
        assert root["text"] == "abc"
        assert env.step(root.set("action", torch.tensor([100])))["next", "text"] == "abcd"
        roots = env.make_tensordict(["ab", "cd"])
        assert roots["text"] == ["ab", "cd"]
        assert roots["hashing"].shape == (2, 1)
        grid = env.reset(TensorDict(observation=torch.full((2, 3, 1), 97), batch_size=[2, 3]))
        assert grid["text"] == [["a"] * 3] * 2
        assert "text" not in LLMHashingEnv(tokenizer=Letters(), text_output=False).make_tensordict("a")

    @pytest.mark.parametrize("method", ["__call__", "encode"])
    def test_a_small_tokenizer(self, method: str) -> None:
        def encode(self: Any, text: str) -> list[int]:
            return [ord(letter) - ord("a") for letter in text]

        def decode(self: Any, tokens: torch.Tensor) -> str:
            return "".join(chr(ord("a") + token) for token in tokens.tolist())

        tokenizer = type("Small", (), {method: encode, "decode": decode})()
        env = LLMHashingEnv(tokenizer=tokenizer, vocab_size=5)
        root = env.make_tensordict("abc")
        assert root["observation"].tolist() == [0, 1, 2]
        assert env.step(root.set("action", torch.tensor([3])))["next", "text"] == "abcd"
        roots = env.make_tensordict(["ab", "cd"])
        assert roots["observation"].tolist() == [[0, 1], [2, 3]]
        assert roots["text"] == ["ab", "cd"]
        with pytest.raises(SpaceError, match="the same number of tokens, got texts with 1 and 2 tokens"):
            env.make_tensordict(["ab", "c"])

    def test_other_keys_and_hashes(self) -> None:
        env = LLMHashingEnv(vocab_size=5, observation_key="tokens", hashing_module=lambda tokens: tokens.sum(-1))
        assert env.reset(TensorDict(tokens=torch.arange(4)))["hashing"].tolist() == [6]

    def test_random_rollouts(self) -> None:
        env = LLMHashingEnv(vocab_size=5)
        root = env.reset(TensorDict(observation=torch.arange(3)))
        rollout = env.rollout(3, auto_reset=False, tensordict=root, return_contiguous=False)
        assert [len(step["next", "observation"]) for step in rollout.unbind(0)] == [4, 5, 6]

    def test_errors(self) -> None:
        with pytest.raises(TypeError, match="a vocab_size or a tokenizer"):
            LLMHashingEnv()
        with pytest.raises(KeyError, match="Expected a prompt 'observation'"):
            LLMHashingEnv(vocab_size=3).reset()
        with pytest.raises(TypeError, match="a tokenizer for prompts of text"):
            LLMHashingEnv(vocab_size=3).make_tensordict("a")
