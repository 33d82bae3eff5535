"""Transforms of texts and other objects into tensors, and back: hashes and tokens.

Each row of a batch is one object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, MutableMapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_non_tensor
from torch import Tensor

from ...errors import SpaceError
from ...imports import import_library
from ...specs import Bounded, Composite, NonTensor, TensorSpec
from ...specs.stacked import stack_specs
from ...validation import check_callable
from ..entries.keys import Key, join_key, split_key
from .base import StatelessTransform
from .keyed_module import Keys
from .ragged_entries import is_ragged
from .spec_hooks import infer_spec

__all__ = ["Hash", "Tokenizer"]


def _rows(value: Any, batch: torch.Size, *, raw: bool = False) -> list[Any]:
    """Returns the rows of an entry: the objects of a non-tensor (parts of it if `raw`), or tensors `[...]`."""
    if not is_non_tensor(value) or raw:
        return list((value.flatten(0, len(batch) - 1) if len(batch) > 1 else value).unbind(0)) if batch else [value]
    objects = value.tolist() if batch else [value.tolist()]
    for _ in batch[1:]:
        objects = list(chain.from_iterable(objects))
    return objects


def _join(rows: list[Any], batch: torch.Size) -> Any:
    """Returns the entry with these rows: a tensor `[*batch, ...]` if they are tensors, otherwise a non-tensor."""
    if not rows:
        raise SpaceError(f"Expected a batch with rows, got the batch size {tuple(batch)}. Give data with rows.")
    if isinstance(rows[0], Tensor):
        return torch.stack(rows).reshape((*batch, *rows[0].shape))
    if not batch:
        return NonTensorData(rows[0])
    for size in reversed(batch[1:]):
        rows = [rows[start : start + size] for start in range(0, len(rows), size)]
    return NonTensorStack.from_list(rows)


def _tensor_bytes(value: Tensor, num_rows: int) -> list[bytes]:
    """Returns the bytes of each row of a tensor, the first dimensions of which are the rows."""
    row_size = value.numel() // max(num_rows, 1)
    rows = value.detach().cpu().reshape(num_rows, row_size).contiguous().view(torch.uint8)
    return [row.tobytes() for row in rows.numpy()]


def _copy(value: Any) -> Any:
    """Returns a value that does not change with a tensor or an array."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _row_bytes(value: Any) -> bytes:
    """Returns the bytes of an array, or of the text of another object."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).tobytes()
    return b"" if value is None else str(value).encode()


def _sha256(contents: Iterable[bytes], seed: Any) -> Tensor:
    """Returns the hash of each content after that of the seed, uint8 `[contents, 32]`."""
    prefix = b"" if seed is None else str(seed).encode()
    digests = b"".join(hashlib.sha256(prefix + content).digest() for content in contents)
    return torch.from_numpy(np.frombuffer(bytearray(digests), np.uint8)).reshape(-1, 32)


class RowTransform(StatelessTransform):
    """The base of transforms that map the rows of an entry, which may be objects.

    A subclass defines `_forward_rows` and `_inverse_rows`. Specs are those of the results for the zero of a spec.
    """

    _inverse_needs_keys = True
    _takes_records = True

    def _forward_rows(self, value: Any, batch: torch.Size) -> Any:
        """Returns the value `[*batch, ...]` that the user sees for a value of the environment."""
        raise NotImplementedError

    def _inverse_rows(self, value: Any, batch: torch.Size) -> Any:
        """Returns the value `[*batch, ...]` of the environment for a value that the user gives."""
        raise NotImplementedError

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._set_entries(next_tensordict, self._key_pairs, self._forward_rows)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._set_entries(tensordict, self._inverse_key_pairs, self._inverse_rows)

    def _set_entries(self, td: TensorDictBase, pairs: list[tuple[Key, Key]], function: Any) -> TensorDictBase:
        return super()._set_entries(td, pairs, partial(function, batch=td.batch_size))  # or that of a part of `td`

    @property
    def _batch(self) -> torch.Size:
        return torch.Size(()) if self.parent is None else self.parent.batch_size

    def _apply_transform(self, value: Any) -> Any:
        return self._forward_rows(value, self._batch)


class Hash(RowTransform):
    """Writes hashes of entries, by default SHA-256: 32 bytes, uint8, for each row of a batch.

    A `repertoire` maps hashes back: hashes that the user gives are replaced by the values that were hashed.

    Args:
        in_keys, out_keys: the keys of the values to hash and of the hashes.
        in_keys_inv, out_keys_inv: the keys of inputs of the environment and of their hashes, which the user gives.
        hash_fn: takes the value of a row, and `seed` if there is one, and returns a tensor; by default
            `Hash.reproducible_hash`.
        seed: the second argument of `hash_fn`; by default it gets none.
        use_raw_nontensor: whether `hash_fn` gets a `NonTensorData` instead of its content.
        repertoire: a dictionary from hashes (tuples of numbers, or a number) to values, which is extended by each value
            that is hashed. The dictionary is not copied. By default there is one if there are `in_keys_inv`.

    Raises:
        RuntimeError: on use of the inverse, if there is no `repertoire`.
        KeyError: on use of the inverse, if a hash is not in the `repertoire`.
        SpaceError: on use with `hash_fn` or of the inverse, if the batch has no rows.

    >>> from tensordict import TensorDict
    >>> hashing = Hash(["text"], ["hash"], ["text"], ["hash"])
    >>> data = hashing(TensorDict({"text": "abc"}))
    >>> data["hash"].shape, bytes(data["hash"].tolist()).hex()[:6]
    (torch.Size([32]), 'ba7816')
    >>> hashing.inv(data.select("hash"))["text"]
    'abc'
    """

    elementwise = True
    _takes_parts = True

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        *,
        hash_fn: Callable[..., Tensor] | None = None,
        seed: Any = None,
        use_raw_nontensor: bool = False,
        repertoire: MutableMapping[Any, Any] | None = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if hash_fn is not None:
            check_callable("hash_fn", hash_fn)
        self._hash_fn = self.reproducible_hash if hash_fn is None else hash_fn
        self._seed = seed
        self._use_raw_nontensor = use_raw_nontensor
        self._repertoire = {} if repertoire is None and self.in_keys_inv else repertoire

    @staticmethod
    def reproducible_hash(string: Any, seed: Any = None) -> Tensor:
        """Returns the SHA-256 hash of a value, uint8 `[32]`: of the bytes of a tensor or array, or of text.

        Args:
            string: the value. If it is neither a tensor nor an array, its text `str(string)`; None for an empty text.
            seed: hashed before the value; None for none.
        """
        contents = _tensor_bytes(string, 1) if isinstance(string, Tensor) else [_row_bytes(string)]
        return _sha256(contents, seed)[0]

    def _hash_rows(self, value: Any, batch: torch.Size) -> Tensor:
        """Returns the hashes of the rows of an entry `[*batch, ...]`."""
        if self._hash_fn is self.reproducible_hash and not self._use_raw_nontensor:
            is_tensor = isinstance(value, Tensor)
            contents = _tensor_bytes(value, batch.numel()) if is_tensor else map(_row_bytes, _rows(value, batch))
            return _sha256(contents, self._seed).reshape(*batch, 32)
        seed = () if self._seed is None else (self._seed,)
        rows = _rows(value, batch, raw=self._use_raw_nontensor)
        return _join([torch.as_tensor(self._hash_fn(row, *seed)) for row in rows], batch)

    def _forward_rows(self, value: Any, batch: torch.Size) -> Tensor:
        hashes = self._hash_rows(value, batch)
        if self._repertoire is not None:
            keys = map(self.hash_to_repertoire_key, _rows(hashes, batch))
            rows = map(_copy, _rows(value, batch, raw=self._use_raw_nontensor))
            self._repertoire.update(zip(keys, rows, strict=True))
        return hashes.to(value.device)

    def _inverse_rows(self, value: Tensor, batch: torch.Size) -> Any:
        return _join([self.get_input_from_hash(row) for row in _rows(value, batch)], batch)

    @staticmethod
    def hash_to_repertoire_key(hash_tensor: Tensor) -> Any:
        """Returns the key of a hash in the repertoire: its numbers as nested tuples, or a single number."""

        def freeze(numbers: Any) -> Any:
            return tuple(map(freeze, numbers)) if isinstance(numbers, list) else numbers

        return freeze(hash_tensor.tolist())

    def get_input_from_hash(self, hash_tensor: Tensor) -> Any:
        """Returns the value with this hash.

        Raises:
            RuntimeError: there is no repertoire.
            KeyError: the hash is not in the repertoire.
        """
        if self._repertoire is None:
            raise RuntimeError("Expected Hash to have a repertoire, got None. Give in_keys_inv or a repertoire.")
        key = self.hash_to_repertoire_key(hash_tensor)
        if key not in self._repertoire:
            raise KeyError(
                f"Expected a hash of one of the {len(self._repertoire)} values in the repertoire, got {key!r:.60}. "
                f"Hash the value first."
            )
        return self._repertoire[key]

    def get_extra_state(self) -> dict[Any, Any] | None:
        """Returns the repertoire, as a part of the `state_dict`."""
        return None if self._repertoire is None else dict(self._repertoire)

    def set_extra_state(self, state: dict[Any, Any] | None) -> None:
        """Adds the values of a repertoire, as a part of `load_state_dict`."""
        if state is not None and self._repertoire is not None:
            self._repertoire.update(state)

    def _spec(self, spec: TensorSpec, batch: torch.Size | None = None) -> TensorSpec:
        return infer_spec(spec, lambda value: self._hash_rows(value, self._batch if batch is None else batch))

    _inv_spec = _spec  # the user gives hashes

    def _map_spec(self, function: Callable[[TensorSpec], TensorSpec], spec: TensorSpec) -> TensorSpec:
        if not is_ragged(spec):
            return function(spec)
        batch = self._batch[: spec.dim] + self._batch[spec.dim + 1 :]  # of the parts
        return stack_specs([self._spec(part, batch) for part in spec.specs], spec.dim)


class Tokenizer(RowTransform):
    """Turns texts of the environment into tokens, and tokens that the user gives into texts.

    The attention mask of the tokens, int64 of the same shape, is 1 for tokens of the text and 0 for padding. It is
    written beside them, as "attention_mask".

    Args:
        in_keys, out_keys: the keys of texts, and of their tokens, int64 `[*batch, tokens]`.
        in_keys_inv, out_keys_inv: the keys of texts that are inputs of the environment, and of the tokens that the user
            gives.
        tokenizer: a tokenizer of the transformers library, or the name or the folder of one for its `AutoTokenizer`;
            or an object with its methods `__call__`, `batch_decode`, `__len__` and, for `additional_tokens`,
            `add_tokens`.
        use_raw_nontensor: whether the tokenizer gets a `NonTensorData` or `NonTensorStack` instead of a list of texts.
        additional_tokens: tokens to add to the vocabulary.
        skip_special_tokens: whether texts of the environment have no special tokens.
        add_special_tokens: whether the tokenizer adds special tokens.
        padding: whether to pad the rows of a batch to one length: `max_length`, or that of the longest.
        max_length: the number of tokens. Longer texts are cut. By default it depends on the text, and specs have a
            dynamic size (-1).
        return_attention_mask: whether to write the attention mask.
        missing_tolerance: whether texts may be missing.
        call_before_reset: whether the texts in the input of a reset are turned into tokens, instead of those in its
            output.

    Raises:
        ValueError: `tokenizer` is None, or two attention masks would have one key.

    >>> from tensordict import TensorDict
    >>> class Letters:
    ...     def __call__(self, texts, **options):
    ...         return {"input_ids": torch.tensor([[ord(letter) for letter in text] for text in texts])}
    ...     def batch_decode(self, rows, **options):
    ...         return ["".join(map(chr, row)) for row in rows]
    >>> letters = Tokenizer(["text"], ["tokens"], tokenizer=Letters(), return_attention_mask=False)
    >>> letters(TensorDict({"text": "abc"}))["tokens"]
    tensor([97, 98, 99])
    """

    excluded_from_state = ("tokenizer",)

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        *,
        tokenizer: Any = None,
        use_raw_nontensor: bool = False,
        additional_tokens: list[str] | None = None,
        skip_special_tokens: bool = True,
        add_special_tokens: bool = False,
        padding: bool = True,
        max_length: int | None = None,
        return_attention_mask: bool = True,
        missing_tolerance: bool = True,
        call_before_reset: bool = False,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.tokenizer: Any = (
            _load_tokenizer(tokenizer) if tokenizer is None or isinstance(tokenizer, str) else tokenizer
        )
        if additional_tokens:
            self.tokenizer.add_tokens(additional_tokens)
        self.set_missing_tolerance(missing_tolerance)
        self.use_raw_nontensor = use_raw_nontensor
        self.skip_special_tokens = skip_special_tokens
        self.return_attention_mask = return_attention_mask
        self.max_length = max_length
        self.call_before_reset = call_before_reset
        self._options: dict[str, Any] = {"return_tensors": "pt", "add_special_tokens": add_special_tokens}
        self._options |= {"padding": padding, "return_attention_mask": return_attention_mask}
        if max_length is not None:
            self._options |= {"max_length": max_length, "truncation": True}
            self._options["padding"] = "max_length" if padding else False
        mask_keys = [self._mask_key(key) for key in self.out_keys]
        if return_attention_mask and len(set(mask_keys)) < len(mask_keys):
            raise ValueError(
                f"Expected out_keys in different groups, as each has its attention mask, got {self.out_keys}. Use a "
                f"Tokenizer for each, or return_attention_mask=False."
            )

    @staticmethod
    def _mask_key(key: Key) -> Key:
        return join_key(split_key(key)[0], "attention_mask")

    def _encode(self, value: Any, batch: torch.Size) -> tuple[Tensor, Tensor | None]:
        """Returns the tokens of texts and their attention mask, or None."""
        texts = value if self.use_raw_nontensor else _rows(value, batch)
        encoded = self.tokenizer(texts, **self._options)
        tokens = torch.as_tensor(encoded["input_ids"], device=value.device)
        tokens = tokens.reshape(*batch, tokens.shape[-1])
        if not self.return_attention_mask:
            return tokens, None
        return tokens, torch.as_tensor(encoded["attention_mask"], device=value.device).reshape(tokens.shape)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, new_key in self._key_pairs:
            value = next_tensordict.get(key, None)
            if value is not None:
                tokens, mask = self._encode(value, next_tensordict.batch_size)
                next_tensordict.set(new_key, tokens)
                if mask is not None:
                    next_tensordict.set(self._mask_key(new_key), mask)
            elif not self._allow_missing:
                raise self._missing(key, next_tensordict)
        return next_tensordict

    def _forward_rows(self, value: Any, batch: torch.Size) -> Tensor:
        return self._encode(value, batch)[0]

    def _inverse_rows(self, value: Tensor, batch: torch.Size) -> Any:
        rows = value.reshape(-1, value.shape[-1])
        return _join(list(self.tokenizer.batch_decode(rows, skip_special_tokens=self.skip_special_tokens)), batch)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        tensordict = super()._reset_env_preprocess(tensordict)
        if tensordict is None or not self.call_before_reset:
            return tensordict
        return self._tolerant(self._call, tensordict.copy())

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset if self.call_before_reset else super()._reset(tensordict, tensordict_reset)

    # -- specs

    def _forward_spec(self, specs: Composite) -> Composite:
        for key, new_key in self._key_pairs:
            if (spec := specs.get(key, None)) is not None:
                specs[new_key] = tokens = self._spec(spec)
                if self.return_attention_mask:
                    specs[self._mask_key(new_key)] = Bounded(
                        0, 1, tokens.shape, dtype=torch.int64, device=tokens.device
                    )
        return specs

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        length = -1 if self.max_length is None else self.max_length
        shape = (*spec.shape, length) if isinstance(spec, NonTensor) else spec.shape
        return Bounded(0, len(self.tokenizer) - 1, shape, dtype=torch.int64, device=spec.device)

    _inv_spec = _spec  # the user gives tokens


def _load_tokenizer(name: str | None) -> Any:
    if name is None:
        raise ValueError(
            "Expected a tokenizer, got None. Pass one of the transformers library, or the name or folder of one."
        )
    transformers = import_library(
        "transformers",
        f"Expected transformers to be installed to load the tokenizer {name!r}: pip install transformers",
    )
    return transformers.AutoTokenizer.from_pretrained(name)
