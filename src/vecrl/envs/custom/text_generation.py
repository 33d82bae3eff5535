"""Environments that append responses to prompts: of texts or tokens (`LLMEnv`), and with hashes (`LLMHashingEnv`).

They keep nothing between steps: the prompt and the history are entries of the TensorDict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Categorical, Composite, NonTensor, TensorSpec, Unbounded
from ..base import EnvBase
from ..entries.keys import Key, sorted_keys
from ..transforms.data_loading import DataLoadingPrimer

__all__ = ["LLMEnv", "LLMHashingEnv"]


class _PromptEnv(EnvBase):
    """The base of environments that start from a prompt in the input of `reset`."""

    def _prompt(self, tensordict: TensorDictBase | None, key: Key) -> Any:
        value = None if tensordict is None else tensordict.get(key, None)
        if value is None:
            keys = [] if tensordict is None else sorted_keys(tensordict)
            raise KeyError(
                f"Expected a prompt {key!r} in the input of {type(self).__name__}.reset, got {keys}. Pass one, or use "
                "a DataLoadingPrimer."
            )
        return value

    def _set_seed(self, seed: int | None) -> None:
        """Has no effect: nothing is random."""


class LLMEnv(_PromptEnv):
    """Appends the responses of a language model to a prompt, as texts or as tokens.

    An episode starts from the prompt in the input of `reset`, which a `DataLoadingPrimer` may set; see
    `from_dataloader`. It ends with `eos_token_id`, or by a transform such as `StepCounter(max_steps=...)`.

    Args:
        token_key: the key of tokens, int64 `[*batch, tokens]`; "tokens" by default.
        str_key: the key of texts; "text" by default.
        attention_key: the key of the attention mask, int64 of the shape of the tokens; "attention_mask" by default.
        action_key: the key of responses; "text_response" or "tokens_response" by default.
        reward_key: the key of the reward, if there is one.
        from_text: whether prompts and responses are texts; otherwise they are tokens.
        device: the device of all tensors.
        vocab_size: the number of tokens; by default the specs of tokens have no bounds.
        assign_reward: whether a step returns a reward of 0 for each token of the response, float32
            `[*batch, tokens]`, for transforms to change.
        assign_done: whether a step also returns done flags of each token of the response under "tokens_data", all
            False, for transforms to change.
        batch_size: a number of prompts, or a batch size; `()` by default.
        has_attention: whether there is an attention mask. A response extends it by ones.
        eos_token_id: the token that terminates the episode when it is in a response.

    Raises:
        ValueError: `assign_reward`, `assign_done` or `eos_token_id` is given for texts.
        KeyError: on `reset`, if there is no prompt.

    >>> env = LLMEnv()
    >>> step = env.step(env.reset(TensorDict(text="1 + 1 = ")).set("text_response", "2"))
    >>> step["next", "text"]
    '1 + 1 = 2'
    """

    def __init__(
        self,
        *,
        token_key: Key | None = None,
        str_key: Key | None = None,
        attention_key: Key | None = None,
        action_key: Key | None = None,
        reward_key: Key = "reward",
        from_text: bool = True,
        device: Any = None,
        vocab_size: int | None = None,
        assign_reward: bool = False,
        assign_done: bool = False,
        batch_size: int | Sequence[int] | None = None,
        has_attention: bool = True,
        eos_token_id: int | None = None,
    ):
        batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size or ())
        super().__init__(device=device, batch_size=batch)
        if from_text and (assign_reward or assign_done or eos_token_id is not None):
            raise ValueError(
                "Expected from_text=False with assign_reward, assign_done or eos_token_id, got True. They need tokens: "
                "use from_text=False, or transforms of the texts."
            )
        self.from_text, self.eos_token_id = from_text, eos_token_id
        self.assign_reward, self.assign_done = assign_reward, assign_done
        self.observation_key: Key = (str_key or "text") if from_text else (token_key or "tokens")
        self.response_key: Key = action_key or ("text_response" if from_text else "tokens_response")
        self.attention_key: Key | None = (
            (attention_key or "attention_mask") if has_attention and not from_text else None
        )
        self._reward_key = reward_key
        self._declare_specs(vocab_size)

    def _declare_specs(self, vocab_size: int | None) -> None:
        batch, device = self.batch_size, self.device
        tokens = (*batch, -1)

        def values() -> TensorSpec:
            if self.from_text:
                return NonTensor(batch, device=device, example_data="a string")
            if vocab_size is None:
                return Unbounded(tokens, dtype=torch.int64, device=device)
            return Bounded(0, vocab_size - 1, tokens, dtype=torch.int64, device=device)

        observation = Composite({self.observation_key: values()}, shape=batch, device=device)
        if self.attention_key is not None:
            observation[self.attention_key] = Bounded(0, 1, tokens, dtype=torch.int64, device=device)
        self.observation_spec = observation
        self.state_spec = observation.clone()
        self.full_action_spec = Composite({self.response_key: values()}, shape=batch, device=device)
        reward = {self._reward_key: Unbounded(tokens, device=device)} if self.assign_reward else {}
        self.full_reward_spec = Composite(reward, shape=batch, device=device)
        flags = ("done", "terminated")
        done: Any = {name: Categorical(2, (*batch, 1), dtype=torch.bool, device=device) for name in flags}
        if self.assign_done:
            done["tokens_data"] = {name: Categorical(2, tokens, dtype=torch.bool, device=device) for name in flags}
        self.full_done_spec = Composite(done, shape=batch, device=device)

    @classmethod
    def from_dataloader(
        cls,
        dataloader: Any,
        *,
        tokenizer: Any = None,
        primers: Composite | None = None,
        stack_method: Any = None,
        repeats: int | None = None,
        group_repeats: bool = True,
        batch_size: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Returns an environment with a `DataLoadingPrimer`, which sets the prompt at every reset.

        Args:
            dataloader: gives the prompts, under the key of texts or tokens.
            tokenizer: if given, a `Tokenizer` writes the tokens of texts: after each step if the environment has
                texts, otherwise at resets.
            primers, stack_method, repeats, group_repeats: as in `DataLoadingPrimer`.
            batch_size: of the environment; by default that of the loader.
            kwargs: other arguments of `LLMEnv`.
        """
        primer = DataLoadingPrimer(
            dataloader,
            primers=primers,
            stack_method=stack_method,
            repeats=repeats,
            group_repeats=group_repeats,
            batch_size=batch_size,
            device=kwargs.get("device"),
        )
        env = cls(batch_size=primer.batch_size, **kwargs)
        if tokenizer is None:
            return env.append_transform(primer)
        from ..transforms.texts import Tokenizer

        tokens = kwargs.get("token_key") or "tokens"
        texts = kwargs.get("str_key") or "text"
        options: Any = {"tokenizer": tokenizer, "call_before_reset": not env.from_text}
        return env.append_transform(Tokenizer([texts], [tokens], **options)).append_transform(primer)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        prompt = self._prompt(tensordict, self.observation_key)
        reset_td = TensorDict({}, self.batch_size, device=self.device)
        reset_td.set(self.observation_key, prompt)
        if self.attention_key is not None:
            mask = None if tensordict is None else tensordict.get(self.attention_key, None)
            reset_td.set(self.attention_key, torch.ones_like(prompt) if mask is None else mask)
        if self.assign_done:
            self._set_token_flags(reset_td, prompt)
        return self._set_done(reset_td, None)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        text, response = tensordict.get(self.observation_key), tensordict.get(self.response_key)
        next_td = TensorDict({}, tensordict.batch_size, device=self.device)
        if self.from_text:
            next_td.set(self.observation_key, append_texts(text, response))
            return self._set_done(next_td, None)
        if response.ndim != text.ndim:
            raise ValueError(
                f"Expected responses {self.response_key!r} of shape [*batch, tokens] like {tuple(text.shape)}, got "
                f"{tuple(response.shape)}. Add the missing dimensions."
            )
        next_td.set(self.observation_key, torch.cat([text, response], -1))
        if self.attention_key is not None:
            mask = tensordict.get(self.attention_key)
            next_td.set(self.attention_key, torch.cat([mask, mask.new_ones(response.shape)], -1))
        if self.assign_reward:
            next_td.set(self._reward_key, torch.zeros(response.shape, device=response.device))
        if self.assign_done:
            self._set_token_flags(next_td, response)
        return self._set_done(next_td, response)

    @staticmethod
    def _set_token_flags(td: TensorDictBase, tokens: Tensor) -> None:
        for name in ("done", "terminated"):
            td.set(("tokens_data", name), torch.zeros_like(tokens, dtype=torch.bool))

    def _set_done(self, td: TensorDictBase, response: Tensor | None) -> TensorDictBase:
        done = torch.zeros((*td.batch_size, 1), dtype=torch.bool, device=self.device)
        if response is not None and self.eos_token_id is not None:
            done = (response == self.eos_token_id).any(-1, keepdim=True)
        return td.update({"done": done, "terminated": done.clone()})


def append_texts(texts: Any, responses: Any) -> Any:
    """Returns texts with responses appended, as non-tensors of the same batch size."""

    def append(one: Any, other: Any) -> Any:
        return list(map(append, one, other)) if isinstance(one, list) else one + other

    joined = append(texts.tolist(), responses.tolist())
    return NonTensorStack.from_list(joined) if isinstance(joined, list) else NonTensorData(joined)


class LLMHashingEnv(_PromptEnv):
    """Appends a token at each step, and writes a hash of all tokens, to find equal texts in a tree or a table.

    An episode starts from the tokens in the input of `reset`, or from texts if there is a `tokenizer`. It has no
    reward and no end. The batch size is that of the input of `reset`.

    Args:
        vocab_size: the number of tokens; by default that of the tokenizer.
        hashing_module: a function from tokens `[*batch, tokens]` to hashes `[*batch]`; by default `hash_tokens`.
        observation_key: the key of the tokens, int64 `[*batch, tokens]`.
        text_output: whether to write the texts of the tokens, if there is a tokenizer.
        tokenizer: a tokenizer of the transformers library, or an object with `decode` or `batch_decode`; for texts as
            prompts also `__call__` or `encode`, from a text to its tokens or to a mapping with "input_ids".
        text_key: the key of the texts.

    The hash is under "hashing", int64 `[*batch, 1]`, the action under "action", `[*batch, 1]`.

    Raises:
        TypeError: there is neither `vocab_size` nor `tokenizer`.
        KeyError: on `reset`, if there is no prompt.

    >>> env = LLMHashingEnv(vocab_size=10)
    >>> root = env.reset(TensorDict(observation=torch.tensor([1, 2])))
    >>> step = env.step(root.set("action", torch.tensor([3])))
    >>> same = env.reset(TensorDict(observation=torch.tensor([1, 2, 3])))
    >>> bool(step["next", "hashing"] == same["hashing"]), bool(step["next", "hashing"] == root["hashing"])
    (True, False)
    """

    _batch_locked = False

    def __init__(
        self,
        vocab_size: int | None = None,
        *,
        hashing_module: Callable[[Tensor], Tensor] | None = None,
        observation_key: Key = "observation",
        text_output: bool = True,
        tokenizer: Any = None,
        text_key: Key | None = "text",
    ):
        super().__init__()
        if vocab_size is None and tokenizer is None:
            raise TypeError("Expected a vocab_size or a tokenizer, got neither. Pass one of them.")
        self.vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        self.tokenizer = tokenizer
        self.hashing_module = hash_tokens if hashing_module is None else hashing_module
        self.tokens_key = observation_key
        self.text_key = text_key if text_output and tokenizer is not None else None
        tokens = Categorical(self.vocab_size, (-1,))
        observation = Composite({observation_key: tokens, "hashing": Unbounded((1,), dtype=torch.int64)})
        if self.text_key is not None:
            observation[self.text_key] = NonTensor((), example_data="")
        self.observation_spec = observation
        self.state_spec = Composite({observation_key: tokens.clone()})
        self.full_action_spec = Composite(action=Categorical(self.vocab_size, (1,)))
        self.full_reward_spec = Composite()
        self.full_done_spec = Composite(
            {name: Categorical(2, (1,), dtype=torch.bool) for name in ("done", "terminated")}
        )

    def make_tensordict(self, prompt: str | Sequence[str]) -> TensorDictBase:
        """Returns the input and the output of a reset for a text, or for texts with the same number of tokens."""
        batch = () if isinstance(prompt, str) else (len(prompt),)
        return self.reset(TensorDict({self.tokens_key: self._encode(prompt)}, batch))

    def _encode(self, prompt: Any) -> Tensor:
        if self.tokenizer is None:
            raise TypeError("Expected a tokenizer for prompts of text, got None. Pass tokenizer=..., or give tokens.")
        encode: Any = self.tokenizer if callable(self.tokenizer) else self.tokenizer.encode
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        has_batches = isinstance(encode(texts[0]), Mapping)  # those of the transformers library
        rows: Any = encode(texts)["input_ids"] if has_batches else [encode(text) for text in texts]
        if len(sizes := {len(row) for row in rows}) > 1:
            numbers = " and ".join(map(str, sorted(sizes)))
            raise SpaceError(
                f"Expected texts with the same number of tokens, got texts with {numbers} tokens. Reset with one text "
                "at a time."
            )
        tokens = torch.stack([torch.as_tensor(row) for row in rows])
        return tokens[0] if isinstance(prompt, str) else tokens

    def _decode(self, rows: Tensor) -> Any:
        if hasattr(self.tokenizer, "batch_decode"):
            return self.tokenizer.batch_decode(rows)
        return [self.tokenizer.decode(row) for row in rows]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        tokens = self._prompt(tensordict, self.tokens_key)
        return self._observe(tokens, torch.Size(tokens.shape[:-1]))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        tokens = torch.cat([tensordict.get(self.tokens_key), tensordict.get("action")], -1)
        return self._observe(tokens, tensordict.batch_size)

    def _observe(self, tokens: Tensor, batch: torch.Size) -> TensorDictBase:
        hashes = self.hashing_module(tokens).reshape(*batch, 1)
        done = torch.zeros_like(hashes, dtype=torch.bool)
        values = {self.tokens_key: tokens, "hashing": hashes, "done": done, "terminated": done.clone()}
        observed_td = TensorDict(values, batch)
        if self.text_key is not None:
            texts: Any = self._decode(tokens.reshape(-1, tokens.shape[-1]))
            for size in reversed(batch[1:]):
                texts = [texts[start : start + size] for start in range(0, len(texts), size)]
            observed_td.set(self.text_key, NonTensorStack.from_list(texts) if batch else NonTensorData(texts[0]))
        return observed_td


def hash_tokens(tokens: Tensor) -> Tensor:
    """Returns a hash `[...]` int64 of each row of tokens `[..., tokens]`. It is the same in every process.

    Each token is joined by an exclusive or, a multiplication modulo 2^64 and a shift.
    """
    hashes = torch.full(tokens.shape[:-1], tokens.shape[-1] + 1, dtype=torch.int64, device=tokens.device)
    for token in tokens.long().unbind(-1):
        hashes = (hashes ^ (token + 1)) * 0x5851F42D4C957F2D
        hashes = hashes ^ (hashes >> 29)
    return hashes
