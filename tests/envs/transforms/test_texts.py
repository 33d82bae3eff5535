"""Hashes and tokens of texts, and the texts of hashes and tokens."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from tests.fixtures.transforms import WordTokenizer

from vecrl.envs import EnvBase, SerialEnv, check_env_specs
from vecrl.envs.transforms import Compose, Hash, Tokenizer
from vecrl.errors import SpaceError, VersionError
from vecrl.specs import Composite, NonTensor, Unbounded


class EchoEnv(EnvBase):
    """Observes the text of the last action, or the text in the input of a reset, "start" by default."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(text=NonTensor((), example_data="start"))
        self.action_spec = NonTensor((), example_data="wait")
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.reset_input = tensordict
        return TensorDict({"text": "start"})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict({"text": tensordict["action"], "reward": torch.zeros(1), "done": torch.zeros(1).bool()})

    def _set_seed(self, seed: int | None) -> None: ...


def sha(content: bytes) -> list[int]:
    return list(hashlib.sha256(content).digest())


# -- Hash


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("abc", b"abc"),
        (5, b"5"),
        (None, b""),
        (["a"], b"['a']"),
        (torch.tensor([1.0, 2.0]), np.array([1, 2], np.float32).tobytes()),
        (np.arange(3)[::-1], np.array([2, 1, 0]).tobytes()),
    ],
)
def test_reproducible_hashes(value: Any, content: bytes) -> None:
    assert Hash.reproducible_hash(value).dtype == torch.uint8
    assert Hash.reproducible_hash(value).tolist() == sha(content)
    assert Hash.reproducible_hash(value, seed="s").tolist() == sha(b"s" + content)
    assert Hash.reproducible_hash(value, seed=7).tolist() == sha(b"7" + content)


def test_each_row_has_a_hash() -> None:
    rows = [["a", "b", "a"], ["c", "", "b"]]
    data = TensorDict({"text": NonTensorStack.from_list(rows), "x": torch.arange(12).reshape(2, 3, 2)}, [2, 3])
    hashed = Hash(["text", "x"], ["h", ("nested", "x")])(data)
    assert hashed["h"].tolist() == [[sha(text.encode()) for text in row] for row in rows]
    assert hashed["nested", "x"][1, 2].tolist() == sha(np.array([10, 11]).tobytes())


def test_rows_hashed_together_equal_single_ones() -> None:
    values = [torch.rand(2, 3, 4), torch.rand(2, 3) > 0.5, torch.rand(2, 3, 0), torch.rand(2, 3, 5).bfloat16()]
    values.append(torch.rand(3, 2).transpose(0, 1))
    for value in values:
        together = Hash(["x"], ["h"], seed="s")(TensorDict({"x": value}, [2, 3]))["h"]
        single = Hash(["x"], ["h"], seed="s", hash_fn=lambda row, seed: Hash.reproducible_hash(row, seed))
        assert together.equal(single(TensorDict({"x": value}, [2, 3]))["h"])
        assert together.shape == (2, 3, 32)


def test_the_inverse_looks_up_values() -> None:
    repertoire: dict[Any, Any] = {}
    hashing = Hash(["text"], ["h"], ["text"], ["h"], repertoire=repertoire)
    hashes = hashing(TensorDict({"text": NonTensorStack("a", "b")}, [2]))["h"]
    assert list(repertoire.values()) == ["a", "b"]
    assert hashing.inv(TensorDict({"h": hashes.flip(0)}, [2]))["text"] == ["b", "a"]
    assert hashing.inv(TensorDict({"h": hashes.reshape(2, 1, 32)}, [2, 1]))["text"] == [["a"], ["b"]]
    assert hashing.get_input_from_hash(hashes[1]) == "b"
    repertoire[hashing.hash_to_repertoire_key(torch.zeros(32, dtype=torch.uint8))] = "zero"
    assert hashing.inv(TensorDict({"h": torch.zeros(32, dtype=torch.uint8)}))["text"] == "zero"
    with pytest.raises(KeyError, match="one of the 3 values"):
        hashing.get_input_from_hash(torch.ones(32, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="Give in_keys_inv or a repertoire"):
        Hash(["text"], ["h"]).get_input_from_hash(hashes[0])


def test_tensors_are_found_by_their_hashes() -> None:
    hashing = Hash(["x"], ["h"], ["x"], ["h"])
    data = TensorDict({"x": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, [2])
    assert hashing.inv(hashing(data).exclude("x"))["x"].equal(data["x"])


@pytest.mark.parametrize("value", [torch.zeros(3), np.zeros(3)])
def test_the_repertoire_does_not_change_with_values(value: Any) -> None:
    hashing = Hash(["x"], ["h"], ["x"], ["h"])
    data = TensorDict({"x": NonTensorData(value) if isinstance(value, np.ndarray) else value})
    hashes = hashing(data).select("h")
    value += 5
    assert hashing.inv(hashes)["x"].tolist() == [0, 0, 0]


def test_hashes_and_values_may_have_no_dimensions() -> None:
    hashing = Hash(["x"], ["h"], ["x"], ["h"], hash_fn=lambda value: value.sum().long())
    hashed = hashing(TensorDict({"x": torch.tensor(2.0)}))
    assert hashed["h"].equal(torch.tensor(2))
    assert hashing.inv(hashed.select("h"))["x"].equal(torch.tensor(2.0))


def test_a_batch_without_rows() -> None:
    empty = TensorDict({"x": torch.zeros(0, 3)}, [0])
    assert Hash(["x"], ["h"])(empty.copy())["h"].shape == (0, 32)
    with pytest.raises(SpaceError, match=r"a batch with rows, got the batch size \(0,\)"):
        Hash(["x"], ["h"], hash_fn=torch.sum)(empty)


def test_the_repertoire_is_in_the_state() -> None:
    first, second = Hash(["text"], ["h"], ["text"], ["h"]), Hash(["text"], ["h"], ["text"], ["h"])
    hashes = first(TensorDict({"text": "a"}))["h"]
    second.load_state_dict(first.state_dict())
    assert second.get_input_from_hash(hashes) == "a"
    plain = Hash(["text"], ["h"])
    plain.load_state_dict(plain.state_dict())


def test_a_custom_hash_function() -> None:
    def length(value: Any, seed: int = 0) -> torch.Tensor:
        return torch.tensor(len(value) + seed)

    data = TensorDict({"text": NonTensorStack("a", "bcd")}, [2])
    assert Hash(["text"], ["h"], hash_fn=length)(data.copy())["h"].tolist() == [1, 3]
    assert Hash(["text"], ["h"], hash_fn=length, seed=10)(data.copy())["h"].tolist() == [11, 13]
    raw = Hash(["text"], ["h"], hash_fn=lambda value: torch.tensor(len(value.data)), use_raw_nontensor=True)
    assert raw(data.copy())["h"].tolist() == [1, 3]
    found = Hash(["text"], ["h"], ["text"], ["h"], hash_fn=length)
    found(data)
    assert found.get_input_from_hash(torch.tensor(3)) == "bcd"


def test_actions_given_as_hashes() -> None:
    hashing = Hash(["text"], ["seen"], ["action"], ["choice"])
    env = EchoEnv().append_transform(hashing)
    assert env.action_keys == ["choice"]
    assert (env.action_spec.shape, env.action_spec.dtype) == ((32,), torch.uint8)
    start = env.reset()
    after = env.step(start.set("choice", start["seen"]))["next"]
    assert after["text"] == "start"
    assert after["seen"].equal(start["seen"])


@pytest.mark.parametrize("batch_class", [None, SerialEnv])
def test_hashes_of_an_environment_of_texts(batch_class: Any) -> None:
    base = EchoEnv() if batch_class is None else batch_class(2, EchoEnv)
    check_env_specs(base.append_transform(Hash(["text"], ["seen"])))


# -- Tokenizer


def test_texts_become_tokens() -> None:
    tokenizer = WordTokenizer()
    data = TensorDict({"a": {"text": NonTensorStack("x y z", "x")}}, [2])
    tokens = Tokenizer([("a", "text")], [("a", "tokens")], tokenizer=tokenizer)(data.clone())
    assert tokens["a", "tokens"].tolist() == [[2, 3, 4], [2, 0, 0]]
    assert tokens["a", "attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    padded = Tokenizer(["text"], ["text"], tokenizer=tokenizer, max_length=4, return_attention_mask=False)
    assert padded(TensorDict({"text": "x"}))["text"].tolist() == [2, 0, 0, 0]
    assert padded(TensorDict({"text": "x x x x x x"}))["text"].tolist() == [2, 2, 2, 2]
    assert set(padded(TensorDict({"text": "x"})).keys()) == {"text"}
    single = Tokenizer(["text"], ["tokens"], tokenizer=tokenizer, max_length=3, add_special_tokens=True)
    assert single(TensorDict({"text": "x"}))["attention_mask"].tolist() == [1, 1, 0]
    assert single(TensorDict({"text": "x"}))["tokens"].tolist() == [1, 2, 0]


def test_tokens_become_texts() -> None:
    tokenizer = WordTokenizer()
    options: Any = {"in_keys_inv": ["text"], "out_keys_inv": ["tokens"], "additional_tokens": ["x", "y"]}
    transform = Tokenizer(tokenizer=tokenizer, **options)
    assert transform.inv(TensorDict({"tokens": torch.tensor([[3, 2], [2, 0]])}, [2]))["text"] == ["y x", "x"]
    assert transform.inv(TensorDict({"tokens": torch.tensor([1, 3])}))["text"] == "y"
    assert transform.inv(TensorDict({"tokens": torch.full((2, 1, 1), 2)}, [2, 1]))["text"] == [["x"], ["x"]]
    kept = Tokenizer(tokenizer=tokenizer, skip_special_tokens=False, **options)
    assert kept.inv(TensorDict({"tokens": torch.tensor([1, 3])}))["text"] == "[CLS] y"


def test_missing_texts() -> None:
    tolerant = Tokenizer(["text"], ["tokens"], tokenizer=WordTokenizer())
    assert tolerant(TensorDict({})).is_empty()
    with pytest.raises(KeyError, match="expects an entry 'text'"):
        Tokenizer(["text"], ["tokens"], tokenizer=WordTokenizer(), missing_tolerance=False)(TensorDict({}))


@pytest.mark.parametrize("max_length", [None, 3])
@pytest.mark.parametrize("batched", [False, True])
def test_an_environment_of_texts_is_one_of_tokens(max_length: int | None, batched: bool) -> None:
    tokenizer = WordTokenizer()
    transform = Tokenizer(["text"], ["tokens"], ["action"], ["choice"], tokenizer=tokenizer, max_length=max_length)
    env = (SerialEnv(2, EchoEnv) if batched else EchoEnv()).append_transform(transform)
    assert env.action_keys == ["choice"]
    assert env.full_observation_spec["tokens"].shape[-1] == (-1 if max_length is None else 3)
    check_env_specs(env, return_contiguous=max_length is not None)
    tokenizer.add_tokens(["go"])
    go = torch.tensor([tokenizer.words.index("go")]).expand(*env.batch_size, -1)
    after = env.step(env.reset().set("choice", go))["next"]
    assert after["text"] == (["go", "go"] if batched else "go")
    assert after["tokens"][..., 0].equal(go[..., 0])


def test_texts_of_the_input_of_a_reset() -> None:
    base = EchoEnv()
    env = base.append_transform(Tokenizer(["text"], ["tokens"], tokenizer=WordTokenizer(), call_before_reset=True))
    start = env.reset(TensorDict({"text": "x y"}))
    assert base.reset_input["tokens"].tolist() == [2, 3]
    assert "tokens" not in start.keys()  # noqa: SIM118 - a TensorDict is no dict


def test_a_tokenizer_gets_raw_objects() -> None:
    class Raw(WordTokenizer):
        def __call__(self, texts: Any, **options: Any) -> Any:
            assert isinstance(texts, NonTensorStack)
            return super().__call__(texts.tolist(), **options)

    transform = Compose(Tokenizer(["text"], ["tokens"], tokenizer=Raw(), use_raw_nontensor=True))
    assert transform(TensorDict({"text": NonTensorStack("x", "y")}, [2]))["tokens"].tolist() == [[2], [3]]


def test_errors() -> None:
    with pytest.raises(ValueError, match="Expected a tokenizer, got None"):
        Tokenizer(["text"], ["tokens"])
    with pytest.raises(ValueError, match="different groups"):
        Tokenizer(["a", "b"], ["x", "y"], tokenizer=WordTokenizer())
    Tokenizer(["a", "b"], ["x", "y"], tokenizer=WordTokenizer(), return_attention_mask=False)


def test_a_name_needs_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(VersionError, match="Expected transformers to be installed"):
        Tokenizer(["text"], ["tokens"], tokenizer="some-name")
