"""Environments of texts with a tokenizer and a causal model of the transformers library, both made here, offline."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from vecrl.envs import KLRewardTransform, LLMEnv, LLMHashingEnv, StepCounter, Tokenizer, TransformedEnv
from vecrl.envs.transforms.backbones import import_vision

pytestmark = [pytest.mark.language, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TEXTS = [f"{i} plus {j} is {i + j} ." for i in range(5) for j in range(5)]
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}<assistant>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of byte pairs, trained on `TEXTS`, saved and loaded again."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tokenizers import Tokenizer as Model
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    model = Model(models.BPE(unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    model.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    special = ["<unk>", "<pad>", "<eos>", "<user>", "<assistant>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(TEXTS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    fast.chat_template = TEMPLATE
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    loaded = AutoTokenizer.from_pretrained(folder)
    loaded.padding_side = "left"
    return loaded


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    """A small causal model that has learned `TEXTS`."""
    import_vision("torchvision")  # which transformers imports; it fails where it was built for another torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    causal = GPT2LMHeadModel(config)
    batch = tokenizer([text + "<eos>" for text in TEXTS], return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.Adam(causal.parameters(), lr=3e-3)
    for _ in range(2000):  # processors differ in their rounding, and so in the steps that it takes
        positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        result = causal(
            batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=positions, labels=labels
        )
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        answers = result.logits[:, -4:-1].softmax(-1).gather(-1, labels[:, -3:, None])  # a sum, the period and the end
        if bool((answers > 0.95).all()):
            return causal.eval()
    pytest.fail("Expected the model to learn the sums in 2000 steps.")


def generate(model: Any, tokenizer: Any, tokens: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the most likely next tokens `[batch, count]`."""
    with torch.no_grad():
        whole = model.generate(
            tokens, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
    return whole[:, tokens.shape[1] :]


def token_log_probs(model: Any) -> Any:
    """Returns a module that writes the log-probability of each token of a response after a prompt."""

    def log_probs(prompt: torch.Tensor, response: torch.Tensor) -> torch.Tensor:
        logits = model(torch.cat([prompt, response], -1)).logits[:, prompt.shape[-1] - 1 : -1]
        return logits.log_softmax(-1).gather(-1, response.unsqueeze(-1)).squeeze(-1)

    module = TensorDictModule(log_probs, in_keys=["tokens", "tokens_response"], out_keys=[("log_probs", "full")])
    module.model = model
    return module


def test_texts_to_tokens_and_back(tokenizer: Any) -> None:
    transform = Tokenizer(["text"], ["tokens"], ["answer"], ["answer_tokens"], tokenizer=tokenizer)
    data = transform(TensorDict(text=["1 plus 1 is 2 .", "1 plus"], batch_size=[2]))
    encoded = tokenizer(["1 plus 1 is 2 .", "1 plus"], return_tensors="pt", padding=True)
    assert data["tokens"].equal(encoded["input_ids"])
    assert data["attention_mask"].equal(encoded["attention_mask"])
    assert data["tokens"][1, 0] == tokenizer.pad_token_id
    restored = transform.inv(TensorDict(answer_tokens=data["tokens"], batch_size=[2]))
    assert restored["answer"] == ["1 plus 1 is 2 .", "1 plus"]


def test_a_tokenizer_of_a_folder(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    tokens = Tokenizer(["text"], ["tokens"], tokenizer=str(tmp_path))(TensorDict(text="2 plus 2"))["tokens"]
    assert tokens.tolist() == tokenizer("2 plus 2")["input_ids"]


def test_a_model_answers_in_texts(tokenizer: Any, model: Any) -> None:
    loader = [{"text": ["1 plus 2 is", "4 plus 4 is", "0 plus 3 is"]}]
    env = LLMEnv.from_dataloader(loader, batch_size=3, tokenizer=tokenizer)

    def policy(td: TensorDict) -> TensorDict:
        response = generate(model, tokenizer, td["tokens"], td["attention_mask"], 2)
        return td.set("text_response", tokenizer.batch_decode(response))

    step = env.step(policy(env.reset()))
    assert step["next", "text"] == ["1 plus 2 is 3 .", "4 plus 4 is 8 .", "0 plus 3 is 3 ."]
    assert tokenizer.batch_decode(step["next", "tokens"]) == step["next", "text"]


def test_a_model_answers_in_tokens_until_the_end(tokenizer: Any, model: Any) -> None:
    options: Any = {"from_text": False, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    env = LLMEnv.from_dataloader([{"text": ["1 plus 2 is"]}], batch_size=1, tokenizer=tokenizer, **options)

    def policy(td: TensorDict) -> TensorDict:
        return td.set("tokens_response", generate(model, tokenizer, td["tokens"], td["attention_mask"], 1))

    steps = env.rollout(9, policy, return_contiguous=False).unbind(1)
    assert [bool(step["next", "done"]) for step in steps] == [False, False, True]
    tokens = steps[-1]["next", "tokens"][0]
    assert tokens[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "1 plus 2 is 3 ."


def test_the_penalty_of_tokens(tokenizer: Any, model: Any) -> None:
    """The model itself costs nothing. An untrained one finds its answers unlikely."""
    from transformers import GPT2LMHeadModel

    torch.manual_seed(0)
    other = GPT2LMHeadModel(model.config).eval()
    encoded = tokenizer(["1 plus 2 is", "3 plus 1 is"], return_tensors="pt")
    base = LLMEnv(from_text=False, batch_size=2, assign_reward=True)
    root = base.reset(TensorDict(tokens=encoded["input_ids"], batch_size=[2]))
    response = generate(model, tokenizer, root["tokens"], root["attention_mask"], 2)
    with torch.no_grad():
        root = token_log_probs(model)(root.set("tokens_response", response))
    steps = base.step(root)
    assert steps["next", "reward"].equal(torch.zeros(2, 2))
    for reference, low, high in ((model, -1e-4, 1e-4), (other, 3.0, 20.0)):
        changed = KLRewardTransform(token_log_probs(reference), coef=0.5)(steps.clone())
        assert ((low < changed["next", "kl_penalty"]) & (changed["next", "kl_penalty"] < high)).all()
        torch.testing.assert_close(changed["next", "reward"], -0.5 * changed["next", "kl_penalty"])
        assert not changed["next", "reward"].requires_grad


def test_chat_histories_as_prompts(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "1 plus 1 is"}]
    env = TransformedEnv(LLMEnv(), StepCounter(max_steps=2))
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    root = env.reset(TensorDict(text=prompt))
    next_td = env.step(root.set("text_response", " 2"))["next"]
    assert next_td["text"] == "<user> 1 plus 1 is <assistant> 2"
    tokens = Tokenizer(["text"], ["tokens"], tokenizer=tokenizer)(next_td)["tokens"]
    assert tokens[0] == tokenizer.convert_tokens_to_ids("<user>")


def test_hashes_of_tokens(tokenizer: Any) -> None:
    env = LLMHashingEnv(tokenizer=tokenizer)
    assert env.vocab_size == len(tokenizer)
    root = env.make_tensordict("1 plus")
    assert root["text"] == "1 plus"
    token = tokenizer(" 2")["input_ids"]
    step = env.step(root.set("action", torch.tensor(token[:1])))
    assert step["next", "hashing"].equal(env.make_tensordict("1 plus" + tokenizer.decode(token[:1]))["hashing"])
